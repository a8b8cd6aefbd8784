"""Ask GitHub once more for webhooks that did not reach us: it never does so by itself, and forgets in three days."""

from collections import Counter
from datetime import datetime, timedelta

from verl_e2e.core.pulls.checkup import failed_deliveries
from verl_e2e.ports import Administration, Clock

# As long as GitHub can deliver again.
KEPT = timedelta(days=3)
# What was on its way at the last look may have failed since.
_OVERLAP = timedelta(minutes=2)
# One that our own door refuses is refused each time.
MOST_TIMES = 3


class Redelivery:
    """Remembers how far it looked and what it asked for; a new process looks at all that GitHub still has."""

    def __init__(self, administration: Administration, clock: Clock) -> None:
        self._administration = administration
        self._clock = clock
        self._looked: datetime | None = None
        self._asked: Counter[str] = Counter()

    def ask_again(self) -> int:
        """Ask for every delivery of which no attempt succeeded, three times at most; gives how many. ForgeError."""
        now = self._clock.now()
        since = now - KEPT if self._looked is None else self._looked - _OVERLAP
        failed = failed_deliveries(self._administration.deliveries(since))
        due = [delivery_attempt for delivery_attempt in failed if self._asked[delivery_attempt.guid] < MOST_TIMES]
        for delivery_attempt in reversed(due):
            self._administration.redeliver(delivery_attempt.id)
            self._asked[delivery_attempt.guid] += 1
        self._looked = now
        return len(due)
