"""Ask the back end where runs stand, and judge what an ended one left: a run's own word counts for nothing."""

import math

from bot.core.jobs import Job
from bot.core.judging.documents import verdict_json
from bot.core.judging.outcome import Result, Verdict
from bot.core.pulls.job_order import same_job
from bot.core.pulls.ledger import Run, RunState
from bot.core.record import Record
from bot.handlers.app_rooms import AppRooms
from bot.handlers.judging import judge_run, write_judgement
from bot.ports import BackendError

# A verdict is bounded by its parts; one beyond this is not kept, its result and sentence are.
MAX_VERDICT = 512 * 1024
NO_FOLDER = "the run ended and left no run folder"
OTHER_JOB = "the run folder holds another job than the one that was sent, so it is no evidence"
SEVERAL = "the run left not one run folder but several"


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
        return rooms.ledger.put_run(_judged(run.model_copy(update={"url": url}), rooms))
    state = _onward(run.state, progress.state)
    reason = run.reason or (progress.note if state.final else "")
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
    except BackendError as error:
        if not error.final:
            raise
        return _blocked(run, rooms, str(error))
    try:
        found = rooms.folders.find(folder)
        if len(found) != 1:
            return _blocked(run, rooms, SEVERAL if found else NO_FOLDER)
        record = rooms.folders.record(found[0])
        if not _is_of(record.job, run):
            return _blocked(run, rooms, OTHER_JOB)
        verdict, _ = judge_run(rooms.folders, found[0])
        write_judgement(rooms.folders, folder, (verdict,))
    except OSError as error:
        # A file of the run's where a folder of ours should be, or the other way round; it will be there for ever.
        return _blocked(run, rooms, f"what the run left cannot be judged: {error.strerror or type(error).__name__}")
    except Exception as error:
        if not getattr(error, "user_mistake", False):
            raise
        # Where we keep it is nobody's business.
        said = str(error).replace(str(folder), "run folder")
        return _blocked(run, rooms, f"what the run left cannot be judged: {said}")
    return _with_verdict(run, rooms, verdict, _gpu_minutes(run, record, rooms))


def _is_of(job: Job | None, run: Run) -> bool:
    """Whether a run folder is that of the run: its job is the one that was sent, wherever its repositories lie."""
    return job is not None and run.job is not None and same_job(job, run.job)


def _with_verdict(run: Run, rooms: AppRooms, verdict: Verdict, gpu_minutes: float) -> Run:
    text = verdict_json(verdict)
    return _changed(
        run,
        rooms,
        state=RunState.FINISHED,
        result=verdict.result,
        sentence=verdict.sentence,
        verdict=text if len(text) <= MAX_VERDICT else "",
        gpu_minutes=gpu_minutes,
    )


def _blocked(run: Run, rooms: AppRooms, sentence: str) -> Run:
    return _changed(run, rooms, state=RunState.FINISHED, result=Result.BLOCKED, sentence=sentence)


def _gpu_minutes(run: Run, record: Record, rooms: AppRooms) -> float:
    """GPUs times minutes by the run's own events, never more than passed since it was ordered."""
    passed_s = (rooms.clock.now() - run.created).total_seconds()
    # The events are the run's own: what is no number of seconds would not even be read back from the ledger.
    told_s = max((event.t_s for event in record.events if math.isfinite(event.t_s)), default=0.0)
    seconds = min(max(told_s, 0.0), max(passed_s, 0.0))
    return round(seconds / 60 * (run.job.gpu_count if run.job else 1), 1)
