"""Which causes of a Blocked run are worth another attempt: a frozen table, and a class for what it does not name.

Only what no change of the tested code can cause, and what may be gone a minute later, is run again. Where the change
may be the cause - memory, time, a signal, a worker that died without a word - the class is `UNKNOWN`, and nothing is.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

from verl_e2e.core.model.causes import EngineEnd, of_end, of_engine, of_log, of_preflight
from verl_e2e.core.model.record import Check, EndReason
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
