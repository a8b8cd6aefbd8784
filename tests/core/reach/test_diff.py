"""What differs in effect between two versions of a file."""

import sys
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_e2e.core.reach.diff import compare, symbols_of
from verl_e2e.core.reach.reader import summarize

BASE = '''
import logging
from a.b import c

logger = logging.getLogger(__name__)
LIMIT = 3
TABLE = [Pair("x", "y"), Pair("z", "w")]


class Thing(Base):
    """A thing."""

    size: int = 4

    def run(self, x: int, flag=True):
        """Run."""
        total = x + self.size
        if flag:
            logger.info("running %s", total)
            raise ValueError("bad value")
        return call(total, one=1, two=2, three=3)


def spare():
    return 1
'''


def changed(old: str, new: str) -> list[str]:
    found = compare(dedent(old).encode(), dedent(new).encode())
    assert not found.problem
    return [f"{change.kind} {change.symbol}" for change in found.changes]


@pytest.mark.parametrize(
    ("old", "new"),
    (
        ('"""A thing."""', '"""Another thing."""'),
        ("x: int, flag=True", "x: 'float | None', flag: bool = True"),
        ('logger.info("running %s", total)', 'logger.info("still running %s", total)'),
        ("LIMIT = 3", "LIMIT = 3  # three"),
        ('"bad value"', '"worse value"'),
        ("        return call(", "        pass\n        return call("),
        ("def spare():\n    return 1", "def spare():\n    return (\n        1\n    )"),
        ("import logging\n", "import logging\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"),
    ),
)
def test_what_has_no_effect_is_no_change(old: str, new: str) -> None:
    assert old in BASE
    found = changed(BASE, BASE.replace(old, new))
    assert [item for item in found if not item.startswith("imports")] == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    (
        ("LIMIT = 3", "LIMIT = 4", ["changed LIMIT"]),
        ("flag=True", "flag=False", ["changed Thing.run"]),
        ("x + self.size", "x - self.size", ["changed Thing.run"]),
        ("size: int = 4", "size: int = 5", ["changed Thing"]),
        ("class Thing(Base)", "class Thing(Other)", ["changed Thing"]),
        ("def spare():\n    return 1", "", ["removed spare"]),
        ("def spare():", "def extra():\n    return 2\n\n\ndef spare():", ["added extra"]),
        ("from a.b import c", "from a.b import c, d", ["imports "]),
        ("from a.b import c", "from a.b import c\nsetup()", ["added "]),
        ("total", "amount", ["changed Thing.run"]),
        ("size: int = 4", "size: 'int' = 4", ["changed Thing"]),
        ('"bad value"', 'f"bad value {x}"', ["changed Thing.run"]),
        ('logger.info("running %s", total)', 'logger.warning("running %s", total)', ["changed Thing.run"]),
        ('logger.info("running %s", total)', 'print("x")', ["changed Thing.run"]),
        ("            raise", "        raise", ["changed Thing.run"]),
        ("def spare", "def renamed", ["added renamed", "removed spare"]),
        ("def spare", "@cached\ndef spare", ["changed spare"]),
        ("    return 1", "    while ready:\n        go()\n    else:\n        stop()", ["changed spare"]),
        ("    return 1", "    for x in y:\n        go()\n    else:\n        stop()", ["changed spare"]),
        ("    return 1", "    with a as b, c:\n        go()", ["changed spare"]),
        (
            "    return 1",
            "    try:\n        go()\n    except:\n        a()\n    else:\n        b()\n    finally:\n        c()",
            ["changed spare"],
        ),
        (
            "    return 1",
            "    from a.b import c\n    return {1: c, **c}, t()(a=1, b=2, c=3), t[0](a=1, b=2, c=3)",
            ["changed spare"],
        ),
        ("LIMIT = 3", "try:\n    LIMIT = 4\nexcept ValueError:\n    pass", ["changed LIMIT"]),
        # What a block of the module defines has no symbol of its own unless the block is a condition or a `try`.
        ("LIMIT = 3", "if c:\n    LIMIT = 4", ["added ", "changed LIMIT"]),
        ("LIMIT = 3", "with c:\n    LIMIT = 3\n    def f(): g()", ["added ", "removed LIMIT"]),
        ("    size: int = 4", "    size: int = 4\n    if c:\n        def f(self): g()", ["changed Thing"]),
        ("    return 1", "    class A:\n        def f(self): g()", ["changed spare"]),
        ("    return 1", "    def f(x: 1): g()\n    return 1", ["changed spare"]),
    ),
)
def test_what_has_an_effect_is_named_by_its_symbol(old: str, new: str, expected: list[str]) -> None:
    assert old in BASE
    assert changed(BASE, BASE.replace(old, new)) == expected


def words(old: str, new: str) -> set[str]:
    found = compare(BASE.encode(), BASE.replace(old, new).encode())
    return set().union(*(words for change in found.changes for words in change.statements))


