"""What a person may ask the bot to do, and to whom a policy grants it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from verl_e2e.core.model.levels import Level

# GitHub's own roles, each with all that the one before may; a custom role stands by itself.
ROLES = ("none", "read", "triage", "write", "maintain", "admin")


class Capability(StrEnum):
    """One thing that a command does; `docs/commands.md` says which command needs which."""

    ASK = "ask"
    PLAN = "plan"
    RUN = "run"
    CANCEL = "cancel"
    APPROVE = "approve"
    OVERRIDE = "override"
    BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class Grant:
    """Who has a capability: anybody of whom one line holds.

    `roles` are roles in the repository, one of GitHub's own meaning at least that role; `teams` are
    `organisation/team`, `logins` single accounts (an App's ends in `[bot]`). `author` includes whoever opened the
    pull request, `anyone` everybody.
    """

    roles: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()
    logins: tuple[str, ...] = ()
    author: bool = False
    anyone: bool = False


# Asking costs nothing but an answer; whatever can reach a GPU needs write access, setting a level aside more.
DEFAULT_GRANTS: Mapping[Capability, Grant] = MappingProxyType(
    {
        Capability.ASK: Grant(anyone=True),
        Capability.PLAN: Grant(roles=("triage",), author=True),
        Capability.RUN: Grant(roles=("write",)),
        Capability.CANCEL: Grant(roles=("write",), author=True),
        Capability.APPROVE: Grant(roles=("write",)),
        Capability.OVERRIDE: Grant(roles=("maintain",)),
        Capability.BASELINE: Grant(roles=("write",)),
    }
)


class Start(StrEnum):
    """When the required levels begin: by themselves, or when somebody asks with `run`."""

    AUTOMATIC = "automatic"
    ASKED = "asked"


class Absence(StrEnum):
    """What a plan that requires nothing needs for a head that may not run without an approval."""

    # Nothing: the plan is enough.
    OPEN = "open"
    # A person's approval of the head, or a level 0 of it that passed.
    APPROVE = "approve"


@dataclass(frozen=True, slots=True)
class GateSettings:
    """How the bot reports: the check's name, when runs begin, and its waits in seconds.

    `queue_deadline_s` is how long a run may wait for a machine, `merge_queue_deadline_s` how long a merge group may
    wait for its verdict, `card_interval_s` the least time between two edits of the card.
    """

    name: str = "verl-e2e"
    start: Start = Start.AUTOMATIC
    queue_deadline_s: int = 21_600
    merge_queue_deadline_s: int = 3_300
    card_interval_s: int = 15
    # What a plan that requires nothing needs for a fork's head or a first change.
    none: Absence = Absence.OPEN


@dataclass(frozen=True, slots=True)
class OverrideRules:
    """What a policy allows to be overridden."""

    # The levels that may be overridden at all.
    levels: tuple[Level, ...] = tuple(Level)
    # The levels that two people must override.
    two_persons: tuple[Level, ...] = ()
    # So many levels of one head may be overridden at once.
    most: int = len(Level)
    # How long an override counts, in hours.
    expires_h: int = 168


@dataclass(frozen=True, slots=True)
class Access:
    """Every capability with its grant; one that a policy does not name keeps the default."""

    grants: Mapping[Capability, Grant] = field(default_factory=lambda: DEFAULT_GRANTS)

    def of(self, capability: Capability) -> Grant:
        """Who has the capability."""
        return self.grants.get(capability, DEFAULT_GRANTS[capability])


DEFAULT_ACCESS = Access()
DEFAULT_GATE = GateSettings()
DEFAULT_OVERRIDE_RULES = OverrideRules()
