"""What a change does to a caller that imports `f` from a package `p`: one table of small changes."""

import pytest

from tests.core.reach.programs import ROOTS, effects, program, reach, renamed, version
from verl_e2e.core.reach.diff import IMPORT_TIME
from verl_e2e.core.reach.effects import Idle, LookedAt, Sides, effects_of

MODULE = """
import os
import logging
from dataclasses import dataclass, field
from typing import Optional
from p.names import one

logger = logging.getLogger(__name__)
LIMIT = 3
NAMES = ["a"]


class Base:
    pass


class Own(Base):
    size = 1

    def run(self):
        return one()


@dataclass
class Settings:
    dim: int = 8


def f(x: int):
    return Own().run()


def idle(x: Optional[int] = None) -> field():
    return 1
"""
USES = """
import re
from p.names import one, two
import p.a
if re:
    from p.names import late
try:
    from p.names import guarded
except ImportError:
    pass
"""
BASE = {
    "src/p/__init__.py": "from p.a import f\nimport p.uses\n",
    "src/p/a.py": MODULE,
    "src/p/names.py": "def one(): pass\ndef two(): pass\ndef late(): pass\ndef guarded(): pass\n",
    "src/p/uses.py": USES,
    "src/p/unused.py": "def g():\n    return 1\n",
}
ENTRY = ("p", "f")


def verdict(text: str, *entries: tuple[str, str | None], path: str = "src/p/a.py") -> object:
    """The reason for no effect, or the symbols with an effect, an effect of the import marked by `import:`."""
    found = effects(BASE, {path: text}, *(entries or (ENTRY,))).inside(path)
    assert found is not None
    if found.reason is not None:
        return found.reason
    return [*(effect.symbol for effect in found.effects), *(f"import:{effect.symbol}" for effect in found.at_import)]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    (
        # Inside a function: what the caller reaches counts, the rest does not.
        ("return Own().run()", "return Own()", ["f"]),
        ("return one()", "return one", ["Own.run"]),
        ("return 1\n", "return 2\n", Idle.IMPORT_ONLY),
        ("return 1\n", "return 1  # the first\n", Idle.NO_EFFECT),
        ("def idle(x", "def idle(y", ["import:idle"]),
        # What the import executes counts as such, whatever it is, at the symbol that it is about.
        ("def f(x: int)", "def f(x: float)", ["import:f"]),
        ("def f(x: int)", "def f(x: int = None)", ["f", "import:f"]),
        ("def f(x: int)", "async def f(x: int)", ["f", "import:f"]),
        ("LIMIT = 3", "LIMIT = 4", ["import:LIMIT"]),
        ("LIMIT = 3\n", "", ["import:LIMIT"]),
        ("LIMIT = 3", "LIMIT = 3\nprint(LIMIT)", ["", "import:"]),
        ('LIMIT = 3\nNAMES = ["a"]\n', 'NAMES = ["a"]\nLIMIT = 3\n', ["import:"]),
        ("LIMIT = 3", "LIMIT = 3\n__all__ = ['f']", ["import:__all__"]),
        ("LIMIT = 3", "LIMIT = 3\ndef h(): pass", ["import:h"]),
        ("LIMIT = 3", "LIMIT = 3\nclass H: pass", ["import:H"]),
        ("def idle(x: Optional[int] = None)", "def idle(x: Optional[int] = 1)", ["import:idle"]),
        ("def idle(x: Optional[int] = None)", "def idle(x: Optional['1 +'] = None)", ["import:idle"]),
        ("-> field()", "-> field", ["import:idle"]),
        ("def idle", "@wrapped\ndef idle", ["idle", "import:idle"]),
        ("from p.names import one", "from p.names import one, two", ["", "import:"]),
        ("import os\n", "", ["import:"]),
        ("import os\nimport logging\n", "import logging\nimport os\n", ["import:"]),
        ("    size = 1", "    size = 2", ["Own", "import:Own.size"]),
        ("    size = 1", "    size = 1\n    def more(self): pass", ["import:Own.more"]),
        ("class Own(Base)", "class Own(Base, metaclass=type)", ["Own", "import:Own"]),
        ("    dim: int = 8", "    dim: int = 8\n    rank: int = 4", ["import:Settings.rank"]),
        ("    dim: int = 8", "    dim: int = field(default=8, nonsense=1)", ["import:Settings.dim"]),
    ),
)
def test_a_change_of_one_module(old: str, new: str, expected: object) -> None:
    assert old in MODULE
    found = verdict(MODULE.replace(old, new))
    assert (list(dict.fromkeys(found)) if isinstance(found, list) else found) == expected


