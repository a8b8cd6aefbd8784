"""What measured runs entered is reached: by its sources, and where no chain leads to it, by the runs themselves."""

import json
import lzma
from functools import cache

import pytest

from tests.fakes.places import FIXTURES
from tests.fakes.trees import FakeSummaries, FakeTrees
from verl_e2e.app.plan_change import Planner
from verl_e2e.config.maps import packaged_maps, packaged_uses
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.reach.changed_functions import graph_names
from verl_e2e.core.reach.program import Node, Program, module_name
from verl_e2e.core.reach.reader import summarize
from verl_e2e.core.reach.walk import Entry, Reach

HOW_TO = "if there are new maps, run `python bench/entered_code.py --bridge DIR`; else reach has lost something"
POLICY = packaged_policy().reach
assert POLICY is not None
RECORD = json.loads(lzma.decompress((FIXTURES / "reach" / "entered.json.xz").read_bytes()))
FILES = {path: text.encode() for path, text in RECORD["files"].items()}
PATHS = {module_name(path, POLICY.roots) or "": path for path in FILES}


def bridge() -> Program:
    """The part of Megatron-Bridge that leads from verl to what the runs entered."""
    return Program(PATHS, lambda path: summarize(FILES[path]))


def entered() -> list[tuple[str, str]]:
    """Every function of Bridge that a packaged map has, by path and qualified name."""
    assert POLICY is not None
    folders = tuple(f"{root}{POLICY.package.replace('.', '/')}/" for root in POLICY.roots)
    files = (item for measured in packaged_maps().maps for item in measured.files.items())
    return sorted({(path, symbol) for path, symbols in files if path.startswith(folders) for symbol in symbols})


def test_every_function_that_a_measured_run_entered_is_reached_by_its_sources() -> None:
    assert {measured.bridge for measured in packaged_maps().maps} == {RECORD["commit"]}, HOW_TO
    whole = bridge()
    found = Reach(whole, packaged_uses().entries)
    unreached = []
    for path, symbol in entered():
        view = whole.view(module_name(path, POLICY.roots if POLICY else ()) or "")
        assert view is not None, f"{path}: {HOW_TO}"
        name = next((name for name in graph_names(symbol) if name in view.symbols), None)
        if name is None or Node(view.name, name) not in found.steps:
            unreached.append(f"{path}:{symbol}")
    assert len(entered()) > 300
    assert unreached == [], HOW_TO


@cache
def summaries() -> FakeSummaries:
    return FakeSummaries()


def levels(path: str, text: str) -> list[int]:
    """The levels of a change of one file of the fixture."""
    trees = FakeTrees({"base": RECORD["files"], "head": {**RECORD["files"], path: text}})
    policy = packaged_policy().model_copy(update={"bridge_test_choice": None})
    return [
        int(level) for level in Planner(trees, packaged_uses(), summaries()).plan("base", "head", policy).plan.levels
    ]


BRIDGE = "src/megatron/bridge/"
DISPATCH, LORA, ABOVE = (f"{BRIDGE}{name}.py" for name in ("models/decorators/dispatch", "peft/lora", "peft/base"))
CONFIG = f"{BRIDGE}training/config.py"
FIRST = "        if not target_types:\n"
FIELD = "memory_snapshot_path: str = "
NOTES: tuple[str, ...] = ("Optional['1 +']", "Optional[Optional]", "Optional['']", "Optional[Literal]", "'a' | 'b'")
NOTES += ("Optional[Union]", "Dict[int]", "int[str]", "Union['1 +', int]", "undefined", "exit(1)", "Optional[1 / 0]")
FIELDS = ("nonsense=1", "default_factory=str", "init=1 / 0", "metadata=3", "hash=[]", "**{'x': 1}", "kw_only=undefined")
# (file, text, what takes its place), as they were planned as nothing once, and others of their kinds.
BREAKING = (
    *((DISPATCH, FIRST, f"        {statement}\n{FIRST}") for statement in
      ("raise RuntimeError('broken')", "__import__('os').system('id')", "return lambda f: f", "target_types = ()")),
    (DISPATCH, "self._exact_types[target_types[0]] = func", "pass"),
    *((DISPATCH, "    def impl(", text) for text in
      ("    def impl_(", "    @staticmethod\n    def impl(", "    @property\n    def impl(", "    async def impl(")),
    *((LORA, "", f"\n\ndef _q(x: {note}): pass\n") for note in NOTES),
    *((LORA, "    def transform(", f"    def zzq(self, x: {note}): pass\n\n    def transform(") for note in NOTES),
    *((LORA, "prefix: Optional[str]=None", f"prefix: {note}=None") for note in NOTES),
    *((ABOVE, "", f"\n\ndef _q() -> {note}: pass\n") for note in NOTES),
    *((CONFIG, "", f"\n_q: {note} = None\n") for note in NOTES),
    *((CONFIG, "memory_snapshot_path: str", f"memory_snapshot_path: {note}") for note in NOTES),
    *((CONFIG, FIELD, f"{FIELD}field(default='x', {given}) or ") for given in FIELDS),
)  # fmt: skip


@pytest.mark.parametrize(("path", "old", "new"), BREAKING)
def test_what_breaks_or_alters_an_import_is_never_planned_as_nothing(path: str, old: str, new: str) -> None:
    text = RECORD["files"][path]
    assert old in text
    assert levels(path, text.replace(old, new, 1) if old else text + new)


def test_a_comment_of_the_same_files_asks_for_nothing() -> None:
    assert [levels(path, "# A comment.\n" + RECORD["files"][path]) for path in (DISPATCH, LORA, CONFIG)] == [[], [], []]


SMALL = {"p": "import p.a", "p.a": "def f():\n    g()\ndef g(): pass\ndef h(): pass\nclass A:\n    def run(self): h()"}


def ran(*symbols: str) -> Reach:
    program = Program({name: name for name in SMALL}, lambda name: summarize(SMALL[name].encode()))
    return Reach(
        program, [Entry("p", None, "caller.py", 7)], [Entry("p.a", name, job="0-lora-ddp") for name in symbols]
    )


def test_what_a_run_entered_counts_as_reached_with_all_that_it_calls() -> None:
    nodes = [Node("p.a", name) for name in ("f", "g", "A.run", "h")]
    assert [node in ran().steps for node in nodes] == [False, False, False, False]
    assert [node in ran("f").steps for node in nodes] == [True, True, False, False]
    assert [node in ran("A.run", "gone").steps for node in nodes] == [False, False, True, True]
    assert str(ran("f").chain(nodes[0])[0].source) == "a measured run of 0-lora-ddp entered f"


def test_the_planner_takes_what_the_packaged_maps_entered_for_reached() -> None:
    # Nothing leads to the method any more but that a measured run entered it.
    path = f"{BRIDGE}models/decorators/dispatch.py"
    files = {path: RECORD["files"][path], f"{BRIDGE}__init__.py": ""}
    head = {**files, path: files[path].replace(FIRST, f"        print()\n{FIRST}")}
    planner = Planner(FakeTrees({"base": files, "head": head}), packaged_uses(), FakeSummaries())
    assert planner.plan("base", "head", packaged_policy()).plan.levels
