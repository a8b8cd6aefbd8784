"""What a change does to a caller that imports `f` from a package `p`: one table of small changes."""

import pytest

from tests.core.reach.programs import ROOTS, effects, program, reach, renamed, version
from verl_e2e.core.reach.changes import IMPORT_TIME
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
        ("def f(x: int)", "def f(x: float)", Idle.NO_EFFECT),
        ("def f(x: int)", "def f(x: int = None)", ["f"]),
        ("def f(x: int)", "async def f(x: int)", ["f"]),
        # Variables: constants may come, go and change where nothing reads them.
        ("LIMIT = 3", "LIMIT = 4", Idle.IMPORT_ONLY),
        ("LIMIT = 3\n", "", Idle.IMPORT_ONLY),
        ("LIMIT = 3", "LIMIT = -3", Idle.IMPORT_ONLY),
        ("LIMIT = 3", "LIMIT = (1, -2)", Idle.IMPORT_ONLY),
        ("LIMIT = 3", "LIMIT = {1: [2], 'a': {3, 4}}", Idle.IMPORT_ONLY),
        ("LIMIT = 3", "LIMIT = set([1, 2])", Idle.IMPORT_ONLY),
        ("LIMIT = 3", "LIMIT = sorted([1, 2])", ["import:LIMIT"]),
        ("LIMIT = 3", "LIMIT = {**{}}", ["import:LIMIT"]),
        ("LIMIT = 3", "LIMIT = {*'ab'}", ["import:LIMIT"]),
        ("LIMIT = 3", "LIMIT = open('x')", ["import:LIMIT"]),
        ("LIMIT = 3", "LIMIT = other = 3", ["import:", "import:LIMIT"]),
        ("LIMIT = 3", "LIMIT = 3\nOTHER = [LIMIT, {LIMIT: 1}]", Idle.IMPORT_ONLY),
        ("LIMIT = 3", "LIMIT = 3\nprint(LIMIT)", ["", "import:"]),
        ("LIMIT = 3", "LIMIT = 3\nopen = 4", ["import:open"]),
        ("LIMIT = 3", "LIMIT = 3\n__version__ = '1'", ["import:__version__"]),
        ("LIMIT = 3", "def limit():\n    global LIMIT\n\n\nLIMIT = 4", ["import:LIMIT", "import:LIMIT"]),
        ("LIMIT = 3", "LIMIT = 3\nwhile LIMIT > 4:\n    LIMIT = 2", ["", "import:"]),
        ('NAMES = ["a"]\n', 'if LIMIT:\n    NAMES = ["a"]\n', ["", "import:", "import:NAMES"]),
        ('NAMES = ["a"]\n', 'NAMES = ["a"]\nNAMES += ["b"]\n', ["import:"]),
        (
            'NAMES = ["a"]\n',
            'try:\n    NAMES = ["a"]\nexcept ValueError:\n    NAMES = []\n',
            ["import:", "import:NAMES"],
        ),
        ("LIMIT = 3", "LIMIT = 3\n__all__ = ['f']", Idle.IMPORT_ONLY),
        ("LIMIT = 3", "LIMIT = 3\n__all__ = f.x", ["import:__all__"]),
        ("LIMIT = 3", "LIMIT = 3\n__all__ = ['f']\n__all__ = ['idle']", ["import:__all__", "import:__all__"]),
        ("LIMIT = 3", "def set_limit():\n    global extra\n    extra = 1\n\n\nextra = 2", ["import:extra"]),
        # Annotations: those that evaluate without an effect.
        ("LIMIT = 3", "LIMIT = 3\nextra: int = 3", Idle.IMPORT_ONLY),
        ("LIMIT = 3", "LIMIT = 3\nextra: Unknown = 3", ["import:extra"]),
        ("LIMIT = 3", "LIMIT = 3\ndef h(x: int | None, y: dict[str, list[int]]): pass", Idle.IMPORT_ONLY),
        ("LIMIT = 3", "LIMIT = 3\ndef h(x: None | None): pass", ["import:h"]),
        ("LIMIT = 3", "LIMIT = 3\ndef h(x: tuple[int, ...]): pass", Idle.IMPORT_ONLY),
        ("LIMIT = 3", "LIMIT = 3\ndef h(x: 'text'): pass", Idle.IMPORT_ONLY),
        ("LIMIT = 3", "LIMIT = 3\ndef h(x: Optional[str]): pass", Idle.IMPORT_ONLY),
        ("LIMIT = 3", "LIMIT = 3\ndef h(x: Optional[str, int]): pass", ["import:h"]),
        ("LIMIT = 3", "LIMIT = 3\ndef h(x: os.thing()): pass", ["import:h"]),
        ("def f(x: int)", "@wrapped\ndef f(x: int)", ["f", "import:f", "import:f"]),
        ("def f(x: int)", "@staticmethod\ndef f(x: int)", ["f"]),
        # Imports: another name of a module that is imported anyway.
        ("from p.names import one", "from p.names import one, two", [""]),
        ("from p.names import one", "from p.names import one, two as second", [""]),
        ("from p.names import one", "from p.names import one, late", ["", "import:"]),
        ("from p.names import one", "from p.names import one, guarded", ["", "import:"]),
        ("from p.names import one", "from p.names import one, three", ["", "import:"]),
        ("from p.names import one", "from p.names import one, open", ["", "import:"]),
        (
            "from p.names import one",
            "from p.names import one\nfrom p.names import *",
            ["", "import:", "import:idle", "import:idle"],
        ),
        ("from p.names import one", "from p.names import one\nfrom p.names import two as one", ["", "import:"]),
        ("from p.names import one", "from .names import one", ["import:"]),
        ("import os\n", "import os\nimport re\n", [""]),
        ("import os\n", "import os\nimport collections.abc\n", ["", "import:"]),
        ("import os\n", "import os\nimport p.unused\n", ["", "import:"]),
        ("import os\n", "", Idle.IMPORT_ONLY),
        # Classes: what their bases cannot see may come and go.
        ("    size = 1", "    size = 2", ["Own"]),
        ("    size = 1", "    size = 1\n    def more(self): pass", Idle.IMPORT_ONLY),
        ("    size = 1", "    size = 1\n    __slots__ = ()", ["Own", "import:__slots__"]),
        ("class Own(Base)", "class Own(Base, metaclass=type)", ["Own", "import:Own"]),
        ("class Base:\n    pass", "class Base:\n    def spare(self): pass", Idle.IMPORT_ONLY),
        (
            "class Base:\n    pass",
            "class Base:\n    def __init_subclass__(cls): pass",
            ["Base.__init_subclass__", "import:__init_subclass__"],
        ),
        ("    dim: int = 8", "    dim: int = 16", Idle.IMPORT_ONLY),
        ("    dim: int = 8", "    dim: int = 8\n    rank: int = 4", Idle.IMPORT_ONLY),
        ("    dim: int = 8", "    rank: int = 4\n    dim: int = 8", Idle.IMPORT_ONLY),
        ("    dim: int = 8", "    dim: int = 8\n    rank: int", ["import:rank"]),
        ("    dim: int = 8", "    dim: int = 8\n    rank: list = field(default_factory=list)", Idle.IMPORT_ONLY),
        ("    dim: int = 8", "    dim: int = 8\n    rank: list = field(default_factory=lambda: [1])", Idle.IMPORT_ONLY),
        ("    dim: int = 8", "    dim: int = 8\n    rank: list = field(default_factory=make)", ["import:rank"]),
        ("    dim: int = 8", "    dim: int = 8\n    rank: int = field(default=1, init=False)", Idle.IMPORT_ONLY),
        ("    dim: int = 8", "    dim: int = 8\n    rank: int = field(**{})", ["import:rank"]),
        ("    dim: int = 8", "    dim: int = 8\n    rank: ClassVar[int] = 1", ["import:rank"]),
    ),
)
def test_a_change_of_one_module(old: str, new: str, expected: object) -> None:
    assert old in MODULE
    assert verdict(MODULE.replace(old, new)) == expected


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


