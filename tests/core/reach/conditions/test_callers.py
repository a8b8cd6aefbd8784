"""Tests of what every way into a function demands."""

import pytest

from tests.core.reach.conditions.trees import FILE, code_tree
from verl_e2e.core.reach.conditions.callers import Ways
from verl_e2e.core.reach.program import Node


def _demands(source: str, symbol: str, *entries: tuple[str, str | None]) -> list[str]:
    tree = code_tree({FILE: source, "src/lib/__init__.py": ""}, *entries)
    return [demand.text for demand in Ways(tree).into(Node("lib.core", symbol))]


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("def f(): pass\ndef main():\n    if tp_size > 1:\n        f()\n", ["tp_size > 1"]),
        ("def f(): pass\ndef main():\n    f()\n", []),
        ("def f(): pass\ndef main():\n    if a:\n        f()\n    if a and b:\n        f()\n", ["a"]),
        ("def f(): pass\ndef main():\n    if a:\n        f()\n    if b:\n        f()\n", []),
        ("def f(): pass\ndef main():\n    x = f() if a else 0\n", ["a"]),
        ("def f(): pass\ndef g():\n    if b:\n        f()\ndef main():\n    if a:\n        g()\n", ["a", "b"]),
        ("def f(): pass\ndef main():\n    if a:\n        call(f)\n", ["a"]),
        ("def f(): pass\ndef main():\n    if a:\n        getattr(x, 'f')()\n", ["a"]),
        ("def f():\n    f()\ndef main():\n    if a:\n        f()\n", ["a"]),
        ("def f(): g()\ndef g():\n    if b:\n        f()\ndef main():\n    if a:\n        f()\n", ["a"]),
        ("def f(): pass\ndef main():\n    def inner():\n        f()\n    if a:\n        inner()\n", []),
        ("def f(): pass\ndef main():\n    if a:\n        def inner():\n            f()\n        inner()\n", ["a"]),
        ("def f(): pass\nX = f\ndef main():\n    X()\n    if a:\n        f()\n", []),
        (
            "def f(): pass\ndef main():\n    if tp_size > 1:\n        f()\n    if self.tp_size != 1:\n        f()\n",
            ["tp_size > 1"],
        ),
        ("class f: pass\ndef main(x: f):\n    x.run()\n", []),
        ("def f(): pass\ndef main():\n    from lib.core import f\n    if a:\n        f()\n", ["a"]),
        ("def f(): pass\n@register()\ndef h():\n    f()\ndef main():\n    if a:\n        f()\n", []),
        ("def f(): pass\ndef main():\n    if x is None:\n        raise E\n    f()\n", []),
    ],
)
def test_a_function_demands_what_all_its_callers_do(source: str, texts: list[str]) -> None:
    assert _demands(source, "f") == texts


def test_what_is_used_outside_or_by_too_many_has_unknown_ways() -> None:
    source = "def f(): pass\ndef main():\n    if a:\n        f()\n"
    assert _demands(source, "f", ("lib.core", "main"), ("", "f")) == []
    named = "def f(): pass\ndef main():\n    if a:\n" + "        f()\n" * 30
    assert _demands(named, "f") == []
    many = "".join(f"def m{number}():\n    if a:\n        f()\n" for number in range(13))
    calls = "".join(f"    m{number}()\n" for number in range(13))
    assert _demands(f"def f(): pass\n{many}def main():\n{calls}", "f") == []


def test_the_chain_of_callers_ends_at_some_depth() -> None:
    chain = "".join(f"def f{number + 1}():\n    if a{number}:\n        f{number}()\n" for number in range(9))
    found = _demands(f"def f0(): pass\n{chain}def main():\n    f9()\n", "f0")
    assert 0 < len(found) < 9


CLASSES = """
from other import Foreign

class Passive:
    def __init__(self): pass
    def run(self): self.step()
    def step(self): pass

class Module(Foreign):
    def forward(self): self._hidden()
    def _hidden(self): pass

class Below(Module):
    pass

class Abstract:
    pass

class Typed:
    def __init__(self, other: Abstract):
        self.other: Abstract = other

class Concrete(Abstract):
    pass

class DoRA:
    def run(self): pass

class LoRA:
    def run(self): Branch()

class Branch:
    pass

class LoRAMerge:
    def merge(self): pass

class Saved(Foreign):
    def sharded_state_dict(self):
        if is_expert:
            self._replicas()
    def _replicas(self): pass

@register()
class Registered:
    def run(self): pass

def main(x):
    if a:
        p = Passive()
        if b:
            p.run()
    if c:
        if d:
            Module()
        Below()
    if isinstance(x, Passive):
        pass
    if e:
        DoRA().run()
        LoRA().run()
        y: Passive = x
        z: Passive
        LoRAMerge().merge()
    if g:
        Concrete()
        Typed().run(x)
    Registered()
    Saved()
"""


@pytest.mark.parametrize(
    ("symbol", "texts"),
    [
        ("Passive", ["a"]),
        ("Passive.__init__", ["a"]),
        ("Passive.step", ["a"]),
        ("Module", ["c"]),
        ("Module.forward", ["c"]),
        ("Module._hidden", ["c"]),
        ("DoRA.run", ["an adapter of type dora"]),
        ("Branch", ["an adapter of type lora"]),
        ("LoRAMerge.merge", ["adapters that are merged on export", "e"]),
        ("Saved", []),
        ("Saved.sharded_state_dict", ["a checkpoint is written or read"]),
        ("Saved._replicas", ["a checkpoint is written or read", "is_expert"]),
        ("Abstract", ["g"]),
        ("Registered", []),
        ("Registered.run", []),
        ("missing", []),
        ("", []),
    ],
)
def test_a_class_demands_what_all_that_name_it_do(symbol: str, texts: list[str]) -> None:
    assert sorted(_demands(CLASSES, symbol)) == sorted(texts)


def test_a_method_demands_what_its_callers_do_too() -> None:
    source = "class C:\n    def only(self): pass\ndef main():\n    c = C()\n    if a:\n        c.only()\n"
    assert _demands(source, "C.only") == ["a"]


def test_the_ways_through_a_file_that_cannot_be_read_are_unknown() -> None:
    tree = code_tree({FILE: "def f(): pass\ndef main():\n    if a:\n        f()\n"})
    tree.flows = lambda _: None
    assert Ways(tree).into(Node("lib.core", "f")) == ()


@pytest.mark.parametrize(("base", "texts"), [("Mapping", ["a"]), ("ABC", ["a"]), ("Module", [])])
def test_a_container_calls_special_methods_alone(base: str, texts: list[str]) -> None:
    source = f"class A({base}):\n    def save(self): pass\ndef main():\n    x = A()\n    if a:\n        x.save()\n"
    assert _demands(source, "A.save") == texts
