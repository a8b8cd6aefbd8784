"""The words of a verdict: the result of the whole, the outcome of one deliverable, and the decision behind them.

What ended a run is an identifier: `log:<rule>`, `preflight:<check>`, `end:<reason>`, `engine:<end>` and so on. A
sentence says it to people and may be worded otherwise tomorrow; retries, statistics and quarantine go by these.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import StringConstraints

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
    # The merge base passes, or gets beyond it, and no retry on the head passed.
    REGRESSION = "regression"


class Whose(StrEnum):
    """Whose a failure is, as far as it is known."""

    THIS_CHANGE = "this change"
    NOT_THIS_CHANGE = "not this change"
    NOT_KNOWN = "not known"
    # The run was good and tested nothing of the change.
    NOBODYS = "nobody's"


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
    # How it is known whose it is, by the related runs, as a clause; empty where they say nothing.
    blame: str = ""
    # Whether the change may have caused what blocked the run, so that a run on the merge base decides.
    undecided: bool = False
    # What identifies the failure in another run of the same job, where `at` does not.
    marks: tuple[str, ...] = ()
    # What ended the run, as identifiers; where `at` says it, they may be left out.
    causes: tuple[str, ...] = ()
    # What related runs show of the failure, None where they show nothing.
    recurrence: Recurrence | None = None


CauseId = Annotated[str, StringConstraints(pattern=r"^[a-z]+:[a-z][a-z0-9_-]{0,60}$")]
# The folder is not as the recorder left it.
SEAL_CAUSE = "verdict:seal"
# Something that a Pass needs is not there, and nothing says why.
EVIDENCE_CAUSE = "verdict:evidence"
# The folder does not show that the checkout under test is what failed.
UNPROVEN_CAUSE = "verdict:unproven"
# Someone else on the host may have caused it.
NEIGHBOUR_CAUSE = "verdict:neighbour"
# A defect that the policy declares of unchanged code, in the form that it declares.
DEFECT_CAUSE = "verdict:defect"


def whose_of(recurrence: Recurrence | None, causes: Iterable[str]) -> Whose:
    """Whose a failure is by what related runs show of it, and by what ended the run."""
    if recurrence is Recurrence.PRE_EXISTING or DEFECT_CAUSE in causes:
        return Whose.NOT_THIS_CHANGE
    return Whose.THIS_CHANGE if recurrence is Recurrence.REGRESSION else Whose.NOT_KNOWN


class EngineEnd(StrEnum):
    """How a run ended that has no verdict of its own, as the back end or the service itself knows it."""

    # The machine failed or was lost while it ran.
    NODE_FAILED = "node_failed"
    # The machine could not start it: nothing of the job ran.
    NODE_NOT_READY = "node_not_ready"
    # The engine took the machine away for other work.
    PREEMPTED = "preempted"
    # No machine took it in time.
    NO_MACHINE = "no_machine"
    # The machine's memory limit was passed.
    HOST_MEMORY = "host_memory"
    # The engine's time limit was passed.
    TIME_LIMIT = "time_limit"
    # The runner itself was killed from outside, as by a kernel that needs memory.
    RUNNER_KILLED = "runner_killed"
    # The runner ended without a word on how the run ended.
    RUNNER_ENDED = "runner_ended"
    # The engine no longer knows of it.
    FORGOTTEN = "forgotten"
    # The engine could not begin it: its own configuration is wrong.
    NOT_STARTED = "not_started"
    # The engine will never take the order.
    REFUSED = "refused"
    # It ended and left no run folder, or more than one.
    LEFT_NOTHING = "left_nothing"
    # What it left could not be brought here.
    NOT_FETCHED = "not_fetched"
    # It left the folder of another job.
    OTHER_FOLDER = "other_folder"
    # We could not judge what it left.
    NOT_JUDGED = "not_judged"


def of_log(rule: str) -> CauseId:
    """The cause of an error that a rule of triage explains."""
    return f"log:{rule}"


def of_preflight(check: str) -> CauseId:
    """The cause of a preflight check that failed."""
    return f"preflight:{check}"


def of_end(reason: str) -> CauseId:
    """The cause of a run that ended early."""
    return f"end:{reason}"


def of_engine(end: EngineEnd) -> CauseId:
    """The cause of a run that has no verdict."""
    return f"engine:{end}"


def of_criterion(criterion: str) -> CauseId:
    """The cause of a criterion that is broken or has no evidence."""
    return f"criterion:{criterion}"
