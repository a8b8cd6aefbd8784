"""Whether a job that the infrastructure blocked gets another attempt, when, and why not; and which causes come and go.

Only the last run of a job counts, and only where it is Blocked by causes that no change can have (see
`CLASSES`). What failed once is never run again by itself: a later pass would hide it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from types import MappingProxyType

from verl_e2e.core.model.known_defects import QuarantinedCause, Validity
from verl_e2e.core.model.outcome import EngineEnd, Recurrence, Result, Stage, of_end, of_engine, of_log, of_preflight
from verl_e2e.core.model.record import Check, EndReason
from verl_e2e.core.pulls.commands import asked_again
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.pull import MergeGroup
from verl_e2e.core.pulls.target_state import TargetState, hold, hold_of_plan
from verl_e2e.core.pulls.wanted_jobs import WantedJob, does, runs_of
from verl_e2e.core.triage.rules import Fault
from verl_e2e.core.triage.table import RULES


def set_aside_by(run: Run, entries: Iterable[QuarantinedCause], today: date) -> QuarantinedCause | None:
    """The entry that sets a run's end aside, of several the one that ends first; None where a cause is left."""
    counting = [entry for entry in entries if entry.counts(today) is Validity.YES]
    found = [next((entry for entry in counting if _fits(entry, cause_id, run)), None) for cause_id in run.causes]
    given = [entry for entry in found if entry is not None]
    return min(given, key=lambda entry: entry.until) if given and len(given) == len(found) else None


def _fits(entry: QuarantinedCause, cause_id: str, run: Run) -> bool:
    # Without a fingerprint nothing says that it is the known failure, and a Fail is never excused by its kind.
    known = run.result is not Result.FAIL if entry.fingerprint is None else entry.fingerprint == run.fingerprint
    of_job = entry.job is None or entry.job == run.job_id
    at_stage = entry.stage is None or entry.stage is run.stage
    return entry.cause_id == cause_id and known and of_job and at_stage


class RetryClass(StrEnum):
    """Whose fault a cause is, and whether it may pass. The value is the word in a sentence."""

    # Infrastructure, and likely to be gone at the next attempt: run again.
    PASSING = "passing fault of the infrastructure"
    # Infrastructure, and the next attempt would meet it as well: someone has to fix it.
    LASTING = "lasting fault of the infrastructure"
    # This program planned or ordered the job wrongly, or cannot judge it.
    OURS = "fault of verl-e2e"
    # Nothing shows whether the change caused it.
    UNKNOWN = "unknown cause"
    # The change, or the code that it is made to.
    CHANGE = "fault of the code under test"


_PASSING, _LASTING, _OURS, _UNKNOWN = RetryClass.PASSING, RetryClass.LASTING, RetryClass.OURS, RetryClass.UNKNOWN

