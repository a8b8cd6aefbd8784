"""Tests of the families of models that every way into a shared function leads through."""

import pytest

from tests.core.reach.conditions.trees import FILE, code_tree
from verl_e2e.core.reach.conditions.families import FamilyWays
from verl_e2e.core.reach.program import Node

SHARED = "class Mapping:\n    def run(self): pass\n    def _own(self): pass\n    def __len__(self): return 1\n"
USE = "from lib.shared import Mapping\ndef make{0}():\n    return Mapping().run()\n"
MAIN = "from lib.falcon import makefalcon\nfrom lib.nemotron import makenemotron\n"
CALLS = "def main():\n    makefalcon()\n    makenemotron()\n"
FAMILIES = {"src/lib/falcon.py": "falcon", "src/lib/nemotron.py": "nemotron"}


def _families(symbol: str, module: str = "lib.shared", **changed: str) -> set[str]:
    texts = {"shared": SHARED, "core": MAIN + CALLS, "falcon": USE.format("falcon"), "nemotron": USE.format("nemotron")}
    files = {f"src/lib/{name}.py": text for name, text in {**texts, **changed}.items()}
    tree = code_tree({**files, "src/lib/__init__.py": ""})
    ways = FamilyWays(tree, lambda path: frozenset({FAMILIES[path]} if path in FAMILIES else ()))
    # The second answer is kept.
    assert ways.into(Node(module, symbol)) == ways.into(Node(module, symbol))
    return set(ways.into(Node(module, symbol)))


BOTH = {"falcon", "nemotron"}


@pytest.mark.parametrize("symbol", ["Mapping", "Mapping.run", "Mapping._own", "Mapping.__len__"])
def test_a_class_that_files_of_families_alone_make_needs_one_of_them(symbol: str) -> None:
    assert _families(symbol) == BOTH


def test_what_a_family_has_of_its_own_needs_it() -> None:
    assert _families("makefalcon", "lib.falcon") == {"falcon"}


def test_what_shared_code_uses_too_needs_none() -> None:
    assert _families("Mapping", core=f"{MAIN}from lib.shared import Mapping\n{CALLS}    Mapping()\n") == set()
    assert _families("Mapping", core=f"{MAIN}from lib.shared import Mapping\nX = Mapping\n{CALLS}    X()\n") == set()
    assert _families("main", "lib.core") == set()
    assert _families("gone") == set()


def test_an_annotation_and_a_test_of_a_type_are_no_use() -> None:
    more = f"{MAIN}from lib.shared import Mapping\ndef look(x: Mapping): return isinstance(x, Mapping)\n"
    assert _families("Mapping", core=f"{more}{CALLS}    look(1)\n") == BOTH


def test_subclasses_have_ways_of_their_own() -> None:
    parts = "class Base:\n    def run(self): pass\n"
    below = f"{parts}class Mapping(Base):\n    pass\n"
    assert _families("Base.run", shared=below) == BOTH
    other = {"shared": f"{below}class Other(Base):\n    pass\n"}
    other["core"] = f"{MAIN}from lib.shared import Other\n{CALLS}    Other()\n"
    assert _families("Base", **other) == set()
    assert _families("Base.run", **other) == set()


def test_a_function_is_followed_through_shared_ones() -> None:
    shared = f"{SHARED}def outer():\n    inner()\ndef inner():\n    inner()\n    other()\ndef other():\n    inner()\n"
    use = "from lib.shared import outer\ndef makefalcon():\n    outer()\n"
    assert _families("inner", shared=shared, falcon=use) == {"falcon"}


def test_too_many_ways_are_not_followed() -> None:
    many = "".join(f"def m{number}():\n    return Mapping()\n" for number in range(25))
    calls = "".join(f"    m{number}()\n" for number in range(25))
    chain = "".join(f"def m{number}():\n    m{number + 1}()\n" for number in range(210))
    long = f"{SHARED}{chain}def m210():\n    return Mapping()\n"
    use = "from lib.shared import m0\ndef make{0}():\n    m0()\n"
    assert _families("Mapping", shared=long, falcon=use.format("falcon"), nemotron=use.format("nemotron")) == set()
    falcon = f"from lib.shared import Mapping\n{many}def makefalcon():\n{calls}"
    assert _families("Mapping", falcon=falcon) == set()


def test_what_another_program_uses_or_a_decorator_registers_needs_none() -> None:
    assert _families("Mapping", shared=f"@register()\n{SHARED}") == set()
    tree = code_tree({FILE: "def main():\n    f()\ndef f(): pass\n"}, ("lib.core", "main"), ("", "f"))
    assert FamilyWays(tree, lambda _: frozenset({"x"}) - {"x"}).into(Node("lib.core", "f")) == frozenset()
