"""verl's wrapper: the exact command, environment and working directory of each phase of a job."""

import os
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_e2e.core.judge.case import PlannedPhase, planned_phases
from verl_e2e.core.model.jobs import Job, common_overrides
from verl_e2e.core.model.levels import OWN_FILES
from verl_e2e.core.model.needs import CLUSTER_VARIABLE
from verl_e2e_runner.process.environment import (
    EXECUTED_VARIABLE,
    FINGERPRINTS_VARIABLE,
    IMPORTS_VARIABLE,
    KERNEL_CACHES,
    PATH_VARIABLE,
    SHARED_RAY_VARIABLE,
    Session,
    inherited,
    synthetic_folder,
)
from verl_e2e_runner.process.processes import RUN_VARIABLE
from verl_e2e_runner.trees import Trees

# What `OWN_FILES` stands for.
PACKAGE_FOLDER = Path(__file__).resolve().parent.parent
INSTRUMENTATION = PACKAGE_FOLDER / "verl_e2e_runner/instrumentation"
REWARDS = PACKAGE_FOLDER / "verl_e2e_runner/rewards.py"

# A run is not weaker without these: when the wrapper does not read them, they are dropped with a note.
DROPPABLE = frozenset({"VERL_USE_UV", "DUMMY_MODEL_PATH"})

# Every shell sets these itself.
_OF_BASH = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})

# Ray folds lines that differ only in numbers: what each rank says of its own part would be lost.
_ALL_LINES = {"RAY_DEDUP_LOGS": "0"}

_RUNTIME = "++ray_kwargs.ray_init.runtime_env.env_vars."


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of the wrapper, complete."""

    phase: PlannedPhase
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    # The part of the environment that the job adds to what is inherited.
    set_here: Mapping[str, str]
    cwd: Path


def wrapper_map(job: Job, trees: Trees, *, base: Mapping[str, str], model: str | None = None) -> dict[str, str]:
    """Every wrapper variable of the job, but for what a phase adds; the job's own entries win over derived ones.

    `base` is the runner's environment, `model` the local snapshot of a hub model, once it is known.
    """
    checkpoint = job.checkpoint
    files = data_texts(job, {**base, **job.site.process, **job.process})
    derived = {
        "NUM_GPUS": str(job.gpus_of_node),
        "MODEL_ID": checkpoint.model_id,
        "MODEL_PATH": checkpoint.model_path or model or checkpoint.model_id,
        "TRAIN_FILES": files["train_files"],
        "VAL_FILES": files["val_files"],
        "TOTAL_TRAIN_STEPS": str(job.steps),
    }
    if checkpoint.dummy_config is not None:
        derived["USE_DUMMY_MODEL"] = "True"
        derived["DUMMY_MODEL_CONFIG_PATH"] = checkpoint.dummy_config
        derived["DUMMY_MODEL_PATH"] = str(
            (trees.cage.scratch / "home" if trees.cage else trees.cwd.parent) / "dummy-model"
        )
    return {**derived, **job.site.wrapper, **job.wrapper}


def pictures_folder(variables: Mapping[str, str]) -> Path:
    """Where the runner makes the data of jobs whose model sees images."""
    return synthetic_folder(variables) / "images"


def data_texts(job: Job, variables: Mapping[str, str]) -> dict[str, str]:
    """The data files as verl is given them, by the job's key; pictures lie where the runner makes them."""
    if job.data.prepare == "images":
        folder = pictures_folder(variables)
        return {"train_files": str(folder / "train.parquet"), "val_files": str(folder / "test.parquet")}
    return {"train_files": job.data.train_files, "val_files": job.data.val_files}


def python_path(job: Job, trees: Trees) -> str:
    """PYTHONPATH of the run: the instrumentation, then the job's own value, else checkouts and site packages."""
    given = {**job.site.process, **job.process}.get("PYTHONPATH")
    checkouts = (str(trees.bridge / "src"), str(trees.megatron_lm), str(trees.verl), *job.site.python_path)
    entries = given.split(os.pathsep) if given is not None else checkouts
    return os.pathsep.join((str(INSTRUMENTATION), *(entry for entry in entries if entry)))


