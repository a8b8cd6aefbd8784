"""Ask the back end where runs stand, and judge what an ended one left: a run's own word counts for nothing."""

import logging
from pathlib import Path

from verl_e2e.app.judge_finished import NO_FOLDER, Judged, blocked, cannot_be_judged, with_doubt
from verl_e2e.app.services import AppRooms
from verl_e2e.core.model.errors import LimitError
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.ports import BackendError

# How often judging one run may fail by a fault of ours before it is called Blocked.
MOST_JUDGINGS = 5

log = logging.getLogger(__name__)


def advance(run: Run, rooms: AppRooms) -> Run:
    """The run as it stands now, judged if it has ended; kept in the ledger when that is news.

    Raises BackendError when the back end gives no answer now and may later.
    """
    if run.state.final or (run.state is RunState.QUEUED and not run.handle):
        return run
    try:
        progress = rooms.backend.poll(run)
    except BackendError as error:
        if not error.final:
            raise
        return rooms.ledger.put_run(_changed(run, rooms, state=RunState.LOST, reason=run.reason or str(error)))
    url = progress.url or run.url
    if progress.state is RunState.FINISHED:
        return rooms.ledger.put_run(_judged(run.model_copy(update={"url": url, "took": progress.took}), rooms))
    state = _onward(run.state, progress.state)
    reason = run.reason or (progress.note if state.final or state is RunState.CANCELLING else "")
    if (state, url, reason) == (run.state, run.url, run.reason):
        return run
    return rooms.ledger.put_run(_changed(run, rooms, state=state, url=url, reason=reason))


def _onward(kept: RunState, seen: RunState) -> RunState:
    """The later of two states: a run that is being ended runs on for a while, and nothing is queued again."""
    if seen.final or kept is RunState.QUEUED:
        return seen
    if kept is RunState.CANCELLING or (kept is RunState.RUNNING and seen is not RunState.CANCELLING):
        return kept
    return kept if seen is RunState.QUEUED else seen


def _changed(run: Run, rooms: AppRooms, **changes: object) -> Run:
    return run.model_copy(update={"updated": rooms.clock.now(), **changes})


def _judged(run: Run, rooms: AppRooms) -> Run:
    """The ended run with the verdict that we come to ourselves."""
    folder = rooms.artifacts / run.key
    try:
        if not rooms.backend.artifacts(run, folder):
            return _blocked(run, rooms, NO_FOLDER)
        doubt = rooms.backend.unattested(run)
    except BackendError as error:
        if not error.final:
            raise
        return _blocked(run, rooms, str(error))
    return _with_judgement(run, rooms, with_doubt(_judgement(run, folder, rooms), doubt))


def _judgement(run: Run, folder: Path, rooms: AppRooms) -> Judged:
    """What the run folder comes to; a fault of ours is tried again a few times, and not for ever."""
    try:
        return rooms.analysis.judge(run, folder)
    except LimitError as error:
        return cannot_be_judged(error)
    except Exception as error:
        failed = (rooms.judgings.find((run.key,)) or 0) + 1
        rooms.judgings.put((run.key,), failed)
        if failed < MOST_JUDGINGS:
            raise
        log.exception("run %s given up: judging it failed %d times", run.key[:12], failed)
        return cannot_be_judged(f"judging it failed {failed} times ({type(error).__name__})")


def _with_judgement(run: Run, rooms: AppRooms, judged: Judged) -> Run:
    return _changed(
        run,
        rooms,
        state=RunState.FINISHED,
        result=judged.result,
        sentence=judged.sentence,
        verdict=judged.verdict,
        gpu_minutes=_gpu_minutes(run, judged.told_s, rooms),
    )


def _blocked(run: Run, rooms: AppRooms, sentence: str) -> Run:
    return _with_judgement(run, rooms, blocked(sentence))


def _gpu_minutes(run: Run, told_s: float, rooms: AppRooms) -> float:
    """GPUs times minutes by the run's own events, never more than passed since it was ordered."""
    passed_s = (rooms.clock.now() - run.created).total_seconds()
    return round(min(told_s, max(passed_s, 0.0)) / 60 * (run.job.gpu_count if run.job else 1), 1)
