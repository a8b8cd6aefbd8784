"""Causes that come and go, by the ledger: a failure that another attempt on the same code did not repeat, or one that
several pull requests or a merge base have.

Nothing is stored for it: runs are kept for ever, so the list follows from them each time.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from verl_e2e.core.model.outcome import Recurrence, Result, Stage
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.retry import RetryClass, class_of

# Causes of these kinds are the same wherever they occur; any other is the same only with the same fingerprint.
_SAME_ANYWHERE = ("engine:", "preflight:", "end:")


@dataclass(frozen=True, slots=True)
class FlakyCause:
    """A cause that does not come each time, or that is not of one change alone."""

    # Its identifier, as in `causes` of a verdict.
    cause_id: str
    # What identifies the failure, 16 hexadecimal digits; empty where nothing does.
    fingerprint: str
    # Whose fault it is.
    found: RetryClass
    # The jobs that it ended, by name.
    job_ids: tuple[str, ...]
    # The stages at which it ended them.
    stages: tuple[Stage, ...]
    # How many runs it ended.
    runs: int
    # How many heads had a run that it ended, where another run of the same job on the same code passed.
    disagreed: int
    # How many pull requests had it.
    pulls: int
    # How many merge bases were shown to have it.
    merge_bases: int
    # When it was last seen.
    last: datetime


def flaky_causes(runs: Iterable[Run]) -> tuple[FlakyCause, ...]:
    """The causes that come and go, those of most heads that disagree first."""
    final = [run for run in runs if run.state.final and not run.carried_from]
    good = (run for run in final if run.state is RunState.FINISHED and run.result is Result.PASS)
    passed = {same for run in good for same in _same_code(run)}
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in final:
        for cause_id in run.causes:
            groups[cause_id, run.fingerprint].append(run)
    found = [_summed(cause_id, fingerprint, group, passed) for (cause_id, fingerprint), group in groups.items()]
    flaky = [item for item in found if _comes_and_goes(item)]
    return tuple(sorted(flaky, key=lambda item: (-item.disagreed, -item.pulls, -item.runs, item.cause_id)))


_Job = tuple[str, str, str]


def _job_of(run: Run) -> _Job:
    return run.repository, run.head_sha, run.job_digest


def _same_code(run: Run) -> tuple[_Job, ...]:
    """What another run shares with this one that runs the same code in the same way: the job, or the key of reuse."""
    return (_job_of(run), *([(run.repository, "", run.reuse_key)] if run.reuse_key else []))


def _summed(cause_id: str, fingerprint: str, runs: list[Run], passed: set[_Job]) -> FlakyCause:
    unlike = {_job_of(run) for run in runs if run.recurrence is Recurrence.NOT_REPRODUCED}
    unlike |= {_job_of(run) for run in runs if not passed.isdisjoint(_same_code(run))}
    older = {run.merge_base for run in runs if run.recurrence is Recurrence.PRE_EXISTING and run.merge_base}
    return FlakyCause(
        cause_id=cause_id,
        fingerprint=fingerprint,
        found=class_of((cause_id,), undecided=False),
        job_ids=tuple(sorted({run.job_id for run in runs})),
        stages=tuple(sorted({run.stage for run in runs if run.stage is not None}, key=lambda stage: stage.order)),
        runs=len(runs),
        disagreed=len(unlike),
        pulls=len({(run.repository, run.number) for run in runs if run.number is not None}),
        merge_bases=len(older),
        last=max(run.updated for run in runs),
    )


def _comes_and_goes(item: FlakyCause) -> bool:
    outside = item.found is RetryClass.PASSING or item.found is RetryClass.LASTING
    same = bool(item.fingerprint) or outside or item.cause_id.startswith(_SAME_ANYWHERE)
    return bool(item.disagreed or item.merge_bases or (same and item.pulls > 1))