@pytest.mark.parametrize(
    ("text", "shown"),
    (
        (MODULE.replace("import os\n", "import os\nimport sys\n").replace("return 1\n", "return 2\n"), "(idle)"),
        (MODULE.replace("import os\n", "import os\nimport sys\n"), "symbols"),
    ),
)
def test_why_an_import_has_no_effect_names_the_symbols_that_differ_and_not_the_import(text: str, shown: str) -> None:
    found = effects(BASE, {"src/p/a.py": text}, ENTRY).paths["src/p/a.py"]
    assert [effect.kind for effect in found.effects] in ([], ["imports"])
    assert found.detail.startswith("verl imports it, which has the same effect as before")
    assert found.detail.endswith(shown)


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


@pytest.mark.parametrize(
    ("origin", "harmless"),
    (
        ("from torch.nn import Module", True),
        ("from megatron.core.x import Module", True),
        ("from abc import ABC as Module", True),
        ("from vllm import Module", False),
        ("Module = dict", False),
        ("import torch.nn", False),
        ("class Module(dict): pass", True),
        ("class Module:\n    def __set_name__(self): pass", False),
        ("class Module(Deep): pass\nclass Deep(Module): pass", False),
        ("def Module(): pass", False),
        ("class Outer:\n    class Module: pass\nModule = Outer", False),
    ),
)
def test_a_method_may_come_where_no_base_of_the_class_looks(origin: str, harmless: bool) -> None:
    module = f"{origin}\n\n\nclass Own(Module):\n    def run(self): pass\n\n\ndef f():\n    pass\n"
    base = {"src/p/__init__.py": "from p.a import f\n", "src/p/a.py": module}
    inside = effects(base, {"src/p/a.py": f"{module}".replace("    def run", "    def more(self): pass\n    def run")},
                     ENTRY).paths["src/p/a.py"]  # fmt: skip
    assert (inside.reason is Idle.IMPORT_ONLY) == harmless


