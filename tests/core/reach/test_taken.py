"""What other files run of a module."""

import pytest

from tests.core.reach.programs import program, reach
from verl_e2e.core.reach.program import Program
from verl_e2e.core.reach.users import taken_elsewhere
from verl_e2e.core.reach.walk import Reach

FAMILY = """
    from p.base import Base
    LIMIT = 3
    @register(Base)
    class Bridge(Base):
        def convert(self): return self.split() + part()
        def split(self): return 1
    def part(): return LIMIT
    def layout(model): return checked(model)
    def checked(model): return Layout(model).made()
    class Layout:
        def made(self): return self.whole()
        def whole(self): return 0
    """
BASE = """
    class Base:
        def convert(self): ...
    def register(kind): ...
    """
FILES = {"src/p/base.py": BASE, "src/p/kimi/bridge.py": FAMILY, "src/p/kimi/__init__.py": "", "src/p/__init__.py": ""}
TYPING = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
LAYOUT = {"layout", "checked", "Layout", "Layout.made", "Layout.whole"}
WHOLE = LAYOUT | {"", "LIMIT", "Bridge", "Bridge.convert", "Bridge.split", "part"}


@pytest.mark.parametrize(
    ("user", "taken"),
    (
        ("import os\nfrom json import loads\ndef run(): return 0", set()),
        # What only a type checker reads runs nothing.
        (TYPING + "    from p.kimi.bridge import layout\ndef run(): return 0", set()),
        ("from p.kimi.bridge import layout\ndef run(): return layout(0)", LAYOUT),
        ("def run():\n    from .kimi.bridge import layout\n    return layout(0)", LAYOUT),
        ("from p.kimi import layout\ndef run(): return layout(0)", LAYOUT),
        ("from p.kimi.bridge import Bridge\ndef run(): return Bridge()", WHOLE - LAYOUT - {""}),
        ("from p.kimi.bridge import *\ndef run(): return layout(0)", WHOLE),
        ("import p.kimi.bridge as b\ndef run(): return b.layout(0)", WHOLE),
        ("from p.kimi import bridge\ndef run(): return bridge.layout(0)", WHOLE),
        ("from p.kimi import bridge as b\ndef run(): return b.layout(0)", WHOLE),
        ("HOOK = 'p.kimi.bridge.layout'\ndef run(): return load(HOOK)", LAYOUT),
        ("HOOK = 'p.kimi.bridge'\ndef run(): return load(HOOK)", WHOLE),
        ("HOOK = 'p.base.Base'\ndef run(): return load(HOOK)", set()),
    ),
)
def test_what_a_file_takes_is_what_it_names_and_what_that_uses(user: str, taken: set[str]) -> None:
    handed_on = {"src/p/kimi/__init__.py": "from .bridge import Bridge, layout\n__all__ = ['Bridge', 'layout']"}
    files = {**FILES, **handed_on, "src/p/user.py": user}
    assert taken_elsewhere("p.kimi.bridge", *both(files), lambda path: "/kimi/" not in path) == taken


def anywhere(_: str) -> bool:
    return True


def both(files: dict[str, str]) -> tuple[Program, Reach]:
    return program(files), reach(files, ("p.user", "run"))


def test_a_package_that_only_hands_a_class_on_runs_nothing_of_it() -> None:
    handed_on = "from .kimi.bridge import Bridge\n__all__ = ['Bridge']"
    files = {**FILES, "src/p/__init__.py": handed_on, "src/p/user.py": "def run(): ..."}
    assert not taken_elsewhere("p.kimi.bridge", *both(files), anywhere)
    for use in ("Bridge()", "def made(): return Bridge()"):
        used = {**files, "src/p/__init__.py": f"{handed_on}\n{use}"}
        assert "Bridge.convert" in taken_elsewhere("p.kimi.bridge", *both(used), anywhere)


def test_files_that_verl_does_not_reach_and_those_that_do_not_count_take_nothing() -> None:
    taking = "from p.kimi.bridge import layout\ndef make(): return layout(0)"
    files = {**FILES, "src/p/recipe.py": taking, "src/p/user.py": "def run(): ..."}
    assert not taken_elsewhere("p.kimi.bridge", *both(files), anywhere)
    reached = {**files, "src/p/user.py": "from p.recipe import make\ndef run(): return make()"}
    assert taken_elsewhere("p.kimi.bridge", *both(reached), anywhere) == LAYOUT
    assert not taken_elsewhere("p.kimi.bridge", *both(reached), lambda path: path != "src/p/recipe.py")
    assert not taken_elsewhere("p.elsewhere", *both(reached), anywhere)