_OF_ENGINE: Mapping[EngineEnd, RetryClass] = {
    EngineEnd.NODE_FAILED: _PASSING,
    EngineEnd.NODE_NOT_READY: _PASSING,
    EngineEnd.PREEMPTED: _PASSING,
    # SIGKILL of the runner, which is small and apart from the code under test.
    EngineEnd.RUNNER_KILLED: _PASSING,
    EngineEnd.NO_MACHINE: _LASTING,
    # A change that takes more memory or time ends like this too.
    EngineEnd.HOST_MEMORY: _UNKNOWN,
    EngineEnd.TIME_LIMIT: _UNKNOWN,
    EngineEnd.RUNNER_ENDED: _UNKNOWN,
    EngineEnd.LEFT_NOTHING: _UNKNOWN,
    EngineEnd.FORGOTTEN: _PASSING,
    EngineEnd.NOT_STARTED: _LASTING,
    EngineEnd.REFUSED: _LASTING,
    EngineEnd.NOT_FETCHED: _UNKNOWN,
    EngineEnd.OTHER_FOLDER: _UNKNOWN,
    EngineEnd.NOT_JUDGED: _OURS,
}
_OF_END: Mapping[EndReason, RetryClass] = {
    # The runner got a signal from outside: its host shuts down, or someone ended it there.
    EndReason.INTERRUPTED: _PASSING,
    EndReason.RUNNER_FAULT: _OURS,
    EndReason.EXITED: _UNKNOWN,
    EndReason.NOT_STARTED: _UNKNOWN,
    EndReason.FATAL_ERROR_HANG: _UNKNOWN,
    EndReason.UNRECOVERABLE: _UNKNOWN,
    EndReason.WRONG_IMPORT: _UNKNOWN,
    EndReason.STALLED: _UNKNOWN,
    # The run held more than its site states, and the change may be why.
    EndReason.HOST_MEMORY: _UNKNOWN,
    EndReason.TIME_LIMIT: _UNKNOWN,
}
# Preflight comes before the code under test. What it may find of the change is `undecided`, which outranks this.
_OF_PREFLIGHT: Mapping[Check, RetryClass] = {
    # Fetched or downloaded by the runner a moment ago.
    Check.REPOSITORIES: _PASSING,
    Check.DATA: _PASSING,
    Check.MODEL: _PASSING,
    # Others held the host, its memory or its GPUs.
    Check.OTHER_RUNS: _PASSING,
    Check.NEIGHBOURS: _PASSING,
    Check.HOST_MEMORY: _PASSING,
    Check.GPUS: _PASSING,
    Check.PATCHES: _OURS,
    Check.WRAPPER: _OURS,
    Check.HYDRA: _OURS,
    Check.IMPORT_DRIVER: _LASTING,
    Check.IMPORT_WORKER: _LASTING,
    Check.PACKAGES: _LASTING,
    Check.GPU_VARIABLES: _LASTING,
    Check.REWARD_MODEL: _LASTING,
    Check.DISK: _LASTING,
    Check.IMAGE: _LASTING,
    Check.STALE_CHECKPOINTS: _LASTING,
    Check.BRIDGE_TESTS: _UNKNOWN,
    Check.ISOLATION: _LASTING,
    Check.KERNEL_CACHES: _LASTING,
    Check.RAY_CPUS: _LASTING,
    Check.READABLE: _LASTING,
}
# Rules about what is outside of the program; every other rule is about code.
_OF_RULE: Mapping[str, RetryClass] = {
    "hub-unreachable": _PASSING,
    "network": _PASSING,
    "device-broke": _PASSING,
    "ray-start": _PASSING,
    # Another process held the GPU.
    "gpu-occupied": _PASSING,
    "tracking-late": _PASSING,
    "disk-full": _LASTING,
    "storage": _LASTING,
    "host-limits": _LASTING,
    "gpu-sharing": _LASTING,
    "rocr-and-cuda": _LASTING,
    "device": _LASTING,
    "ray-resources": _LASTING,
    "ray": _LASTING,
    "tracking": _LASTING,
    "extension-build": _LASTING,
    "package-version": _LASTING,
    "missing-extension": _LASTING,
    "import-error": _LASTING,
    "failed-import": _LASTING,
    "damaged-file": _LASTING,
    "model-files": _LASTING,
    "model-download": _LASTING,
    "reward-model-files": _LASTING,
    "tokenizer-contents": _LASTING,
    "rollout-sizes": _OURS,
    "hydra": _OURS,
    "shell": _OURS,
    "verl-config": _OURS,
    "too-few-rows": _OURS,
    "other-checkout": _OURS,
    "not-as-asked": _OURS,
    "rollout-from-file": _OURS,
    "actor-not-updated": _OURS,
    "rate-zero": _OURS,
    # Memory, signals, and what a broken model looks like from outside.
    "interrupted": _UNKNOWN,
    "killed-by-signal": _UNKNOWN,
    "native-error": _UNKNOWN,
    "watchdog": _UNKNOWN,
    "given-path": _UNKNOWN,
    "failed-exit": _UNKNOWN,
    "host-memory": _UNKNOWN,
    "engine-memory": _UNKNOWN,
    "worker-died": _UNKNOWN,
    "parallel-init": _UNKNOWN,
    "rollout-start": _UNKNOWN,
    "no-samples": _UNKNOWN,
    "agreement-unknown": _UNKNOWN,
    "advantage-zero": _UNKNOWN,
    "reward-constant": _UNKNOWN,
}

