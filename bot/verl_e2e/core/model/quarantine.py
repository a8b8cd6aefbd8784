"""The policy's list of causes that are known to come and go: each with a reason, a link and a day on which it ends."""

from datetime import UTC, date, datetime, time, timedelta
from enum import Enum, auto
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from verl_e2e.core.model.document import DescribedDocument
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.validated import Text, UnfitError

# An entry whose last day is further away does not count yet: what is set aside is looked at again within a quarter.
MOST_DAYS = 90

# `verdict:`, which stands for missing or doubtful evidence, is not among them: no policy sets evidence aside.
_Cause = Annotated[str, StringConstraints(pattern=r"^(?:log|preflight|end|engine|criterion):[a-z][a-z0-9_-]{0,60}$")]


class Counts(Enum):
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

    def counts(self, today: date) -> Counts:
        """Whether the entry counts on a day."""
        if today > self.until:
            return Counts.EXPIRED
        return Counts.TOO_FAR if self.until - today > timedelta(days=MOST_DAYS) else Counts.YES
