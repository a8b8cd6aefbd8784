"""What GitHub delivers, before anyone has read it, and the targets that are taken from it."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Received:
    """One webhook POST whose signature was right: GitHub's own id (kept on redelivery), the event, the raw body.

    `attempts` counts how often it was tried to act on it before.
    """

    id: str
    event: str
    body: bytes
    received: datetime
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class ClaimedTarget:
    """A target that one process has taken to look at."""

    target: str
    """The pull request or merge group, as text."""
    asked: int
    """How often it was asked for up to then."""
    attempts: int
    """How often looking at it failed since it last succeeded."""
