"""The labels that tell the programs of one log apart, made of the parts of what a launcher writes."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from verl_e2e.core.log.heads import is_time

# What one program writes to both is one source, as it is where both go into one file.
STREAMS = frozenset({"stdout", "stderr"})
# A part of a head with a longer value names no program.
_LONGEST = 80
# After so many lines it is settled which parts tell programs apart.
_ENOUGH = 1024


@dataclass(slots=True)
class Ledger:
    """What all levels share."""

    learned: int = 0
    split: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Seen:
    """The values that one part of the heads had since the reading began, and whether the part tells programs apart."""

    tells: bool = False
    count: int = 0
    values: set[int] = field(default_factory=set)
    last: int = -1
    rising: bool = True

    def begin(self) -> None:
        """Count again from nothing."""
        self.count, self.last, self.rising = 0, -1, True
        self.values.clear()

    def take(self, value: str) -> None:
        """Count one more value; what comes again tells, what only rises or is always new does not."""
        self.count += 1
        self.values.add(hash(value))
        number = int(value) if value.isdecimal() else -1
        self.rising = self.rising and number >= max(self.last, 0)
        self.last = number
        new, counts = len(self.values) / self.count, self.rising and len(self.values) > 2
        if self.count > 1 and new <= 0.75 and not counts:
            self.tells = True
        elif self.count >= 64 and (new > 0.9 or counts):
            self.tells = False


class Labels:
    """Finds the parts of heads that tell programs apart: their values come again, those of counters and ids do not."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._seen: dict[int | str, _Seen] = {}

    def begin(self) -> None:
        """The lines are read again from the first."""
        for seen in self._seen.values():
            seen.begin()

    def of(self, items: Iterable[tuple[int | str, str]], *, learn: bool) -> str:
        """The label made of the items, each with the key of its place."""
        return " ".join(value for key, value in items if self._tells(key, value, learn=learn))

    def _tells(self, key: int | str, value: str, *, learn: bool) -> bool:
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _Seen()
        if value in STREAMS:
            return False
        if seen.count >= _ENOUGH:
            return seen.tells
        if len(value) > _LONGEST or is_time(value):
            return False
        if learn:
            message = seen.tells
            seen.take(value)
            self._ledger.learned += seen.tells != message
        return seen.tells
