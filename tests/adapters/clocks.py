"""A clock that is moved by hand."""

from datetime import UTC, datetime

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Hand:
    """`verl_e2e.ports.Clock` that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = BEGAN

    def now(self) -> datetime:
        """Where its hands stand."""
        return self.time
