"""Evidence: facts that carry a pass criterion, each with the file, line and excerpt it was read from."""

from dataclasses import dataclass
from enum import StrEnum


class Criterion(StrEnum):
    """The pass criteria of a level; a level passes when every one that it asks for holds."""

    BRIDGE_TESTS = "bridge_tests"
    LOCAL_IMPORT = "local_import"
    RESOLVED_CONFIG = "resolved_config"
    STEPS_COMPLETED = "steps_completed"
    NO_EXCEPTION = "no_exception"
    EXIT_ZERO = "exit_zero"
    GRADIENTS = "gradients"
    ROLLOUT_AGREEMENT = "rollout_agreement"
    ADAPTER = "adapter"
    WEIGHTS_KEPT = "weights_kept"
    RESUMED = "resumed"
    RESUMED_STEP = "resumed_step"
    RESUMED_STATE = "resumed_state"
    REPLICAS = "replicas"
    FROZEN_WEIGHTS = "frozen_weights"
    TRAINED_WEIGHTS = "trained_weights"
    ADAPTER_SIZE = "adapter_size"
    IMPORTED_WEIGHTS = "imported_weights"
    EXPORTED_ADAPTERS = "exported_adapters"
    ROLLOUT_WEIGHTS = "rollout_weights"
    PARALLEL_SIZES = "parallel_sizes"
    PARITY = "parity"
    FSDP_ACTIVE = "fsdp_active"
    FEATURE_ACTIVE = "feature_active"
    LEARNING_SIGNAL = "learning_signal"
    RUN_RECORD = "run_record"
    CHANGE_EXECUTED = "change_executed"


class State(StrEnum):
    """What the evidence says about one criterion; `missing` is never a pass."""

    MET = "met"
    BROKEN = "broken"
    MISSING = "missing"
    WAIVED = "waived"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One criterion, judged: the state, one sentence, and where it was read (line 0: the file as a whole)."""

    criterion: Criterion
    state: State
    summary: str
    file: str = ""
    line: int = 0
    excerpt: str = ""
