"""What the rules of a policy say of one changed path and of what differs inside: a table of paths and of effects."""

from dataclasses import replace

import pytest

from verl_e2e.config import load_policy
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus
from verl_e2e.core.plan.classify import classify
from verl_e2e.core.plan.plan import MODULE_LEVEL, plan
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.reach.diff import IMPORT_TIME
from verl_e2e.core.reach.effects import IMPORT_ONLY, UNREACHED, Effect, Effects, Inside

POLICY = """
schema: 1
verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
image: {name: verlai/verl, tag: latest}
checkpoint: {model_id: tiny/dense}
exempt:
  - {name: documentation, paths: [docs/], reason: nothing imports it}
  - {name: loop, paths: [src/loop.py], reason: verl has its own, unless_reached: true}
rules:
  - {name: package, paths: [src/], levels: [0], reason: imported}
reach: {package: src, roots: [src], rules: [RULES]}
"""
SAVING = "{name: saving, levels: [1], reason: it saves, symbols: [save]}"
PATH = "src/a.py"
SAVE = Effect(PATH, "save", "changed", (frozenset({"write", "flush"}),), ("verl:7 imports save",), sure=True)
IMPORTED = replace(SAVE, symbol="", kind=IMPORT_TIME)
TWO_STATEMENTS = replace(SAVE, statements=(frozenset({"write"}), frozenset({"flush"})))
NEW_IMPORT = replace(SAVE, symbol="", kind="imports", statements=(frozenset({"torch"}),))


def policy(rules: str = SAVING) -> Policy:
    return load_policy(POLICY.replace("RULES", rules), "policy.yml")


def effects(path: str, inside: Inside) -> Effects:
    return Effects({path: inside})


@pytest.mark.parametrize(
    ("path", "known", "aside", "rules", "asking"),
    (
        ("docs/a.md", None, "documentation", [], None),
        ("docs/a.md", Effects(), "documentation", [], None),
        (PATH, Effects(), "", ["package"], None),
        # Of what may be imported and is not known no name excuses it.
        (PATH, Effects(unknown={PATH: "too large"}), "", ["package"], None),
        ("docs/a.py", Effects(unknown={"docs/a.py": "too large"}), "", [], None),
        # What runs at import counts in every folder; what runs later only where the exemption is a guess.
        ("docs/a.py", effects("docs/a.py", Inside((SAVE,))), "documentation", [], None),
        ("docs/a.py", effects("docs/a.py", Inside((), at_import=(IMPORTED,))), "", [], [IMPORT_TIME]),
        ("src/loop.py", None, "loop", [], None),
        ("src/loop.py", effects("src/loop.py", Inside((SAVE,))), "", [], ["changed"]),
        ("src/loop.py", effects("src/loop.py", Inside((), UNREACHED, "no one calls it")), UNREACHED, [], None),
        (PATH, effects(PATH, Inside((SAVE,), at_import=(IMPORTED,))), "", [], ["changed", IMPORT_TIME]),
        # An import that no rule names asks for nothing.
        (PATH, effects(PATH, Inside((NEW_IMPORT,))), IMPORT_ONLY, [], None),
    ),
)
def test_what_is_known_of_a_path_goes_before_its_name(
    path: str, known: Effects | None, aside: str, rules: list[str], asking: list[str] | None
) -> None:
    found = classify(path, policy(), known)
    assert (found.exemption.name if found.exemption else "") == aside
    assert [rule.name for rule in found.rules] == rules
    kinds = None if found.effects is None else [item.effect.kind for item in found.effects]
    assert (kinds or None) == asking
    assert found.unknown == (known.unknown.get(path, "") if known else "")


def test_an_import_that_asks_for_nothing_is_set_aside_with_what_was_looked_at() -> None:
    known = effects(PATH, Inside((NEW_IMPORT,), detail="the same effect (save)"))
    found = classify(PATH, policy(), known)
    assert found.exemption is not None
    assert (found.exemption.name, found.exemption.reason) == (IMPORT_ONLY, "the same effect (save)")


