"""What a consumer beside verl reaches of a change is named on the plan: no job here runs it."""

import re
from collections.abc import Mapping

import pytest

from tests.fakes.small_bridge import ASIDE, BASE, TOP, USES
from tests.fakes.trees import FakeSummaries, FakeTrees
from verl_e2e.app.plan_change import Planner, explain_targets
from verl_e2e.config.maps import OTHER_CONSUMERS, other_uses
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.plan.explain import render_explanation
from verl_e2e.core.reach.entries import Uses
from verl_e2e.core.reach.walk import Entry

RECIPE, LORA = f"{TOP}recipes/one.py", f"{TOP}peft/lora.py"
OTHER = Uses((Entry("megatron.bridge.recipes.one", "recipe", "other/train.py", 1),), (), "a commit")


def notes(path: str, others: dict[str, Uses]) -> list[str]:
    """The notes on consumers of a plan, where the functions of one file have another body."""
    text = BASE[path]
    assert isinstance(text, str)
    return notes_of({path: text.replace("return ", "return [] or ")}, others)


def notes_of(
    new: Mapping[str, str | bytes | None],
    others: dict[str, Uses],
    renames: dict[str, str] | None = None,
    verl: Uses = USES,
) -> list[str]:
    """The same for a head with these files, where None deletes one."""
    head = {path: text for path, text in {**BASE, **new}.items() if text is not None}
    trees = FakeTrees({"base": BASE, "head": head}, renames=renames or {})
    planner = Planner(trees, verl, FakeSummaries(), others=others)
    return [note for note in planner.plan("base", "head", packaged_policy()).plan.notes if "alone reaches" in note]


@pytest.mark.parametrize(
    ("path", "entry", "expected"),
    [
        (RECIPE, OTHER, ["Other alone reaches recipe (recipes/one.py): no job here runs it (a commit)."]),
        # verl reaches that as well, so a job runs it.
        (LORA, Uses(USES.entries, (), "other"), []),
        # Nobody reaches that.
        (RECIPE, Uses(USES.entries, (), "other"), []),
    ],
)
def test_what_another_consumer_alone_reaches(path: str, entry: Uses, expected: list[str]) -> None:
    assert notes(path, {"Other": entry}) == expected


def test_the_packaged_lists_are_of_commits_and_start_somewhere() -> None:
    for consumer, (title, uses) in zip(OTHER_CONSUMERS, other_uses().items(), strict=True):
        assert title == consumer.title
        assert re.fullmatch(rf"commit [0-9a-f]{{12}}{', never run here' if consumer.never_run else ''}", uses.source)
        assert uses.entries


@pytest.mark.parametrize(
    ("new", "renames", "shown"),
    [
        ({RECIPE: "def other():\n    return 1\n"}, {}, "recipe (recipes/one.py)"),
        ({RECIPE: None}, {}, "recipe (recipes/one.py)"),
        ({RECIPE: "def recipe(:\n"}, {}, "recipes/one.py"),
        ({RECIPE: None, f"{TOP}recipes/two.py": BASE[RECIPE]}, {RECIPE: f"{TOP}recipes/two.py"}, "recipes/one.py"),
    ],
)
def test_what_is_gone_moved_or_cannot_be_read_is_named(
    new: Mapping[str, str | bytes | None], renames: dict[str, str], shown: str
) -> None:
    (note,) = notes_of(new, {"Other": OTHER}, renames)
    assert shown in note


def test_what_verl_reaches_in_a_file_that_is_set_aside_is_not_anothers_alone() -> None:
    entry = Entry("megatron.bridge.diffusion.models", "sample", "other/train.py", 1)
    text = BASE[ASIDE]
    assert isinstance(text, str)
    changed = {ASIDE: text.replace("return STEPS", "return STEPS + 1")}
    assert notes_of(changed, {"Other": Uses((entry,), (), "a commit")}) != []
    both = Uses((*USES.entries, entry), (), "verl")
    assert notes_of(changed, {"Other": Uses((entry,), (), "a commit")}, verl=both) == []


def test_a_consumer_that_cannot_be_followed_is_said_and_ends_no_plan() -> None:
    chain = {
        f"{TOP}recipes/c{at}.py": f"from megatron.bridge.recipes.c{at + 1} import C{at + 1}\n\n\n"
        f"class C{at}(C{at + 1}):\n    pass\n"
        for at in range(1500)
    }
    chain[f"{TOP}recipes/c1500.py"] = "class C1500:\n    pass\n"
    text = "from megatron.bridge.recipes.c0 import C0\n\n\ndef recipe():\n    return C0()\n"
    base = {**BASE, **chain, RECIPE: text}
    head = {**base, RECIPE: text.replace("return ", "return [] or ")}
    planner = Planner(FakeTrees({"base": base, "head": head}), USES, FakeSummaries(), others={"Other": OTHER})
    notes = planner.plan("base", "head", packaged_policy()).plan.notes
    assert any(note.startswith("What Other reaches is not known") for note in notes)


def test_an_explanation_names_each_consumer_that_reaches_the_symbol() -> None:
    planner = Planner(FakeTrees({"head": BASE}), USES, FakeSummaries(), others={"Other": OTHER})
    targets = [(RECIPE, "recipe"), (LORA, "LoRA.make")]
    recipe, make = explain_targets(planner, "head", packaged_policy(), targets)
    assert recipe.reached_by == ("reached by Other, from other/train.py:1 imports recipe",)
    assert "  reached by Other, from other/train.py:1 imports recipe" in render_explanation(recipe)
    assert make.reached_by == ()
