"""How a run of any consumer is started: environment and folders, and what a launcher gives beside its command.

Everything that only one consumer has, as the script that starts it, lies in its own module of this package.
"""

import os
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from verl_e2e.core.consumer.consumer import PlannedPhase
from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.model.jobs import Checkpoint, Job
from verl_e2e.core.model.needs import CLUSTER_VARIABLE
from verl_e2e.core.model.record import Finding
from verl_e2e_runner.process.cage import (
    EXECUTED_VARIABLE,
    FINGERPRINTS_VARIABLE,
    IMPORTS_VARIABLE,
    KERNEL_CACHES,
    PATH_VARIABLE,
    SHARED_RAY_VARIABLE,
    Session,
    cached_snapshot,
    model_folder,
    synthetic_folder,
)
from verl_e2e_runner.process.processes import RUN_VARIABLE
from verl_e2e_runner.trees import Trees

# What `OWN_FILES` stands for.
PACKAGE_FOLDER = Path(__file__).resolve().parents[2]
INSTRUMENTATION = PACKAGE_FOLDER / "verl_e2e_runner/instrumentation"
REWARDS = PACKAGE_FOLDER / "verl_e2e_runner/rewards.py"

# Every shell sets these itself.
_OF_BASH = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})


Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of the consumer, complete."""

    phase: PlannedPhase
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    # The part of the environment that the job adds to what is inherited.
    set_here: Mapping[str, str]
    cwd: Path


@dataclass(frozen=True, slots=True)
class LaunchCheck:
    """What is found out about the starts of a job before any of them."""

    launches: tuple[Launch, ...]
    findings: tuple[Finding, ...]
    # The variables that the script reads; None when it could not be read, or reads none.
    reads: frozenset[str] | None = None
    # The resolved configuration of each phase in order; empty where it is not known.
    configs: tuple[Config, ...] = ()
    # The environment of the consumer's driver in the first phase; None where it is not known.
    driver_environment: Mapping[str, str] | None = None


class Launches(Protocol):
    """The complete starts of a job."""

    def __call__(
        self,
        job: Job,
        trees: Trees,
        session: Session,
        *,
        base: Mapping[str, str],
        model: str | None = None,
        reads: Collection[str] | None = None,
    ) -> tuple[Launch, ...]:
        """One start for each phase.

        `base` is what the environment may be inherited from, `model` the local snapshot of a hub model, `reads` what
        the script reads (None: unknown): what it does not read need not be set.
        """
        ...


class LaunchChecks(Protocol):
    """What is found out before a run."""

    def __call__(
        self, job: Job, trees: Trees, session: Session, *, base: Mapping[str, str], model: str | None, work: Path
    ) -> LaunchCheck:
        """The starts, and whether the consumer takes their settings as the job means them; no GPU is used.

        `work` is a folder of the run's own. Each part needs the one before, and a blocking finding ends them.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """What the runner has to know to start a consumer."""

    launches: Launches
    check: LaunchChecks
    # The variables that a script expands, by its text; empty for a consumer without any.
    reads: Callable[[str], frozenset[str]]
    # The command that makes the task data in a folder, and what it makes there by the job's key.
    data: Callable[[Job, Trees, Path], tuple[tuple[str, ...], Mapping[str, Path]]]
    # The variables of a job that no other program of it may see.
    variables: Callable[[Job, Trees, Mapping[str, str]], Mapping[str, str]]


def reward_model_place(chosen: Checkpoint, variables: Mapping[str, str]) -> str:
    """The reward model as the consumer is given it: where it lies, or where the runner will make it; else its id."""
    if chosen.synthetic is not None:
        return str(model_folder(chosen.synthetic, variables))
    return chosen.model_path or str(cached_snapshot(chosen.model_id, variables) or chosen.model_id)


def pictures_folder(variables: Mapping[str, str]) -> Path:
    """Where the runner makes the data of jobs whose model sees images."""
    return synthetic_folder(variables) / "images"


def data_texts(job: Job, variables: Mapping[str, str]) -> dict[str, str]:
    """The data files as the consumer is given them, by the job's key; pictures lie where the runner makes them."""
    if job.data.prepare == "images":
        folder = pictures_folder(variables)
        return {"train_files": str(folder / "train.parquet"), "val_files": str(folder / "test.parquet")}
    return {"train_files": job.data.train_files, "val_files": job.data.val_files}


def python_path(job: Job, trees: Trees) -> str:
    """PYTHONPATH of the run: the instrumentation, then the job's own value, else checkouts and site packages."""
    given = {**job.site.process, **job.process}.get("PYTHONPATH")
    of_consumer = (str(trees.verl / folder) for folder in consumer_of(job).import_folders)
    checkouts = (str(trees.bridge / "src"), str(trees.megatron_lm), *of_consumer, *job.site.python_path)
    entries = given.split(os.pathsep) if given is not None else checkouts
    return os.pathsep.join((str(INSTRUMENTATION), *(entry for entry in entries if entry)))


