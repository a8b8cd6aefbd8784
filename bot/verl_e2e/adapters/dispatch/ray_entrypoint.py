"""What Ray is asked to run: the command of a run, its resources and its variables, made from values alone."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_e2e.adapters.dispatch.order_folder import KEY_VARIABLE, ORDER_VARIABLE, RECORDER_KEY, RUNNER_LOG, OrderFolder
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.needs import Needs
from verl_e2e.core.model.rehearsal_job import REHEARSAL_CORES, REHEARSAL_MEMORY_GIB
from verl_e2e.core.pulls.job_order import TOKEN_VARIABLE
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.ports import BackendError

# A file in an order that is made once, by the job or by the service. Its first word says whether the run begins.
CLAIM = "claim"
BEGUN, CANCELLED, OVERDUE = "begun", "cancelled", "overdue"
# In the metadata of a job.
KEY_OF_RUN = "verl-e2e-run"


@dataclass(frozen=True, slots=True)
class RaySettings:
    """How jobs are submitted to a cluster."""

    folder: Path
    """The folder of orders, at the same path here and on the nodes."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """What else of Ray's resources a job takes, by name."""
    command: tuple[str, ...] = ("verl-e2e",)
    """How `verl-e2e` is called on a node."""
    setup: str = ""
    """A bash script that is read before that; empty for none."""
    token_file: str = ""
    """The file on the nodes with the token for fetching repositories; empty for none."""
    grace_s: int = 300
    """Seconds that a run has to end itself before Ray kills it."""


# Its arguments: the folder of the order, the job's name, the line for sha256sum, a script to read first, the command.
# `exec` makes the runner the process that Ray signals. Variables of the cluster, its token among them, must not reach
# verl, which starts a Ray of its own; Ray sets OMP_NUM_THREADS by the CPUs that it was asked for.
_SCRIPT = f"""\
cd "$1" || exit 71
echo "{BEGUN} $(date +%s) $2" > ".{CLAIM}.$$" || exit 71
if ! ln ".{CLAIM}.$$" {CLAIM}; then
    echo "another job has this order, or it was cancelled" >&2
    exit 76
fi
if ! echo "$3" | sha256sum --check --status; then
    echo "job.json is not the job that was ordered" >&2
    exit 77
fi
unset OMP_NUM_THREADS PYTHONBREAKPOINT ${{!RAY_@}}
exec >> {RUNNER_LOG} 2>&1
if [ -n "$4" ]; then . "$4" || exit 78; fi
shift 4
exec "$@"
"""


def submission_id(run: Run) -> str:
    """The name of a run's job in Ray, which takes each name once."""
    return f"verl-e2e-{run.key}"


def entrypoint(run: Run, arguments: tuple[str, ...], folder: OrderFolder, settings: RaySettings) -> str:
    """The command that a shell of the node runs; Ray keeps its text, so no one who can write the folder changes it."""
    root = folder.path.parent
    called = [*settings.command, "run", "--job", str(folder.job_file), "--out", str(folder.run_folder)]
    called += ["--work", str(root / "work"), *arguments]
    digest = f"{folder.digest_of_order(run)}  {folder.job_file.name}"
    given = [str(folder.path), submission_id(run), digest, settings.setup]
    return f"exec {shlex.join(['bash', '-c', _SCRIPT, 'verl-e2e', *given, *called])}"


def runtime_env(run: Run, settings: RaySettings) -> dict[str, Any]:
    """Ray's description of the environment: variables alone, nothing is installed or uploaded."""
    variables = {
        ORDER_VARIABLE: run.key,
        KEY_VARIABLE: str(settings.folder / RECORDER_KEY),
        TOKEN_VARIABLE: settings.token_file,
        # Ray's own limit is 3 s, in which no run can complete its folder.
        "RAY_JOB_STOP_WAIT_TIME_S": str(settings.grace_s),
    }
    return {"env_vars": variables}


def resources(run: Run, settings: RaySettings) -> dict[str, Any]:
    """What a run asks of one node, in the words of Ray's `submit_job`."""
    if run.rehearsal is not None:
        asked = {"entrypoint_num_cpus": REHEARSAL_CORES, "entrypoint_memory": REHEARSAL_MEMORY_GIB << 30}
        return asked | ({"entrypoint_resources": dict(settings.resources)} if settings.resources else {})
    return asked_of(ordered_job(run).required_of_host, settings)


def asked_of(needs: Needs, settings: RaySettings) -> dict[str, Any]:
    """What a job that needs so much asks of one node, in the words of Ray's `submit_job`."""
    asked = {
        # Ray takes a part of one GPU, and whole GPUs where there are several.
        "entrypoint_num_gpus": needs.gpu_share if needs.gpu_count == 1 else needs.gpu_count,
        "entrypoint_num_cpus": needs.cores,
        "entrypoint_memory": int(needs.memory_gib * 2**30),
        "entrypoint_resources": dict(settings.resources),
    }
    return {name: value for name, value in asked.items() if value}


def no_place(asked: Mapping[str, Any], nodes: Sequence[Mapping[str, float]]) -> str:
    """Why no node can ever take a job that asks for this, in words; empty where one can."""
    names = {"entrypoint_num_gpus": "GPU", "entrypoint_num_cpus": "CPU", "entrypoint_memory": "memory"}
    needed = {names[name]: float(amount) for name, amount in asked.items() if name in names}
    needed |= asked.get("entrypoint_resources", {})
    if any(all(node.get(name, 0.0) >= amount for name, amount in needed.items()) for node in nodes):
        return ""
    most = {name: max((node.get(name, 0.0) for node in nodes), default=0.0) for name in needed}
    rows = [
        f"{_shown(name, amount)} (the most of one node: {_shown(name, most[name])})" for name, amount in needed.items()
    ]
    return f"no node has all that a job with one GPU asks for: {', '.join(rows)}"


def _shown(name: str, amount: float) -> str:
    return f"{amount / 2**30:.0f} GiB of memory" if name == "memory" else f"{amount:g} {name}"


def ordered_job(run: Run) -> Job:
    """The job of a run; BackendError, final, where there is none."""
    if run.job is None:
        raise BackendError(f"run {run.key[:12]} has no job; plan it again", final=True)
    return run.job
