"""The attempts of a job for people: each with its result and its cause, none left out; and what they wait for.

With them the causes that come and go, as text for a terminal and as a document.
"""

from collections.abc import Iterable, Iterator, Mapping

from verl_e2e.core.judge.wording import END_WORDS
from verl_e2e.core.model.outcome import EngineEnd, of_end, of_engine, of_log, of_preflight
from verl_e2e.core.model.record import Check
from verl_e2e.core.pulls.gate import JobStanding
from verl_e2e.core.pulls.ledger import PRIORITY, UNDERWAY, JobStatus, RecordedCommand, Run, status_of_run
from verl_e2e.core.pulls.retry import FlakyCause
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.text.escape import count_of, one_line
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


def attempt_rows(standing: JobStanding) -> tuple[str, ...]:
    """A row for each attempt of a job that has more than one, or gets another."""
    runs = _runs(standing)
    if len(runs) < 2 and standing.attempt is None:
        return ()
    rows = []
    for run in runs:
        used = f" ({run.gpu_minutes:.1f} GPU minutes)" if run.gpu_minutes else ""
        again = ", run again by itself" if run.retry_of else ""
        what = run.sentence or run.reason
        rows.append(f"{_in_short(run)}{again}{used}{f': {what}' if what else ''}")
    return tuple(rows)


def attempts_line(standing: JobStanding) -> str:
    """All attempts but the last in one clause, empty for a job that has only one."""
    return "; ".join(_in_short(run) for run in standing.earlier)


def used_minutes(standing: JobStanding) -> float:
    """GPU minutes of all attempts of a job together."""
    return round(sum(run.gpu_minutes for run in _runs(standing)), 1)


def _runs(standing: JobStanding) -> tuple[Run, ...]:
    return (*standing.earlier, *([standing.run] if standing.run is not None else []))


def _in_short(run: Run) -> str:
    status = status_of_run(run)
    words = " and ".join(cause_words(cause_id) for cause_id in run.causes)
    return f"attempt {run.attempt}: {status.word}{f', {words}' if words else ''}"


NONE = "no cause came and went: no attempt disagreed with another, and no failure was on two pull requests"
FLAKY_SCHEMA = 1


def flaky_text(found: Iterable[FlakyCause]) -> str:
    """A few lines for each cause, with what an entry of the policy's quarantine needs."""
    rows = []
    for item in found:
        rows.append(f"{item.cause_id}{f' fingerprint {item.fingerprint}' if item.fingerprint else ''}")
        rows.append(f"  {cause_words(item.cause_id)}; a {item.found}")
        jobs = one_line(", ".join(item.job_ids), 300)
        rows.append(f"  {count_of(item.runs, 'run')}, the last on {item.last:%Y-%m-%d}, in {jobs}")
        if item.stages:
            rows.append(f"  at {', '.join(item.stages)}")
        passed = f"{count_of(item.disagreed, 'head')} where another attempt passed"
        rows.append(f"  {passed}, {count_of(item.pulls, 'pull request')}, {count_of(item.merge_bases, 'merge base')}")
    return "\n".join(rows) or NONE


def flaky_json(found: Iterable[FlakyCause]) -> dict[str, object]:
    """The same as a document."""
    rows = [
        {
            "cause": item.cause_id,
            "fingerprint": item.fingerprint,
            "class": item.found.name.lower(),
            "jobs": list(item.job_ids),
            "stages": [str(stage) for stage in item.stages],
            "runs": item.runs,
            "heads_that_passed": item.disagreed,
            "pull_requests": item.pulls,
            "merge_bases": item.merge_bases,
            "last": item.last.isoformat(),
        }
        for item in found
    ]
    return {"schema": FLAKY_SCHEMA, "causes": rows}


def queue_notices(target_state: TargetState, status: JobStatus) -> Iterator[str]:
    """The place in the queue, what maintainers set for the pull request, and a pause that no heading says."""
    queue = target_state.queue
    if status not in {*UNDERWAY, JobStatus.HELD}:
        return
    if queue.place is not None:
        place = queue.place
        yield f"Place {place.position} of {place.waiting} in the queue for the slots `{place.pool}`."
    if queue.pause is not None and status in UNDERWAY:
        text = f"{queue.pause.in_short[:1].upper()}{queue.pause.in_short[1:]}: {queue.pause.reason}"
        yield f"{text}. What runs goes on, and nothing else starts; `/verl-e2e resume` ends the pause."
    last = {entry.verb: entry for entry in target_state.entries if isinstance(entry, RecordedCommand)}
    if PRIORITY in last:
        yield f"Priority {last[PRIORITY].arguments[0]}, set by {last[PRIORITY].actor}."
