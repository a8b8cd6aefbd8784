"""Planning with sources: a small Bridge of our own making, called by a small verl."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.model.test_execution_maps import map_of
from tests.fakes.trees import FakeSummaries, FakeTrees, Files, LinkTo, planner_over, sha
from verl_e2e.app.plan_change import (
    OtherRepositoryError,
    Planned,
    Planner,
    UnknownTargetError,
    explain_targets,
    uses_at,
)
from verl_e2e.config import load_policy
from verl_e2e.config.maps import maps_content
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus, SubmoduleBump
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.execution import ExecutionMaps
from verl_e2e.core.model.known_defects import KnownDefect
from verl_e2e.core.plan.contract import Kind
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.plan.plan_document import plan_json
from verl_e2e.core.plan.policy import MegatronLm, Policy
from verl_e2e.core.reach.program import Summary
from verl_e2e.core.report.plan_text import render_plan_text
from verl_e2e.core.report.pull_card import reason_blocks

POLICY = load_policy(
    """
schema: 1
verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
image: {name: verlai/verl, tag: latest}
checkpoint: {model_id: tiny/dense}
exempt:
  - {name: documentation, paths: ["*.md"], reason: nothing imports it}
  - {name: recipes, paths: [src/lib/recipes/], reason: verl imports no recipe}
  - {name: loop, paths: [src/lib/loop.py], reason: verl has its own, unless_reached: true}
rules:
  - {name: everything, paths: [src/], levels: [0, 5], reason: unread source}
  - {name: pins, paths: [pyproject.toml], levels: [0], reason: a pin}
reach:
  package: lib
  roots: [src/]
  callers: app/
  dependencies: [torch]
  rules:
    - {name: reached code, levels: [0], reason: verl runs it}
    - {name: core imports, imports: [core.*], levels: [0], reason: a new need}
    - {name: adapters, paths: [src/lib/peft.py], levels: [1], reason: adapters are saved}
    - {name: parallel, words: [tp_size], unless: [verbose], levels: [2], reason: parallel sizes}
    - {name: mapping, symbols: ["*.mapping"], through: ["*.mapping"], levels: [4], reason: weights}
""",
    "policy.yml",
)

CALLER = {
    "app/engine.py": """
from lib import Maker

def go(cfg):
    maker = Maker.load(cfg)
    maker.export(cfg)
    from lib.peft import attach
    attach(maker)
"""
}
BASE: Files = {
    "README.md": "# lib\n",
    "pyproject.toml": '[project]\ndependencies = ["torch>=2", "tqdm"]\n',
    "src/lib/__init__.py": "from lib.maker import Maker\nimport lib.families\n",
    "src/lib/maker.py": """
from lib.names import width


class Maker:
    @staticmethod
    def register(name):
        return lambda cls: cls

    @classmethod
    def load(cls, cfg):
        return cls()

    def export(self, cfg):
        return self.mapping()

    def mapping(self):
        return width(1)

    def validate(self, cfg):
        return unused(cfg)


def unused(cfg):
    return cfg
""",
    "src/lib/names.py": "def width(x):\n    return x\n\n\ndef spare(x):\n    return x\n",
    "src/lib/families.py": """
from lib.maker import Maker


@Maker.register("one")
class One(Maker):
    def mapping(self):
        return pairs()


def pairs():
    return ["a"]
