"""Functions and lines that a change touches: a table of small changes, each with what must run of it."""

import pytest

from tests.core.reach.changed_text import changed, text_of
from verl_e2e.core.model.execution import Excuse, Side
from verl_e2e.core.reach.diff import compare

BASE = '''
import logging
import os
from abc import abstractmethod
from typing import Protocol, TYPE_CHECKING

logger = logging.getLogger(__name__)
LIMIT = 3


class Thing(Base):
    """A thing."""

    size: int = 4

    def run(self, x: int, flag=True):
        """Run."""
        total = x + self.size
        if flag:
            total += 1
        for item in x:
            total = self.add(
                item,
                weight=1,
            )
        return total

    @property
    def name(self):
        return "a"

    @name.setter
    def name(self, value):
        self._name = value

    @abstractmethod
    def shape(self):
        """The shape."""

    class Inner:
        def deep(self):
            return 1


def outer(x):
    def inner(y):
        return y + x

    table = {key: value for key, value in x}
    call = lambda z: (
        z + 1
    )
    return inner


def spare():
    return 1
'''


SPARE = "def spare():\n    return 1"
RETURN = "        return total"


def edited(old: str, new: str) -> list[str]:
    """What the base with a text replaced must execute; lines are those of the text as it is in the new file."""
    assert BASE.count(old) == 1, old
    return changed(BASE, BASE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "found"),
    (
        ("total = x + self.size", "total = x - self.size", ["Thing.run: 18"]),
        ("if flag:", "if flag and x:", ["Thing.run: 19"]),
        ("total += 1", "total += 1\n            total += 2", ["Thing.run: 21"]),
        # Only the argument of a long call differs: its own line tells whether it was evaluated.
        ("weight=1,", "weight=LIMIT,", ["Thing.run: 24"]),
        ("                weight=1,\n", "", ["Thing.run: 22"]),
        ("for item in x:", "for item in reversed(x):", ["Thing.run: 21"]),
        # One of two functions of a name: the first line tells which.
        ('return "a"', 'return "b"', ["Thing.name: 30"]),
        ("self._name = value", "self._name = str(value)", ["Thing.name: 34"]),
        ("            return 1\n\n\ndef outer", "            return 2\n\n\ndef outer", ["Thing.Inner.deep: 42"]),
        ("return y + x", "return y - x", ["outer.<locals>.inner: 47"]),
        # A comprehension belongs to the function around it, a lambda is one of its own.
        ("for key, value in x}", "for key, value in x if key}", ["outer: 49"]),
        ("z + 1", "z + 2", ["outer.<locals>.<lambda>: 51"]),
        (
            "    return inner",
            "    def more(y):\n        return y\n\n    return inner",
            ["outer: 53", "outer.<locals>.more: 54"],
        ),
        ("LIMIT = 3", "LIMIT = 4", ["(module): 8"]),
        ("size: int = 4", "size: int = 5", ["(module): 14"]),
        ("class Thing(Base):", "class Thing(Base, Other):", ["(module): 11"]),
        ("import os\n", "import os\nimport re\n", ["(module): 4"]),
        (SPARE, SPARE + "\n\n\n@wraps(spare)\ndef other(x=1):\n    return x", ["other: 62"]),
        # A call of it differs though no line does.
        ("flag=True", "flag=False", ["Thing.run:"]),
        ("def inner(y):", "def inner(z, y):", ["outer.<locals>.inner:"]),
        ("    @property\n", "    @cached\n    @property\n", ["Thing.name:"]),
        # What is gone is on the merge base; on the head what follows in its place must run.
        ("        if flag:\n            total += 1\n", "", ["Thing.run: 19", "base Thing.run: 19 20"]),
        ("\n\ndef spare():\n    return 1", "", ["base spare: 57"]),
        ("import os\n", "", ["base (module): 3"]),
    ),
)
def test_what_must_run(old: str, new: str, found: list[str]) -> None:
    assert edited(old, new) == found


