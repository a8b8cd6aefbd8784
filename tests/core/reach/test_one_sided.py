"""What must run where statements are gone, and of lambdas that came."""

import pytest

from tests.core.reach.changed_text import changed

GONE = (
    # What follows in the place, in the block that the statement was in.
    ("if x:\n        a()\n        b()\n    return 1", "a()\n        ", "f: 3"),
    ("if x:\n        a()\n        b()\n    return 1", "\n        b()", "f: 3"),
    ("if x:\n        a()\n        c()\n        b()\n    return 1", "c()\n        ", "f: 4"),
    ("a()\n    b()\n    with x:\n        c()", "a()\n    ", "f: 2"),
    ("a()\n    with x:\n        c()", "a()\n    ", "f: 2"),
    ("a()\n    try:\n        c()\n    finally:\n        d()", "a()\n    ", "f: 3"),
    ("a()\n    match x:\n        case 1:\n            c()", "a()\n    ", "f: 2"),
    ("a()\n    return (\n        x\n        + 1\n    )", "a()\n    ", "f: 2"),
    ("a()\n    b()\n    return x", "\n    return x", "f: 3"),
    ("for y in x:\n        if y:\n            a()\n            break\n    return 1", "\n            break", "f: 4"),
    # An error that no longer comes, wherever the run goes on now.
    ("if x:\n        b()\n        raise A\n    return 1", "\n        raise A", "f: 3"),
    ("if x:\n        logger.info('a')\n        raise A\n    return 1", "\n        raise A", "f: 3"),
    (
        "try:\n        a()\n    except A:\n        logger.info('a')\n        raise\n    return 1",
        "\n        raise",
        "f: 5",
    ),
)


@pytest.mark.parametrize(("body", "gone", "found"), GONE)
def test_the_place_of_a_statement_that_is_gone_must_run(body: str, gone: str, found: str) -> None:
    old = f"def f(x):\n    {body}\n"
    assert old.count(gone) == 1
    assert changed(old, old.replace(gone, ""))[0] == found


EMPTIED = (
    ("if x:\n        a()\n    return 1", "f: 3"),
    ("if x:\n        a()\n    else:\n        b()\n    return 1", "f: 3"),
    ("with x:\n        a()\n    return 1", "f: 3"),
    ("try:\n        b()\n    except A:\n        a()\n    return 1", "f: 5"),
    # Which line that would be is not known.
    ("if x:\n        b()\n    else:\n        a()\n    return 1", "f:"),
    ("a()", "f:"),
)


@pytest.mark.parametrize(("body", "found"), EMPTIED)
def test_a_block_that_is_left_empty_must_run(body: str, found: str) -> None:
    old = f"def f(x):\n    {body}\n"
    assert changed(old, old.replace("a()", "pass"))[0] == found


def test_what_did_nothing_leaves_no_place() -> None:
    old = "def f(x):\n    if x:\n        logger.info('%s', x)\n        b()\n    return 1\n"
    assert changed(old, old.replace("        logger.info('%s', x)\n", "")) == ["base f: !logging 3"]


def test_what_was_on_an_error_path_leaves_no_place() -> None:
    old = "def f(x):\n    if x:\n        a()\n        b()\n        raise A\n    return 1\n"
    assert changed(old, old.replace("        a()\n", "")) == ["base f: !error path 3"]
    before = "def f(x):\n    if x:\n        return 1\n    a()\n    raise A\n"
    assert changed(before, before.replace("    a()\n", "")) == ["f:", "base f: 4"]


def test_another_statement_in_the_place_is_enough() -> None:
    old = "def f(x):\n    if x:\n        raise A\n    return 1\n"
    assert changed(old, old.replace("raise A", "logger.info('%s', x)"))[0] == "f: 3"
    source = "def f(x):\n    if x:\n        a()\n    return 1\n"
    new = source.replace("a()", "def g():\n            return 1")
    assert changed(source, new)[0] == "f: 3"


def test_at_import_only_what_came_must_run() -> None:
    assert changed("a()\nb()\n", "b()\n") == ["base (module): 1"]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    (
        ("def f(x):\n    return x\n", "def f(x):\n    return lambda y: x\n", ["f: 2", "f.<locals>.<lambda>:"]),
        ("f = lambda y: y\n", "f = lambda y: -y\n", ["<lambda>:"]),
        ("f = {1: lambda y: y}\n", "f = {1: lambda y: y, 2: lambda y: -y}\n", ["(module): 1", "<lambda>:"]),
        ("class A:\n    f = lambda y: y\n", "class A:\n    f = lambda y: -y\n", ["A.<lambda>:"]),
        ("def f(k=lambda: 1): a()\n", "def f(k=lambda: 2): a()\n", ["<lambda>:", "f:"]),
        ("", "def f(k=lambda: 1): return k\n", ["<lambda>:", "f:"]),
        ("", "def f(x):\n    if any(map(lambda y: y, x)):\n        a()\n", ["f: 2 3", "f.<locals>.<lambda>:"]),
        (
            "def f(x):\n    raise A\n",
            "def f(x):\n    raise A(lambda: x)\n",
            ["f: !error path 2", "f.<locals>.<lambda>: !error path 2"],
        ),
        (
            "def f():\n    g(lambda x: (\n        x,\n        x + 1,\n    ))\n",
            "def f():\n    g(lambda x: (\n        x,\n        x + 2,\n    ))\n",
            ["f.<locals>.<lambda>: 4"],
        ),
        (
            "f = lambda x: (\n    x(1),\n    x(2),\n)\n",
            "f = lambda x: (\n    x(3),\n    x(4),\n)\n",
            ["<lambda>: 2 3"],
        ),
        ("f = [lambda: 1, lambda: 2]\n", "f = [lambda: 3, lambda: 4]\n", ["<lambda>:"]),
        ("f = lambda x: lambda y: 1\n", "f = lambda x: lambda y: 2\n", ["<lambda>:"]),
    ),
)
def test_a_lambda_must_be_called(old: str, new: str, found: list[str]) -> None:
    assert [row for row in changed(old, new) if not row.startswith("base ")] == found


NAMES: tuple[tuple[str, str, list[str]], ...] = (
    ("def f():\n    x = 1\n", "def f():\n    global x\n    x = 1\n", ["f:"]),
    ("def f():\n    global x\n    x = 1\n", "def f():\n    x = 1\n", ["f:", "base f: !idle 2"]),
    ("def f():\n    return 1\n", "def f():\n    return 1\n    yield\n", ["f:"]),
    # Of definitions of one name that changed places no function is named: the import differs.
    ("def f(): a()\ndef f(): b()\n", "def f(): b()\ndef f(): a()\n", []),
    ("class A: x\nclass A: y\n", "class A: y\nclass A: x\n", []),
    ("global x\nx = 1\n", "x = 1\n", ["base (module): !idle 1"]),
)


@pytest.mark.parametrize(("old", "new", "found"), NAMES)
def test_what_decides_what_a_function_is(old: str, new: str, found: list[str]) -> None:
    assert changed(old, new) == found