""",
    "src/lib/peft.py": "def attach(maker):\n    return shard(maker, 1)\n\n\ndef shard(maker, n):\n    return n\n",
    "src/lib/loop.py": "def train():\n    return 1\n",
    "src/lib/recipes/one.py": "def recipe():\n    return 1\n",
}


def planned(new: Mapping[str, str | bytes | None], absent: frozenset[str] = frozenset(), **renames: str) -> Planned:
    """Plan a head that differs from BASE by these files; None deletes one."""
    head = {path: text for path, text in {**BASE, **new}.items() if text is not None}
    moved = {old.replace("__", "/") + ".py": target for old, target in renames.items()}
    repository = FakeTrees({"base": BASE, "head": head, "verl": CALLER}, absent, moved)
    return planner_over(repository, POLICY).plan("base", "head", POLICY)


def edited(path: str, old: str, new: str) -> Mapping[str, str]:
    text = BASE[path]
    assert isinstance(text, str)
    assert old in text
    return {path: text.replace(old, new)}


def levels(made: Planned) -> list[int]:
    return [int(level) for level in made.plan.levels]


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    (
        ("src/lib/maker.py", "return cls()", "return cls() or None", [0]),
        ("src/lib/maker.py", "return unused(cfg)", "return unused(None)", []),
        ("src/lib/maker.py", "return cfg\n", "return None\n", []),
        ("src/lib/names.py", "def width(x):\n    return x", "def width(x):\n    return x + tp_size", [0, 2, 4]),
        ("src/lib/names.py", "def width(x):\n    return x", "def width(x):\n    return x + tp_size * verbose", [0, 4]),
        ("src/lib/names.py", "def spare(x):\n    return x", "def spare(x):\n    return x + tp_size", []),
        ("src/lib/names.py", "def width", "def new():\n    return 1\n\n\ndef width", [0]),
        ("src/lib/names.py", "def width", "# a comment\ndef width", []),
        ("src/lib/families.py", 'return ["a"]', 'return ["b"]', [0, 4]),
        ("src/lib/peft.py", "return n", "return n + 1", [0, 1]),
        ("src/lib/peft.py", "def attach", "import core.new\n\n\ndef attach", [0]),
        ("src/lib/peft.py", "def attach", "import other.new\n\n\ndef attach", [0]),
        ("src/lib/loop.py", "return 1", "return 2", []),
        ("src/lib/recipes/one.py", "return 1", "return 2", []),
        ("README.md", "# lib", "# Lib", []),
        ("pyproject.toml", "tqdm", "tqdm<5", []),
        ("pyproject.toml", "torch>=2", "torch>=3", [0]),
    ),
)
def test_a_change_asks_for_what_it_does_to_verl(path: str, old: str, new: str, expected: list[int]) -> None:
    assert levels(planned(edited(path, old, new))) == expected


def test_a_reason_names_symbol_and_chain_from_a_line_of_verl() -> None:
    made = planned(edited("src/lib/peft.py", "return n", "return n + 1")).plan
    reason = next(item for item in made.reasons if int(item.level) == 1)
    assert (reason.path, reason.symbol) == ("src/lib/peft.py", "shard")
    assert reason.via == ("app/engine.py:7 imports attach", "lib.peft.attach calls", "lib.peft.shard", "rule adapters")


def test_what_asks_for_nothing_says_why() -> None:
    made = planned(edited("src/lib/names.py", "def spare(x):\n    return x", "def spare(x):\n    return 0")).plan
    assert "imported without effect" in made.not_required[0].reason
    assert "reaches none of the changed symbols (spare)" in made.not_required[0].reason
    comment = planned(edited("src/lib/names.py", "def width", "# why\ndef width")).plan
    assert "only comments" in comment.not_required[0].reason


def test_a_plan_of_nothing_names_what_it_looked_at() -> None:
    made = planned(edited("src/lib/names.py", "def width", "# why\ndef width")).plan
    assert made.looked_at is not None
    text = made.looked_at.sentence
    assert text == (
        "Looked at: 1 changed source file compared, 5 modules that verl's imports execute read, none of them unknown."
    )
    assert text in render_plan_text(made)
    assert json.loads(plan_json(made))["looked_at"] == {"compared": 1, "imported": 5, "unknown": 0}
    assert any(text in str(block) for block in reason_blocks(made, 3000))


def test_a_loop_that_verl_comes_to_call_is_no_longer_set_aside() -> None:
    new = {
        **edited("src/lib/peft.py", "return shard(maker, 1)", "from lib.loop import train\n    return train()"),
        **edited("src/lib/loop.py", "return 1", "return 2"),
    }
    assert any(reason.path == "src/lib/loop.py" for reason in planned(new).plan.reasons)


@pytest.mark.parametrize("text", ("def f(:\n", b"\xff\xfe\x00", "x = '\0'"))
def test_a_file_that_is_no_python_is_judged_by_its_name_and_says_so(text: str | bytes) -> None:
    made = planned({"src/lib/names.py": text})
    assert levels(made) == [0, 5]
    assert "judged by its name alone" in made.plan.reasons[0].reason


def test_an_absent_content_is_judged_by_its_name_and_says_so() -> None:
    made = planned(
        edited("src/lib/names.py", "def spare(x):\n    return x", "def spare(x):\n    return 0"),
        frozenset({"src/lib/names.py"}),
    )
    assert levels(made) == [0, 5]
    assert "not in this repository" in made.plan.reasons[0].reason


def test_where_a_file_on_the_way_cannot_be_read_not_reached_is_no_answer() -> None:
    new = edited("src/lib/names.py", "def spare(x):\n    return x", "def spare(x):\n    return 0")
    made = planned(new, frozenset({"src/lib/maker.py"}))
    assert levels(made) == [0, 5]
    assert any("could not be read" in sentence for sentence in made.plan.incomplete)


def test_a_deleted_package_is_reached_at_the_base_and_breaks_the_contract() -> None:
    made = planned({"src/lib/peft.py": None})
    assert levels(made) == [0, 1]
    broken = [item for item in made.contract if item.kind is Kind.BREAK]
    assert [(item.name, item.file, item.line) for item in broken] == [("lib.peft.attach", "app/engine.py", 7)]


def test_a_moved_module_that_verl_imports_is_no_nothing() -> None:
    made = planned(
        {"src/lib/peft.py": None, "src/lib/peft2.py": BASE["src/lib/peft.py"]}, src__lib__peft="src/lib/peft2.py"
    )
    assert 0 in levels(made)
    assert any(item.kind is Kind.BREAK for item in made.contract)


def test_three_thousand_files_are_planned() -> None:
    made = planned({f"src/lib/gen/m{number}.py": "def f():\n    return 1\n" for number in range(3000)})
    assert levels(made) == []
    assert "3000 in not reached" in made.plan.not_required[0].reason


EDITS = tuple(
    edited(*item)
    for item in (
        ("src/lib/names.py", "def width(x):\n    return x", "def width(x):\n    return x + tp_size"),
        ("src/lib/peft.py", "return n", "return n + 1"),
        ("src/lib/families.py", '["a"]', '["b"]'),
        ("src/lib/loop.py", "return 1", "return 2"),
        ("README.md", "# lib", "# Lib"),
    )
)


@settings(deadline=None, max_examples=20)
@given(st.permutations(EDITS), st.integers(0, len(EDITS)))
def test_order_is_irrelevant_and_more_changed_code_never_lowers_a_level(
    edits: list[Mapping[str, str]], cut: int
) -> None:
    def merged(some: list[Mapping[str, str]]) -> Mapping[str, str]:
        return {path: text for item in some for path, text in item.items()}

    some, every = planned(merged(edits[:cut])), planned(merged(edits))
    assert set(some.plan.levels) <= set(every.plan.levels)
    assert every.plan == planned(merged(list(EDITS))).plan


def test_a_second_plan_of_the_same_trees_is_the_same_and_reads_no_summary_again() -> None:
    store = FakeSummaries()
    repository = FakeTrees({"base": BASE, "head": {**BASE, **EDITS[0]}, "verl": CALLER})
    first = planner_over(repository, POLICY, store).plan("base", "head", POLICY).plan
    count = len(store.values[Summary])
    planner = planner_over(repository, POLICY, store)
    assert planner.plan("base", "head", POLICY).plan == first == planner.plan("base", "head", POLICY).plan
    assert len(store.values[Summary]) == count


def planner() -> Planner:
    repository = FakeTrees({"base": BASE, "verl": CALLER})
    return planner_over(repository, POLICY)


def test_explain_shows_chain_and_levels_or_why_there_are_none() -> None:
    targets = [("src/lib/peft.py", "shard"), ("src/lib/names.py", "")]
    found = {
        (explanation.path, explanation.symbol): explanation
        for explanation in explain_targets(planner(), "base", POLICY, targets)
    }
    assert [int(level) for level in found["src/lib/peft.py", "shard"].levels] == [0, 1]
    assert found["src/lib/peft.py", "shard"].via[0] == "app/engine.py:7 imports attach"
    assert found["src/lib/names.py", "spare"].reason == "verl does not reach it"


@pytest.mark.parametrize(
    ("target", "words"),
    (
        (("src/lib/peftt.py", ""), "this commit has no such path; did you mean src/lib/peft.py?"),
        (("lib/peft.py", "shard"), "did you mean src/lib/peft.py?"),
        (("q", ""), "this commit has no such path; name one of it"),
        (("src/lib", ""), "this is a folder; name a file in it"),
        (("src/lib/peft.py", "shart"), "src/lib/peft.py has no symbol shart; did you mean 'shard'?"),
        (("src/lib/peft.py", "shard.inner"), "src/lib/peft.py has no symbol shard.inner; did you mean 'shard'?"),
        (("src/lib/broken.py", "f"), "no symbol of the file can be read"),
        (("docs/guide.rst", "f"), "docs/guide.rst has no symbol f"),
        # Also where the policy sets the file aside, so that nothing is said of its inside.
        (("tests/test_a.py", "nothing"), "tests/test_a.py has no symbol nothing"),
    ),
)
def test_explain_refuses_what_does_not_exist_with_the_nearest_name(target: tuple[str, str], words: str) -> None:
    repository = FakeTrees({"head": {**WHOLE, "tests/test_a.py": "def test_b():\n    pass\n"}, "verl": CALLER})
    made = planner_over(repository, POLICY)
    with pytest.raises(UnknownTargetError, match=re.escape(words)):
        explain_targets(made, "head", POLICY, [("src/lib/names.py", ""), target])


WHOLE: Files = {
    **BASE,
    "docs/guide.rst": "a guide\n",
    "uv.lock": '[[package]]\nname = "torch"\nversion = "2"\n',
    "src/lib/broken.py": "def (:\n",
    "src/lib/data.json": "{}",
    "src/lib/settings.py": "import lib.names\n\nLIMIT = 3\nTABLE = {LIMIT: lib.names.width}\n",
    "src/lib/__init__.py": "from lib.maker import Maker\nimport lib.families\nimport lib.settings\n",
    "src/lib/link.py": LinkTo("peft.py"),
    "src/torch.py": "x = 1\n",
    ".gitattributes": "* text\n",
}


@pytest.mark.parametrize("path", sorted(WHOLE))
def test_explain_says_of_every_path_what_the_plan_says_of_its_coming(path: str) -> None:
    without = {name: text for name, text in WHOLE.items() if name != path}
    repository = FakeTrees({"base": without, "head": WHOLE, "verl": CALLER})
    made = planner_over(repository, POLICY)
    whole, *symbols = explain_targets(made, "head", POLICY, [(path, "")])
    assert whole.levels == made.plan("base", "head", POLICY).plan.levels
    assert {level for row in symbols for level in row.levels} <= {*whole.levels}
    assert whole.reason or whole.rules


def test_explain_tells_submodules_and_what_only_an_import_runs() -> None:
    repository = FakeTrees({"head": {**WHOLE, "3rdparty/core": LinkTo("elsewhere")}, "verl": CALLER})
    made = planner_over(repository, POLICY)
    (table,) = explain_targets(made, "head", POLICY, [("src/lib/settings.py", "TABLE")])
    assert ([int(level) for level in table.levels], "when verl imports" in table.reason) == ([0], True)
    (spare,) = explain_targets(made, "head", POLICY, [("src/lib/names.py", "spare")])
    assert (spare.levels, spare.reason) == ((), "verl does not reach it")
    (pins,) = explain_targets(made, "head", POLICY, [("pyproject.toml", "")])
    assert "keeps every requirement" in pins.reason


def test_lint_names_rules_that_can_never_match_and_paths_that_nothing_judges() -> None:
    findings = "\n".join(planner().lint("base", POLICY))
    assert "parallel: its words stand nowhere in the sources" in findings
    assert "README.md" not in findings
    assert "src/lib/maker.py" not in findings


class BumpedTrees(FakeTrees):
    """Trees of which the head moves Megatron-LM from `old` to `new`."""

    def change(self, base: str, head: str) -> Change:
        moved = ChangedPath("3rdparty/Megatron-LM", PathStatus.MODIFIED, submodule=SubmoduleBump("old", "new"))
        return replace(super().change(base, head), paths=(moved,))

    def links(self, revision: str) -> Mapping[str, str]:
        return {**super().links(revision), "3rdparty/Megatron-LM": "commit new"}


class WithoutCommits(FakeTrees):
    """A repository that holds neither commit."""

    def tree(self, revision: str, under: str = "") -> Mapping[str, str]:
        raise UserError(f"{revision}:{under} is not here")


def test_a_bump_is_compared_where_both_commits_are_at_hand() -> None:
    path = "megatron/core/optimizer/distrib_optimizer.py"
    versions = {"old": {path: "def step():\n    return 1\n"}, "new": {path: "def step():\n    return 2\n"}}
    trees = BumpedTrees({"base": WHOLE, "head": WHOLE, "verl": CALLER})
    uses = uses_at(trees, "verl", POLICY.reach, "verl") if POLICY.reach else None
    assert uses is not None

    def planned_with(inner: FakeTrees | None, policy: Policy = POLICY) -> Plan:
        at = None if inner is None else lambda *_: inner
        return Planner(trees, uses, FakeSummaries(), megatron_lm=at).plan("base", "head", policy).plan

    # The rule is about all but the one function that differs.
    rule = {"name": "state", "paths": ["optimizer/"], "symbols": ["*", "!step"], "levels": [1], "reason": "it is saved"}
    named = MegatronLm.model_validate({"rules": [rule]})
    rules = POLICY.model_copy(update={"megatron_lm": named})

    compared = planned_with(FakeTrees(versions))
    assert compared.notes[-1].startswith("Compared Megatron-LM old with new: 1 functions in 1 files differ")
    assert [item.path for item in compared.changed.functions] == [f"3rdparty/Megatron-LM/{path}"]
    assert compared.incomplete == ()
    # In a partial clone the contents are not here.
    assert 1 in planned_with(FakeTrees(versions, absent=frozenset({path})), rules).levels
    assert 1 not in planned_with(FakeTrees(versions), rules).levels
    missing = planned_with(WithoutCommits({}))
    assert any("moves between could not be read" in sentence for sentence in missing.incomplete)
    (sentence,) = planned_with(None).incomplete
    assert "moves from old to new" in sentence
    assert "is not planned" in sentence
    (sentence,) = planned_with(None, rules).incomplete
    assert "every level is planned that a rule of `megatron_lm` names" in sentence


CORE = "3rdparty/Megatron-LM"


def test_a_defect_of_a_megatron_lm_is_not_known_of_another_one() -> None:
    pins = sha("pinned"), sha("another")
    entry = {"name": "of core", "level": 3, "verl": POLICY.verl.commit, "objects": {CORE: pins[0]}}
    told = {"until": date(2030, 1, 1), "reason": "it raises", "evidence": "a run"}
    policy = POLICY.model_copy(update={"defects": (KnownDefect.model_validate({**entry, **told}),)})

    class Pinned(FakeTrees):
        def links(self, revision: str) -> Mapping[str, str]:
            return {**super().links(revision), CORE: f"commit {pins[0]}"}

    made = planner_over(Pinned({"base": WHOLE, "head": {**WHOLE, "a.md": ""}, "verl": CALLER}), policy)
    known = [made.plan("base", "head", policy, megatron_lm=pin).effects for pin in ("", *pins)]
    assert [len(effects.defects) for effects in known if effects is not None] == [1, 1, 0]


def bumped_planner(core: dict[str, dict[str, str]], policy: Policy = POLICY) -> Planner:
    trees = BumpedTrees({"base": WHOLE, "head": WHOLE, "verl": CALLER})
    uses = uses_at(trees, "verl", policy.reach, "verl") if policy.reach else None
    assert uses is not None
    inner = FakeTrees(core)
    return Planner(trees, uses, FakeSummaries(), megatron_lm=lambda *_: inner)


def test_requirements_of_megatron_lm_are_compared_and_what_else_a_run_has_is_named() -> None:
    project = '[project]\nname = "core"\nversion = "1"\ndependencies = ["torch{}", "wget"]\n'
    policy = POLICY.model_copy(
        update={"reach": POLICY.reach.model_copy(update={"dependencies": ("torch",)}) if POLICY.reach else None}
    )

    def unread(torch: str = "", other: str = "") -> dict[str, str]:
        old = {"pyproject.toml": project.format(""), "megatron/core/helpers.cpp": "1", "tests/x.py": "1"}
        text = project.format(torch).replace("wget", f"wget{other}")
        new = {**old, "pyproject.toml": text, "megatron/core/helpers.cpp": "2", "tests/x.py": "2", "site.py": "1"}
        planned = bumped_planner({"old": old, "new": new}, policy).plan("base", "head", policy).plan
        assert "Other folders than megatron/ are in no run." in planned.notes[-1]
        return planned.changed.unread

    beside = {
        f"{CORE}/megatron/core/helpers.cpp": "it is not a Python source",
        f"{CORE}/site.py": "it lies beside the package, where Python looks for modules",
    }
    assert unread(other=">1") == beside
    why = "it asks for another torch, and a run has the packages of its image"
    assert unread(torch=">2") == {**beside, f"{CORE}/pyproject.toml": why}


def test_explain_tells_what_a_bump_asks_for() -> None:
    rules = [
        {"name": "state", "paths": ["optimizer/"], "levels": [1], "reason": "it is saved"},
        {"name": "shards", "paths": ["fsdp/"], "symbols": ["shard"], "levels": [3], "reason": "it shards"},
    ]
    policy = POLICY.model_copy(update={"megatron_lm": MegatronLm.model_validate({"rules": rules})})
    source = "def shard():\n    return 1\n\n\ndef other():\n    return 2\n"
    files = {"megatron/fsdp/a.py": source, "megatron/optimizer/table.json": "1", "tests/a.py": "x"}
    made = bumped_planner({"new": files}, policy)

    def explained(inner: str, symbol: str = "") -> list[tuple[str, list[int], str]]:
        found = explain_targets(made, "head", policy, [(f"{CORE}{inner}", symbol)])
        return [(row.symbol, [int(level) for level in row.levels], row.reason) for row in found]

    (whole, state, shards) = explained("")
    assert whole[1] == [0, 1, 3]
    assert "whose code differs" in whole[2]
    assert (state[1:], shards[1:]) == (([1], "it is saved"), ([3], "it shards"))
    file, shard, other = explained("/megatron/fsdp/a.py")
    assert file[1] == [0, 3]
    assert (shard[:2], other[:2]) == (("shard", [0, 3]), ("other", [0]))
    assert "every bump asks for it" in other[2]
    assert explained("/megatron/fsdp/a.py", "shard") == [shard]
    assert explained("/megatron/optimizer/table.json")[0][1] == [0, 1]
    assert explained("/tests/a.py") == [("", [0], "no run has this folder of Megatron-LM; every bump asks for it")]
    with pytest.raises(UnknownTargetError, match=r"did you mean 3rdparty/Megatron-LM/megatron/fsdp/a\.py"):
        explained("/megatron/a.py")
    with pytest.raises(UnknownTargetError, match="has no symbol sharp"):
        explained("/megatron/fsdp/a.py", "sharp")


@pytest.mark.parametrize("package", ("src/lib/__init__.py", "src/lib.py", "src/lib/deep/one.py"))
def test_a_repository_is_known_by_its_package_on_either_side(package: str) -> None:
    other = {"README.md": "# other\n", "src/libs/a.py": "x = 1\n", "src/lib/notes.txt": "no source"}
    repository = FakeTrees({"other": other, "later": {**other, "a.md": ""}, "with": {package: ""}, "verl": CALLER})
    made = planner_over(repository, POLICY)
    with pytest.raises(OtherRepositoryError, match=r"no package lib below src/ at other or later; use the repository"):
        made.plan("other", "later", POLICY)
    with pytest.raises(OtherRepositoryError, match="at other;"):
        explain_targets(made, "other", POLICY, [("README.md", "")])
    with pytest.raises(OtherRepositoryError, match="at other;"):
        made.lint("other", POLICY)
    made.plan("other", "with", POLICY)
    made.plan("with", "other", POLICY)
    made.plan("other", "later", POLICY.model_copy(update={"reach": None}))


def test_explain_names_the_measured_jobs_of_the_policys_maps() -> None:
    maps = ExecutionMaps(maps=(map_of(files={"src/lib/maker.py": {"Maker.mapping": ("trainer",)}}),))
    head = {**BASE, "maps.json": maps_content(maps, "maps.json").decode()}
    repository = FakeTrees({"head": head, "verl": CALLER}, frozenset(), {})
    made = planner_over(repository, POLICY)
    for policy, entered in (
        (POLICY, ()),
        (POLICY.model_copy(update={"maps": "maps.json"}), ("0-lora-ddp (trainer)",)),
    ):
        (row,) = explain_targets(made, "head", policy, [("src/lib/maker.py", "Maker.mapping")])
        assert row.entered_by == entered