NEED_NOT_RUN: tuple[tuple[str, str, list[str]], ...] = (
    ("total += 1", "total += 1\n            raise ValueError(x)", ["Thing.run: !error path 21"]),
    # The test decides whether the error comes; the message is built for it alone.
    (
        RETURN,
        "        if not total:\n            text = f'{x}'\n            raise ValueError(text)\n" + RETURN,
        ["Thing.run: 26 !error path 27,28"],
    ),
    (
        RETURN,
        "        if total:\n            if x:\n                raise A\n            raise B\n" + RETURN,
        ["Thing.run: 26 !error path 27,28,29"],
    ),
    # What may go on after the condition must run.
    (
        RETURN,
        "        if not total:\n            if x:\n                return 1\n            raise A\n" + RETURN,
        ["Thing.run: 26 27 28 !error path 29"],
    ),
    (
        RETURN,
        "        try:\n            self.go()\n        except KeyError as error:\n            raise A from error\n"
        "        except OSError:\n            x = 1\n" + RETURN,
        ["Thing.run: 27 30 31 !error path 28,29"],
    ),
    (
        RETURN,
        "        match x:\n            case 1:\n                return 2\n"
        "            case _:\n                raise A\n" + RETURN,
        ["Thing.run: 26 27 28 !error path 29,30"],
    ),
    # A return in a function that is only defined there does not leave the block.
    (
        RETURN,
        "        if not total:\n            text = lambda: (yield)\n            raise A\n" + RETURN,
        ["Thing.run: 26 !error path 27,28", "Thing.run.<locals>.<lambda>: !error path 27"],
    ),
    (
        "total += 1",
        "total += 1\n            logger.info('%s', self.size)\n            print(x)",
        ["Thing.run: !logging 21,22"],
    ),
    ("        total = x +", "        other: int\n        total = x +", ["Thing.run: !idle 18"]),
    ("x: int,", "x: float,", ["Thing.run: !idle 16"]),
    (
        "total = x +",
        "total = 1\n        if False:\n            total = 2\n        total = x +",
        ["Thing.run: 18 19 !idle 20"],
    ),
    ("LIMIT = 3", "LIMIT = 3\nif TYPE_CHECKING:\n    import re\n    X = 1", ["(module): !type checking 9,10,11"]),
    ("    def shape(self):", "    def shape(self, x=1):", ["Thing.shape: !abstract 36"]),
    (
        SPARE,
        SPARE + "\n\n\nclass P(Protocol):\n    def f(self):\n        ...",
        ["(module): 60", "P.f: !abstract 61"],
    ),
    (SPARE, "def spare():\n    raise NotImplementedError", ["spare: !abstract 56,57", "base spare: 57"]),
    (
        SPARE,
        "def spare():\n    text = 'a'\n    raise ValueError(text)",
        ["spare: !error path 56,57,58", "base spare: 57"],
    ),
    (SPARE, SPARE + "\n\n\ndef hook():\n    ...", ["hook: !idle 60"]),
    # A function that the compiler drops can never be entered.
    (SPARE, SPARE + "\n\n\nif False:\n    def hook():\n        return 1", ["(module): 60", "hook: !idle 61,62"]),
    # Entered for its parameters, whatever else in it is excused.
    ("flag=True):", "flag=False):\n        if x:\n            raise A", ["Thing.run: 17 !error path 18"]),
    ("flag=True):", "flag=False):\n        logger.info('%s', x)", ["Thing.run:"]),
    # What was only excused needs no run when it is gone.
    (SPARE, SPARE + "\n\n\n# more", []),
)


@pytest.mark.parametrize(("old", "new", "found"), NEED_NOT_RUN)
def test_what_need_not_run(old: str, new: str, found: list[str]) -> None:
    assert edited(old, new) == found


def test_a_gone_log_call_asks_for_nothing() -> None:
    old = BASE.replace("total += 1", "total += 1\n            print(x)")
    assert changed(old, BASE) == ["base Thing.run: !logging 21"]
    function = compare(old.encode(), BASE.encode()).functions.changed[0]
    assert not function.demanded


def test_a_change_of_order_is_a_change() -> None:
    assert changed("def f():\n    a()\n    b()\n", "def f():\n    b()\n    a()\n") == ["f: 2 3", "base f: 3"]


def test_moved_definitions_and_what_has_no_effect_are_no_change() -> None:
    assert (
        changed("def f():\n    return 1\ndef g():\n    return 2\n", "def g():\n    return 2\ndef f():\n    return 1\n")
        == []
    )
    assert changed("def f(): return 1\n", 'def f():\n    """Doc."""\n    # more\n    return 1\n') == []


