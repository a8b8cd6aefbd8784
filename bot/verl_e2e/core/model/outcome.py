"""The words of a verdict: the result of the whole, the outcome of one deliverable, and the decision behind them."""

from dataclasses import dataclass
from enum import StrEnum

from verl_e2e.core.model.evidence import Evidence


class Stage(StrEnum):
    """The stage that a run is in, or ended in.

    The order of the members is the order of a run with verl's Megatron wrapper; `shutdown` means
    that the requested steps completed and only noise is left to explain.
    """

    ENVIRONMENT = "environment"
    IMPORT = "import"
    DATA = "data"
    MODEL_DOWNLOAD = "model_download"
    REWARD_MODEL = "reward_model"
    RAY = "ray"
    ROLLOUT_ENGINE = "rollout_engine"
    BRIDGE_PROVIDER = "bridge_provider"
    HF_IMPORT = "hf_import"
    PEFT = "peft"
    DDP_WRAP = "ddp_wrap"
    FSDP_WRAP = "fsdp_wrap"
    OPTIMIZER = "optimizer"
    EXPORT_WEIGHT_SYNC = "export_weight_sync"
    TRAIN_STEP = "train_step"
    CHECKPOINT_SAVE = "checkpoint_save"
    CHECKPOINT_LOAD = "checkpoint_load"
    LEARNING_SIGNAL = "learning_signal"
    SHUTDOWN = "shutdown"

    @property
    def order(self) -> int:
        """Position in the enum, 0 for the first stage."""
        return _ORDER[self]


_ORDER = {stage: position for position, stage in enumerate(Stage)}


class Result(StrEnum):
    """The whole: inconclusive is a cause of Blocked."""

    PASS = "Pass"
    FAIL = "Fail"
    BLOCKED = "Blocked"


class Attribution(StrEnum):
    """Where the fault that stopped a run lies, as far as the run itself shows it."""

    # On the host, in its image or in the site's settings: no change of the trees under test can cause it.
    HOST = "host"
    # On the host or in the trees under test: a run of the same job on the merge base decides.
    UNDECIDED = "undecided"
    # In the trees under test: one module of them imports what another does not have.
    TREES = "trees"


class Outcome(StrEnum):
    """One deliverable of the card."""

    PASS = "Pass"
    FAIL = "Fail"
    SKIPPED = "Skipped"
    NOT_REQUESTED = "Not requested"
    BLOCKED = "Blocked"


@dataclass(frozen=True, slots=True)
class Deliverable:
    """One line under `Deliverables:`."""

    name: str
    outcome: Outcome
    detail: str


class Recurrence(StrEnum):
    """What other runs of the same job show of a failure."""

    # The merge base fails, or is blocked, the same way.
    PRE_EXISTING = "pre_existing"
    # A retry on the head passed.
    NOT_REPRODUCED = "not_reproduced"


@dataclass(frozen=True, slots=True)
class Decision:
    """A result with its reason."""

    result: Result
    # Where it went wrong, None for a Pass.
    stage: Stage | None
    # What went wrong.
    cause: str
    # What to do about it.
    fix: str = ""
    # The evidence that decided.
    at: Evidence | None = None
    # What caused a Fail, by the related runs.
    blame: str = ""
    # Whether the change may have caused what blocked the run, so that a run on the merge base decides.
    undecided: bool = False
    # What identifies the failure in another run of the same job, where `at` does not.
    marks: tuple[str, ...] = ()
    # What ended the run, as identifiers of `verl_e2e.core.model.causes`; where `at` says it, they may be left out.
    causes: tuple[str, ...] = ()
    # What related runs show of the failure, None where they show neither.
    recurrence: Recurrence | None = None