@pytest.mark.parametrize(
    ("own", "harmless"),
    (
        ("def mark(f): return f", True),
        ("def mark(f): return f.__doc__ and f", False),
        ("from foreign import mark", False),
    ),
)
def test_a_docstring_may_differ_below_a_decorator_of_the_program_that_reads_none(own: str, harmless: bool) -> None:
    module = 'from p.marks import mark\n\n\n@mark\ndef f():\n    """One."""\n    return 1\n'
    base = {"src/p/__init__.py": "from p.a import f\n", "src/p/a.py": module, "src/p/marks.py": f"{own}\n"}
    inside = effects(base, {"src/p/a.py": module.replace("One", "Two")}, ENTRY).paths["src/p/a.py"]
    assert (inside.reason is Idle.NO_EFFECT) == harmless


@pytest.mark.parametrize(
    ("around", "harmless"),
    (
        # A new name that something asks for, or could ask for without naming it.
        ("from p.a import MORE\n", False),
        ("from p.a import *\n", False),
        ("from p import a\na.MORE\n", False),
        ("from p import a\na.f\n", True),
        ("import p.a\n", True),
    ),
)
def test_a_name_may_come_where_nothing_asks_for_it(around: str, harmless: bool) -> None:
    base = {**BASE, "src/p/uses.py": around}
    inside = effects(base, {"src/p/a.py": MODULE + "MORE = 1\n"}, ENTRY).paths["src/p/a.py"]
    assert (inside.reason is Idle.IMPORT_ONLY) == harmless


def test_a_name_may_not_come_where_the_caller_or_a_lazy_module_asks_for_it() -> None:
    for entry in (("p.a", "MORE"), ("p.a", "*")):
        inside = effects(BASE, {"src/p/a.py": MODULE + "MORE = 1\n"}, ENTRY, entry).paths["src/p/a.py"]
        assert inside.reason is None
    lazy = MODULE + "def __getattr__(name): return 1\n"
    inside = effects({**BASE, "src/p/a.py": lazy}, {"src/p/a.py": lazy + "MORE = 1\n"}, ENTRY).paths["src/p/a.py"]
    assert inside.reason is None


def test_the_list_of_public_names_may_differ_where_nothing_imports_them_all() -> None:
    base = {**BASE, "src/p/a.py": MODULE + "__all__ = ['f']\n"}
    changed = {"src/p/a.py": MODULE + "__all__ = ['f', 'idle']\n"}
    assert effects(base, changed, ENTRY).paths["src/p/a.py"].reason is Idle.IMPORT_ONLY
    base["src/p/uses.py"] = "from p.a import *\n"
    assert effects(base, changed, ENTRY).paths["src/p/a.py"].reason is None


@pytest.mark.parametrize(("annotation", "harmless"), (("int", True), ("Unknown", True), ("open('x')", True)))
def test_under_the_future_import_no_annotation_of_a_function_is_evaluated(annotation: str, harmless: bool) -> None:
    module = f"from __future__ import annotations\n{MODULE}"
    base = {**BASE, "src/p/a.py": module}
    inside = effects(base, {"src/p/a.py": f"{module}\n\ndef h(x: {annotation}): pass\n"}, ENTRY).paths["src/p/a.py"]
    assert (inside.reason is Idle.IMPORT_ONLY) == harmless


def test_a_file_that_is_moved_out_of_the_package_may_import_nothing_new() -> None:
    base = {**BASE, "src/p/uses.py": "from p.names import one\n"}
    text = "from p.names import one, two\n"
    head = {path: text for path, text in base.items() if path != "src/p/uses.py"}
    both = Sides(program(base), program(head), reach(base, ENTRY), reach(head, ENTRY))
    found = effects_of([(version("src/p/uses.py", base["src/p/uses.py"]), version("tools/uses.py", text))], both, ROOTS)
    assert [effect.kind for effect in found.paths["tools/uses.py"].at_import] == [IMPORT_TIME]


def test_an_import_may_not_come_that_leads_back_to_its_own_module() -> None:
    base = {**BASE, "src/p/names.py": "import p.deep\ndef one(): pass\ndef two(): pass\n",
            "src/p/deep.py": "from p import a\nfrom . import other\n", "src/p/other.py": ""}  # fmt: skip
    text = MODULE.replace("from p.names import one", "from p.names import one, two")
    inside = effects(base, {"src/p/a.py": text}, ENTRY).paths["src/p/a.py"]
    assert "" in [effect.symbol for effect in inside.at_import]


@pytest.mark.parametrize(
    ("looked", "sentence"),
    (
        (LookedAt(1, 5, 0), "1 changed source file compared, 5 modules that verl's imports execute read, none of them"),
        (LookedAt(2, 5, 3), "2 changed source files compared, 5 modules that verl's imports execute read, 3 of them"),
    ),
)
def test_how_much_a_plan_rests_on_is_said(looked: LookedAt, sentence: str) -> None:
    assert looked.sentence == f"Looked at: {sentence} unknown."
