"""What a person may ask the bot to do, and the policy's keys about it: who may, what is overridden, how it reports."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from verl_e2e.core.model.document import DescribedDocument, Document, LevelNumber, UnfitError, name_among, text_that
from verl_e2e.core.model.levels import Level

# GitHub's own roles, each with all that the one before may.
ROLES = ("none", "read", "triage", "write", "maintain", "admin")
# Those that everyone may have: of a public repository everyone may read.
WIDE_ROLES = frozenset({"none", "read"})


class Capability(StrEnum):
    """One thing that a command does; `docs/commands.md` says which command needs which."""

    ASK = "ask"
    PLAN = "plan"
    RUN = "run"
    CANCEL = "cancel"
    APPROVE = "approve"
    OVERRIDE = "override"
    QUEUE = "queue"


# What reaches a GPU or sets evidence aside is never for everyone; and no one vouches for a head by having written it.
_NOT_FOR_ANYONE = frozenset({Capability.RUN, Capability.APPROVE, Capability.OVERRIDE, Capability.QUEUE})
_NOT_FOR_AUTHORS = frozenset({Capability.APPROVE, Capability.OVERRIDE, Capability.QUEUE})


_Word = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
_AnyRole = Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True, min_length=1, max_length=100)]
_Role = Annotated[_AnyRole, name_among(ROLES, "one of GitHub's roles (an organisation's own go into custom_roles)")]
_Team = Annotated[
    _Word,
    text_that(
        lambda text: text.count("/") == 1 and not text.startswith("/") and not text.endswith("/"),
        "is not a team",
        "write organisation/team",
    ),
]
_Wait = Annotated[int, Field(strict=True, ge=60, le=604_800)]


class Grant(DescribedDocument):
    """Who has a capability: anyone for whom one line holds."""

    roles: tuple[_Role, ...] = ()
    """GitHub's roles in the repository; each means at least that role."""
    custom_roles: tuple[_AnyRole, ...] = ()
    """Roles that the organisation made; each means itself."""
    teams: tuple[_Team, ...] = ()
    """Members of these teams, each `organisation/team`."""
    logins: tuple[_Word, ...] = ()
    """Single accounts; that of an App ends in `[bot]`."""
    author: bool = False
    """Whether the person who opened the pull request has it."""
    anyone: bool = False
    """Whether everyone has it."""


# Asking costs nothing but an answer; whatever can reach a GPU needs write access, setting a level aside more.
DEFAULT_GRANTS: Mapping[Capability, Grant] = MappingProxyType(
    {
        Capability.ASK: Grant(anyone=True),
        Capability.PLAN: Grant(roles=("triage",), author=True),
        Capability.RUN: Grant(roles=("write",)),
        Capability.CANCEL: Grant(roles=("write",), author=True),
        Capability.APPROVE: Grant(roles=("write",)),
        Capability.OVERRIDE: Grant(roles=("maintain",)),
        Capability.QUEUE: Grant(roles=("maintain",)),
    }
)


class Access(DescribedDocument):
    """Every capability with its grant; a grant that is given replaces the default one."""

    ask: Grant | None = None
    """Asking a question that costs nothing but an answer."""
    plan: Grant | None = None
    """Asking for a plan."""
    run: Grant | None = None
    """Running levels on GPUs."""
    cancel: Grant | None = None
    """Ending runs."""
    approve: Grant | None = None
    """Approving a head for the GPUs by its full SHA."""
    override: Grant | None = None
    """Setting a required level aside for one head."""
    queue: Grant | None = None
    """Pausing and resuming the repository, and setting the priority of a pull request."""

    @model_validator(mode="after")
    def _narrow(self) -> "Access":
        for capability in Capability:
            grant = self.of(capability)
            if capability in _NOT_FOR_ANYONE and (grant.anyone or WIDE_ROLES & {*grant.roles, *grant.custom_roles}):
                raise UnfitError(f"{capability} is granted to everyone", "name roles from triage up, teams or logins")
            if capability in _NOT_FOR_AUTHORS and grant.author:
                fix = "leave `author` out, a role still counts for them"
                raise UnfitError(f"{capability} is granted to authors", fix)
        return self

    def of(self, capability: Capability) -> Grant:
        """Who has the capability."""
        given: Grant | None = getattr(self, capability.value)
        return DEFAULT_GRANTS[capability] if given is None else given


