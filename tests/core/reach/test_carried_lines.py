"""Lines of a measured version of a file, found again in a change of another one."""

import pytest

from verl_e2e.core.reach.carried import CarriedLines, carried_lines

BASE = """\
def f(x):
    y = x
    if x:
        return y
    try:
        g()
    except ValueError:
        pass
    return x
"""


def carried(head: str, measured: str = BASE, base: str = BASE) -> CarriedLines:
    return carried_lines(measured.encode(), base.encode(), head.encode())


def test_what_did_not_change_keeps_its_line_wherever_it_is_now() -> None:
    found = carried("# moved\n\n" + BASE, base="# moved\n" + BASE)
    assert found.base[2] == 1
    assert (found.head[3], found.near(4)) == (1, 2)
    # The change adds its first line; that another commit has it too says nothing.
    assert carried("new\n" + BASE, measured="new\n" + BASE, base=BASE.replace("y = x", "y = 1")).near(1) is not None


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    (
        # A statement runs with the one before it in its block, else with the one after it.
        ("    y = x\n", "    y = x\n    z = x\n", 3, 2),
        ("        return y\n", "        y = 2\n        return y\n", 4, 4),
        # What stands alone in a block that is kept runs, as far as anyone knows, with the head of the block.
        ("        return y\n", "        return -y\n", 4, 3),
        ("        g()\n", "        g(1)\n", 6, 5),
        ("        pass\n", "        raise\n", 8, 7),
        # A block that is new runs with what it stands in.
        ("    y = x\n", "    y = x\n    while y:\n        y = g(\n            y\n        )\n", 4, 2),
        ("    if x:\n", "    if x and y:\n", 3, 2),
        # Nothing is known of a function that is new.
        ("def f", "def new():\n    return 1\n\n\ndef f", 2, None),
        # A text is never entered.
        ("    y = x\n", '    "text"\n    y = 1\n', 3, 3),
    ),
)
def test_a_changed_line_runs_with_a_line_near_it(old: str, new: str, line: int, expected: int | None) -> None:
    assert old in BASE
    assert carried(BASE.replace(old, new, 1)).near(line) == expected


def test_the_measured_version_itself_needs_no_other_line() -> None:
    head = BASE.replace("y = x", "y = 1")
    found = carried(head, measured=head)
    assert [found.near(line) for line in range(1, 10)] == list(range(1, 10))


@pytest.mark.parametrize("head", ("def f(:\n", "\x00"))
def test_what_cannot_be_read_is_not_known(head: str) -> None:
    assert carried(head).near(1) is None
    assert carried_lines(None, None, head.encode()).near(1) is None
    assert carried_lines(BASE.encode(), BASE.encode(), None).head == {}