def test_a_difference_has_its_own_words_and_not_its_neighbours() -> None:
    assert words("two=2", "two=tp_size") == {"call", "two", "tp_size"}
    assert words('Pair("z", "w")', 'Pair("z", "v")') == {"Pair", "z", "w", "v"}
    assert words("        if flag:", "        if flag and ready:") == {"flag", "ready"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    (
        # Which of two statements that changed places has moved is not known.
        ("    first(a)\n    second(b)", "    second(b)\n    first(a)", {"first", "a", "second", "b"}),
        # It passed none of those around.
        ("    x()\n    a()\n    b()\n    y()", "    x()\n    b()\n    a()\n    y()", {"a", "b"}),
        ("    x()\n    a()\n    b()\n    c()", "    b()\n    c()\n    x()\n    a()", {"a", "b", "c", "x"}),
        ("    for a in b:\n        c()\n    d()", "    d()\n    for a in b:\n        c()", {"a", "b", "c", "d"}),
        # Where something else differs, order alone says nothing.
        ("    a()\n    b()\n    c(1)", "    b()\n    a()\n    c(2)", {"c"}),
        (
            "    match a.b:\n        case C():\n            d(1)",
            "    match a.b:\n        case C():\n            d(2)",
            {*"abCd"},
        ),
    ),
)
def test_what_changed_places_and_what_is_asked_before_have_words_too(old: str, new: str, expected: set[str]) -> None:
    (change,) = compare(f"def f():\n{old}\n".encode(), f"def f():\n{new}\n".encode()).changes
    assert set().union(*change.statements) == expected


@pytest.mark.parametrize("outer", ["", "def f():\n "])
def test_definitions_of_one_name_that_changed_places_count_as_executed_by_the_import(outer: str) -> None:
    first, second = "def a(): b()\n", "def a(): c()\n"
    indent = " " if outer else ""
    found = compare(f"{outer}{first}{indent}{second}".encode(), f"{outer}{second}{indent}{first}".encode())
    assert (found.changes, [change.kind for change in found.import_time]) == ((), ["import time"])


def test_a_new_file_is_all_new_and_a_deleted_one_all_gone() -> None:
    assert {change.kind for change in compare(None, b"def f(): pass\nX = 1\n").changes} == {"added"}
    assert {change.kind for change in compare(b"def f(): pass\nX = 1\n", None).changes} == {"removed"}


def test_the_symbols_of_a_file_in_the_order_of_its_lines() -> None:
    assert symbols_of(BASE.encode()) == ("logger", "LIMIT", "TABLE", "Thing", "Thing.run", "spare")
    assert symbols_of(b"def f(:") == ()


@pytest.mark.parametrize("text", (b"x = " + b"-" * 600 + b"1", b"x = " + b"-" * 3000 + b"1"))
def test_a_file_that_nests_too_deeply_is_a_problem_for_each_reader(text: bytes) -> None:
    assert "RecursionError" in compare(b"", text).problem
    assert "RecursionError" in summarize(text).problem


def test_what_python_parses_and_does_not_compile_is_a_problem() -> None:
    assert compare(b"", b"return 1").problem == "it is not Python ('return' outside function (head, line 1))"


@pytest.mark.parametrize(
    "text", (b"def f(:", b"\xff\xfe", b"x = 1\n\n# \xe9\n", b"\xef\xbb\xbf# \xe9", b"x = '\0'", b"(" * 5000)
)
def test_a_side_that_is_no_python_is_a_problem_and_no_crash(text: bytes) -> None:
    assert compare(b"", text).problem
    assert compare(text, b"").problem


comments = st.lists(st.text(alphabet="abc #'\"\\", max_size=20), max_size=5)


@settings(deadline=None, max_examples=30)
@given(comments, st.data())
def test_comments_and_blank_lines_change_nothing(texts: list[str], data: st.DataObject) -> None:
    lines = BASE.splitlines()
    for text in texts:
        lines.insert(data.draw(st.integers(0, 7)), f"# {text}")
    assert changed(BASE, "\n".join(lines)) == []


# Python 3.11 reads no type parameters: a file with them is one that cannot be compared there.
TYPE_PARAMETERS = (
    ("def act(x=0):\n    return str(x)\n", "def act[str](x=0):\n    return str(x)\n"),
    ("def act[T](x: T):\n    return 1\n", "def act[U](x: T):\n    return 1\n"),
    ("class K:\n    def act(self): pass\n", "class K:\n    def act[len](self): pass\n"),
    ("def act[T](x):\n    return 1\n", "def act[T: 1 / 0](x):\n    return 1\n"),
)


@pytest.mark.parametrize(("old", "new"), TYPE_PARAMETERS)
def test_type_parameters_of_a_function_are_a_change_of_it_and_of_its_import(old: str, new: str) -> None:
    found = compare(old.encode(), new.encode())
    if sys.version_info < (3, 12):
        assert found.problem
    else:
        assert found.changes
        assert found.import_time