def test_a_new_file_and_one_that_is_gone() -> None:
    source = b"import os\n\n\ndef f():\n    return os\n"
    new = compare(None, source).functions
    assert [text_of(function) for function in new.changed] == ["(module): 1", "f: 5"]
    assert new.earlier == ()
    gone = compare(source, None).functions
    assert [text_of(function) for function in gone.changed] == ["base (module): 1", "base f: 5"]
    assert gone.earlier == gone.changed


def test_the_merge_base_has_what_was_exchanged() -> None:
    old, new = BASE, BASE.replace("total += 1", "total += 2").replace("    return inner", "    return None")
    found = compare(old.encode(), new.encode()).functions
    assert [text_of(function) for function in found.earlier] == ["base Thing.run: 20", "base outer: 53"]
    assert all(function.side is Side.HEAD for function in found.changed)


def test_a_base_that_python_does_not_compile_has_nothing_that_could_run() -> None:
    found = compare(b"return 1\ndef f(): return 1\n", b"def f():\n    return 2\n").functions
    assert [text_of(function) for function in found.changed] == ["f: 2"]
    assert found.earlier == ()


def test_bodies_too_long_to_be_put_in_order_are_compared_as_sets() -> None:
    def source(first: int, count: int) -> bytes:
        return ("def f():\n" + "".join(f"    g({number})\n" for number in range(first, first + count))).encode()

    found = compare(source(0, 1200), source(1, 1200)).functions.changed
    assert [text_of(function) for function in found] == ["f: 1201"]


def test_one_line_may_be_demanded_and_excused() -> None:
    found = changed("def f(x):\n    return x\n", "def f(x):\n    if x: raise A\n    return x\n")
    assert found == ["f: 2"]


def test_a_function_on_one_line_must_be_entered() -> None:
    assert changed("def f(): return 1\n", "def f(): return 2\n") == ["f:"]
    assert changed("", "def f(): return 2; a()\n@wraps(f)\ndef g(): return 1\n") == ["f:", "g: 3"]


def test_a_message_that_differs_is_on_the_line_of_its_statement() -> None:
    source = 'def f(x):\n    print(f"a {x}")\n    raise ValueError("bad")\n'
    assert changed(source, source.replace('"bad"', 'f"bad {x}"').replace('{x}")\n    r', '{x.y}")\n    r')) == [
        "f: !error path 2,3"
    ]


def test_a_test_begins_where_its_first_part_is() -> None:
    source = "def f(x):\n    if (\n        x\n        and y\n    ):\n        a()\n"
    assert changed(source, source.replace("and", "or")) == ["f: 3"]
    assert changed(source, source.replace("and y", "and z")) == ["f: 4"]
    assert changed("", source.replace("if (", "while not (")) == ["f: 3 6"]
    assert changed("", "def f(x):\n    assert (\n        x and y\n    )\n") == ["f: 3"]


def test_asynchronous_and_nested_code() -> None:
    old = "async def f(x):\n    async with x as y:\n        async for z in y:\n            await z\n"
    new = old.replace("await z", "await z()").replace("in y", "in y()").replace("with x as", "with x() as")
    assert changed(old, new) == ["f: 2 3 4"]
    group = "def f(x):\n    try:\n        x()\n    except* OSError:\n        a()\n    finally:\n        b()\n"
    assert changed(group, group.replace("a()", "c()").replace("b()", "d()")) == ["f: 5 7"]
    more = group.replace("    finally", "    except* KeyError:\n        e()\n    finally")
    assert changed(group, more) == ["f: 6 7"]
    assert changed(
        "def f():\n    class A:\n        x = 1\n", "def f():\n    class A:\n        x = 2\n    class B: pass\n"
    ) == ["f: 3 4"]
    assert changed("def f():\n    return 1\n", "async def f():\n    return 1\n") == ["f:"]


def test_each_excuse_is_in_the_table() -> None:
    found = [text for _, _, rows in NEED_NOT_RUN for text in rows]
    assert all(any(f"!{excuse}" in text for text in found) for excuse in Excuse)
