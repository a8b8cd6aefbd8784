"""The policy's list of defects that runs of unchanged code have at certain commits, with evidence and a last day."""

from collections.abc import Mapping
from datetime import date
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from verl_e2e.core.model.document import DescribedDocument
from verl_e2e.core.model.jobs import Sha
from verl_e2e.core.model.settings import Axis, Value, invalid_value
from verl_e2e.core.model.space import Trait
from verl_e2e.core.model.validated import InnerPath, LevelNumber, Text, UnfitError

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

    @model_validator(mode="after")
    def _possible(self) -> "KnownDefect":
        for axis, value in (*self.settings.items(), *self.avoid.items()):
            if problem := invalid_value(axis, value):
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

    def shows(self, settings: Mapping[Axis, Value]) -> bool:
        """Whether a job with these settings has it, as far as settings say."""
        avoided = bool(self.avoid) and all(Trait(axis, value).holds(settings) for axis, value in self.avoid.items())
        return not avoided and all(Trait(axis, value).holds(settings) for axis, value in self.settings.items())