CLASSES: Mapping[str, RetryClass] = MappingProxyType(
    {
        **{of_engine(end): found for end, found in _OF_ENGINE.items()},
        **{of_end(reason): found for reason, found in _OF_END.items()},
        **{of_preflight(check): found for check, found in _OF_PREFLIGHT.items()},
        **{of_log(rule): found for rule, found in _OF_RULE.items()},
        **{of_log(rule.id): RetryClass.CHANGE for rule in RULES if rule.fault is not Fault.OUTSIDE},
    }
)
# Of several causes the last one of these decides.
_RANK = (_PASSING, _LASTING, _OURS, _UNKNOWN, RetryClass.CHANGE)


def class_of(causes: Iterable[str], *, undecided: bool) -> RetryClass:
    """The class of what ended a run: of several causes the least worth another attempt; what is not named is unknown.

    `undecided` says that the change may have caused it.
    """
    found = [CLASSES.get(cause_id, _UNKNOWN) for cause_id in causes]
    return max([*found, *([_UNKNOWN] if undecided or not found else [])], key=_RANK.index)


DAY = timedelta(days=1)
# What ended longer ago is left to a person: no one may wait for it any more.
STALE = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """Another attempt that a job gets by itself."""

    # The run that it repeats.
    after: Run
    # Why that one may be repeated.
    found: RetryClass
    # When it may begin.
    at: datetime

    @property
    def reason(self) -> str:
        """Why there is one, as a clause."""
        number = self.after.attempt
        return f"attempt {number} met a {self.found}, so attempt {number + 1} begins at {self.at:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, slots=True)
class NoAttempt:
    """Why a job gets no further attempt, although the infrastructure blocked it."""

    # As a clause.
    reason: str


Attempt = NextAttempt | NoAttempt


def attempts_due(target_state: TargetState, runs: tuple[Run, ...]) -> dict[str, Attempt]:
    """What becomes of each job that the infrastructure blocked, by its id; other jobs are not named.

    `runs` are those that speak for the target, as far as they are decided.
    """
    spent = _Spent.of(target_state, runs)
    found: dict[str, Attempt] = {}
    for wanted in target_state.wanted:
        of_job = runs_of(wanted, target_state.head_sha, runs)
        answer = _answer(wanted, of_job, target_state, spent)
        if answer is not None:
            found[wanted.id] = answer
        if isinstance(answer, NextAttempt):
            spent = _Spent(spent.count + 1, spent.gpu_minutes + wanted.gpu_minutes)
    return found


def may_follow(runs: Iterable[Run], now: datetime) -> bool:
    """Whether another attempt of one of these runs may still begin, as far as the runs themselves say.

    For those who look only now and then, and must not pass over a target that waits for one.
    """
    known = tuple(runs)
    repeated = {run.retry_of for run in known}
    return any(
        _was_blocked(run)
        and class_of(run.causes, undecided=run.undecided) in _CAN_BE_TRIED
        and run.key not in repeated
        and now - run.updated <= STALE
        for run in known
    )


@dataclass(frozen=True, slots=True)
class _Spent:
    """What attempts of this kind have taken of the day's budget."""

    count: int
    gpu_minutes: float

    @classmethod
    def of(cls, target_state: TargetState, runs: tuple[Run, ...]) -> "_Spent":
        own = (run for run in runs if run.retry_of and run.number == target_state.number)
        again = [run for run in own if target_state.now - run.created < DAY]
        planned = {wanted.id: float(wanted.gpu_minutes) for wanted in target_state.wanted}
        # One under way has no minutes yet, and will have about as many as were planned.
        return cls(len(again), sum(run.gpu_minutes if run.state.final else planned.get(run.job_id, 0) for run in again))


