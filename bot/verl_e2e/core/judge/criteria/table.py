"""The criteria, one row each: which jobs ask for it, what judges it, and what follows when it is broken or missing.

A new one is a row, with its function here or in the module of its subject. Every other module looks up what it needs of
a criterion here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto

from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria import basic, features, metrics, resume, transfer, weights
from verl_e2e.core.judge.criteria.invariants import CriterionFinding
from verl_e2e.core.judge.execution import change_executed
from verl_e2e.core.judge.verdict_document import Aspect
from verl_e2e.core.model import evidence
from verl_e2e.core.model.evidence import Evidence
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import FingerprintsEvent, read_data
from verl_e2e.core.model.related import Role
from verl_e2e.core.model.settings import Axis


class Criterion(StrEnum):
    """The names of the pass criteria; a level passes when every one that it asks for holds."""

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
    PIPELINE_SCHEDULE = "pipeline_schedule"
    PARITY = "parity"
    FSDP_ACTIVE = "fsdp_active"
    FEATURE_ACTIVE = "feature_active"
    REWARD_MODEL_ASKED = "reward_model_asked"
    LEARNING_SIGNAL = "learning_signal"
    PERFORMANCE = "performance"
    # Held against a verdict once the back end says what it saw, in `run_record.py`: it has no row.
    RUN_RECORD = "run_record"
    CHANGE_EXECUTED = evidence.CHANGE_EXECUTED


class Broken(Enum):
    """Where a broken criterion decides in the chain of `core/judge/decide.py`."""

    # By a statement of its own, or as an item that a Pass needs: no Fail.
    NO_FAIL = auto()
    # Fails the run by the line where it shows, unless the log shows an error above it.
    AT_ITS_LINE = auto()
    # Fails a run whose log shows no error.
    AFTER_ERRORS = auto()
    # Fails a run that ended by itself.
    AFTER_END = auto()


class Gap(Enum):
    """Of what an item is missing that is broken or has no evidence."""

    OF_THE_RUN = auto()
    # The run by itself may be good.
    OF_THE_JOB = auto()
    # Of nothing: another job may show it.
    NONE = auto()


@dataclass(frozen=True, slots=True)
class CriterionRow:
    """One criterion."""

    criterion: Criterion
    judge: Callable[[Case], Evidence | CriterionFinding]
    # The stage of a fault or a gap, None for where the run stood; criteria on fingerprints find out their own.
    stage: Stage | None = None
    # The level that asks for it; with none, and without `when`, every job does.
    level: Level | None = None
    # Which jobs of other levels ask for it too.
    when: Callable[[Case], bool] | None = None
    broken: Broken = Broken.NO_FAIL
    # The stage of a Fail where it differs from that of a gap; None as its answer: no Fail.
    fault_stage: Callable[[Case], Stage | None] | None = None
    # Of what it is missing when it is broken or has no evidence.
    gap: Gap = Gap.OF_THE_RUN
    # Whether its line is shown as a key line of a Pass.
    key: bool = False
    # Whether the deliverable of its level quotes it.
    quoted: bool = False
    compared_with: Role | None = None
    # What a job shows by meeting it, and other jobs may not show.
    shows: Aspect | None = None
    fix: str = ""
    # What it means where it is broken, for a reader who knows none of its words; empty where the evidence says it.
    broken_means: str = ""

    def is_asked(self, case: Case) -> bool:
        """Whether the case's job asks for it."""
        if self.when is not None and self.when(case):
            return True
        return self.level is case.job.level or (self.level is None and self.when is None)

    @property
    def stage_order(self) -> int:
        """Where its stage stands among the stages of a run."""
        return -1 if self.stage is None else self.stage.order

    def find(self, case: Case) -> CriterionFinding:
        """Its evidence, with the stage of a fault or a gap and what it could not compare."""
        judged = self.judge(case)
        found = judged if isinstance(judged, CriterionFinding) else CriterionFinding(judged, self.stage)
        return replace(found, evidence=replace(found.evidence, criterion=self.criterion))