def overrides(job: Job, trees: Trees, session: Session) -> tuple[str, ...]:
    """The Hydra overrides after the script's name: the site's, the job's, and what the runner needs."""
    given = [item for item in job.site.overrides if item not in job.overrides] + list(job.overrides)
    keys = {_key(item) for item in given}
    common = common_overrides(
        job.site, reward_model=job.reward_model, gpus_of_node=job.gpus_of_node, nodes=job.node_count
    )
    given += [item for item in common if _key(item) not in keys]
    forwarded = {"PYTHONPATH": python_path(job, trees), **_marks(job, trees, session)}
    given += [f"{_RUNTIME}{name}={quoted(value)}" for name, value in forwarded.items()]
    return tuple(item.replace(f"={OWN_FILES}/", f"={PACKAGE_FOLDER}/") for item in given)


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def command(job: Job, trees: Trees, session: Session) -> tuple[str, ...]:
    """The argument list of the wrapper, the same for every phase."""
    return ("bash", str(trees.verl / job.script), *overrides(job, trees, session))


def launches(
    job: Job,
    trees: Trees,
    session: Session,
    *,
    base: Mapping[str, str],
    model: str | None = None,
    reads: Collection[str] | None = None,
) -> tuple[Launch, ...]:
    """The complete starts of the wrapper, one for each phase.

    `base` is what the environment may be inherited from, `model` the local snapshot of a hub model, `reads` what the
    wrapper reads (None: unknown): of the droppable variables only those that it reads are set.
    """
    kept = inherited(base, wrapper_reads=reads or ())
    made = []
    for phase in planned_phases(job):
        wrapper = {**wrapper_map(job, trees, base=base, model=model), **phase.wrapper}
        if reads is not None:
            wrapper = {name: value for name, value in wrapper.items() if name in reads or name not in DROPPABLE}
        ours = {**_process_variables(job, trees, session), **wrapper}
        if trees.cage:
            ours |= trees.cage.variables({**base, **ours})
        ours["PATH"] = search_path(job, {**kept, **ours})
        made.append(Launch(phase, command(job, trees, session), {**kept, **ours}, ours, trees.cwd))
    return tuple(made)


def cluster_of(job: Job, environ: Mapping[str, str]) -> str:
    """The Ray cluster of the job's nodes, by the runner's environment; empty for a job that has one node."""
    return environ.get(CLUSTER_VARIABLE, "") if job.node_count > 1 else ""


def _process_variables(job: Job, trees: Trees, session: Session) -> dict[str, str]:
    """What the job sets for every process of the run, apart from the wrapper's own variables."""
    process = {**_ALL_LINES, **job.site.process, **job.process}
    process.update(_marks(job, trees, session), PYTHONPATH=python_path(job, trees))
    process["RAY_TMPDIR"] = str(session.ray_folder)
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


def search_path(job: Job, variables: Mapping[str, str]) -> str:
    """PATH with the folder of the job's Python first, because the wrapper calls plain `python3`."""
    path = variables.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    return f"{Path(job.site.python).parent}{os.pathsep}{path}" if os.sep in job.site.python else path


def quoted(value: str) -> str:
    """A Hydra string that survives whatever the value holds (white space apart: the wrapper splits at it)."""
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value)
    return f"'{escaped}'"


def dry_run_text(starts: tuple[Launch, ...], base: Mapping[str, str]) -> str:
    """The starts of the wrapper as shell commands: every variable, the folder, every argument.

    `base` is the environment of the shell that runs them. The folders must be there: `by_hand` makes them.
    """
    return "\n".join(_script(start, base) for start in starts)


def _script(start: Launch, base: Mapping[str, str]) -> str:
    lines = [f"# phase {start.phase.name}: until step {start.phase.last_step}", "("]
    lines += [f"mkdir -p {shlex.quote(start.set_here['RAY_TMPDIR'])}"]
    lines += environment_lines(start.environment, base, start.set_here)
    lines += [f"cd {shlex.quote(str(start.cwd))} &&", " \\\n  ".join(map(shlex.quote, start.argv)), ")"]
    return "\n".join(lines) + "\n"


def environment_lines(whole: Mapping[str, str], base: Mapping[str, str], always: Collection[str] = ()) -> list[str]:
    """What a shell whose environment is `base` must unset and export for the environment `whole`.

    Names in `always` are exported although `base` has the same value.
    """
    gone = sorted(name for name in base if name not in whole and name.isidentifier() and name not in _OF_BASH)
    exported = sorted(name for name, value in whole.items() if name in always or base.get(name) != value)
    return [
        *([f"unset {' '.join(gone)}"] if gone else []),
        *(f"export {name}={shlex.quote(whole[name])}" for name in exported),
    ]


def _marks(job: Job, trees: Trees, session: Session) -> dict[str, str]:
    written = {EXECUTED_VARIABLE: session.executed, FINGERPRINTS_VARIABLE: session.fingerprints}
    recorded = {name: str(path) for name, path in written.items() if path}
    return {
        RUN_VARIABLE: session.nonce,
        IMPORTS_VARIABLE: str(session.imports),
        PATH_VARIABLE: python_path(job, trees),
        **recorded,
    }
