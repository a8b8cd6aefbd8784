"""The document of a plan: what `plan --json` prints and `plan.json` holds, written and read by the same types."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from verl_e2e.core.model.change import readable
from verl_e2e.core.model.document import filled
from verl_e2e.core.model.execution import NO_CODE, ChangedCode, Purpose
from verl_e2e.core.model.jobs import WRAPPER_SCRIPT, Checkpoint, ChosenTest, SiteProfile
from verl_e2e.core.model.levels import CostBasis, Level
from verl_e2e.core.model.needs import Needs
from verl_e2e.core.model.settings import Axis, Value
from verl_e2e.core.plan.code_plan import Unshown
from verl_e2e.core.plan.outline import JobOutline, Obstacle
from verl_e2e.core.plan.plan import NotRequired, Plan
from verl_e2e.core.reach.effects import LookedAt


class _Part(BaseModel):
    """A part of the document; a key that this version does not know is left out."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, serialize_by_alias=True)


class PlannedJob(_Part):
    """One job of the plan."""

    # `<level>-<variant>`, and the features or the family where ids would be the same.
    id: str
    level: Level
    # The name of the variant.
    variant: str = ""
    # The program that trains, by its name in `core/consumer`.
    consumer: str = "verl"
    gpu_count: int = 0
    # Where the number of GPUs comes from, empty where it is the variant's own.
    gpu_count_reason: str = ""
    # What it takes of a host with the usual values; None for a job that is not run.
    needs: Needs | None = None
    # GPUs times minutes of all its runs, 0 for a job that is not run.
    gpu_minutes: int = 0
    # What that number was taken from.
    gpu_minutes_from: CostBasis = CostBasis.ESTIMATE
    # Ids of jobs that must pass first.
    requires: tuple[str, ...] = ()
    # None where none is known.
    checkpoint: Checkpoint | None = None
    # Features that the job switches on.
    features: tuple[str, ...] = ()
    # How many functions of the change it must enter.
    changed_functions: int = 0
    # How many lines of the change it must execute.
    changed_lines: int = 0
    # Features that verl has no script for.
    not_shown: tuple[str, ...] = ()
    # Features that its checkpoint does not have.
    absent: tuple[str, ...] = ()
    # The script of verl that is run.
    script: str = WRAPPER_SCRIPT
    # Why the job cannot pass as planned and what to do, empty when it may.
    blocked: str = ""
    # The same, one by one.
    obstacles: tuple[Obstacle, ...] = ()
    # Why no host can run it as long as the code is what it is, empty where one can.
    uncoverable: str = ""
    # Why it is planned in addition to the default job of its level; empty for that one, and where `purposes` say it.
    reason: str = ""
    # The places of the change that it was made for, each with what enters it.
    purposes: tuple[Purpose, ...] = ()
    # The settings of a derived job that differ from those of level 0, by axis.
    settings: dict[Axis, Value] = {}
    # The id of the job of the table of levels that a derived job takes the place of.
    replaces: str = ""
    # What it does not show because it stands for another job, a clause each.
    notes: tuple[str, ...] = ()


class PlaceNotCovered(_Part):
    """A place of the change that no job is planned for."""

    # The place and what enters it.
    purpose: Purpose
    # Why no job is planned for it.
    reason: str


class PlaceNotEntered(_Part):
    """A place of the change that nothing is known to enter."""

    path: str
    symbol: str
    # Lines of the head; empty for the whole function.
    lines: tuple[int, ...] = ()
    # A clause.
    reason: str


class PlanReason(_Part):
    """Why a level is required."""

    level: Level
    # None where another level or a person asks for it.
    path: str | None = None
    # None for the whole file.
    symbol: str | None = None
    reason: str
    # The chain from a line in verl to the symbol, then the rule.
    via: tuple[str, ...] = ()


class ChosenTests(_Part):
    """The Bridge tests that were chosen for the change."""

    tests: tuple[ChosenTest, ...] = ()
    # Sentences on what is not run.
    left_out: tuple[str, ...] = ()


class PlanDocument(_Part):
    """A whole plan. Every level is either in `levels` or in `not_required`."""

    schema_: Annotated[Literal[2], Field(alias="schema")] = 2
    base: str = ""
    head: str = ""
    levels: tuple[Level, ...] = ()
    jobs: tuple[PlannedJob, ...]
    # Minutes until the last job has ended, if all pass and none has to wait for a machine.
    minutes_to_answer: int = 0
    reasons: tuple[PlanReason, ...] = ()
    not_required: tuple[NotRequired, ...] = ()
    families: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    bridge_tests: ChosenTests = ChosenTests()
    # Why the plan may not be what the change needs.
    incomplete: tuple[str, ...] = ()
    # What else there is to know of it: where reach starts, what another consumer alone reaches.
    notes: tuple[str, ...] = ()
    # How much was looked at, None where names alone were.
    looked_at: LookedAt | None = None
    # The functions that the change touches, with the lines that must run.
    changed: ChangedCode = NO_CODE
    # The places that no job is planned for.
    not_covered: tuple[PlaceNotCovered, ...] = ()
    # The places that nothing is known to enter: whether a planned job gets there is not known.
    not_entered: tuple[PlaceNotEntered, ...] = ()
    # What no job of a level can show, because of the models that they run.
    unshown: tuple[Unshown, ...] = ()


def plan_document(plan: Plan) -> PlanDocument:
    """The document of a plan; every text in it can be encoded as UTF-8."""
    return filled(
        PlanDocument,
        plan,
        schema_=2,
        jobs=tuple(map(_job, plan.jobs)),
        reasons=tuple(filled(PlanReason, item) for item in plan.reasons),
        bridge_tests=filled(ChosenTests, plan.tests),
        not_covered=tuple(PlaceNotCovered(purpose=item.purpose, reason=item.reason) for item in plan.not_covered),
        not_entered=tuple(
            PlaceNotEntered(
                path=readable(item.function.path), symbol=item.function.symbol, lines=item.lines, reason=item.problem
            )
            for item in plan.not_entered
        ),
    )


# A plan knows no host.
_ANY_SITE = SiteProfile(name="any")


def _job(job: JobOutline) -> PlannedJob:
    return filled(
        PlannedJob,
        job,
        level=job.variant.level,
        variant=job.variant.name,
        gpu_count_reason=job.fitted().reason,
        needs=None if job.obstacles else _ANY_SITE.needs_of(job.gpu_count),
        gpu_minutes_from=job.cost_basis,
        changed_functions=sum(bool(function.symbol) for function in job.changed.required),
        changed_lines=sum(len(function.lines) for function in job.changed.required),
        features=tuple(feature.name for feature in job.features),
        not_shown=tuple(feature.name for feature in job.not_shown),
        settings=dict(job.settings),
    )


def plan_json(plan: Plan) -> str:
    """The text of `plan.json`."""
    return plan_document(plan).model_dump_json(indent=2) + "\n"
