"""What the rules of a policy say of one changed path."""

from dataclasses import dataclass

from verl_e2e.core.model.execution import in_megatron_lm
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.policy import Exemption, Family, Policy, Rule, SymbolRule
from verl_e2e.core.reach.diff import IMPORT_TIME
from verl_e2e.core.reach.effects import IMPORT_ONLY, IMPORT_ONLY_REASON, UNPARSED, UNREAD, Effect, Effects

# How reasons name the statements of a module that belong to no symbol.
MODULE_LEVEL = "(module level)"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a level is required.

    `path` is None when another level asks for this one. `symbol` is the function or class concerned, None when
    the whole file is; `via` is how the path was connected with the level, outermost first. `rule` is the name of the
    policy's rule that asks, empty where none names the path; it is the last step of `via` too.
    """

    level: Level
    path: str | None
    reason: str
    symbol: str | None = None
    via: tuple[str, ...] = ()
    rule: str = ""
    # Whether nothing but code that runs at import asks for it, so that importing shows it.
    at_import: bool = False


@dataclass(frozen=True, slots=True)
class JudgedEffect:
    """One effect of a change and the rules that it meets."""

    effect: Effect
    rules: tuple[SymbolRule, ...]


@dataclass(frozen=True, slots=True)
class SetAside:
    """A path that asks for nothing because of what differs inside, not because of a policy's exemption."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Classified:
    """What the policy says about one path."""

    path: str
    # What sets the path aside, None when it counts.
    exemption: Exemption | SetAside | None
    # The rules that it meets; none means that nothing names it.
    rules: tuple[Rule | SymbolRule, ...]
    families: tuple[Family, ...]
    # What runs of the path, each with the rules that it meets; None where its inside was not judged.
    effects: tuple[JudgedEffect, ...] | None = None
    # Why nothing is known of a path that may be imported, empty for any other.
    unknown: str = ""


def classify(path: str, policy: Policy, effects: Effects | None = None) -> Classified:
    """Hold one path against the whole policy; the first exemption that matches ends it.

    `effects` say what was found inside; a path that they do not cover is judged by its name alone.
    """
    exemption = next((item for item in policy.exempt if item.paths.match(path)), None)
    inside = effects.inside(path) if effects is not None else None
    unknown = effects.unknown.get(path, "") if effects is not None else ""
    if unknown:
        rules = () if exemption is not None else _rules(path, policy)
        return Classified(path, None, rules, _families(path, policy), unknown=unknown)
    if exemption is not None and not (exemption.unless_reached and inside is not None):
        if inside is None or not inside.at_import:
            return Classified(path, exemption, (), ())
        return Classified(path, None, (), (), _held(inside.at_import, policy))
    if inside is None:
        return Classified(path, None, _rules(path, policy), _families(path, policy))
    asking = _held((*inside.effects, *inside.at_import), policy)
    if asking:
        return Classified(path, None, (), _families(path, policy), asking)
    aside = SetAside(inside.reason or IMPORT_ONLY, inside.detail or IMPORT_ONLY_REASON)
    return Classified(path, aside, (), (), ())


def _rules(path: str, policy: Policy) -> tuple[Rule, ...]:
    return tuple(rule for rule in policy.rules if rule.paths.match(path))


def _families(path: str, policy: Policy) -> tuple[Family, ...]:
    return tuple(family for family in policy.families if family.paths.match(path))


def _held(effects: tuple[Effect, ...], policy: Policy) -> tuple[JudgedEffect, ...]:
    """The effects that ask for something: those that meet a rule, and those that no rule names."""
    of_reach = policy.reach.rules if policy.reach else ()
    found = []
    for effect in effects:
        of_bump = in_megatron_lm(effect.path)
        rules = policy.megatron_lm.rules if of_bump else of_reach
        judged = JudgedEffect(effect, tuple(rule for rule in rules if meets(effect, rule)))
        asks = judged.rules or effect.jobs or effect.own or effect.kind in (UNREAD, UNPARSED)
        if asks or not (of_bump or effect.kind == "imports"):
            found.append(judged)
    return tuple(found)


def meets(effect: Effect, rule: SymbolRule) -> bool:
    """Whether an effect fulfils every condition of a rule."""
    if rule.measured and not (effect.jobs or effect.own):
        return False
    if rule.paths is not None and not rule.paths.match(effect.path):
        return False
    if effect.kind == UNREAD:
        # Any of the path's symbols may differ in any way.
        return rule.imports is None
    if rule.imports is not None or effect.kind == "imports":
        names = effect.statements[0] if effect.statements else frozenset[str]()
        return effect.kind == "imports" and rule.imports is not None and any(map(rule.imports.match, names))
    if (rule.kinds or effect.kind == IMPORT_TIME) and effect.kind not in rule.kinds:
        return False
    if rule.symbols is not None or rule.through is not None:
        named = rule.symbols is not None and rule.symbols.match(effect.symbol)
        if not named and not (rule.through is not None and any(map(rule.through.match, effect.through))):
            return False
    if rule.words is None and rule.unless is None:
        return True
    return any(
        (rule.unless is None or not any(map(rule.unless.match, words)))
        and (rule.words is None or any(map(rule.words.match, words)))
        for words in effect.statements
    )
