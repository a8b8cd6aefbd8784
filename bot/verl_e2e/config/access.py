"""The policy's keys `capabilities`, `overrides` and `gate`: who may do what, and how the bot reports."""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from verl_e2e.config.problems import UnfitError
from verl_e2e.core.model.access import (
    DEFAULT_GRANTS,
    DEFAULT_OVERRIDE_RULES,
    Absence,
    Access,
    Capability,
    GateSettings,
    Grant,
    OverrideRules,
    Start,
)
from verl_e2e.core.model.jobs import Document
from verl_e2e.core.model.levels import Level

_WIDE_ROLES = {"none", "read"}
# What reaches a GPU or sets evidence aside is never for everybody; and nobody vouches for a head by having written it.
_NOT_FOR_ANYONE = frozenset({Capability.RUN, Capability.APPROVE, Capability.OVERRIDE, Capability.BASELINE})
_NOT_FOR_AUTHORS = frozenset({Capability.APPROVE, Capability.OVERRIDE})


def _team(text: str) -> str:
    if text.count("/") != 1 or text.startswith("/") or text.endswith("/"):
        raise UnfitError(f"{text!r} is no team", "write organisation/team")
    return text


_Word = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
_Role = Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True, min_length=1, max_length=100)]
_Team = Annotated[_Word, AfterValidator(_team)]
_Wait = Annotated[int, Field(strict=True, ge=60, le=604_800)]


class GrantKeys(Document):
    """To whom one capability is granted."""

    roles: tuple[_Role, ...] = ()
    teams: tuple[_Team, ...] = ()
    logins: tuple[_Word, ...] = ()
    author: bool = False
    anyone: bool = False

    def grant(self) -> Grant:
        """The grant as a value."""
        return Grant(self.roles, self.teams, self.logins, self.author, self.anyone)


class CapabilityGrants(Document):
    """Every capability with its grant; a grant that is given replaces the default one."""

    ask: GrantKeys | None = None
    plan: GrantKeys | None = None
    run: GrantKeys | None = None
    cancel: GrantKeys | None = None
    approve: GrantKeys | None = None
    override: GrantKeys | None = None
    baseline: GrantKeys | None = None

    @model_validator(mode="after")
    def _narrow(self) -> "CapabilityGrants":
        for capability, keys in self._given():
            wide = keys.anyone or _WIDE_ROLES & set(keys.roles)
            if capability in _NOT_FOR_ANYONE and wide:
                raise UnfitError(f"{capability} is granted to everybody", "name roles from triage up, teams or logins")
            if capability in _NOT_FOR_AUTHORS and keys.author:
                fix = "leave `author` out, a role still counts for them"
                raise UnfitError(f"{capability} is granted to authors", fix)
        return self

    def _given(self) -> list[tuple[Capability, GrantKeys]]:
        found = [(capability, getattr(self, capability.value)) for capability in Capability]
        return [(capability, keys) for capability, keys in found if keys is not None]

    def access(self) -> Access:
        """Who may do what, the defaults included."""
        return Access({**DEFAULT_GRANTS, **{capability: keys.grant() for capability, keys in self._given()}})


_ALL_LEVELS = DEFAULT_OVERRIDE_RULES.levels
_Levels = tuple[Annotated[int, Field(strict=True, ge=min(_ALL_LEVELS), le=max(_ALL_LEVELS))], ...]


class OverrideKeys(Document):
    """What may be overridden, by how many people and for how long."""

    levels: _Levels = tuple(int(level) for level in _ALL_LEVELS)
    two_persons: _Levels = ()
    most: Annotated[int, Field(strict=True, ge=0, le=len(_ALL_LEVELS))] = DEFAULT_OVERRIDE_RULES.most
    expires_h: Annotated[int, Field(strict=True, ge=1, le=8_760)] = DEFAULT_OVERRIDE_RULES.expires_h

    def rules(self) -> OverrideRules:
        """The keys as a value."""
        return OverrideRules(
            tuple(Level(number) for number in self.levels),
            tuple(Level(number) for number in self.two_persons),
            self.most,
            self.expires_h,
        )


_DEFAULT = GateSettings()


class GateKeys(Document):
    """How the bot reports, and how long it waits."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,49}$")] = _DEFAULT.name
    start: Start = _DEFAULT.start
    queue_deadline_s: _Wait = _DEFAULT.queue_deadline_s
    merge_queue_deadline_s: _Wait = _DEFAULT.merge_queue_deadline_s
    card_interval_s: Annotated[int, Field(strict=True, ge=15, le=3_600)] = _DEFAULT.card_interval_s
    none: Absence = _DEFAULT.none

    def settings(self) -> GateSettings:
        """The keys as a value."""
        return GateSettings(
            self.name,
            self.start,
            self.queue_deadline_s,
            self.merge_queue_deadline_s,
            self.card_interval_s,
            self.none,
        )