def marks(job: Job, trees: Trees, session: Session) -> dict[str, str]:
    """What the instrumentation finds in the environment of each process, Ray's workers too."""
    written = {EXECUTED_VARIABLE: session.executed, FINGERPRINTS_VARIABLE: session.fingerprints}
    return {
        RUN_VARIABLE: session.nonce,
        IMPORTS_VARIABLE: str(session.imports),
        PATH_VARIABLE: python_path(job, trees),
        **{name: str(path) for name, path in written.items() if path},
    }


def run_variables(job: Job, trees: Trees, session: Session) -> dict[str, str]:
    """What every start of a job adds to the inherited environment, whichever consumer it is for."""
    # Ray folds lines that differ only in numbers: what each rank says of its own part would be lost.
    process = {"RAY_DEDUP_LOGS": "0", **job.site.process, **job.process, **marks(job, trees, session)}
    process |= {"PYTHONPATH": python_path(job, trees), "RAY_TMPDIR": str(session.ray_folder)}
    if address := session.ray_address or job.site.ray_address:
        process["RAY_ADDRESS"] = address
    if job.site.ray_address is not None:
        process[SHARED_RAY_VARIABLE] = "1"
    if session.gpus is not None:
        # Without the order of the bus, CUDA counts the fastest GPU first and NVML does not.
        process |= {"CUDA_VISIBLE_DEVICES": ",".join(map(str, session.gpus)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if session.caches is not None:
        process |= {name: str(session.caches / folder) for name, folder in KERNEL_CACHES.items()}
    if {"bridge", "megatron_lm", "verl"} - trees.private:
        # Byte code next to the sources would change a checkout that is used in place.
        process["PYTHONDONTWRITEBYTECODE"] = "1"
    return process


def launch_of(
    job: Job,
    trees: Trees,
    phase: PlannedPhase,
    argv: tuple[str, ...],
    *,
    kept: Mapping[str, str],
    variables: Mapping[str, str],
    base: Mapping[str, str],
) -> Launch:
    """One start: `kept` is what is inherited of `base`, `variables` what the job adds; the cage adds its own."""
    ours = dict(variables)
    if trees.cage:
        ours |= trees.cage.variables({**base, **ours})
    # Scripts call plain `python3`.
    path = {**kept, **ours}.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    ours["PATH"] = f"{Path(job.site.python).parent}{os.pathsep}{path}" if os.sep in job.site.python else path
    return Launch(phase, argv, {**kept, **ours}, ours, trees.cwd)


def cluster_of(job: Job, environ: Mapping[str, str]) -> str:
    """The Ray cluster of the job's nodes, by the runner's environment; empty for a job that has one node."""
    return environ.get(CLUSTER_VARIABLE, "") if job.node_count > 1 else ""


def dry_run_text(starts: tuple[Launch, ...], base: Mapping[str, str]) -> str:
    """The starts of the consumer as shell commands: every variable, the folder, every argument.

    `base` is the environment of the shell that runs them. The folders must be there: `by_hand` makes them.
    """
    lines = []
    for start in starts:
        lines += [f"# phase {start.phase.name}: until step {start.phase.last_step}", "("]
        lines += [f"mkdir -p {shlex.quote(start.set_here['RAY_TMPDIR'])}"]
        lines += environment_lines(start.environment, base, start.set_here)
        lines += [f"cd {shlex.quote(str(start.cwd))} &&", " \\\n  ".join(map(shlex.quote, start.argv)), ")\n"]
    return "\n".join(lines)


def environment_lines(whole: Mapping[str, str], base: Mapping[str, str], always: Collection[str] = ()) -> list[str]:
    """What a shell whose environment is `base` must unset and export for the environment `whole`.

    Names in `always` are exported although `base` has the same value.
    """
    gone = sorted(name for name in base if name not in whole and name.isidentifier() and name not in _OF_BASH)
    exported = sorted(name for name, value in whole.items() if name in always or base.get(name) != value)
    lines = [f"unset {' '.join(gone)}"] if gone else []
    return lines + [f"export {name}={shlex.quote(whole[name])}" for name in exported]


def mismatch(config: Config, key: str, expected: bool | int | float | str | None) -> str:
    """How a composed configuration differs from an expected value, a sentence; empty when it does not."""
    missing = object()
    value: Any = config
    for part in key.split("."):
        value = value.get(part, missing) if isinstance(value, Mapping) else missing
    either_is_bool = isinstance(value, bool) or isinstance(expected, bool)
    if value is not missing and (value is expected if either_is_bool else value == expected):
        return ""
    shown = "is missing" if value is missing else f"is {value!r}"
    return f"{key} {shown} in the composed configuration, the job expects {expected!r}"
