"""The standings of jobs whose runs wait in our queue, or are held there."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from verl_e2e.core.pulls.admission import Held, HoldCause
from verl_e2e.core.pulls.gate import MAX_TITLE, Gate, Standing
from verl_e2e.core.pulls.hold_reason import Hold
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.pull import MergeGroup
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.text.escape import prose

WAITS = "it waits for a free slot"


def with_queue(found: Iterable[Standing], target_state: TargetState) -> tuple[Standing, ...]:
    """The standings with what the queue makes of runs that wait in it, and of the jobs that wait for these.

    A merge group is never held by a pause: the merge queue would take that for its answer, and the pause may end.
    """
    shown: dict[str, Standing] = {}
    for standing in found:
        shown[standing.wanted.id] = _in_queue(standing, target_state, shown)
    return tuple(shown.values())


def _in_queue(standing: Standing, target_state: TargetState, before: Mapping[str, Standing]) -> Standing:
    if standing.state is JobStatus.WAITING:
        holds = (before[required].hold for required in standing.wanted.requires if required in before)
        hold = next((hold for hold in holds if hold is not None), None)
        return _held(standing, hold) if hold is not None else standing
    run = standing.run
    if run is None or not run.waits_for_slot or standing.state is not JobStatus.RUNNING:
        return standing
    queue = target_state.queue
    held = Held(HoldCause.PAUSED, pause=queue.pause) if queue.pause is not None else queue.held.get(run.key)
    if held is None:
        return replace(standing, state=JobStatus.WAITING, reason=WAITS) if queue.limited else standing
    hold = hold_of(held)
    if isinstance(target_state.target, MergeGroup) and held.cause is HoldCause.PAUSED:
        return replace(standing, state=JobStatus.WAITING, reason=hold.sentence)
    return _held(standing, hold)


def _held(standing: Standing, hold: Hold) -> Standing:
    return replace(standing, state=JobStatus.HELD, reason=hold.in_short, hold=hold)


def hold_of(held: Held) -> Hold:
    """Why a run gets no slot, and what someone can do about it."""
    match held.cause:
        case HoldCause.PAUSED:
            assert held.pause is not None
            resume = prose("a maintainer can comment `/verl-e2e resume` to let runs start again")
            return Hold(held.pause.in_short, held.pause.reason, resume)
        case HoldCause.TOO_LARGE:
            assert held.pool is not None
            large = f"the slots `{held.pool.name}` hold {held.pool.limit} GPUs, and the job needs more"
            return Hold("no pool is large enough", large, "the operator has to raise `VERL_E2E_SLOTS`")


def with_place(message: Gate, target_state: TargetState) -> Gate:
    """The gate with the place of the target in the queue, while nothing of it runs and something waits."""
    place = target_state.queue.place
    if place is None or message.status is not JobStatus.RUNNING:
        return message
    title = f"{message.title}, place {place.position} of {place.waiting} in the queue"
    # A title that is full already says more important things.
    return replace(message, title=title if len(title) <= MAX_TITLE else message.title)
