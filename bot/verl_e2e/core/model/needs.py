"""What a job takes of a host, so that a back end gives it no less and several jobs fit side by side."""

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from verl_e2e.core.model.document import DescribedDocument

# The GPUs of one host, where nothing says what a node of a site holds.
MOST_GPUS = 8

# In the runner's environment: the address, HOST:PORT, of the Ray cluster that the job's nodes form.
CLUSTER_VARIABLE = "VERL_E2E_RAY_CLUSTER"


def node_count(gpu_count: int, gpus_per_node: int | None) -> int:
    """The fewest nodes that hold the GPUs with as many on each; 1 where nothing says what a node holds."""
    if gpus_per_node is None:
        return 1
    fewest = -(-gpu_count // gpus_per_node)
    return next(count for count in range(fewest, gpu_count + 1) if gpu_count % count == 0)


# One run on one GPU kept 1 to 3 cores busy (bench/results/measurements.md); a job asks for this many for each GPU.
CORES_PER_GPU = 4
# Host memory of the processes of a run for each GPU, without its /tmp and /dev/shm: an estimate on the high side.
PROCESS_MEMORY_GIB = 32.0
# What verl reserves in Ray with each GPU, as `max_colocate_count` of `ResourcePoolManager` in its
# verl/single_controller/ray/base.py says: a place each for actor, rollout and reward model.
RAY_CPUS_PER_GPU = 3
# The storage units of TransferQueue, as `num_data_storage_units` of verl/trainer/config/transfer_queue says. Each of
# them and the controller is an actor with `num_cpus=1`.
DATA_WORKERS = 8


def ray_cpus(gpu_count: int, *, nodes: int = 1, data_workers: int = DATA_WORKERS) -> int:
    """The logical CPUs that Ray must have on each node of a job with so many GPUs on each; with fewer it hangs.

    All of it is held until the run ends: the CPUs of the GPUs, the node's part of the data workers (they are spread
    evenly) and their controller, which may be on any node. One is left for a task, which takes one while it runs.
    Actors that name no number (agent loops, reward loops, servers, verl's own TaskRunner) take none.
    """
    return RAY_CPUS_PER_GPU * gpu_count + math.ceil(data_workers / nodes) + 2


def unable(system: str) -> str:
    """Why a machine with this system (`sys.platform`) can run no job, empty where it can."""
    if system == "linux":
        return ""
    needed = "namespaces of bubblewrap, file descriptors of processes and /proc"
    return f"jobs run on Linux alone, for they need {needed}, and this system is {system}"


class SiteNeeds(DescribedDocument):
    """What jobs take of a site's hosts, where the usual values do not fit."""

    gpu_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The part of each of its GPUs that a job gets: at 0.25 up to four jobs share a GPU."""
    memory_gib: Annotated[float, Field(gt=0)] | None = None
    """GiB of host memory of a job; null: by the number of its GPUs."""
    cores: Annotated[int, Field(ge=1)] | None = None
    """Processor cores of a job; null: by the number of its GPUs."""


class Needs(DescribedDocument):
    """What one job takes of a host, of each where it has several."""

    gpu_count: Annotated[int, Field(ge=1)]
    """How many GPUs."""
    gpu_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The part of each of them, 1 for whole GPUs."""
    gpu_memory_gib: Annotated[float, Field(gt=0)]
    """GiB of memory of each GPU that are the job's own."""
    memory_gib: Annotated[float, Field(gt=0)]
    """GiB of host memory, with what its /tmp and /dev/shm may hold."""
    cores: Annotated[int, Field(ge=1)]
    """Processor cores."""

    @property
    def gpus(self) -> float:
        """GPUs times share: what the job takes of the GPUs of a host."""
        return self.gpu_count * self.gpu_share


def estimated_needs(gpu_count: int, site: SiteNeeds, *, gpu_memory_gib: float, files_gib: float) -> Needs:
    """What a job on so many GPUs takes, by the site's values and the usual ones.

    `gpu_memory_gib` is the memory of one GPU, `files_gib` what the job's /tmp and /dev/shm may hold.
    """
    return Needs(
        gpu_count=gpu_count,
        gpu_share=site.gpu_share,
        gpu_memory_gib=gpu_memory_gib * site.gpu_share,
        memory_gib=site.memory_gib or PROCESS_MEMORY_GIB * gpu_count + files_gib,
        cores=site.cores or CORES_PER_GPU * gpu_count,
    )


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many runs a host takes at the same time."""

    # Equal parts of the host; a run takes one or more.
    slots: int = 1
    # The GPUs of the host; 0: as many as slots.
    gpu_count: int = 0

    def slots_of(self, needs: Needs | None) -> int:
        """How many slots a job takes, by its part of the GPUs; all of them where that is not known."""
        if needs is None:
            return self.slots
        part = needs.gpus / (self.gpu_count or self.slots)
        return min(self.slots, max(1, math.ceil(part * self.slots - 1e-9)))


ONE_RUN = Capacity()
