"""Whether a maintainer paused a repository: nothing is started then, and what runs goes on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from verl_e2e.core.pulls.ledger import RecordedCommand
from verl_e2e.core.pulls.requests import in_order

PAUSE, RESUME = "pause", "resume"


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause that holds now."""

    # The login of the person who paused.
    actor: str
    # When.
    at: datetime
    # The person's reason.
    reason: str

    @property
    def in_short(self) -> str:
        """Who paused, and since when."""
        return f"paused by {self.actor} since {self.at:%Y-%m-%d %H:%M} UTC"


def pauses_of(switches: Iterable[RecordedCommand]) -> Mapping[str, Pause]:
    """The pauses by repository, from every `pause` and `resume` that was ever accepted; the last one counts."""
    found: dict[str, Pause] = {}
    for entry in in_order(switches):
        if not isinstance(entry, RecordedCommand):
            continue
        if entry.verb == PAUSE:
            found[entry.repository] = Pause(entry.actor, entry.written or entry.at, entry.arguments[0])
        elif entry.verb == RESUME:
            found.pop(entry.repository, None)
    return found
