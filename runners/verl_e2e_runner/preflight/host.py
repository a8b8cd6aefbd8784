"""Preflight of the host: GPUs, the variables that hide them, free disk, the container with its image, the Python.

The container is known from files of the kernel and of the engine, else from variables. Anyone who starts the runner can
set a variable, so no variable counts for the image. The output of `docker inspect`, in a file that
`VERL_E2E_CONTAINER_INSPECT` names, counts when it describes this container. Of the job's Python its packages, their
versions and the places of the modules under test are read. All of that comes before any code under test is imported.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_e2e.core.log.printed import lookup
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.needs import DATA_WORKERS, ray_cpus
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import Check, Finding, RunContainer
from verl_e2e_runner.launch.launcher import Config
from verl_e2e_runner.process.cage import IMPORTS_VARIABLE
from verl_e2e_runner.process.processes import run_program, with_own_scratch
from verl_e2e_runner.reporting import blocked, good, note
from verl_e2e_runner.samplers import Device, Devices, visible
from verl_e2e_runner.trees import Trees

# Distributions whose versions belong on the record of a run.
DISTRIBUTIONS = (
    *("torch", "triton", "ray", "vllm", "sglang", "transformers", "tokenizers", "huggingface-hub", "datasets"),
    *("transformer-engine", "transformer-engine-torch", "transformer-engine-cu12", "transformer-engine-cu13"),
    *("nvidia-modelopt", "tensordict", "transferqueue", "mbridge", "megatron-bridge", "megatron-core", "verl"),
    *("hydra-core", "omegaconf", "flash-attn", "flashinfer-python", "xgrammar", "peft", "accelerate", "apex"),
    *("numpy", "pyarrow", "pandas", "safetensors", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cublas", "pytest"),
)
_TREE_OF = {"megatron.bridge": "bridge", "megatron.core": "megatron_lm", "verl": "verl", "skyrl": "verl"}
ID_VARIABLE = "VERL_E2E_CONTAINER_ID"
INSPECT_VARIABLE = "VERL_E2E_CONTAINER_INSPECT"
_MOST_BYTES = 1 << 20
# By the file of /proc/self the engine, if the match does not name it, and how the file names the container.
_SIGNS = (
    ("cgroup", "kubernetes", re.compile(r"kubepods[^\n]*?[/:-](?P<id>[0-9a-f]{64})\b")),
    # `/docker/ID`, `/system.slice/docker-ID.scope`, `.../cri-containerd-ID.scope`.
    (
        "cgroup",
        "",
        re.compile(r"(?P<engine>docker|libpod|podman|crio|cri-containerd|containerd)[-/:](?P<id>[0-9a-f]{64})\b"),
    ),
    # A mount that an engine makes in each container, from its own folder on the host.
    ("mountinfo", "docker", re.compile(r"/docker/containers/(?P<id>[0-9a-f]{64})/(?:hostname|hosts|resolv\.conf)")),
    ("mountinfo", "podman", re.compile(r"/overlay-containers/(?P<id>[0-9a-f]{64})/userdata/")),
    ("mountinfo", "enroot", re.compile(r"/enroot[^\s]*/(?P<id>pyxis_[\w.-]+|[\w.+-]+) / ")),
)
_ENGINES = {"libpod": "podman", "crio": "kubernetes", "cri-containerd": "kubernetes", "containerd": "containerd"}
# Variables by which a scheduler names the container.
_VARIABLES = {"SLURM_CONTAINER_ID": "slurm", "ENROOT_CONTAINER_NAME": "enroot", "POD_UID": "kubernetes"}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def read_container(environ: Mapping[str, str], root: Path = Path("/")) -> RunContainer:
    """What is known of the container; `environ` are the runner's own variables, `root` where its files are."""
    # The keys of Podman's file.
    rows = (line.partition("=") for line in _text(root / "run/.containerenv").splitlines())
    keys = {key.strip(): value.strip().strip('"') for key, equals, value in rows if equals}
    found: RunContainer | None = None
    for name, engine, pattern in _SIGNS:
        # By its control group, or by the mounts that an engine makes.
        if not found and (match := pattern.search(_text(root / "proc/self" / name))):
            known = engine or _ENGINES.get(match["engine"], match["engine"])
            found = RunContainer(engine=known, id=match["id"], id_from=f"/proc/self/{name}")
    if not found and keys:
        id_from = "/run/.containerenv" if "id" in keys else ""
        found = RunContainer(engine="podman", id=keys.get("id", ""), id_from=id_from)
    if not found and (root / ".dockerenv").exists():
        found = RunContainer(engine="docker")
    # Else by what started the runner: GitHub's runner, Slurm, Kubernetes. None of them names the image.
    given = environ.get(ID_VARIABLE, "")
    if not found and re.fullmatch("[0-9a-f]{12,64}", given):
        found = RunContainer(engine="docker", id=given, id_from=ID_VARIABLE)
    for name, engine in _VARIABLES.items():
        if not found and environ.get(name):
            found = RunContainer(engine=engine, id=environ[name], id_from=name)
    if not found:
        found = RunContainer(engine="kubernetes") if environ.get("KUBERNETES_SERVICE_HOST") else RunContainer()
    if keys.get("image"):
        # Podman names the image by its name and by the digest of its configuration, which no reference pins.
        found = found.model_copy(update={"image": keys["image"], "image_from": "/run/.containerenv"})
    # The image that the engine named when it was asked about this container, and not about another.
    value: Any = []
    with suppress(ValueError, RecursionError):
        value = json.loads(_text(Path(environ[INSPECT_VARIABLE])) if environ.get(INSPECT_VARIABLE) else "[]")
    documents = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)]
    own = next(
        (document for document in documents if found.id and str(document.get("Id", "")).startswith(found.id)), None
    )
    if own is None:
        return found
    config = own.get("Config")
    name = str(config.get("Image", "")) if isinstance(config, dict) else ""
    # The output of `docker image inspect`, in the same file, lists the digests of an image that was pulled by its tag.
    listed = [document.get("RepoDigests") for document in documents if document.get("Id") == own.get("Image")]
    references = [name, *(str(item) for row in listed if isinstance(row, list) for item in row)]
    digests = [match[0] for reference in references if (match := _DIGEST.fullmatch(reference.partition("@")[2]))]
    update = {"image": name, "digests": tuple(dict.fromkeys(digests)), "image_from": "docker inspect"}
    return found.model_copy(update=update if name or digests else {})


