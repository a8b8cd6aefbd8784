"""Which overrides of a head count: the policy bounds which levels, how many, for how long and by how many people."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from verl_e2e.core.model.access import OverrideRules
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.ledger import Override

OWN_HEAD = "who opened the pull request, pushed its head or wrote one of its commits cannot override its levels"
SECOND_PERSON = "a second person has to override it too"


@dataclass(frozen=True, slots=True)
class Uncounted:
    """An override that does not count."""

    override: Override
    # A clause for people.
    why: str
    # Whether it counts as soon as a second person gives it too.
    needs_second_person: bool = False


@dataclass(frozen=True, slots=True)
class Counted:
    """The overrides of a head, apart."""

    # Those that count; of a level that needs two people, one of each.
    overrides: tuple[Override, ...] = ()
    # The others, in the order in which they were given.
    uncounted: tuple[Uncounted, ...] = ()


def counted(overrides: Iterable[Override], rules: OverrideRules, now: datetime) -> Counted:
    """Which of a head's overrides count now; the givers' roles are looked at elsewhere."""
    left, refused = [], []
    for override in overrides:
        why = _why_not(override, rules, now)
        if why:
            refused.append(Uncounted(override, why))
        else:
            left.append(override)
    levels: list[Level] = []
    counting: list[Override] = []
    for level in dict.fromkeys(artifact.level for artifact in left):
        by_person = {artifact.actor.lower(): artifact for artifact in reversed(left) if artifact.level is level}
        given = sorted(by_person.values(), key=lambda item: item.at)
        if len(given) < needed(level, rules):
            refused.extend(Uncounted(item, SECOND_PERSON, needs_second_person=True) for item in given)
        elif len(levels) >= rules.most:
            why = f"the policy lets {rules.most} levels of one head be overridden at once"
            refused.extend(Uncounted(item, why) for item in given)
        else:
            levels.append(level)
            counting.extend(given)
    return Counted(tuple(counting), tuple(refused))


def needed(level: Level, rules: OverrideRules) -> int:
    """How many people must override a level."""
    return 2 if level in rules.two_persons else 1


def expires_at(override: Override, rules: OverrideRules) -> datetime:
    """When an override ends to count."""
    return override.at + timedelta(hours=rules.expires_h)


def _why_not(override: Override, rules: OverrideRules, now: datetime) -> str:
    if override.level not in rules.levels:
        return f"the policy lets no one override level {int(override.level)}"
    if now >= expires_at(override, rules):
        return f"it was given more than {rules.expires_h} hours ago"
    return ""
