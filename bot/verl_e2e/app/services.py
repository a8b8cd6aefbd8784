"""The ports that the App's handlers use, and what they remember between two looks."""

import secrets
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

from verl_e2e.app.analysis import Analysis
from verl_e2e.app.plan_change import Planned
from verl_e2e.app.policy_text import PolicyText
from verl_e2e.core.model.jobs import Repository, SiteProfile
from verl_e2e.core.plan.build import Sources
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.commands import CommandLine
from verl_e2e.core.pulls.job_order import BRIDGE_FOLDER, VERL_FOLDER
from verl_e2e.core.pulls.past_costs import PastCost
from verl_e2e.core.pulls.pull import Target
from verl_e2e.core.pulls.trust import Actor
from verl_e2e.ports import Backend, Checks, Clock, Conversation, Ledger, Outbox, People, Pulls, Revisions, SourceTrees

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """The values last asked for by key, at most so many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[tuple[str, ...], Value] = OrderedDict()

    def get(self, key: tuple[str, ...], make: Callable[[], Value]) -> Value:
        """The value of a key, made when it is not there."""
        # Several looks share this: whoever comes second makes the value again, which changes nothing.
        found = self._values.pop(key, None)
        if found is None:
            found = make()
        return self.put(key, found)

    def find(self, key: tuple[str, ...]) -> Value | None:
        """The value of a key, None when it is not there."""
        return self._values.get(key)

    def put(self, key: tuple[str, ...], value: Value) -> Value:
        """Keep a value under a key, in the place of what was there."""
        self._values.pop(key, None)
        self._values[key] = value
        while len(self._values) > self._most:
            self._values.popitem(last=False)
        return value


def portable_sources(bridge_commit: str, verl_commit: str) -> Sources:
    """The repositories by folder names: the back end checks them out where the job runs."""
    return Sources(
        bridge=Repository(path=BRIDGE_FOLDER, commit=bridge_commit),
        verl=Repository(path=VERL_FOLDER, commit=verl_commit),
    )


@dataclass(frozen=True, slots=True)
class AppRooms:
    """What hearing and reconciling need of the world.

    `changes` gives the trees of a target, base and head among them; `verl` the verl repository in which a revision
    can be found; `sources` says where a job finds Bridge and verl by their commits. `analysis` reads what strangers
    wrote. `artifacts` is the folder that run folders are brought into. `app_id` is our
    App's, None where GitHub's own token speaks for us. `read_commands` finds the command lines of a comment.
    `bookkeeping` is held while a remembered list is read and changed, for several looks may share it.
    `outbox` takes reactions and replies, to be written when there is time; without one they are written at once.
    `lag_s` is how long GitHub's lists may not show what was created; 0 where a process waits for that by itself.
    `poll_s` is how long a run under way is left alone when no event tells of it: short where none ever does.
    """

    pulls: Pulls
    conversation: Conversation
    checks: Checks
    people: People
    ledger: Ledger
    backend: Backend
    analysis: Analysis
    clock: Clock
    changes: Callable[[Target], SourceTrees]
    verl: Callable[[str], Revisions]
    site: SiteProfile
    artifacts: Path
    read_commands: Callable[[str], tuple[CommandLine, ...]]
    sources: Callable[[str, str], Sources] = portable_sources
    outbox: Outbox | None = None
    app_id: int | None = None
    poll_s: float = 30.0
    policy_texts: Kept[PolicyText] = field(default_factory=lambda: Kept(64))
    lag_s: float = 0.0
    policies: Kept[Policy] = field(default_factory=lambda: Kept(64))
    plans: Kept[Planned] = field(default_factory=lambda: Kept(64))
    # What past runs of a repository cost, as it was when a head was first looked at.
    past_costs: Kept[tuple[PastCost, ...]] = field(default_factory=lambda: Kept(64))
    # Why heads cannot be planned, and how often judging a run failed.
    unplannable: Kept[str] = field(default_factory=lambda: Kept(256))
    judgings: Kept[int] = field(default_factory=lambda: Kept(256))
    authors: Kept[tuple[datetime, Actor]] = field(default_factory=lambda: Kept(256))
    # Gives something that no one can guess, 32 hexadecimal digits.
    nonce: Callable[[], str] = lambda: secrets.token_hex(16)
    committers: Kept[frozenset[str]] = field(default_factory=lambda: Kept(256))
    bookkeeping: AbstractContextManager[object] = field(default_factory=Lock)
