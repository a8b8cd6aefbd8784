"""Which functions read what a change binds at import."""

import pytest

from verl_e2e.core.reach.diff import compare

BASE = """# a comment
from a import g
LIMIT = 3
TABLE: dict = {}


class A(Base):
    size: int = 4

    class Inner(Base):
        kind = 1

    def run(self, x):
        y = x + self.size
        return y


def f(x, LIMIT):
    return LIMIT


def h(x):
    global LIMIT
    z = g(
        LIMIT,
    )
    return [TABLE[y] for y in x]


def one(): return LIMIT


A.shared = 1
call = lambda x: (
    A, x.shared
)
"""


def read(old: str, new: str, base: str = BASE) -> dict[int, list[tuple[str, tuple[int, ...]]]]:
    assert base.count(old) == 1
    found = compare(base.encode(), base.replace(old, new).encode()).functions
    return {line: [(item.symbol, item.lines) for item in read.functions] for line, read in found.readers.items()}


@pytest.mark.parametrize(
    ("old", "new", "found"),
    (
        # A parameter of the name is another thing; of a function on one line its call has no line of its own.
        ("LIMIT = 3", "LIMIT = 4", {3: [("h", (25,))]}),
        ("from a import g", "from b import g", {2: [("h", (24,))]}),
        ("TABLE: dict = {}", "TABLE: dict = {1: 2}", {4: [("h", (27,))]}),
        ("TABLE: dict = {}", "TABLE: dict = {}\nTABLE[1] = 2", {}),
        ("TABLE: dict = {}", "TABLE: dict = {}\nTABLE += 2", {5: [("h", (28,))]}),
        ("size: int = 4", "size: int = 5", {8: [("A.run", (14, 15))]}),
        ("kind = 1", "kind = 2", {}),
        ("A.shared = 1", "A.shared = 2", {33: [("<lambda>", (35,))]}),
        # A class is read where it is named, and each of its methods shows that it is in use.
        ("class A(Base)", "class A(Other)", {7: [("A.run", (14, 15)), ("<lambda>", (35,))]}),
        ("class Inner(Base)", "class Inner(Other)", {}),
        ("A.shared = 1", "print(LIMIT)", {}),
    ),
)
def test_the_lines_that_read_it(old: str, new: str, found: dict[int, list[tuple[str, tuple[int, ...]]]]) -> None:
    assert read(old, new) == found


def test_the_first_line_of_a_file_has_an_entry_of_its_own_nowhere() -> None:
    source = "L = 1\ndef f():\n    return L\n"
    found = compare(source.encode(), source.replace("1", "2").encode()).functions
    assert ([item.first_line for item in found.changed], found.readers) == ([1], {})


def test_each_statement_that_is_read_is_an_entry() -> None:
    new = (
        BASE.replace("LIMIT = 3", "LIMIT = 4").replace("kind = 1", "kind = 2").replace("size: int = 4", "size: int = 5")
    )
    found = compare(BASE.encode(), new.encode()).functions.changed
    assert [(item.first_line, item.lines) for item in found] == [(1, (11,)), (3, (3,)), (8, (8,))]
    assert all(item.at_import for item in found)


def test_a_statement_that_the_compiler_drops_is_read_by_no_one() -> None:
    assert read("TABLE: dict = {}", "if False:\n    TABLE = 1\nTABLE = {}") == {6: [("h", (29,))]}
    assert (
        read("    global LIMIT\n", "    global LIMIT\n    if False:\n        def inner():\n            return 1\n")
        == {}
    )
