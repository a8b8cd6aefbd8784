"""What a consumer beside verl reaches of a change is named on the plan: no job here runs it."""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.fakes.small_bridge import ASIDE, BASE, TOP, USES
from tests.fakes.trees import FakeSummaries, FakeTrees, Files
from verl_e2e.app.plan_change import Planner, explain_targets
from verl_e2e.config.maps import OTHER_CONSUMERS, other_uses
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.consumer.skyrl import SKYRL
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus, SubmoduleBump
from verl_e2e.core.model.execution import MEGATRON_LM_FOLDER
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.explain import render_explanation
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.plan.policy import ConsumerRules
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


CORE = "megatron/core/"
OLD: Files = {
    f"{CORE}__init__.py": "",
    f"{CORE}optimizer/__init__.py": "from .clip import clip, count\nfrom .state import Optimizer\n",
    f"{CORE}optimizer/clip.py": "def clip():\n    return _norm()\n\n\n"
    "def _norm():\n    return 1\n\n\ndef count():\n    return 1\n",
    f"{CORE}optimizer/state.py": "class Optimizer:\n    def step(self):\n        return 1\n",
    f"{CORE}mtp.py": "def offset():\n    return 1\n",
    f"{CORE}fsdp.py": "def shard():\n    return 1\n",
}
VERLS = (Entry("megatron.core.optimizer", "count", "verl/a.py", 1), Entry("megatron.core.optimizer", "Optimizer"))
SKYRLS = (
    Entry("megatron.core.optimizer", "clip", "skyrl/a.py", 1),
    Entry("megatron.core.optimizer", "Optimizer", "skyrl/a.py", 2),
    Entry("megatron.core.mtp", None, "skyrl/a.py", 3),
)


class Bumped(FakeTrees):
    """Trees of which the head moves Megatron-LM from `old` to `new`, and nothing else."""

    def change(self, base: str, head: str) -> Change:
        moved = ChangedPath(MEGATRON_LM_FOLDER, PathStatus.MODIFIED, submodule=SubmoduleBump("old", "new"))
        return Change(base, head, base, (moved,))


def bump(new: Mapping[str, str], absent: str = "") -> Plan:
    """The plan of a bump of Megatron-LM to these files, with SkyRL's jobs where its way differs."""
    core = FakeTrees({"old": {**OLD, "README.md": "1"}, "new": {**OLD, **new}}, absent=frozenset({absent}))
    others = {SKYRL.title: Uses((), (), "a commit", SKYRLS)}
    rules = ConsumerRules.model_validate({"level": "show", "when": "differs"})
    policy = packaged_policy().model_copy(update={"consumers": {SKYRL.name: rules}})
    planner = Planner(
        Bumped({"base": BASE, "head": BASE}),
        replace(USES, core=VERLS),
        FakeSummaries(),
        megatron_lm=lambda *_: core,
        others=others,
    )
    return planner.plan("base", "head", policy).plan


def turned(path: str, old: str = "return 1", new: str = "return 2") -> dict[str, str]:
    text = OLD[f"{CORE}{path}"]
    assert isinstance(text, str)
    return {f"{CORE}{path}": text.replace(old, new)}


@pytest.mark.parametrize(
    ("new", "runs"),
    [
        # What only its own import names, what only that calls, and a module that it imports whole.
        (turned("optimizer/clip.py", "return _norm()", "return _norm() + 1"), "clip"),
        (turned("optimizer/clip.py", "_norm():\n    return 1", "_norm():\n    return 2"), "_norm"),
        (turned("mtp.py"), "offset"),
        # What is gone.
        (turned("mtp.py", "offset", "other"), "offset"),
        # What verl imports as well, what no one does, and what is no code.
        (turned("optimizer/clip.py", "count():\n    return 1", "count():\n    return 2"), ""),
        (turned("optimizer/state.py"), ""),
        (turned("fsdp.py"), ""),
        ({"README.md": "2"}, ""),
        # What cannot be read may be its own.
        (turned("fsdp.py", "return", "return ("), "what changed"),
        ({f"{CORE}helpers.cpp": "1"}, "what changed"),
        ({f"{CORE}optimizer/odd.py": "x = (", **turned("fsdp.py")}, "what changed"),
    ],
)
def test_a_bump_is_run_by_another_trainer_where_it_reaches_what_differs_in_a_way_of_its_own(
    new: Mapping[str, str], runs: str
) -> None:
    found = bump(new)
    assert "0-lora-ddp" in {job.id for job in found.jobs}
    own = [job for job in found.jobs if job.consumer == SKYRL.name]
    assert {job.reason for job in own if job.is_default and job.variant.level is Level.SMOKE} == (
        {f"SkyRL runs {runs}"} if runs else set()
    )
    assert bool(own) is bool(runs)


def test_the_rules_of_a_bump_count_for_what_another_trainer_reaches_in_a_way_of_its_own() -> None:
    def levels(path: str) -> set[Level]:
        return {job.variant.level for job in bump(turned(path)).jobs if job.consumer == SKYRL.name}

    # The state of the optimizer.
    assert levels("optimizer/clip.py") == {Level.SMOKE, Level.SAVE_RESUME}
    assert levels("mtp.py") == {Level.SMOKE}


def test_a_trainer_whose_way_through_megatron_lm_cannot_be_followed_runs_every_bump() -> None:
    found = bump(turned("fsdp.py"), absent=f"{CORE}optimizer/clip.py")
    assert "0-lora-ddp-skyrl" in {job.id for job in found.jobs}