@pytest.mark.parametrize(
    ("conditions", "effect", "met"),
    (
        ("", SAVE, True),
        ("paths: [src/]", SAVE, True),
        ("paths: [lib/]", SAVE, False),
        ("symbols: [save]", SAVE, True),
        ("symbols: [load]", SAVE, False),
        ("symbols: [load], through: [main]", SAVE, False),
        ("symbols: [load], through: [main]", replace(SAVE, through=("main",)), True),
        ("through: [main]", replace(SAVE, through=("main",)), True),
        ("kinds: [added]", SAVE, False),
        ("kinds: [changed]", SAVE, True),
        ("", IMPORTED, False),
        ("kinds: [import time]", IMPORTED, True),
        ("words: [wri*]", SAVE, True),
        ("words: [read]", SAVE, False),
        ("unless: [flush]", SAVE, False),
        ("unless: [close]", SAVE, True),
        ("words: [write], unless: [flush]", SAVE, False),
        # One statement must have both.
        ("words: [write], unless: [flush]", TWO_STATEMENTS, True),
        ("", NEW_IMPORT, False),
        ("imports: [torch]", NEW_IMPORT, True),
        ("imports: [numpy]", NEW_IMPORT, False),
        ("imports: [torch]", replace(NEW_IMPORT, statements=()), False),
        ("imports: [torch]", SAVE, False),
    ),
)  # fmt: skip
def test_every_condition_of_a_rule_must_hold(conditions: str, effect: Effect, met: bool) -> None:
    rule = f"{{name: rule, levels: [1], reason: reached, {conditions}}}"
    found = classify(PATH, policy(rule), effects(PATH, Inside((effect,))))
    assert [rule.name for item in found.effects or () for rule in item.rules] == (["rule"] if met else [])


VIA = "verl:7 imports save"
WITH_VARIANT = "{name: saving, levels: [1], reason: it saves, symbols: [save], variants: [2-vpp]}"


@pytest.mark.parametrize(
    ("rules", "effect", "expected"),
    (
        (SAVING, SAVE, [(1, "save", "it saves", (VIA, "rule saving"), "saving")]),
        (
            WITH_VARIANT,
            SAVE,
            [(level, "save", "it saves", (VIA, "rule saving"), "saving") for level in (1, 2)],
        ),
        (
            SAVING,
            replace(SAVE, symbol="load"),
            [(0, "load", "unknown path: neither a rule nor an exemption of the policy names it", (VIA,), "")],
        ),
        (SAVING, IMPORTED, [(0, MODULE_LEVEL, "it runs when verl imports Bridge", (VIA,), "")]),
    ),
)
def test_an_effect_asks_by_its_rules_and_without_one_for_the_level_of_unknown_paths(
    rules: str, effect: Effect, expected: list[tuple[int, str, str, tuple[str, ...], str]]
) -> None:
    change = Change("b", "h", "b", (ChangedPath(PATH, PathStatus.MODIFIED),))
    made = plan(change, policy(rules), effects=effects(PATH, Inside((effect,))))
    found = [reason for reason in made.reasons if reason.path]
    assert [(int(item.level), item.symbol, item.reason, item.via, item.rule) for item in found] == expected


@pytest.mark.parametrize(
    ("known", "expected"),
    (
        (None, "imported"),
        (Effects(unread={PATH: "it is not Python"}), "imported; judged by its name alone, for it is not Python"),
        (Effects(unread={"src/b.py": "it is not Python"}), "imported"),
        (Effects(unknown={PATH: "it could not be read"}), "it could not be read"),
    ),
)
def test_a_path_that_was_not_judged_says_so_in_its_reason(known: Effects | None, expected: str) -> None:
    change = Change("b", "h", "b", (ChangedPath(PATH, PathStatus.MODIFIED),))
    made = plan(change, policy(), effects=known)
    assert expected in [reason.reason for reason in made.reasons]
