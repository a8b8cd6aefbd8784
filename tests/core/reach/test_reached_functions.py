"""Which changed functions the other program reaches, and by which symbol their effects are listed."""

import pytest

from tests.core.reach.programs import effects, program, reach, renamed
from verl_e2e.core.model.execution import Side
from verl_e2e.core.reach.changed_functions import ReachedTree, symbol_of_effect

MODULE = """
from functools import singledispatch
LIMIT = 3

@singledispatch
def kind(x):
    return 0

@kind.register(int)
def of_int(x):
    return 1

def f(x):
    def inner():
        return kind(x)
    @kind.register(str)
    def of_text(x):
        return 2
    return Own().run() + inner()

class Own:
    def run(self):
        return 1
    def spare(self):
        return 2
    class Inner:
        def deep(self):
            return 3

def spare():
    return 1

for x in LIMIT,:
    def odd():
        return 1
"""
BASE = {
    "src/p/__init__.py": "from p.a import f\n",
    "src/p/a.py": MODULE,
    "src/p/unused.py": "X = 1\ndef g():\n    return 1\n",
}
ENTRY = ("p", "f")


@pytest.mark.parametrize(
    ("old", "new", "symbol", "reached"),
    (
        ("return kind(x)", "return kind(1)", "f.<locals>.inner", True),
        ("return 0", "return 5", "kind", True),
        # Registered as an implementation: it runs when the function it serves does.
        ("    return 1\n\ndef f", "    return 5\n\ndef f", "of_int", True),
        ("return 2\n    return Own", "return 5\n    return Own", "f.<locals>.of_text", True),
        ("def run(self):\n        return 1", "def run(self):\n        return 5", "Own.run", True),
        ("def spare(self):\n        return 2", "def spare(self):\n        return 5", "Own.spare", False),
        ("return 3", "return 5", "Own.Inner.deep", True),
        ("def spare():\n    return 1", "def spare():\n    return 5", "spare", False),
        ("LIMIT = 3", "LIMIT = 5", "", True),
        # The graph does not know a definition in a loop: unknown is taken for reached.
        ("def odd():\n        return 1", "def odd():\n        return 5", "odd", True),
    ),
)
def test_a_function_is_reached_as_its_symbol_is(old: str, new: str, symbol: str, reached: bool) -> None:
    assert MODULE.count(old) == 1
    found = effects(BASE, {"src/p/a.py": MODULE.replace(old, new)}, ENTRY).functions
    assert [(item.function.path, item.function.symbol, item.function.reached, item.earlier) for item in found] == [
        ("src/p/a.py", symbol, reached, earlier) for earlier in (False, True)
    ]


def test_a_module_that_nothing_imports_is_not_reached() -> None:
    found = effects(BASE, {"src/p/unused.py": "X = 2\ndef g():\n    return 2\n"}, ENTRY).functions
    assert {(item.function.symbol, item.function.reached) for item in found} == {("", False), ("g", False)}


def test_a_lambda_that_an_import_makes_is_reached_where_the_module_is_imported() -> None:
    for path, reached in (("src/p/a.py", True), ("src/p/unused.py", False)):
        changed = {path: BASE[path] + "\nCALL = [lambda x: x]\n"}
        found = [item for item in effects(BASE, changed, ENTRY).functions if item.function.symbol == "<lambda>"]
        assert [(item.function.reached, item.symbol) for item in found] == [(reached, "")]


def test_only_what_is_reached_reads_what_an_import_binds() -> None:
    files = {**BASE, "src/p/a.py": MODULE.replace("return Own().run()", "print(LIMIT)\n    return Own().run()")}
    files["src/p/a.py"] = files["src/p/a.py"].replace("def spare():\n", "def spare():\n    print(LIMIT)\n")
    lines = [number for number, text in enumerate(files["src/p/a.py"].splitlines(), 1) if text == "    print(LIMIT)"]
    changed = {"src/p/a.py": files["src/p/a.py"].replace("LIMIT = 3", "LIMIT = 5")}
    found = [item.function.readers for item in effects(files, changed, ENTRY).functions]
    assert (len(lines), found) == (2, [(lines[0],), ()])


@pytest.mark.parametrize(
    ("import_", "taken"),
    (
        ("from p.a import LIMIT", True),
        ("from p.a import *", True),
        ("import p.a", True),
        ("from p import a", True),
        ("from p.a import f", False),
        ("from p.other import LIMIT", False),
    ),
)
def test_what_another_file_imports_may_be_read_there(import_: str, taken: bool) -> None:
    source = (
        "import os\nLIMIT = 3\nclass A:\n    size = 1\n    def m(self):\n        return 1\n"
        "def f():\n    A().m()\n    return LIMIT\n"
    )
    other = {"src/p/__init__.py": f"from p.a import f\n{import_}\n", "src/p/other.py": "LIMIT = 1\n"}
    files = {**other, "src/p/a.py": source}
    changed = {"src/p/a.py": source.replace("LIMIT = 3", "LIMIT = 5").replace("size = 1", "size = 2")}
    head = [item.function for item in effects(files, changed, ENTRY).functions if not item.earlier]
    # What a class holds is read through its objects, in any file.
    assert [(item.first_line, item.readers) for item in head] == [(2, () if taken else (9,)), (4, (6,))]


def test_a_removed_function_is_reached_as_the_base_reaches_it() -> None:
    head = MODULE.replace("Own().run() + inner()", "inner()").replace("    def run(self):\n        return 1\n", "")
    found = [item for item in effects(BASE, {"src/p/a.py": head}, ENTRY).functions if item.function.symbol == "Own.run"]
    assert [(item.function.side, item.function.reached) for item in found] == [(Side.MERGE_BASE, True)] * 2


def test_of_a_folder_that_is_set_aside_only_what_imports_run_counts() -> None:
    files = {**BASE, "src/p/a.py": MODULE + "\nREADY = spare()\n"}
    changed = files["src/p/a.py"].replace("def spare():\n    return 1", "def spare():\n    return 5")
    both = changed.replace("def run(self):\n        return 1", "def run(self):\n        return 5")
    found = effects(files, {"src/p/a.py": both}, ENTRY, aside="src/p/a").functions
    assert {(item.function.symbol, item.function.reached) for item in found} == {("spare", True), ("Own.run", False)}


def test_each_side_of_a_renamed_file_has_its_own_path() -> None:
    assert renamed(BASE, "src/p/a.py", "src/p/b.py", ENTRY).functions == ()
    gone = effects(BASE, {"src/p/a.py": None, "src/p/__init__.py": ""}, ENTRY).functions
    assert {item.function.path for item in gone} == {"src/p/a.py", "src/p/__init__.py"}
    assert {item.function.side for item in gone} == {Side.MERGE_BASE}


@pytest.mark.parametrize(
    ("symbol", "listed"),
    (
        ("<lambda>", ""),
        ("A.<lambda>", "A"),
        ("f.<locals>.<lambda>", "f"),
        ("f", "f"),
        ("A.m", "A.m"),
        ("A.B.m", "A"),
        ("f.<locals>.g", "f"),
        ("A.m.<locals>.g", "A.m"),
        ("", ""),
    ),
)
def test_the_symbol_by_which_an_effect_is_listed(symbol: str, listed: str) -> None:
    assert symbol_of_effect(symbol) == listed


def test_what_the_graph_does_not_have_counts_as_reached() -> None:
    tree = ReachedTree(program(BASE), reach(BASE, ENTRY))
    assert [tree.reaches(module, "f") for module in (None, "p.gone", "p.unused")] == [True, True, True]