def _answer(wanted: WantedJob, runs: tuple[Run, ...], target_state: TargetState, spent: _Spent) -> Attempt | None:
    if not runs or wanted.job is None or not _was_blocked(runs[-1]):
        return None
    last = runs[-1]
    held = hold_of_plan(target_state) if wanted.required else hold(target_state)
    if held is not None or asked_again(last, target_state.here, target_state.entries):
        # It does not start, or a person's request starts it.
        return None
    found = class_of(last.causes, undecided=last.undecided)
    if found not in _CAN_BE_TRIED:
        return None
    # A merge queue waits for its answer, so its group does not wait for the next attempt.
    wait_s = 0 if isinstance(target_state.target, MergeGroup) else target_state.policy.retry.wait_s * 2 ** _tried(runs)
    at = last.updated + timedelta(seconds=wait_s)
    refused = next(_refusals(wanted, runs, found, target_state, spent, max(at, target_state.now)), "")
    return NoAttempt(refused) if refused else NextAttempt(last, found, at)


_CAN_BE_TRIED = frozenset({RetryClass.PASSING, RetryClass.LASTING})


def _was_blocked(run: Run) -> bool:
    judged = run.state is RunState.FINISHED and run.result is Result.BLOCKED and not run.never_entered
    return judged or run.state in (RunState.LOST, RunState.REFUSED)


def _tried(runs: tuple[Run, ...]) -> int:
    """How many attempts in a row were made by themselves; a person's request begins the count again."""
    return sum(1 for _ in takewhile(lambda run: run.retry_of, reversed(runs)))


def _refusals(
    wanted: WantedJob,
    runs: tuple[Run, ...],
    found: RetryClass,
    target_state: TargetState,
    spent: _Spent,
    at: datetime,
) -> Iterator[str]:
    """Why an attempt is not made, the first reason first."""
    rules, now = target_state.policy.retry, target_state.now
    most = rules.passing if found is RetryClass.PASSING else rules.lasting
    attempts = (*target_state.elsewhere, *target_state.here)
    if any(run.result is Result.FAIL for run in attempts if does(run, wanted)):
        yield "not run again by itself: an attempt of this job failed"
    if not most:
        yield f"not run again by itself: a {found}"
    if _tried(runs) >= most:
        yield f"not run again: {len(runs)} attempts met a {found}"
    if now - runs[-1].updated > STALE:
        yield f"not run again by itself: it ended more than {STALE.total_seconds() / 3600:.0f} hours ago"
    if spent.count >= rules.per_day:
        yield f"not run again: the policy allows {rules.per_day} such attempts of a pull request within 24 hours"
    if spent.gpu_minutes + wanted.gpu_minutes > rules.gpu_minutes_per_day:
        took = f"such attempts took {spent.gpu_minutes:.0f} of {rules.gpu_minutes_per_day} GPU minutes within 24 hours"
        yield f"not run again: {took}, and this one would take about {wanted.gpu_minutes}"
    if _ends_too_late(wanted, target_state, at):
        yield "not run again: it would not end before the time limit of the merge queue"


def _ends_too_late(wanted: WantedJob, target_state: TargetState, at: datetime) -> bool:
    target = target_state.target
    if not isinstance(target, MergeGroup) or target.since is None:
        return False
    gpu_count = wanted.job.gpu_count if wanted.job is not None else 1
    expected = timedelta(minutes=wanted.gpu_minutes / gpu_count)
    limit = timedelta(seconds=target_state.policy.gate.merge_queue_deadline_s)
    return at + expected > target.since + limit


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
