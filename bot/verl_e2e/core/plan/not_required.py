"""Why levels are not required: what was looked at, which rules for the level did not match it, and what is set aside.

Such a sentence says no more than that. It never says what a change does not do.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from verl_e2e.core.model.levels import VARIANTS, Level
from verl_e2e.core.plan.classify import Classified
from verl_e2e.core.plan.policy import Policy, Rule, SymbolRule

_SHOWN_RULES = 12


@dataclass(frozen=True, slots=True)
class NotRequired:
    """Why a level is not required."""

    level: Level
    reason: str


@dataclass(frozen=True, slots=True)
class Exempted:
    """How many changed names an exemption set aside, and why."""

    name: str
    count: int
    reason: str


def not_required(
    levels: tuple[Level, ...],
    exempted: tuple[Exempted, ...],
    counted: tuple[Classified, ...],
    policy: Policy,
    uncovered: Collection[Level | None] = (),
) -> tuple[NotRequired, ...]:
    """The levels that are not among the required ones, each with the reason; `counted` are the paths that count.

    `uncovered` has the level of each place of the change that no job is planned for.
    """
    rest = [level for level in Level if level not in levels]
    if not counted:
        nothing = _nothing_reason(exempted)
        return tuple(NotRequired(level, nothing) for level in rest)
    left = Counter(uncovered)
    return tuple(NotRequired(level, _unmatched(level, counted, policy) + _left_open(left[level])) for level in rest)


def _left_open(count: int) -> str:
    if not count:
        return ""
    places = "1 place of the change needs" if count == 1 else f"{count} places of the change need"
    return f"; {places} a job of this level, and none is planned for {'it' if count == 1 else 'them'}"


def _unmatched(level: Level, counted: tuple[Classified, ...], policy: Policy) -> str:
    """What the rules that ask for the level were tried at, and which rules these are."""
    symbols = {(path.path, item.effect.symbol) for path in counted for item in path.effects or ()}
    named = [path for path in counted if path.effects is None]
    looked: list[str] = []
    kinds: list[str] = []
    rules: list[str] = []
    if symbols and policy.reach is not None:
        looked.append(_counted(len(symbols), "changed symbol that verl reaches", "changed symbols that verl reaches"))
        kinds.append("symbols")
        rules += _rules_for(level, policy.reach.rules)
    if named:
        looked.append(_counted(len(named), "path judged by its name", "paths judged by their names"))
        kinds.append("names")
        rules += _rules_for(level, policy.rules)
    none = f"the policy has no rule for this level that judges {' or '.join(kinds)}"
    matched = f"no rule for this level matches ({_first(rules)})" if rules else none
    return f"looked at {' and '.join(looked)}; {matched}"


def _rules_for(level: Level, rules: Iterable[Rule | SymbolRule]) -> list[str]:
    """The names of the rules that ask for a level, by themselves or by a variant."""
    by_variant = {variant.job_id: variant.level for variant in VARIANTS}
    return [
        rule.name for rule in rules if level in rule.levels or level in {by_variant[name] for name in rule.variants}
    ]


def _first(rules: list[str]) -> str:
    names = list(dict.fromkeys(rules))
    more = len(names) - _SHOWN_RULES
    return ", ".join(names[:_SHOWN_RULES]) + (f" and {more} more" if more > 0 else "")


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _nothing_reason(exempted: tuple[Exempted, ...]) -> str:
    if not exempted:
        return "the change has no files"
    parts = "; ".join(f"{item.count} in {item.name}: {item.reason}" for item in exempted)
    return f"every changed path is set aside ({parts})"