class Start(StrEnum):
    """When the required levels begin: by themselves, or when someone asks with `run`."""

    AUTOMATIC = "automatic"
    ASKED = "asked"


class Absence(StrEnum):
    """What a plan that requires nothing needs for a head that may not run without an approval."""

    # Nothing: the plan is enough.
    OPEN = "open"
    # A person's approval of the head, or a level 0 of it that passed, where it is not that of an author with a role.
    APPROVE_STRANGERS = "approve_strangers"
    # The same of every such head.
    APPROVE = "approve"


class Demand(StrEnum):
    """What the gate makes of changed code that no run is known to have executed."""

    # It stays closed.
    BLOCK = "block"
    # It may open, and the card says what did not run.
    ALLOW = "allow"


class Slowdown(StrEnum):
    """What a job makes of time or memory beyond the noise of healthy runs."""

    # It shows it with its evidence.
    SHOW = "show"
    # It is a limitation, which the card of the pull request has too.
    WARN = "warn"
    # It fails.
    FAIL = "fail"


class ExecutionRules(Document):
    """What the gate makes of what did not run, of what nothing is known of, and of what no host can run."""

    # Of functions that no job and no Bridge test entered.
    unexecuted: Demand = Demand.BLOCK
    # Of functions that no job recorded.
    unrecorded: Demand = Demand.BLOCK
    # Of jobs and functions of a model family that no host can run.
    uncoverable: Demand = Demand.BLOCK


class GateSettings(DescribedDocument):
    """How the bot reports, and how long it waits."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,49}$")] = "verl-e2e"
    """The name of the check to require, and the start of the name of every job's check."""
    start: Start = Start.AUTOMATIC
    """When the levels of the plan begin: by themselves, or after `/verl-e2e run`."""
    queue_deadline_s: _Wait = 21_600
    """Seconds that a run may wait for a machine before it is Blocked."""
    merge_queue_deadline_s: _Wait = 3_300
    """Seconds that a merge group may wait for its verdict before it is answered with action_required."""
    card_interval_s: Annotated[int, Field(strict=True, ge=15, le=3_600)] = 15
    """The least number of seconds between two edits of the card."""
    reuse_h: Annotated[int, Field(strict=True, ge=0, le=8_760)] = 168
    """Hours during which a Pass counts for every head with the same code in reach; 0: each head runs its own jobs."""
    none: Absence = Absence.APPROVE_STRANGERS
    """What a plan that requires nothing needs for the head of a fork or of a first contribution."""
    unexecuted: Demand = Demand.BLOCK
    """What the gate makes of a changed function that verl reaches and that neither a job nor a Bridge test ran."""
    unrecorded: Demand = Demand.BLOCK
    """What the gate makes of changed functions when no job could record what ran, as below Python 3.12."""
    uncoverable: Demand = Demand.BLOCK
    """What the gate makes of a model family that no host can run: of its job, and of functions that only it runs."""
    quarantined: Demand = Demand.BLOCK
    """What the gate makes of a required job whose end the policy sets aside (`quarantine`)."""
    disagreement: Demand = Demand.ALLOW
    """What the gate makes of a required job that passed when a person ran it again after it failed on the same head."""

    @property
    def execution(self) -> ExecutionRules:
        """What the gate asks of the execution of a change."""
        return ExecutionRules(unexecuted=self.unexecuted, unrecorded=self.unrecorded, uncoverable=self.uncoverable)


class OverrideRules(DescribedDocument):
    """What may be overridden, by how many people and for how long."""

    levels: tuple[LevelNumber, ...] = tuple(Level)
    """The levels that may be overridden at all."""
    two_persons: tuple[LevelNumber, ...] = ()
    """The levels that two people must override."""
    most: Annotated[int, Field(strict=True, ge=0, le=len(Level))] = len(Level)
    """So many levels of one head may be overridden at once."""
    expires_h: Annotated[int, Field(strict=True, ge=1, le=8_760)] = 168
    """Hours after which an override counts no more."""


DEFAULT_GATE = GateSettings()
