"""A job before any machine is known: its variant, its checkpoint and the features that it must show."""

from dataclasses import dataclass

from bot.core.jobs import WRAPPER_SCRIPT, Checkpoint
from bot.core.judging.feature_evidence import leaves_trace
from bot.core.levels import Variant
from bot.core.planning.bridge_tests import NO_CHOICE, Choice
from bot.core.rules import Feature


@dataclass(frozen=True, slots=True)
class JobOutline:
    """A job before any machine is known.

    `gpu_minutes` is an estimate (GPUs times minutes). `requires` are ids of jobs that must pass first.
    `family` is set for one family's job of level 4. Without a `checkpoint` the job cannot run: the policy
    names none that exercises the family. `features` are switched on by the job, each with a script; `not_shown`
    are those that verl has no script for. `blocked` says why the job cannot run, empty when it can. `tests` are the
    Bridge tests that were chosen for the change.
    """

    variant: Variant
    requires: tuple[str, ...]
    checkpoint: Checkpoint | None
    family: str = ""
    features: tuple[Feature, ...] = ()
    not_shown: tuple[Feature, ...] = ()
    blocked: str = ""
    tests: Choice = NO_CHOICE

    @property
    def id(self) -> str:
        """`<level>-<variant>`, then the family, or the features where no family is meant, so that ids differ."""
        named = self.family or "-".join(one.name for one in (*self.features, *self.not_shown))
        suffix = "".join(c if c.isascii() and c.isalnum() else "-" for c in named.lower())
        return f"{self.variant.job_id}-{suffix}" if suffix else self.variant.job_id

    @property
    def script(self) -> str:
        """The script of verl that is run, relative to its top folder: the first that is not the wrapper."""
        others = (one.script for one in self.features if one.script and one.script != WRAPPER_SCRIPT)
        return next(others, WRAPPER_SCRIPT)

    @property
    def active_when(self) -> dict[str, bool | int | float | str | None]:
        """What the run's own configuration must show for the features, by dotted key."""
        return {key: value for one in self.features for key, value in one.active_when.items()}

    @property
    def limitations(self) -> tuple[str, ...]:
        """What a run of the job leaves open about its features, a sentence each."""
        unproven = (one.name for one in self.features if not one.active_when and not leaves_trace(one.name))
        return (
            *(f"{one.name}: {one.limitation}" for one in self.features if one.limitation),
            *(f"neither configuration nor log of a run tells whether {name} was active" for name in unproven),
            *(f"no script of verl shows {one.name}: {one.because}" for one in self.not_shown),
        )