def _text(path: Path) -> str:
    """The beginning of a file, empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


_GIB = 1 << 30
# The driver and a display take something of a GPU that no one uses.
_ENOUGH = 0.9


def check_gpus(job: Job, devices: Devices, variables: Mapping[str, str], cluster: str = "") -> tuple[Finding, ...]:
    """Check that there are enough GPUs, that no variable hides them from verl, and that others leave their memory.

    `cluster` is the address of the Ray cluster that a job of several nodes needs.
    """
    if job.node_count > 1 and not cluster:
        summary = f"the job needs {job.node_count} nodes with {job.gpus_of_node} GPUs each, and no Ray cluster of them"
        fix = "run it with the back end slurm, or name a larger `gpus_per_node` in the site profile"
        return (blocked(Check.GPUS, f"{summary} was given", fix),)
    shown = variables.get("CUDA_VISIBLE_DEVICES")
    own = visible(devices.devices, shown)
    hidden = f" (CUDA_VISIBLE_DEVICES={shown!r}, {len(devices.devices)} on the host)" if shown is not None else ""
    if not devices.devices:
        why = devices.problem or "the driver reports none"
        fix = "run on a host with an NVIDIA driver and GPUs, and start the container with them (--gpus all)"
        enough = blocked(Check.GPUS, f"no GPU: {why}; the job needs {job.gpus_of_node}", fix)
    elif len(own) < job.gpus_of_node:
        listed = "" if shown is None else "list more GPUs in CUDA_VISIBLE_DEVICES, "
        fix = f"{listed}use a host with more GPUs, or set `most_gpus` in the policy, so that a smaller job is planned"
        enough = blocked(Check.GPUS, f"{len(own)} GPUs visible{hidden}, the job needs {job.gpus_of_node}", fix)
    else:
        names = ", ".join(f"{device.gpu.name} {device.gpu.memory_total_mib} MiB" for device in own)
        enough = good(Check.GPUS, f"{len(own)} GPUs visible{hidden}, {job.gpus_of_node} needed: {names}")
    rocr = variables.get("ROCR_VISIBLE_DEVICES")
    others = [name for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if name in variables]
    named = good(Check.GPU_VARIABLES, f"CUDA_VISIBLE_DEVICES={'(unset)' if shown is None else shown}")
    if rocr and others:
        both = f"ROCR_VISIBLE_DEVICES={rocr} is set next to {others[0]}={variables[others[0]]}"
        named = blocked(Check.GPU_VARIABLES, f"{both}: verl's workers refuse that", "unset ROCR_VISIBLE_DEVICES")
    return (enough, named, _neighbours(job, own))


def check_ray_cpus(job: Job, config: Config | None, processors: int) -> Finding:
    """Whether Ray gets the CPUs that the job holds; with fewer it waits for ever in the stage data.

    They are logical: Ray starts what is asked for, on any number of processors. So few processors slow a run down, and
    only less than one for each GPU is worth a note.
    """
    units = lookup(config, "transfer_queue.backend.SimpleStorage.num_data_storage_units") or DATA_WORKERS
    needed = ray_cpus(job.gpus_of_node, nodes=job.node_count, data_workers=units)
    why = f"{needed} for {job.gpus_of_node} GPUs and {units} data workers on {job.node_count} node(s)"
    if job.site.ray_address is not None:
        return good(Check.RAY_CPUS, f"the cluster at {job.site.ray_address} must have {why}")
    own = job.site.ray_cpus_of(job.gpus_of_node, job.node_count)
    key = "ray_kwargs.ray_init.num_cpus"
    given = own if job.node_count > 1 else lookup(config, key, job.expected.get(key, own)) or processors
    if given < needed:
        summary = f"Ray gets {given} logical CPUs, and the job holds {why}: it would wait for ever"
        fix = f"remove `ray_cpus` from the site profile {job.site.name} and {key} from the overrides, or give {needed}"
        return blocked(Check.RAY_CPUS, summary, fix, stage=Stage.RAY)
    if processors < job.gpus_of_node:
        summary = f"the host lets the run use {processors} processors for {job.gpus_of_node} GPUs"
        return note(Check.RAY_CPUS, f"{summary}: it will be slow", "give the run one processor for each GPU or more")
    return good(Check.RAY_CPUS, f"Ray gets {given} logical CPUs, {why} needed; {processors} processors")


def usable_processors(root: Path = Path("/")) -> int:
    """How many processors this process may use: what it may be scheduled on, and the quota of its container."""
    # Systems other than Linux do not say which ones.
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = map(int, (root / "sys/fs/cgroup/cpu.max").read_text().split())
        count = min(count, max(1, quota // period))
    return count


def check_disk(folders: Mapping[str, Path], min_free_gib: float) -> tuple[Finding, ...]:
    """Free space on the disk of each folder (`folders`: purpose to path), one finding for each disk."""
    by_disk: dict[int, list[str]] = {}
    free: dict[int, float] = {}
    for purpose, folder in folders.items():
        disk = existing(folder).stat().st_dev
        by_disk.setdefault(disk, []).append(f"{purpose} {folder}")
        free.setdefault(disk, free_gib(folder))
    findings = []
    fix = "free space, or point HF_HOME, `scratch` of the site profile and the output folder to a larger disk"
    for disk, uses in by_disk.items():
        summary, purposes = f"{free[disk]:.1f} GiB free, {min_free_gib:g} needed", "; ".join(uses)
        if free[disk] >= min_free_gib:
            findings.append(good(Check.DISK, f"{summary}, for {purposes}"))
        else:
            findings.append(blocked(Check.DISK, f"{summary} (site.min_free_gib), for {purposes}", fix))
    return tuple(findings)


def check_image(job: Job, container: RunContainer) -> Finding:
    """Blocks when the container has another image than the pinned one; a note when its image is unknown.

    The image that the job or a variable names was requested; it is not evidence of what runs.
    """
    _, _, pin = job.site.image.partition("@")
    known = container.image or ", ".join(container.digests)
    if pin and container.digests and pin not in container.digests:
        summary = f"the container has the image {_named(container)}, and the job needs {job.site.image}"
        return blocked(Check.IMAGE, f"{summary} (by {container.image_from})", f"start the job in {job.site.image}")
    if not known:
        asked = f"; {job.site.image} was requested" if job.site.image else ""
        fix = f"run `docker inspect` for the container on the host, and set {INSPECT_VARIABLE} to a file of its output"
        return note(
            Check.IMAGE, f"the container's image is not recorded, because nothing in it names the image{asked}", fix
        )
    if pin and not container.digests:
        summary = f"the container has the image {known} (by {container.image_from}), and its digest is unknown"
        return note(Check.IMAGE, f"{summary}; {job.site.image} was requested")
    if container.image and "vllm" not in container.image.lower() and not pin:
        fix = "use verl's vLLM image for the Megatron wrapper"
        return note(Check.IMAGE, f"image {container.image} does not look like a vLLM image", fix)
    return good(Check.IMAGE, f"image {_named(container)} (by {container.image_from})")


def _named(container: RunContainer) -> str:
    """The image by the name that its engine gives, with its first digest."""
    digest = container.digests[0] if container.digests else ""
    return container.image if digest in container.image else f"{container.image}@{digest}".lstrip("@")


def existing(path: Path) -> Path:
    """The path itself or its nearest parent that exists."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def free_gib(path: Path) -> float:
    """Free space, in GiB, on the disk where the path lies or will lie."""
    return shutil.disk_usage(existing(path)).free / _GIB


