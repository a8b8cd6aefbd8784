"""Comparing long files takes time in proportion to their length, whatever a hostile change fills them with.

Calls are counted, not seconds: a count is the same on a busy machine.
"""

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from tests.core.reach.programs import effects


def lines(text: str, count: int) -> str:
    """The text with each number up to a count in the place of `N`, and the one before it in that of `M`."""
    return "".join(text.replace("N", str(number)).replace("M", str(number - 1)) for number in range(1, count + 1))


SHAPES: dict[str, Callable[[int], tuple[str, str]]] = {
    "constants come": lambda count: ("", lines("cN = N\n", count)),
    "constants differ": lambda count: (lines("cN = N\n", count), lines("cN = -N\n", count)),
    "constants of constants": lambda count: ("c0 = 0\n", "c0 = 0\n" + lines("cN = (cM, N)\n", count)),
    "functions differ": lambda count: (
        lines("def fN(): return N\n", count),
        lines("def fN(): return -N\n", count),
    ),
    "functions are renamed": lambda count: (
        lines("def fN(): return N\ndef hN(): return fN()\n", count),
        lines("def gN(): return N\ndef hN(): return gN()\n", count),
    ),
    "imported names come": lambda count: (
        "import os\nfrom q import a\n",
        "import os\nfrom q import a\n" + lines("from q import aN\n", count),
    ),
    "classes differ": lambda count: (lines("class CN:\n    x = N\n", count), lines("class CN:\n    x = -N\n", count)),
    "fields differ": lambda count: (
        "@dataclass\nclass C:\n" + lines("    xN: int = N\n", count),
        "@dataclass\nclass C:\n" + lines("    xN: int = -N\n", count),
    ),
    "statements differ": lambda count: (lines("f(N)\n", count), lines("f(-N)\n", count)),
    "lambdas differ": lambda count: (lines("cN = lambda: N\n", count), lines("cN = lambda: -N\n", count)),
}
USER = "import p.a\nfrom p import a\nfrom q import a\ndef go():\n    a.f1()\n    return p.a\n"


def calls(old: str, new: str) -> int:
    """How many functions are called to find what a change of one file does."""
    found = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal found
        found += event in {"call", "c_call"}

    base = {"src/p/__init__.py": "import p.a\n", "src/p/a.py": old, "src/p/use.py": USER, "src/q.py": "a = 1\n"}
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        effects(base, {"src/p/a.py": new}, ("p.use", "go"))
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.no_cover
@pytest.mark.parametrize("shape", SHAPES)
def test_twice_the_length_takes_twice_the_time(shape: str) -> None:
    short, long = (calls(*SHAPES[shape](count)) for count in (150, 300))
    assert long < 2.3 * short
