"""The machine's clock."""

import time
from datetime import UTC, datetime


class SystemClock:
    """`verl_e2e.ports.Clock` as the machine tells it."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()
