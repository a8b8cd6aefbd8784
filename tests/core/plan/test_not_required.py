"""Why a level is not required: only what was looked at, and which rules for it did not match."""

import pytest

from tests.core.plan.test_classify import PATH, SAVE, effects, policy
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.plan import plan
from verl_e2e.core.reach.effects import NO_EFFECT, Effects, Inside

SAVING = "{name: saving, levels: [1], reason: it saves, symbols: [save]}"
SHARDS = "{name: shards, levels: [2], reason: it splits, symbols: [shard]}"
GATHERS = "{name: gathers, levels: [2], reason: it joins, symbols: [gather]}"
STRESS = "{name: stress, levels: [0], reason: it stresses, symbols: [load], variants: [5-signal]}"
INSIDE = effects(PATH, Inside((SAVE,)))


def reasons(paths: tuple[str, ...], known: Effects | None, rules: str) -> dict[int, str]:
    """The sentence of each level that the change does not need."""
    change = Change("b", "h", "b", tuple(ChangedPath(path, PathStatus.MODIFIED) for path in paths))
    made = plan(change, policy(rules), effects=known)
    assert {*made.levels, *(item.level for item in made.not_required)} == set(Level)
    return {int(item.level): item.reason for item in made.not_required}


@pytest.mark.parametrize(
    ("paths", "known", "level", "expected"),
    (
        (
            (PATH,),
            INSIDE,
            2,
            "looked at 1 changed symbol that verl reaches; no rule for this level matches (shards, gathers)",
        ),
        (
            (PATH,),
            INSIDE,
            3,
            "looked at 1 changed symbol that verl reaches; the policy has no rule for this level that judges symbols",
        ),
        (
            (PATH,),
            None,
            1,
            "looked at 1 path judged by its name; the policy has no rule for this level that judges names",
        ),
        (
            (PATH, "src/b.c"),
            INSIDE,
            2,
            "looked at 1 changed symbol that verl reaches and 1 path judged by its name; "
            "no rule for this level matches (shards, gathers)",
        ),
        (
            ("src/b.c", "src/c.c"),
            INSIDE,
            2,
            "looked at 2 paths judged by their names; the policy has no rule for this level that judges names",
        ),
    ),
)
def test_the_sentence_names_what_was_looked_at(
    paths: tuple[str, ...], known: Effects | None, level: int, expected: str
) -> None:
    assert reasons(paths, known, f"{SAVING}, {SHARDS}, {GATHERS}")[level] == expected


def test_a_rule_asks_for_a_level_by_its_variants_too() -> None:
    found = reasons((PATH,), INSIDE, f"{SAVING}, {STRESS}")
    assert found[5].endswith("no rule for this level matches (stress)")


def test_of_many_rules_the_first_are_named() -> None:
    many = ", ".join(SHARDS.replace("shards", f"rule {number}") for number in range(15))
    found = reasons((PATH,), INSIDE, f"{SAVING}, {many}")
    assert "rule 11 and 3 more" in found[2]
    assert "rule 12" not in found[2]


def test_where_nothing_counts_the_sentence_says_what_is_set_aside_and_why() -> None:
    quiet = effects(PATH, Inside((), NO_EFFECT, "only comments differ"))
    found = reasons((PATH, "docs/a.md"), quiet, SAVING)
    assert set(found.values()) == {
        "every changed path is set aside (1 in documentation: nothing imports it; 1 in no effect: only comments differ)"
    }