def _text(case: Case, axis: Axis, default: str) -> str:
    return consumer_of(case.job).text(axis, case.wrapper, default)


def _under_fsdp(case: Case) -> bool:
    asked = case.job.settings.get(Axis.FSDP), _text(case, Axis.FSDP, "False") != "False"
    return True in asked


# In the order in which evidence is listed; of those on fingerprints and of comparisons, also the order in which a fault
# of one would explain those of the others.
CRITERIA: tuple[CriterionRow, ...] = (
    CriterionRow(
        Criterion.BRIDGE_TESTS,
        basic.bridge_tests,
        broken_means="Unit tests of Bridge failed",
        gap=Gap.OF_THE_JOB,
        shows=Aspect.BRIDGE_TESTS,
        fix="Fix the failing focused Bridge tests, or show that they fail on the merge base too.",
    ),
    CriterionRow(
        Criterion.LOCAL_IMPORT,
        basic.local_import,
        broken_means="The run used another copy of the code than that of the pull request",
        stage=Stage.IMPORT,
        fix=(
            "Put the checkout under test first on PYTHONPATH, in the driver and in Ray's runtime environment, and "
            "remove any other megatron.bridge or megatron.core before it; then run again."
        ),
    ),
    CriterionRow(
        Criterion.RESOLVED_CONFIG,
        basic.resolved_config,
        broken_means="The run had other settings than were asked for",
        key=True,
        fix="Make the job's variables and overrides reach the run (see the wrapper at that commit), then run again.",
    ),
    CriterionRow(Criterion.STEPS_COMPLETED, basic.steps_completed, key=True),
    CriterionRow(Criterion.NO_EXCEPTION, basic.no_exception),
    CriterionRow(Criterion.EXIT_ZERO, basic.exit_zero),
    CriterionRow(
        Criterion.ADAPTER,
        metrics.adapter,
        broken_means="LoRA was asked for, and the model got none",
        stage=Stage.PEFT,
        broken=Broken.AT_ITS_LINE,
        fix="Check LORA_TARGET_MODULES against the module names that the provider builds.",
    ),
    CriterionRow(
        Criterion.WEIGHTS_KEPT,
        metrics.weights_kept,
        broken_means="Weights were lost between Hugging Face and Megatron",
        stage=Stage.HF_IMPORT,
        broken=Broken.AT_ITS_LINE,
        fix="Complete the parameter mapping of the family: the warning names what was lost.",
    ),
    CriterionRow(
        Criterion.GRADIENTS,
        metrics.gradients,
        broken_means="The training step gave no usable gradient",
        stage=Stage.TRAIN_STEP,
        broken=Broken.AT_ITS_LINE,
        key=True,
        fix="Find out why the parameters get no finite gradient: trainable flags, hooks, loss scaling.",
    ),
    CriterionRow(
        Criterion.ROLLOUT_AGREEMENT,
        metrics.rollout_agreement,
        broken_means="Trainer and rollout engine disagree about the same tokens after the weights were exported",
        stage=Stage.EXPORT_WEIGHT_SYNC,
        broken=Broken.AT_ITS_LINE,
        key=True,
        fix=(
            "Compare HF import and export for this family, weight by weight: trainer and rollout differ. Where "
            "the weights are the same, compare what the provider computes with them (router score, rope, norm, "
            "attention scale) with the model's Hugging Face configuration."
        ),
    ),
    CriterionRow(
        Criterion.ADAPTER_SIZE,
        weights.adapter_size,
        broken_means="The LoRA weights have another size than was asked for",
        broken=Broken.AFTER_ERRORS,
        fix=(
            "Compare rank, target modules and parallel sizes with what the adapter's class builds for the named module."
        ),
    ),
    CriterionRow(
        Criterion.RESUMED_STATE,
        transfer.resumed_state,
        broken_means="The checkpoint did not bring back what was saved",
        level=Level.SAVE_RESUME,
        broken=Broken.AFTER_ERRORS,
        fix="Follow the named tensor through save and load: which key it is written under, and what reads it back.",
    ),
    CriterionRow(
        Criterion.REPLICAS,
        weights.replicas,
        broken_means="GPUs that must hold the same weights hold different ones",
        broken=Broken.AFTER_ERRORS,
        fix=(
            "Find what should keep the copies equal: initialization, broadcast, reduction of gradients over these "
            "ranks."
        ),
    ),
    CriterionRow(
        Criterion.FROZEN_WEIGHTS,
        weights.frozen_weights,
        broken_means="Weights changed that nothing may change",
        broken=Broken.AFTER_ERRORS,
        fix=(
            "Find what writes into the named weight: an export must copy before it changes, and a frozen weight "
            "must not reach the optimizer."
        ),
    ),
    CriterionRow(
        Criterion.TRAINED_WEIGHTS,
        weights.trained_weights,
        broken_means="Weights that must train were not trained",
        broken=Broken.AFTER_ERRORS,
        fix=(
            "Find out why the named parameter gets no gradient or no step: trainable flags, hooks, the "
            "optimizer's groups."
        ),
    ),
    CriterionRow(
        Criterion.IMPORTED_WEIGHTS,
        transfer.imported_weights,
        broken_means="The model does not hold the weights of its Hugging Face files",
        broken=Broken.AFTER_ERRORS,
        fix=(
            "Follow the named tensor through its parameter mapping in both directions: how the import splits and "
            "orders it over ranks, and how the export joins it."
        ),
    ),
    CriterionRow(
        Criterion.EXPORTED_ADAPTERS,
        transfer.exported_adapters,
        broken_means="The exported LoRA weights are not those that the trainer held",
        when=transfer.exports_adapters,
        broken=Broken.AFTER_ERRORS,
        fix=(
            "Compare the adapter as the trainer holds it with what its export yields: scale, cache, gathering of "
            "shards."
        ),
    ),
    CriterionRow(
        Criterion.ROLLOUT_WEIGHTS,
        transfer.rollout_weights,
        broken_means="The rollout engine holds other weights than were exported",
        broken=Broken.AFTER_ERRORS,
        fix=(
            "Compare the named tensor as it was exported, as it arrived and as the engine loaded it: name, order, "
            "scale."
        ),
    ),
    CriterionRow(
        Criterion.RESUMED,
        resume.resumed,
        broken_means="The run did not go on from its checkpoint",
        level=Level.SAVE_RESUME,
        stage=Stage.CHECKPOINT_LOAD,
        broken=Broken.AFTER_END,
        fault_stage=resume.resume_stage,
        key=True,
        quoted=True,
        shows=Aspect.SAVE_RESUME,
        fix=(
            "Compare what the save phase wrote with what the resume phase loaded. A rerun with SAVE_FREQ=-1 shows "
            "whether construction or checkpointing is at fault."
        ),
    ),
    CriterionRow(
        Criterion.RESUMED_STEP,
        metrics.resumed_step,
        broken_means="The resumed run computes something else than one that was not interrupted",
        level=Level.SAVE_RESUME,
        stage=Stage.CHECKPOINT_LOAD,
        broken=Broken.AFTER_ERRORS,
        key=True,
        compared_with=Role.UNINTERRUPTED,
        fix="Compare what the checkpoint holds with what the resumed run loads: adapter, optimizer state, scheduler.",
    ),
    CriterionRow(
        Criterion.FEATURE_ACTIVE,
        features.feature_active,
        level=Level.FEATURE,
        stage=Stage.BRIDGE_PROVIDER,
        key=True,
        quoted=True,
    ),
    CriterionRow(
        Criterion.LEARNING_SIGNAL,
        metrics.learning_signal,
        broken_means="The model did not learn",
        level=Level.LEARNING_SIGNAL,
        stage=Stage.LEARNING_SIGNAL,
        broken=Broken.AT_ITS_LINE,
        gap=Gap.OF_THE_JOB,
        key=True,
        shows=Aspect.LEARNING,
        fix=(
            "Look at the named step, and compare loss, reward, optimizer and scheduler with the merge base. "
            "`verl-e2e signal` shows every curve."
        ),
    ),
    CriterionRow(
        Criterion.FSDP_ACTIVE,
        features.fsdp_active,
        broken_means="FSDP was asked for and not used",
        level=Level.MEGATRON_FSDP,
        when=_under_fsdp,
        stage=Stage.FSDP_WRAP,
        broken=Broken.AFTER_END,
        key=True,
        quoted=True,
        fix="Follow use_megatron_fsdp from verl's engine into provide_distributed_model: another wrapper was chosen.",
    ),
    CriterionRow(
        Criterion.REWARD_MODEL_ASKED,
        features.reward_model_asked,
        when=lambda case: bool(case.job.reward_model),
        stage=Stage.REWARD_MODEL,
        key=True,
        shows=Aspect.REWARD_MODEL,
    ),
    CriterionRow(
        Criterion.PARALLEL_SIZES,
        features.parallel_sizes,
        level=Level.PARALLELISM,
        # A derived job sets a size above 1, and Megatron-FSDP shards over ranks.
        when=lambda case: (
            any(axis.is_parallel and value != 1 for axis, value in case.job.settings.items())
            or (_under_fsdp(case) and case.job.gpu_count > 1)
        ),
        stage=Stage.BRIDGE_PROVIDER,
        key=True,
        quoted=True,
    ),
    CriterionRow(
        Criterion.PIPELINE_SCHEDULE,
        features.pipeline_schedule,
        when=lambda case: _text(case, Axis.PIPELINE, "1") != "1",
        stage=Stage.TRAIN_STEP,
        key=True,
        fix=(
            "Find out which schedule `get_forward_backward_func` chose and why; of too few micro-batches, lower "
            "`ppo_max_token_len_per_gpu` of actor and critic."
        ),
    ),
    CriterionRow(
        Criterion.PARITY,
        metrics.unsharded_parity,
        broken_means="On several GPUs training computes something else than on one",
        level=Level.PARALLELISM,
        stage=Stage.TRAIN_STEP,
        broken=Broken.AFTER_ERRORS,
        key=True,
        quoted=True,
        compared_with=Role.UNSHARDED,
        fix=(
            "Find what depends on the parallel sizes: finalizing gradients across ranks, loss scaling, sharded "
            "weights; `verl-e2e parity` shows every step."
        ),
    ),
    CriterionRow(
        Criterion.PERFORMANCE,
        metrics.performance,
        broken_means="The run was slower or took more memory than earlier ones",
        when=metrics.has_measured_runs,
        stage=Stage.TRAIN_STEP,
        broken=Broken.AFTER_END,
        gap=Gap.NONE,
        key=True,
        fix="Profile the named part of the step on head and merge base: `timing_s/...` of metrics.jsonl says which.",
    ),
    CriterionRow(
        Criterion.CHANGE_EXECUTED,
        change_executed,
        broken_means="The job passed without running the changed lines, so it tested nothing of the change",
        when=lambda case: bool(case.job.changed),
        gap=Gap.NONE,
        key=True,
    ),
)
ROWS: Mapping[str, CriterionRow] = {row.criterion: row for row in CRITERIA}


def criteria_of(case: Case) -> tuple[CriterionRow, ...]:
    """The criteria that the case's job asks for, in the order of the evidence."""
    return tuple(row for row in CRITERIA if row.is_asked(case))


def state_limitations(case: Case, found: Iterable[CriterionFinding]) -> Iterator[str]:
    """What the criteria on fingerprints could not compare."""
    recorded = case.record.fingerprints
    if recorded is None or not recorded.snapshots:
        return
    counts = [counted for event in case.events("fingerprints") if (counted := read_data(event, FingerprintsEvent))]
    unreadable = recorded.unreadable + sum(counted.unreadable for counted in counts)
    left_out = sum(counted.left_out for counted in counts)
    if unreadable:
        yield f"{unreadable} fingerprint line(s) could not be read"
    if left_out:
        yield f"{left_out} fingerprint line(s) were not kept because there were too many"
    yield from (note for item in found for note in item.notes)
