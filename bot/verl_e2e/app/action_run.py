"""One workflow run of Action mode: hear its event and what earlier runs missed, then look until nothing is due soon."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from verl_e2e.app.on_event import EventHandler
from verl_e2e.app.reconcile import Reconciler
from verl_e2e.core.pulls.deliveries import CommentEvent, Event
from verl_e2e.core.pulls.pull import PullRef, Reference
from verl_e2e.core.pulls.retry import may_follow
from verl_e2e.ports import Comment, Ledger, UnknownPullError

MOST_LOOKS = 8


class DerivedMemory(Ledger, Protocol):
    """A ledger that is read off GitHub, and that knows which comments no one has acted on."""

    def unprocessed(self, ref: PullRef, since: datetime | None = None) -> tuple[Comment, ...]:
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


def act_on(event: Event | None, asked: tuple[Reference, ...], delivery: str, here: Here) -> tuple[Reference, ...]:
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
            _look(reference, here)
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
        here.events.hear(_said(ref, comment))
    if missed:
        here.memory.hear(ref, [item.id for item in missed])


def _said(ref: PullRef, comment: Comment) -> CommentEvent:
    created = comment.created.isoformat()
    author = {"login": comment.author}
    return CommentEvent.model_validate(
        {
            "action": "created",
            "repository": {"full_name": ref.repository},
            "sender": author,
            "issue": {"number": ref.number, "pull_request": {}},
            "comment": {
                "id": comment.id,
                "body": comment.body,
                "user": author,
                "created_at": created,
                "updated_at": created,
            },
        }
    )


def _look(reference: Reference, here: Here) -> None:
    for _ in range(MOST_LOOKS):
        wait_s = here.reconciler.reconcile(reference)
        if wait_s is None or wait_s > here.patience_s:
            return
        here.sleep(wait_s)


def busy_pulls(repository: str, here: Here) -> Iterator[Reference]:
    """The open pull requests with a run that is not over or may be followed by another attempt, and those whose base
    got another policy since their look.

    One that cannot be seen any more is passed over.
    """
    pulls = here.events.known.pulls.open_pulls(repository)
    changed = {pull.ref for pull in here.events.policies.outdated(pulls)}
    now = here.reconciler.reader.clock.now()
    for pull in pulls:
        try:
            runs = here.memory.runs(repository, number=pull.ref.number)
        except UnknownPullError:
            continue
        if pull.ref in changed or any(not run.state.final for run in runs) or may_follow(runs, now):
            yield pull.ref
