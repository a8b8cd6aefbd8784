"""Whose fault the cause of an ended run is, and whether it may pass by itself; and which causes come and go."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from verl_e2e.core.model.outcome import EngineEnd, Recurrence, Result, Stage, of_end, of_engine, of_log, of_preflight
from verl_e2e.core.model.record import Check, EndReason
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.triage.rules import Fault
from verl_e2e.core.triage.table import RULES


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
    "skyrl-configuration": _OURS,
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
    "engine-cache": _UNKNOWN,
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


# What ended longer ago is left to a person: no one may wait for it any more.
STALE = timedelta(hours=12)
MAY_PASS = frozenset({RetryClass.PASSING, RetryClass.LASTING})


def was_blocked(run: Run) -> bool:
    """Whether a run ended as Blocked, and not for the reason alone that it never entered the change."""
    judged = run.state is RunState.FINISHED and run.result is Result.BLOCKED and not run.never_entered
    return judged or run.state in (RunState.LOST, RunState.REFUSED)


def may_follow(runs: Iterable[Run], now: datetime) -> bool:
    """Whether another attempt of one of these runs may still begin, as far as the runs themselves say.

    For those who look only now and then, and must not pass over a target that waits for one.
    """
    known = tuple(runs)
    repeated = {run.retry_of for run in known}
    return any(
        was_blocked(run)
        and class_of(run.causes, undecided=run.undecided) in MAY_PASS
        and run.key not in repeated
        and now - run.updated <= STALE
        for run in known
    )


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
    flaky = []
    for (cause_id, fingerprint), group in groups.items():
        unlike = {_job_of(run) for run in group if run.recurrence is Recurrence.NOT_REPRODUCED}
        unlike |= {_job_of(run) for run in group if not passed.isdisjoint(_same_code(run))}
        older = {run.merge_base for run in group if run.recurrence is Recurrence.PRE_EXISTING and run.merge_base}
        stages = {run.stage for run in group if run.stage is not None}
        item = FlakyCause(
            cause_id=cause_id,
            fingerprint=fingerprint,
            found=class_of((cause_id,), undecided=False),
            job_ids=tuple(sorted({run.job_id for run in group})),
            stages=tuple(sorted(stages, key=lambda stage: stage.order)),
            runs=len(group),
            disagreed=len(unlike),
            pulls=len({(run.repository, run.number) for run in group if run.number is not None}),
            merge_bases=len(older),
            last=max(run.updated for run in group),
        )
        outside = item.found is RetryClass.PASSING or item.found is RetryClass.LASTING
        same = bool(item.fingerprint) or outside or item.cause_id.startswith(_SAME_ANYWHERE)
        if item.disagreed or item.merge_bases or (same and item.pulls > 1):
            flaky.append(item)
    return tuple(sorted(flaky, key=lambda item: (-item.disagreed, -item.pulls, -item.runs, item.cause_id)))


_Job = tuple[str, str, str]


def _job_of(run: Run) -> _Job:
    return run.repository, run.head_sha, run.job_digest


def _same_code(run: Run) -> tuple[_Job, ...]:
    """What another run shares with this one that runs the same code in the same way: the job, or the key of reuse."""
    return (_job_of(run), *([(run.repository, "", run.reuse_key)] if run.reuse_key else []))
