"""Tests of functions that only return a test."""

import ast
from textwrap import dedent

import pytest

from tests.core.reach.conditions.trees import FILE, code_tree
from verl_e2e.core.reach.conditions.formula import formula, literals, text_of
from verl_e2e.core.reach.conditions.predicates import Predicates
from verl_e2e.core.reach.program import Node


def _returned(source: str, test: str, symbol: str = "f") -> str | None:
    (literal,) = literals(formula(ast.parse(test, mode="eval").body, {}))
    found = Predicates(code_tree({FILE: dedent(source)}), Node("lib.core", symbol))(literal)
    return None if found is None else text_of(found)


MAIN = "def f(): pass\ndef main(): f()\n"


@pytest.mark.parametrize(
    ("function", "test", "expected"),
    [
        ("def g(): return a and b\n", "g()", "a and b"),
        ("def g(): return a and b\n", "not g()", "not a or not b"),
        ("def g():\n    '''Text.'''\n    return a\n", "g()", "a"),
        ("def g(x, y=2, *, z=3): return x > y + z\n", "g(n)", "n > 2 + 3"),
        ("def g(x, y=2, *, z=3): return x > y + z\n", "g(y=m, x=n, z=o)", "n > m + o"),
        ("def g(x): return any(y for y in x)\n", "g(n)", None),
        ("def g(*x): return x\n", "g(n)", None),
        ("def g(x): return x\n", "g(*n)", None),
        ("def g(x): return x\n", "g(**n)", None),
        ("def g():\n    h()\n    return a\n", "g()", None),
        ("def g():\n    return\n", "g()", None),
        ("@cache\ndef g(): return a\n", "g()", None),
        ("class g: pass\n", "g()", None),
        ("def g(): return a\n", "g", None),
        ("def g(): return a\n", "h()", None),
        ("def g(): return a\n", "x[0]()", None),
        ("def g(): return a\n", "g().h()", None),
    ],
)
def test_a_call_is_what_the_function_returns(function: str, test: str, expected: str | None) -> None:
    assert _returned(function + MAIN, test) == expected


def test_a_method_is_looked_for_in_its_own_class() -> None:
    source = """
        class A:
            def f(self): pass
            def g(self, x): return self.is_expert and x
        def main(): A().f()
    """
    assert _returned(source, "self.g(y)", "A.f") == "self.is_expert and y"
    assert _returned(source, "self.h()", "A.f") is None
    assert _returned(source, "self.g(y)", "main") is None
