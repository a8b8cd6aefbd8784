"""Whether the cells of a rehearsal would notice a fault in a changed function.

At the head, faults are put into each changed function that cells entered, one at a time, and the cheapest of these
cells run again. Their records are compared with the head's own. A function in which no fault is noticed was entered
and is not observed: that its cells are equal says nothing about it. What was tried is the word of the code under test.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from verl_e2e.core.model.document import Document
from verl_e2e.core.model.execution import ChangedFunction, Side

MOST_TRIALS = 5_000
# The quantity that holds the warnings of a rank.
WARNINGS = "warnings"
_Name = Annotated[str, Field(max_length=500)]


@dataclass(frozen=True, slots=True)
class ObserveLimits:
    """How much is tried."""

    # How many functions; 0: nothing is tried.
    functions: int = 20
    # How many faults in each function.
    faults: int = 6
    # Seconds for all of them together; what was not tried by then is named.
    seconds: float = 90.0

    @property
    def described(self) -> str:
        """The limits in words."""
        return f"at most {self.faults} in each of {self.functions} functions, within {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class Faults:
    """What faults are put into."""

    # The changed lines of each function, by `path:qualified name`.
    functions: Mapping[str, tuple[int, ...]]
    limits: ObserveLimits


class Trial(Document):
    """One fault in one function, in one cell."""

    # The function, as `path:qualified name`.
    function: _Name
    # The fault, in a few words.
    fault: _Name
    # The cell that ran with it.
    cell: _Name
    # The oracles that fail with the fault and hold without it.
    oracles: Annotated[tuple[_Name, ...], Field(max_length=100)] = ()
    # The first quantities that differ.
    differing: Annotated[tuple[_Name, ...], Field(max_length=10)] = ()
    # The type of the error that the cell ended with; empty where it ran to its end.
    error: _Name = ""

    @property
    def noticed(self) -> bool:
        """Whether anything of the cell shows the fault."""
        return bool(self.oracles or self.differing or self.error)

    @property
    def measured(self) -> bool:
        """Whether an oracle or a quantity shows it, not a warning or an error alone."""
        return bool(self.oracles) or any(not name.startswith(WARNINGS) for name in self.differing)


class Observed(Document):
    """What the driver tried at the head."""

    # The faults that were put in, in the order in which they were tried.
    trials: Annotated[tuple[Trial, ...], Field(max_length=MOST_TRIALS)] = ()
    # Why nothing is said of a function, by `path:qualified name`.
    unjudged: dict[_Name, _Name] = Field(default_factory=dict)


class Sight(StrEnum):
    """What is known of a changed function that cells entered."""

    # An oracle or a quantity showed a fault in it, or all its faults ended in errors.
    OBSERVED = "observed"
    # Faults were put in, and nothing showed them, but for errors and warnings of others.
    UNNOTICED = "unnoticed"
    # No fault could be put in, or there was no time for it.
    UNJUDGED = "unjudged"


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known of one changed function that cells entered."""

    # The function, as `path:qualified name`.
    function: str
    sight: Sight
    # What noticed a fault (an oracle, else a quantity, else an error); why it was not judged; empty for the others.
    reason: str
    # The faults that were tried.
    trials: tuple[Trial, ...] = ()


def observable(changed: Iterable[ChangedFunction]) -> tuple[ChangedFunction, ...]:
    """The changed functions into which faults can be put: those of the head, but for what runs at import."""
    return tuple(function for function in changed if function.side is Side.HEAD and not function.at_import)


def observations(
    changed: Iterable[ChangedFunction], entered: frozenset[str], observed: Observed
) -> tuple[Observation, ...]:
    """What is known of each changed function that cells entered, in the order of the change."""
    trials: dict[str, list[Trial]] = {}
    for trial in observed.trials:
        trials.setdefault(trial.function, []).append(trial)
    names = dict.fromkeys(f"{function.path}:{function.symbol}" for function in observable(changed))
    return tuple(
        _observation(name, tuple(trials.get(name, ())), observed.unjudged.get(name, ""))
        for name in names
        if name in entered
    )


def _observation(function: str, trials: tuple[Trial, ...], problem: str) -> Observation:
    # An oracle says more than a difference, and a difference more than an error, which needs no comparison.
    noticed = sorted((trial for trial in trials if trial.noticed), key=_weakness)
    shown = {trial.fault for trial in noticed}
    if noticed and (noticed[0].measured or (not problem and all(trial.fault in shown for trial in trials))):
        return Observation(function, Sight.OBSERVED, _notice(noticed[0]), trials)
    if trials and not problem:
        return Observation(function, Sight.UNNOTICED, "", trials)
    return Observation(function, Sight.UNJUDGED, problem or "nothing is said of it", trials)


def _weakness(trial: Trial) -> int:
    return 0 if trial.oracles else 1 if trial.measured else 2


def _notice(trial: Trial) -> str:
    return next(iter((*trial.oracles, *trial.differing, trial.error)))
