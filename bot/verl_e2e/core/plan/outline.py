"""A job before any machine is known: its variant, its checkpoint and the features that it must show."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from verl_e2e.core.judge.criteria.features import can_be_shown
from verl_e2e.core.model.changed_code import NO_CODE, ChangedCode
from verl_e2e.core.model.costs import CostBasis
from verl_e2e.core.model.jobs import DEFAULT_GPU_MEMORY_GIB, WRAPPER_SCRIPT, Checkpoint
from verl_e2e.core.model.levels import Level, Variant, variants_of
from verl_e2e.core.model.nodes import MOST_GPUS
from verl_e2e.core.model.purposes import Purpose
from verl_e2e.core.model.wants import Axis, Value
from verl_e2e.core.plan.bridge_tests import NO_CHOICE, Choice
from verl_e2e.core.plan.policy import UNDECLARED, Feature, ModelFacts
from verl_e2e.core.plan.sizing import Fitted, fit


class Missing(StrEnum):
    """What keeps a job from passing, known when it is planned."""

    CHECKPOINT = "checkpoint"
    # No host can ever run a model of the family.
    MODEL = "model"
    SCRIPT = "script"
    SCRIPTS_DIFFER = "scripts differ"
    FEATURE = "feature"
    EVIDENCE = "evidence"
    GPUS = "gpus"
    # The code under test is known to fail in it, whatever the change does.
    DEFECT = "defect"


_OF_NO_HOST = frozenset({Missing.MODEL, Missing.DEFECT})


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a job cannot pass as it is planned, and what a maintainer can do about it, a clause each."""

    missing: Missing
    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.fix}"


@dataclass(frozen=True, slots=True)
class JobOutline:
    """A job before any machine is known.

    `requires` are ids of jobs that must pass first. `family` is set for one family's job of level 4. `features` are
    switched on by the job, each with a script; `not_shown` are those that verl has no script for.
    """

    variant: Variant
    requires: tuple[str, ...]
    checkpoint: Checkpoint | None
    family: str = ""
    features: tuple[Feature, ...] = ()
    not_shown: tuple[Feature, ...] = ()
    # Why it cannot pass as planned, so that no GPU time is spent on it; empty when it may.
    obstacles: tuple[Obstacle, ...] = ()
    # The Bridge tests that were chosen for the change.
    tests: Choice = NO_CHOICE
    # What the policy declares of the checkpoint.
    model: ModelFacts = UNDECLARED
    # The features of the family, or asked for, that the checkpoint does not have.
    absent: tuple[str, ...] = ()
    # What of the change it is planned to execute.
    changed: ChangedCode = NO_CODE
    # The identifiers of the changed statements in the files of that code.
    changed_words: frozenset[str] = frozenset()
    # The places of the change that it was made for, or that it was given the settings for.
    purposes: tuple[Purpose, ...] = ()
    # The settings of a derived job that differ from those of level 0; empty for a job of the table of levels.
    settings: Mapping[Axis, Value] = field(default_factory=dict)
    # The most GPUs that a job may have, by the policy.
    most_gpus: int = MOST_GPUS
    # The id of the job of the table that a derived job takes the place of, empty where it takes none.
    replaces: str = ""
    # What it does not show because it stands for another job, a clause each.
    notes: tuple[str, ...] = ()
    # Why it is planned in addition to the default job of its level, a clause; empty for that one, and for a job whose
    # purposes say it.
    reason: str = ""

    @property
    def id(self) -> str:
        """`<level>-<variant>`, then the family, or the features where no family is meant, so that ids differ."""
        named = self.family or "-".join(feature.name for feature in (*self.features, *self.not_shown))
        suffix = "".join(c if c.isascii() and c.isalnum() else "-" for c in named.lower())
        return f"{self.variant.job_id}-{suffix}" if suffix else self.variant.job_id

    @property
    def is_default(self) -> bool:
        """Whether it is the job that its level always has, or takes its place: the level's reasons are its own."""
        return (self.replaces or self.variant.job_id) == variants_of(self.variant.level)[0].job_id

    @property
    def has_experts(self) -> bool:
        """Whether its model is known to have experts."""
        named = {self.variant.feature, *(feature.name for feature in self.features)}
        return "moe" in named or "moe" in (self.model.features or ())

    @property
    def blocked(self) -> str:
        """Why the job cannot pass as planned and what to do, empty when it may."""
        return "; ".join(map(str, self.obstacles))

    @property
    def uncoverable(self) -> str:
        """Why no host can run it as long as the code is what it is, empty where one can."""
        return next((item.reason for item in self.obstacles if item.missing in _OF_NO_HOST), "")

    @property
    def gpu_count(self) -> int:
        """The GPUs that it needs where a GPU has the usual memory."""
        return self.fitted().variant.gpu_count

    @property
    def gpu_minutes(self) -> int:
        """GPUs times minutes that all its runs are expected to take; 0 for a job that is not run."""
        return 0 if self.obstacles else self.variant.cost.gpu_minutes(self.gpu_count)

    @property
    def cost_basis(self) -> CostBasis:
        """Where `gpu_minutes` comes from: what was measured holds for the variant's own number of GPUs."""
        return self.variant.cost.basis if self.gpu_count == self.variant.gpu_count else CostBasis.ESTIMATE

    def fitted(self, gpu_memory_gib: float = DEFAULT_GPU_MEMORY_GIB) -> Fitted:
        """The variant on as many GPUs as the model needs."""
        wrapper = {name: value for feature in self.features for name, value in feature.wrapper.items()}
        return fit(
            self.variant,
            self.model,
            wrapper=wrapper,
            script=self.script,
            gpu_memory_gib=gpu_memory_gib,
            most_gpus=self.most_gpus,
        )

    @property
    def script(self) -> str:
        """The script of verl that is run, relative to its top folder: the first that is not the wrapper."""
        others = (feature.script for feature in self.features if feature.script and feature.script != WRAPPER_SCRIPT)
        return next(others, WRAPPER_SCRIPT)

    @property
    def active_when(self) -> dict[str, bool | int | float | str | None]:
        """What the run's own configuration must show for the features, by dotted key."""
        return {key: value for feature in self.features for key, value in feature.active_when.items()}

    @property
    def limitations(self) -> tuple[str, ...]:
        """What a run of the job leaves open about its features and its GPUs, a sentence each."""
        unproven = (feature.name for feature in self.features if not can_be_shown(feature.name, feature.active_when))
        model = self.checkpoint.model_id if self.checkpoint else ""
        return (
            *(f"{feature.name}: {feature.limitation}" for feature in self.features if feature.limitation),
            *(f"neither configuration nor log of a run tells whether {name} was active" for name in unproven),
            *(
                f"no script of verl shows {item.name}: {item.reason}"
                if item.is_read_of(self.family)
                else f"no run of verl shows {item.name} of {self.family}: {item.unread}"
                for item in self.not_shown
            ),
            *(f"{name} is not exercised: {model} does not have it" for name in self.absent),
            *self.notes,
        )


def in_order(jobs: Iterable[JobOutline]) -> tuple[JobOutline, ...]:
    """The jobs as they are run: level 0 before all others, then those that need no other, then by what they cost."""

    def turn(job: JobOutline) -> tuple[bool, bool, int, str]:
        return job.variant.level is not Level.SMOKE, bool(job.requires), job.gpu_minutes, job.id

    return tuple(sorted(jobs, key=turn))
