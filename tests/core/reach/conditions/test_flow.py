"""Tests of what dominates a statement."""

import ast
from textwrap import dedent

import pytest

from tests.core.reach.conditions.trees import flow_of
from verl_e2e.core.reach.conditions.flow import inner_guards, read_flows
from verl_e2e.core.reach.conditions.formula import Formula, literals, text_of


def _guards(source: str, symbol: str = "f") -> Formula:
    """What dominates the call of `here`."""
    flow = flow_of(source, symbol)
    return next(place.guards for place in flow.places if "here()" in {ast.unparse(part) for part in place.expressions})


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("here()", ""),
        ("if a:\n    here()", "a"),
        ("if a:\n    pass\nelse:\n    here()", "not a"),
        ("if a:\n    pass\nelif b:\n    here()", "not a and b"),
        ("if a:\n    if b:\n        here()", "a and b"),
        ("if a:\n    return\nhere()", "not a"),
        ("if a:\n    pass\nelse:\n    return 1\nhere()", "a"),
        ("if a:\n    g()\nhere()", ""),
        ("if a:\n    if b:\n        return\n    else:\n        raise E\nhere()", "not a"),
        ("if a:\n    with m:\n        return\nhere()", "not a"),
        ("if a:\n    with m:\n        g()\nhere()", ""),
        ("if a:\n    return\nelse:\n    return\nhere()", ""),
        ("while a:\n    here()", "a"),
        ("while a:\n    g()\nelse:\n    here()", ""),
        ("for x in xs:\n    if x.skip:\n        continue\n    here()", "not x.skip"),
        ("for x in xs:\n    if x.skip:\n        break\nhere()", ""),
        ("async def g():\n    pass\nhere()", ""),
        ("with m:\n    if a:\n        here()", "a"),
        ("try:\n    g()\nexcept E:\n    here()", "except E"),
        ("try:\n    g()\nexcept:\n    here()", "except"),
        ("try:\n    here()\nexcept E:\n    g()", ""),
        ("try:\n    g()\nfinally:\n    here()", ""),
        ("match a:\n    case 1:\n        here()", "a == 1"),
        ("match a:\n    case 1 as b if b:\n        here()", "a == 1 and b"),
        ("match a:\n    case [x]:\n        here()", "a matches [x]"),
        ("match a:\n    case _:\n        here()", ""),
        ("assert a\nhere()", "a"),
    ],
)
def test_tests_around_a_statement_and_exits_before_it_dominate_it(body: str, text: str) -> None:
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    assert text_of(_guards(f"def f():\n{indented}\n")) == text


def test_a_check_that_raises_is_passed_by_every_healthy_run() -> None:
    guards = _guards(
        "def f():\n    if a is None:\n        raise E\n    assert b\n    if c:\n        return\n    here()\n"
    )
    assert [(item.text, item.healthy) for item in literals(guards)] == [
        ("a is not None", True),
        ("b", True),
        ("not c", False),
    ]


def test_a_function_is_defined_under_the_conditions_around_it() -> None:
    source = """
        if HAVE:
            class C:
                def m(self):
                    if a:
                        async def inner():
                            here()
    """
    assert text_of(flow_of(source, "C.m").defined) == "HAVE"
    assert text_of(flow_of(source, "C.m.<locals>.inner").defined) == "HAVE and a"
    flows = read_flows(dedent(source).encode())
    assert flows is not None
    assert [flow.symbol for flow in flows.inside("C.m")] == ["C.m", "C.m.<locals>.inner"]
    assert [*flows.inside("other")] == []
    assert flows.get("other.<locals>.inner") is None


def test_what_is_not_python_has_no_functions() -> None:
    assert read_flows(b"def (") is None
    assert read_flows(None) is None


def test_names_with_one_value_are_known() -> None:
    flow = flow_of(
        "def f(p):\n    a = g()\n    b: int = 2\n    c = 1\n    c = 2\n    p = 3\n    if (d := g()):\n        pass\n"
    )
    assert {name: ast.unparse(value) for name, value in flow.names.items()} == {"a": "g()", "b": "2", "d": "g()"}


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("here if a else b", "a"),
        ("b if a else here", "not a"),
        ("a and here", "a"),
        ("a or b or here", "not a and not b"),
        ("[here for x in xs if x.a]", "x.a"),
        ("{here: 1 for x in xs if x.a}", "x.a"),
        ("g(here)", ""),
        ("here if here else b", ""),
    ],
)
def test_an_expression_is_evaluated_under_the_conditions_inside_it(expression: str, text: str) -> None:
    root = ast.parse(expression, mode="eval").body
    target = next(node for node in ast.walk(root) if isinstance(node, ast.Name) and node.id == "here")
    found = inner_guards(root, target, {})
    assert found is not None
    assert text_of(found) == text
    assert inner_guards(root, ast.Pass(), {}) is None


def test_a_statement_stands_for_its_head_alone() -> None:
    source = """
        @deco
        def f(a=one(), *, b=two(), c):
            for x in xs:
                pass
            with m as n:
                pass
            match k:
                case 1:
                    pass
            try:
                pass
            except E:
                pass
            @other
            class C(B, metaclass=M):
                pass
    """
    flow = flow_of(source)
    heads = [[ast.unparse(part) for part in place.expressions] for place in flow.places]
    assert heads == [
        ["x", "xs"],
        ["pass"],
        ["m as n"],
        ["pass"],
        ["k"],
        ["pass"],
        ["E"],
        ["pass"],
        ["pass"],
        ["other", "B", "metaclass=M"],
        ["pass"],
    ]
    module = flow_of(source, "")
    assert [ast.unparse(part) for part in module.places[0].expressions] == ["deco", "one()", "two()"]
    assert module.places[0].lines == range(2, 4)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("x = False\n    if a:\n        x = True", "True if a else False"),
        ("x = None\n    for i in y:\n        if a and b:\n            x = i", "i if a and b else None"),
        ("if a:\n        x = g()\n    else:\n        x = None", "None if not a else g()"),
        (
            "if c:\n        x: bool = False\n        if a:\n            if b:\n                x = True",
            "True if a and b else False",
        ),
        # No choice: always another value, three values, one that is not plain, no constant, a caught error.
        ("x = False\n    x = True", None),
        ("x = 1\n    if a:\n        x = 2\n    if b:\n        x = 3", None),
        ("x = 1\n    if a:\n        x += 2", None),
        ("x = g()\n    if a:\n        x = h()", None),
        ("x = 1\n    try:\n        g()\n    except E:\n        x = 2", None),
    ],
)
def test_a_name_with_values_under_conditions_is_a_choice(body: str, value: str | None) -> None:
    flow = flow_of(f"def f():\n    {body}\n")
    assert flow.places
    found = flow.names.get("x")
    assert (ast.unparse(found) if found is not None else None) == value
