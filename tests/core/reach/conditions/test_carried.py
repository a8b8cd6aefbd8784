"""Tests of values that arguments carry into a test of a parameter."""

import ast
from textwrap import dedent

import pytest

from tests.core.reach.conditions.trees import FILE, code_tree, wants
from verl_e2e.core.model.wants import Axis, Value
from verl_e2e.core.reach.conditions.carried import Carried
from verl_e2e.core.reach.conditions.formula import Literal, formula, text_of
from verl_e2e.core.reach.program import Node


def _carried(source: str, test: str, symbol: str = "f") -> str | None:
    tree = code_tree({FILE: dedent(source)})
    flows = tree.flows(FILE)
    assert flows is not None
    flow = flows.get(symbol)
    assert flow is not None
    literal = formula(ast.parse(test, mode="eval").body, {})
    assert isinstance(literal, Literal)
    found = Carried(tree, Node("lib.core", symbol), flow)(literal)
    return None if found is None else text_of(found)


F = "def f(a, b=2, *, c=None): pass\n"


@pytest.mark.parametrize(
    ("source", "test", "expected"),
    [
        (f"{F}def main():\n    f(self.size)\n", "a > 1", "self.size > 1"),
        (f"{F}def main():\n    f(a=x.flag)\n", "a", "x.flag"),
        (f"{F}def main():\n    f(a=x.flag)\n", "not a", "not x.flag"),
        (f"{F}def main():\n    f(1)\n    f(y)\n", "a > 1", "y > 1"),
        (f"{F}def main():\n    f(2)\n    f(y)\n", "a > 1", ""),
        (f"{F}def main():\n    f(p)\n    f(q)\n", "a > 1", "p > 1 or q > 1"),
        (f"{F}def main():\n    f(1)\n", "b == 2", ""),
        (f"{F}def main():\n    f(1, 3)\n", "b == 2", "False"),
        (f"{F}def main():\n    f(1)\n", "c is None", ""),
        (f"{F}def main():\n    f(1)\n", "b < 'x'", "False"),
        (f"{F}def main():\n    f(*a)\n", "a", None),
        (f"{F}def main():\n    f(0, **k)\n", "b", None),
        (f"{F}def main():\n    g()(f)\n", "a", None),
        (f"{F}def main():\n    f(1)\n", "a > b", None),
        (f"{F}def main():\n    f(1)\n", "other", None),
        ("def f(a):\n    a = a or 1\ndef main():\n    f(x)\n", "a", None),
        (f"{F}def main():\n{'    f(x)' + chr(10) + ('    f(x)' + chr(10)) * 30}", "a", None),
    ],
)
def test_a_parameter_is_what_the_calls_give(source: str, test: str, expected: str | None) -> None:
    assert _carried(source, test) == expected


def test_what_too_many_call_is_not_known() -> None:
    many = "".join(f"def m{number}():\n    f(x)\n" for number in range(13))
    calls = "".join(f"    m{number}()\n" for number in range(13))
    assert _carried(f"{F}{many}def main():\n{calls}", "a") is None


CLASSES = """
class Layer:
    def __init__(self, size, kind):
        if size > 1:
            self.start(kind)
            Layer.start(self, kind)
            self.fixed(kind)
    def start(self, how): pass
    @staticmethod
    def fixed(how): pass

def main(config):
    Layer(config.tp_size, config.kind)
"""


@pytest.mark.parametrize(
    ("symbol", "test", "expected"),
    [
        ("Layer.__init__", "size > 1", "config.tp_size > 1"),
        ("Layer.start", "how == 'x'", "kind == 'x'"),
        ("Layer.fixed", "how == 'x'", "kind == 'x'"),
    ],
)
def test_the_first_argument_of_a_method_is_the_object(symbol: str, test: str, expected: str) -> None:
    assert _carried(CLASSES, test, symbol) == expected


def test_an_inner_function_and_what_is_no_test_carry_nothing() -> None:
    source = "def main():\n    def f(a): pass\n    f(1)\n"
    assert _carried(source, "a", "main.<locals>.f") is None
    tree = code_tree({FILE: F})
    flows = tree.flows(FILE)
    assert flows is not None
    flow = flows.get("f")
    assert flow is not None
    assert Carried(tree, Node("lib.core", "f"), flow)(Literal("except E")) is None


@pytest.mark.parametrize(
    ("argument", "axes", "unknown"),
    [
        ("config.sequence_parallel", {Axis.TENSOR: 2}, ()),
        ("True", {}, ()),
        ("False", {}, ("on",)),
        ("other", {}, ("on",)),
        ("False)\n    f(config.overlap_grad_reduce", {Axis.OVERLAP: True}, ()),
    ],
)
def test_a_change_below_a_parameter_wants_what_its_callers_give(
    argument: str, axes: dict[Axis, Value], unknown: tuple[str, ...]
) -> None:
    base = f"def f(on):\n    if on:\n        g(1)\ndef g(x): pass\ndef main(config, other):\n    f({argument})\n"
    found = wants({FILE: base}, {FILE: base.replace("g(1)", "g(2)")})
    assert [(dict(want.axes), want.open, want.condition) for want in found] == [(axes, unknown, "on")]