def test_the_chain_names_every_step_and_marks_the_ones_that_are_guessed() -> None:
    (found,) = (
        effects(BASE, {"src/p/a.py": MODULE.replace("return one()", "return one")}, ENTRY).paths["src/p/a.py"].effects
    )
    assert found.via == ("caller.py:7 imports f", "p.a.f calls", "p.a.Own.run")
    assert (found.sure, found.through) == (True, ("f",))
    (guessed,) = (
        effects(BASE, {"src/p/a.py": MODULE.replace("return one()", "return one")}, ("p.a", "Own"), ("", "run"))
        .paths["src/p/a.py"]
        .effects
    )
    assert guessed.via == ("caller.py:7 uses .run (uncertain)", "p.a.Own.run")
    assert not guessed.sure


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    (
        # A file that nothing imports.
        ("src/p/unused.py", "def g():\n    return 2\n", Idle.UNREACHED),
        ("src/p/unused.py", None, Idle.UNREACHED),
        ("docs/conf.py", "x = 1\n", Idle.UNREACHED),
        # One that comes or goes is all effect where it is imported.
        ("src/p/names.py", None, ["one", "import:"]),
        ("src/p/a.py", "", ["f", "Own", "Own.run"]),
    ),
)
def test_a_file_that_comes_or_goes(path: str, text: str | None, expected: object) -> None:
    found = effects(BASE, {path: text}, ENTRY).inside(path)
    assert found is not None
    if found.reason is not None:
        assert found.reason == expected
    else:
        names = [
            *(effect.symbol for effect in found.effects),
            *(f"import:{effect.symbol}" for effect in found.at_import),
        ]
        assert set(expected) <= set(names)  # type: ignore[call-overload]


def test_why_there_is_no_effect_names_at_most_three_symbols() -> None:
    many = "".join(f"def g{number}():\n    return 1\n" for number in range(5))
    found = effects(BASE, {"src/p/unused.py": many}, ENTRY).paths["src/p/unused.py"]
    assert found.detail == "verl reaches none of the changed symbols (g, g0, g1, ...)"


def test_why_an_import_has_no_effect_names_the_symbols_that_differ() -> None:
    found = effects(BASE, {"src/p/a.py": MODULE.replace("return 1\n", "return 2\n")}, ENTRY).paths["src/p/a.py"]
    assert found.effects == ()
    assert (
        found.detail
        == "verl imports it, which has the same effect as before, and reaches none of the changed symbols (idle)"
    )


def test_a_renamed_file_differs_as_a_whole_and_both_names_are_answered_for() -> None:
    found = renamed(BASE, "src/p/names.py", "src/p/words.py", ENTRY)
    assert {path: [effect.kind for effect in inside.effects] for path, inside in found.paths.items()} == {
        "src/p/names.py": ["renamed"],
        "src/p/words.py": ["renamed"],
    }


def test_a_side_that_is_no_python_is_judged_by_its_name() -> None:
    found = effects(BASE, {"src/p/a.py": "def f(:\n"}, ENTRY)
    assert (found.inside("src/p/a.py"), list(found.unread)) == (None, ["src/p/a.py"])


def test_of_a_folder_set_aside_only_what_the_imports_run_counts() -> None:
    text = MODULE.replace("return one()", "return one").replace("LIMIT = 3", "LIMIT = idle()")
    inside = effects(BASE, {"src/p/a.py": text}, ENTRY, aside="src/p/").paths["src/p/a.py"]
    assert sorted(effect.symbol for effect in inside.effects) == ["Own.run"]
    assert [effect.symbol for effect in inside.at_import] == ["LIMIT"]
    module = MODULE + "idle()\n"
    changed = {"src/p/a.py": module.replace("return 1", "return 2")}
    ran = effects({**BASE, "src/p/a.py": module}, changed, ENTRY, aside="src/p/").paths["src/p/a.py"]
    assert [(effect.symbol, effect.kind) for effect in ran.at_import] == [("idle", IMPORT_TIME)]


def test_a_file_that_is_moved_out_of_the_package_may_import_nothing_new() -> None:
    base = {**BASE, "src/p/uses.py": "from p.names import one\n"}
    text = "from p.names import one, two\n"
    head = {path: text for path, text in base.items() if path != "src/p/uses.py"}
    both = Sides(program(base), program(head), reach(base, ENTRY), reach(head, ENTRY))
    found = effects_of([(version("src/p/uses.py", base["src/p/uses.py"]), version("tools/uses.py", text))], both, ROOTS)
    assert [effect.kind for effect in found.paths["tools/uses.py"].at_import] == [IMPORT_TIME]


@pytest.mark.parametrize(
    ("looked", "sentence"),
    (
        (LookedAt(1, 5, 0), "1 changed source file compared, 5 modules that verl's imports execute read, none of them"),
        (LookedAt(2, 5, 3), "2 changed source files compared, 5 modules that verl's imports execute read, 3 of them"),
    ),
)
def test_how_much_a_plan_rests_on_is_said(looked: LookedAt, sentence: str) -> None:
    assert looked.sentence == f"Looked at: {sentence} unknown."
