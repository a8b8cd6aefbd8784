"""Accept a job on the machine that will run it: read the head again, and write the job to disk or say why not."""

import json
from dataclasses import dataclass
from pathlib import Path

from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.jobs import RunOrder as Ordered
from verl_e2e.core.model.record import (
    ENVIRONMENT_FILE,
    EVENTS_FILE,
    JOB_FILE,
    Check,
    EndReason,
    Environment,
    Event,
    Finding,
)
from verl_e2e.core.pulls.job_order import (
    OrderError,
    OrderTarget,
    megatron_lm_of,
    merge_base_of,
    nonce_of,
    placed,
    read_target,
    same_job,
    unpack,
)
from verl_e2e.core.pulls.pull import PullRef, PullState
from verl_e2e.core.text.escape import one_line
from verl_e2e.ports import ForgeError, Pulls, RunFolders, UnknownPullError

_ORDER_AGAIN = "comment `/verl-e2e rerun` to test the head as it is now"


@dataclass(frozen=True, slots=True)
class Order:
    """What the workflow was given: `packed` is the job, `target` its head, `job_id` the name that people see."""

    repository: str
    job_id: str
    packed: str
    target: str


@dataclass(frozen=True, slots=True)
class AcceptedJob:
    """The job on this machine, and why it must not run; `why` is empty when it may.

    `merge_base` is the commit that a failure is held against, empty for none.
    """

    job: Ordered
    why: str
    merge_base: str = ""
    # What the run must return, empty for none.
    nonce: str = ""
    # Where Megatron-LM is fetched from.
    megatron_lm: str = ""


def take(order: Order, root: Path, pulls: Pulls) -> AcceptedJob:
    """Unpack the job for the repositories below `root` and read its head again; raises OrderError for no order."""
    ordered = unpack(order.packed)
    job = placed(ordered, str(root))
    if job.id != order.job_id:
        raise OrderError(f"the order is called {order.job_id[:60]!r} and holds {job.id}; dispatch it again")
    why = _why_not(order.repository, read_target(order.target), pulls)
    return AcceptedJob(job, why, merge_base_of(order.packed), nonce_of(order.packed), megatron_lm_of(ordered))


def check_folder(order_id: str, packed: str, folder: Path, folders: RunFolders) -> None:
    """OrderError for a run folder that is not of the job that was ordered."""
    job = unpack(packed)
    found = folders.record(folder).job if isinstance(job, Job) else folders.rehearsal(folder).order
    if job.id != order_id or found is None or not same_job(found, job):
        raise OrderError(f"the run folder is not of the job {order_id[:60]!r} that was ordered; run the job again")


def _why_not(repository: str, target: OrderTarget, pulls: Pulls) -> str:
    if target.number is None:
        return ""
    try:
        pull = pulls.pull(PullRef(repository, target.number))
    except (ForgeError, UnknownPullError) as error:
        return one_line(f"the head could not be read again: {error}")
    if pull.head_sha != target.head_sha:
        return f"the head is {pull.head_sha} now, and the job is for {target.head_sha}"
    return "the pull request is closed" if pull.state is PullState.CLOSED else ""


def leave_blocked(taken: AcceptedJob, folder: Path, folders: RunFolders) -> None:
    """A run folder that says that nothing ran, so that it is judged Blocked like any other."""
    finding = Finding(check=Check.REPOSITORIES, ok=False, summary=taken.why, fix=_ORDER_AGAIN)
    events = (
        Event(t_s=0.0, kind="started", data={"job": taken.job.id, "digest": taken.job.digest()}),
        Event(t_s=0.0, kind="finding", data=finding.model_dump(mode="json")),
        Event(t_s=0.0, kind="ended", data={"reason": EndReason.NOT_STARTED, "exit_code": None, "note": taken.why}),
    )
    files = {
        JOB_FILE: job_text(taken.job),
        EVENTS_FILE: "".join(f"{json.dumps(event.model_dump(mode='json'))}\n" for event in events),
        ENVIRONMENT_FILE: Environment(findings=(finding,)).model_dump_json(indent=2) + "\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    folders.write(folder, files)


def job_text(job: Ordered) -> str:
    """The job's file."""
    return job.model_dump_json(indent=2) + "\n"