def _neighbours(job: Job, own: tuple[Device, ...]) -> Finding:
    """Whether others leave the job its part of each of its own GPUs; other GPUs do not matter."""
    share = job.required_of_host.gpu_share
    for device in own:
        total = device.gpu.memory_total_mib
        if total and (total - device.gpu.memory_used_mib) / total < share * _ENOUGH:
            break
    else:
        return good(Check.NEIGHBOURS, "no one else uses the memory of the run's GPUs")
    who = ", ".join(f"process {pid}" for pid in device.processes or ()) or "processes that this host does not show"
    summary = (
        f"GPU {device.gpu.index} has {device.gpu.memory_used_mib} of {device.gpu.memory_total_mib} MiB in use by a "
        f"neighbour ({who}), and the job needs {share:.0%} of it"
    )
    return blocked(Check.NEIGHBOURS, summary, "end what uses the GPU, or let the job have another one")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The job's Python."""

    version: str = ""
    # Versions by distribution.
    versions: Mapping[str, str] = field(default_factory=dict)
    # Distributions that the image did not bring.
    hand_installed: tuple[str, ...] = ()


def ask_interpreter(job: Job, trees: Trees, environment: Mapping[str, str]) -> tuple[Interpreter, tuple[Finding, ...]]:
    """Ask the job's Python under the run's environment; the findings cover packages and import locations."""
    modules = tuple(name for name in trees.import_roots if trees.has(_TREE_OF[name]))
    question = {
        "locate": modules,
        "packages": job.site.required_packages,
        "versions": DISTRIBUTIONS,
        "hand": job.site.python_path,
    }
    quiet = {name: value for name, value in environment.items() if name != IMPORTS_VARIABLE}
    argv = (job.site.python, "-m", "verl_e2e_imports", "ask")
    cage = with_own_scratch(trees.cage, "packages")
    finished = run_program(argv, env=quiet, cwd=trees.cwd, timeout_s=60, stdin=json.dumps(question), cage=cage)
    if finished.code != 0:
        summary = f"site.python = {job.site.python} cannot be used ({finished.ending}): {finished.last_error}"
        fix = "set `python` of the site profile to the Python of the run"
        return Interpreter(), (blocked(Check.PACKAGES, summary, fix),)
    answer = json.loads(finished.stdout.strip().splitlines()[-1])
    interpreter = Interpreter(answer["python"], answer["versions"], tuple(answer["hand_installed"]))
    findings = [
        blocked(
            Check.PACKAGES,
            f"required package {name} cannot be found by {job.site.python} on the run's PYTHONPATH",
            f"install it for that Python or add its folder to `python_path` of site profile {job.site.name}",
        )
        for name in answer["missing"]
    ]
    if not findings:
        names = ", ".join(job.site.required_packages) or "none required"
        findings.append(good(Check.PACKAGES, f"required packages are importable: {names}"))
    for name in modules:
        # What would be imported from another place is known before any import runs.
        file, root = answer["located"][name], trees.import_roots[name]
        if file is None or not Path(file).is_relative_to(root):
            findings.append(wrong_place(Check.IMPORT_DRIVER, name, file, root, "the driver"))
    return interpreter, tuple(findings)


def wrong_place(check: Check, module: str, file: str | None, root: str, where: str) -> Finding:
    """The finding for a module that is not imported from the tree under test; the run would not be evidence."""
    found = f"comes from {file}" if file else "is not on the path"
    return blocked(
        check,
        f"{module} {found} in {where}, expected below {root}",
        "remove the other copy from PYTHONPATH, the working directory and site-packages, and start the job's PYTHONPATH"
        f" with {root}",
        stage=Stage.IMPORT,
    )
