"""How jobs are submitted to a Slurm cluster."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Container(StrEnum):
    """What starts the container of a job."""

    NONE = "none"
    PYXIS = "pyxis"
    ENROOT = "enroot"


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """How jobs are submitted to a cluster."""

    folder: Path
    """The folder of orders, at the same path here and on the nodes."""
    gpus: str = "--gpus-per-node=N"
    """The option that asks for GPUs; `N` stands for their number."""
    options: tuple[str, ...] = ()
    """More options of `sbatch`."""
    command: tuple[str, ...] = ("verl-e2e",)
    """How `verl-e2e` is called on a node, in the container where there is one."""
    setup: str = ""
    """A bash script that is read before that, in the same step; empty for none."""
    container: Container = Container.NONE
    """What starts the container of a job."""
    mounts: tuple[str, ...] = ()
    """More mounts, `SOURCE:TARGET` or `SOURCE:TARGET:FLAGS`; the folder of orders is mounted always."""
    token_file: str = ""
    """The file on the nodes with the token for fetching repositories; empty for none."""
    warn_s: int = 300
    """Seconds before the time limit at which the run is asked to end."""
