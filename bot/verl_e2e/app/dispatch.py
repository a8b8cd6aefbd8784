"""Start and end runs on the back end: written down before anything is asked, so that a restart knows as much."""

from dataclasses import dataclass, field

from verl_e2e.app.create_once import Creation, begin, end_doubles_of, settle, unsettled_s, was_begun
from verl_e2e.app.services import AppRooms
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.pull import Pull, PullState, Target
from verl_e2e.ports import BackendError

UNSETTLED = "it may have been started before, and GitHub's list of runs may not show that yet"


@dataclass(slots=True)
class Troubles:
    """What went wrong and may go better later; the look is then taken again."""

    found: list[BackendError] = field(default_factory=list)


def is_still_head(target: Target, rooms: AppRooms) -> bool:
    """Whether GitHub still has this head, open and ready, read again right before GPUs are spent on it."""
    if not isinstance(target, Pull):
        return True
    now = rooms.pulls.pull(target.ref)
    return now.head_sha == target.head_sha and now.state is PullState.OPEN and not now.draft


def submit(run: Run, rooms: AppRooms, troubles: Troubles) -> Run:
    """Put the run down and give it to the back end; again is safe, for the back end knows it by its key.

    One that the back end will never take is Refused; one that it does not take now stays Queued.
    """
    # Put down before it is sent, so that the order has the same one whenever it is given again.
    kept = rooms.ledger.put_run(run if run.nonce else run.model_copy(update={"nonce": rooms.nonce()}))
    if kept.state is not RunState.QUEUED:
        return kept
    try:
        handle = _submitted(kept, rooms)
    except BackendError as error:
        if error.final:
            return rooms.ledger.put_run(_changed(kept, rooms, state=RunState.REFUSED, reason=str(error)))
        troubles.found.append(error)
        return kept
    return rooms.ledger.put_run(_changed(kept, rooms, state=RunState.SUBMITTED, handle=handle))


def _submitted(run: Run, rooms: AppRooms) -> str:
    """The run's handle; BackendError, too while no one can know whether it was started before."""
    creation = Creation(run.repository, f"{run.key}:dispatch")
    if was_begun(creation, rooms):
        handle = rooms.backend.find(run)
        if handle:
            settle(creation, rooms)
            return handle
        if (wait_s := unsettled_s(creation, rooms)) > 0:
            raise BackendError(UNSETTLED, uncertain=True, wait_s=wait_s)
    begin(creation, rooms)
    try:
        handle = rooms.backend.submit(run)
    except BackendError as error:
        if error.uncertain:
            raise BackendError(str(error), uncertain=True, wait_s=rooms.lag_s) from error
        settle(creation, rooms)
        raise
    settle(creation, rooms)
    return handle


def end_doubles(run: Run, rooms: AppRooms) -> float:
    """End what was started twice with this run's key; gives in how many seconds to look for it again, 0 for never."""
    creation = Creation(run.repository, f"{run.key}:dispatch")
    return end_doubles_of(creation, lambda: rooms.backend.end_doubles(run), rooms)


def cancel(run: Run, rooms: AppRooms, troubles: Troubles) -> Run:
    """Put down that the run shall end, and ask the back end; `run` is as it shall be kept."""
    kept = rooms.ledger.put_run(run)
    if kept.state.final:
        return kept
    try:
        rooms.backend.cancel(kept)
    except BackendError as error:
        troubles.found.append(error)
    return kept


def _changed(run: Run, rooms: AppRooms, **changes: object) -> Run:
    return run.model_copy(update={"updated": rooms.clock.now(), **changes})
