"""The policy on what is known to fail: defects of unchanged code, causes that come and go, and what runs again."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum, auto
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from verl_e2e.core.model.document import DescribedDocument, InnerPath, LevelNumber, Text, UnfitError
from verl_e2e.core.model.jobs import ErrorSign, JobDefect, Sha
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.settings import Axis, Value
from verl_e2e.core.model.space import Trait

# Of a file `git rev-parse COMMIT:PATH`, of a submodule its commit.
_ObjectId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]


class KnownDefect(DescribedDocument):
    """Jobs that fail whatever the change does, while the commits are what they were when it was seen.

    Such a job is not run. Where settings are known under which the defect does not show, a job with them takes its
    place.
    """

    name: Text
    """Shown on plan and card."""
    level: LevelNumber | None = None
    """Only jobs of this level; null: of every level."""
    family: Text | None = None
    """Only jobs whose model is of this family; null: any model."""
    settings: dict[Axis, Value] = Field(default_factory=dict)
    """Only jobs with all of these settings; of a size, with at least this one."""
    avoid: dict[Axis, Value] = Field(default_factory=dict)
    """Settings under which it does not show; empty: none are known."""
    verl: Sha
    """The commit of verl that it was seen with; with another one it is not taken for known."""
    objects: Annotated[dict[InnerPath, _ObjectId], Field(min_length=1)]
    """The files, or submodules, that have it, with the ids that git gives them: a change of one ends the entry."""
    until: date
    """The last day on which it counts, by UTC."""
    reason: Text
    """What fails and why, for plan and card."""
    evidence: Text
    """Where it was seen on unchanged code."""
    upstream: str = ""
    """The address of the report or fix upstream."""
    shows: tuple[ErrorSign, ...] = ()
    """The errors in one of which a job with it ends, so that one that someone asks for is Blocked; empty: it is judged
    as any other."""

    @model_validator(mode="after")
    def _possible(self) -> "KnownDefect":
        for axis, value in (*self.settings.items(), *self.avoid.items()):
            if problem := axis.invalid(value):
                raise UnfitError(problem, "see docs/space.md for the values of each setting")
        if self.level is None and self.family is None and not self.settings:
            raise UnfitError(f"{self.name} is about every job", "give a `level`, a `family` or `settings`")
        return self

    def ended(self, verl: str, objects: Mapping[str, str], today: date) -> str:
        """Why it is not known of the code with these objects, run by this verl, on a day; empty where it is."""
        if today > self.until:
            return f"{self.until.isoformat()} is over"
        if verl != self.verl:
            return f"it was seen with verl {self.verl[:12]}, and the policy has {verl[:12]}"
        moved = next((path for path, identifier in self.objects.items() if objects.get(path) != identifier), "")
        return f"{moved} is not what it was" if moved else ""

    def of_job(self) -> tuple[JobDefect, ...]:
        """What a job that has it says of it; nothing where no error tells it from another fault."""
        return tuple(JobDefect(name=self.name, reason=self.reason, shows=error) for error in self.shows)

    def meets(self, settings: Mapping[Axis, Value]) -> bool:
        """Whether a job with these settings has it, as far as settings say."""
        avoided = bool(self.avoid) and all(Trait(axis, value).holds(settings) for axis, value in self.avoid.items())
        return not avoided and all(Trait(axis, value).holds(settings) for axis, value in self.settings.items())


# An entry whose last day is further away does not count yet: what is set aside is looked at again within a quarter.
MOST_DAYS = 90

# `verdict:`, which stands for missing or doubtful evidence, is not among them: no policy sets evidence aside.
_Cause = Annotated[str, StringConstraints(pattern=r"^(?:log|preflight|end|engine|criterion):[a-z][a-z0-9_-]{0,60}$")]


class Validity(Enum):
    """Whether an entry counts on a day."""

    YES = auto()
    EXPIRED = auto()
    TOO_FAR = auto()


class QuarantinedCause(DescribedDocument):
    """One cause that the policy sets aside until a day."""

    cause_id: Annotated[_Cause, Field(alias="cause")]
    """The cause, as `verl-e2e flaky` and `causes` of `verdict.json` name it; one of `verdict:` is not possible."""
    job: Text | None = None
    """Only in the job of this id; null: in every job."""
    stage: Stage | None = None
    """Only at this stage; null: at every stage."""
    fingerprint: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")] | None = None
    """Only the failure with this fingerprint; null: any, but only of runs that were Blocked, never of a Fail."""
    until: date
    """The last day on which it counts, by UTC, at most 90 days away."""
    reason: Text
    """Why it is set aside, for card and gate."""
    link: Annotated[str, StringConstraints(pattern=r"^https://\S+$")]
    """Where the cause is being worked on."""

    @model_validator(mode="after")
    def _narrow(self) -> "QuarantinedCause":
        if self.cause_id.startswith("criterion:") and self.fingerprint is None:
            fix = "give the `fingerprint` of the one failure that is meant, see `verl-e2e flaky`"
            raise UnfitError(f"{self.cause_id} would set a whole criterion aside", fix)
        return self

    @property
    def ends_at(self) -> datetime:
        """The first moment at which it counts no more."""
        return datetime.combine(self.until + timedelta(days=1), time(), UTC)

    def counts(self, today: date) -> Validity:
        """Whether the entry counts on a day."""
        if today > self.until:
            return Validity.EXPIRED
        return Validity.TOO_FAR if self.until - today > timedelta(days=MOST_DAYS) else Validity.YES


class RetryRules(DescribedDocument):
    """How often the bot runs a job again that the infrastructure blocked.

    There is no key for what failed, for an unknown cause or for a fault of the tested code: those are never run again
    unless a person asks.
    """

    passing: Annotated[int, Field(strict=True, ge=0, le=3)] = 1
    """Attempts in addition to the first after a fault of the infrastructure that may pass, as a node that failed."""
    lasting: Annotated[int, Field(strict=True, ge=0, le=1)] = 0
    """The same after a fault that someone has to fix, as a full disk."""
    wait_s: Annotated[int, Field(strict=True, ge=0, le=3_600)] = 60
    """Seconds before the next attempt begins; twice as long before each further one."""
    per_day: Annotated[int, Field(strict=True, ge=0, le=100)] = 6
    """So many attempts of this kind within 24 hours, for all jobs of one pull request together."""
    gpu_minutes_per_day: Annotated[int, Field(strict=True, ge=0)] = 240
    """GPU minutes that they may take within 24 hours, for all jobs of one pull request together."""
