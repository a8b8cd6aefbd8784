"""What the steps of a workflow do: one run of Action mode, and a job on the machine that will run it.

A run of Action mode hears its event and what earlier runs missed, then looks until nothing is due soon.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from verl_e2e.app.on_event import EventHandler
from verl_e2e.app.reconcile import Reconciler
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
from verl_e2e.core.pulls.deliveries import CommentEvent, WebhookEvent
from verl_e2e.core.pulls.forge import PullRef, PullState, Reference
from verl_e2e.core.pulls.job_order import (
    OrderError,
    megatron_lm_of,
    merge_base_of,
    nonce_of,
    placed,
    read_target,
    same_job,
    unpack_order,
)
from verl_e2e.core.pulls.retry import may_follow
from verl_e2e.core.text.escape import one_line
from verl_e2e.ports import Comment, ForgeError, Ledger, Pulls, RunFolders, UnknownPullError

MOST_LOOKS = 8


class DerivedMemory(Ledger, Protocol):
    """A ledger that is read off GitHub, and that knows which comments no one has acted on."""

    def unprocessed(self, ref: PullRef) -> tuple[Comment, ...]:
        """Comments on the head as it is now that no one has acted on yet."""
        ...

    def hear(self, ref: PullRef, comment_ids: Iterable[int]) -> None:
        """These comments were acted on."""
        ...

    def flush(self) -> None:
        """Write what is still to be written."""
        ...


@dataclass(frozen=True, slots=True)
class Here:
    """What one workflow run works with: `memory` is the ledger of the handlers, `sleep` lets seconds pass.

    It waits `patience_s` at a time for what is due soon, as the card's next edit is; the rest is for the next run.
    """

    events: EventHandler
    reconciler: Reconciler
    memory: DerivedMemory
    sleep: Callable[[float], None]
    patience_s: float


def act_on(
    event: WebhookEvent | None, asked: tuple[Reference, ...], delivery: str, here: Here
) -> tuple[Reference, ...]:
    """Hear an event, if there is one, and look at what it and `asked` name; gives what was looked at.

    Whatever ends it, what was learnt is written first.
    """
    try:
        named = here.events.hear(event, delivery) if event is not None else ()
        if isinstance(event, CommentEvent):
            ref = PullRef(event.repository.full_name, event.issue.number)
            here.memory.hear(ref, [event.comment.id])
        references = tuple(dict.fromkeys((*named, *asked)))
        for reference in references:
            if isinstance(reference, PullRef):
                _catch_up(reference, here)
            for _ in range(MOST_LOOKS):
                wait_s = here.reconciler.reconcile(reference)
                if wait_s is None or wait_s > here.patience_s:
                    break
                here.sleep(wait_s)
        return references
    finally:
        here.memory.flush()


def _catch_up(ref: PullRef, here: Here) -> None:
    """Hear the comments whose own workflow run never came: a waiting one is dropped when a newer one arrives."""
    try:
        missed = here.memory.unprocessed(ref)
    except UnknownPullError:
        return
    for comment in missed:
        author, created = {"login": comment.author}, comment.created.isoformat()
        written = {"id": comment.id, "body": comment.body, "created_at": created, "updated_at": created}
        event = {
            "action": "created",
            "repository": {"full_name": ref.repository},
            "sender": author,
            "issue": {"number": ref.number, "pull_request": {}},
            "comment": {**written, "user": author},
        }
        here.events.hear(CommentEvent.model_validate(event))
    if missed:
        here.memory.hear(ref, [item.id for item in missed])


def busy_pulls(repository: str, here: Here) -> Iterator[Reference]:
    """The open pull requests with a run that is not over or may be followed by another attempt, and those whose base
    got another policy since their look.

    One that cannot be seen any more is passed over.
    """
    pulls = here.events.known.pulls.open_pulls(repository)
    changed = {pull.ref for pull in here.events.known.outdated(pulls)}
    now = here.reconciler.clock.now()
    for pull in pulls:
        try:
            runs = here.memory.runs(repository, number=pull.ref.number)
        except UnknownPullError:
            continue
        if pull.ref in changed or any(not run.state.final for run in runs) or may_follow(runs, now):
            yield pull.ref


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
    ordered = unpack_order(order.packed)
    job = placed(ordered, str(root))
    if job.id != order.job_id:
        raise OrderError(f"the order is called {order.job_id[:60]!r} and holds {job.id}; dispatch it again")
    target, why = read_target(order.target), ""
    if target.number is not None:
        try:
            pull = pulls.pull(PullRef(order.repository, target.number))
            if pull.head_sha != target.head_sha:
                why = f"the head is {pull.head_sha} now, and the job is for {target.head_sha}"
            elif pull.state is PullState.CLOSED:
                why = "the pull request is closed"
        except (ForgeError, UnknownPullError) as error:
            why = one_line(f"the head could not be read again: {error}")
    return AcceptedJob(job, why, merge_base_of(order.packed), nonce_of(order.packed), megatron_lm_of(ordered))


def check_folder(order_id: str, packed: str, folder: Path, folders: RunFolders) -> None:
    """OrderError for a run folder that is not of the job that was ordered."""
    job = unpack_order(packed)
    found = folders.record(folder).job if isinstance(job, Job) else folders.rehearsal(folder).order
    if job.id != order_id or found is None or not same_job(found, job):
        raise OrderError(f"the run folder is not of the job {order_id[:60]!r} that was ordered; run the job again")


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
