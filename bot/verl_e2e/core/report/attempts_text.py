"""The attempts of one job as a reader sees them: each with its result and its cause, none left out."""

from collections.abc import Mapping

from verl_e2e.core.judge.wording import END_WORDS
from verl_e2e.core.model.causes import EngineEnd, of_end, of_engine, of_log, of_preflight
from verl_e2e.core.model.record import Check
from verl_e2e.core.pulls.gate import Standing
from verl_e2e.core.pulls.job_status import status_of_run
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.triage.table import RULES

_OF_ENGINE: Mapping[EngineEnd, str] = {
    EngineEnd.NODE_FAILED: "node failed",
    EngineEnd.NODE_NOT_READY: "node could not start it",
    EngineEnd.PREEMPTED: "preempted",
    EngineEnd.NO_MACHINE: "no machine took it in time",
    EngineEnd.HOST_MEMORY: "host memory limit passed",
    EngineEnd.TIME_LIMIT: "time limit of the engine passed",
    EngineEnd.RUNNER_KILLED: "runner killed on its host",
    EngineEnd.RUNNER_ENDED: "runner ended without a word",
    EngineEnd.FORGOTTEN: "the engine no longer has it",
    EngineEnd.NOT_STARTED: "the engine could not begin it",
    EngineEnd.REFUSED: "the engine refused it",
    EngineEnd.LEFT_NOTHING: "no run folder",
    EngineEnd.NOT_FETCHED: "its run folder could not be fetched",
    EngineEnd.OTHER_FOLDER: "the run folder of another job",
    EngineEnd.NOT_JUDGED: "it could not be judged",
}
_WORDS: Mapping[str, str] = {
    **{of_engine(end): words for end, words in _OF_ENGINE.items()},
    **{of_end(reason): words for reason, words in END_WORDS.items()},
    **{of_preflight(check): f"preflight check {check}" for check in Check},
    **{of_log(rule.id): rule.cause for rule in RULES},
}


def cause_words(cause_id: str) -> str:
    """An identifier of a cause in a few words; one without words is shown as it is."""
    return _WORDS.get(cause_id, cause_id)


def attempt_rows(standing: Standing) -> tuple[str, ...]:
    """A row for each attempt of a job that has more than one, or gets another."""
    runs = _runs(standing)
    if len(runs) < 2 and standing.attempt is None:
        return ()
    return tuple(_row(run) for run in runs)


def attempts_line(standing: Standing) -> str:
    """All attempts but the last in one clause, empty for a job that has only one."""
    return "; ".join(_in_short(run) for run in standing.earlier)


def used_minutes(standing: Standing) -> float:
    """GPU minutes of all attempts of a job together."""
    return round(sum(run.gpu_minutes for run in _runs(standing)), 1)


def _runs(standing: Standing) -> tuple[Run, ...]:
    return (*standing.earlier, *([standing.run] if standing.run is not None else []))


def _in_short(run: Run) -> str:
    status = status_of_run(run)
    words = " and ".join(cause_words(cause_id) for cause_id in run.causes)
    return f"attempt {run.attempt}: {status.word}{f', {words}' if words else ''}"


def _row(run: Run) -> str:
    used = f" ({run.gpu_minutes:.1f} GPU minutes)" if run.gpu_minutes else ""
    again = ", run again by itself" if run.retry_of else ""
    what = run.sentence or run.reason
    return f"{_in_short(run)}{again}{used}{f': {what}' if what else ''}"
