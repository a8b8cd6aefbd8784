"""What a run notices of other code: planted edits of a small package that is really run, with what it entered."""

import importlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType

import pytest

from tests.core.reach.programs import version
from verl_e2e.core.reach.named_files import may_be_compiled
from verl_e2e.core.reach.unentered import noticed

LIB = """\
import functools
import inspect
import os
from pkg.registry import KINDS, register

LIMIT = 3
TABLE = {"a": 1}


def helper(x):
    return x + 1


def spare(x, *, deep=False):
    return [x, deep]


def spare_stream(x):
    yield x


async def spare_wait():
    return 1


@register
def registered(x):
    return x


@register
def idle_kind(x):
    return -x


@functools.lru_cache
def cached(x):
    return spare(x)


def outer(x):
    def inner(y):
        return y

    return x if x else inner(x)


class Base:
    size = 1

    def run(self, x):
        return self.step(helper(x))

    def step(self, x):
        return x * 2

    def spare(self, x):
        return x - 1

    @property
    def width(self):
        return self.size

    def __repr__(self):
        return "Base"

    class Inner:
        def spare(self):
            return 1


class Own(Base):
    def unused(self):
        return spare(1)


if os.sep == "/":

    def chosen():
        return 1

else:

    def chosen():
        return 2


def main():
    own = Own()
    options = [sorted(inspect.signature(spare).parameters), sorted(KINDS)]
    probes = [hasattr(own, "extra"), hasattr(sys_module(), "extra"), inspect.isgeneratorfunction(spare_stream)]
    return [own.run(LIMIT), TABLE, registered(1), outer(1), options, probes, own.width if LIMIT > 9 else 0]


def sys_module():
    import sys

    return sys.modules[__name__]
"""
FILES = {
    "src/pkg/__init__.py": "from pkg.lib import main\n",
    "src/pkg/lib.py": LIB,
    "src/pkg/registry.py": "KINDS = {}\n\n\ndef register(kind):\n    KINDS[kind.__name__] = kind\n    return kind\n",
    "src/pkg/unread.py": "def other():\n    return 1\n",
}
PATH = "src/pkg/lib.py"
ENTRY = ("pkg", "main")


def ran(files: Mapping[str, str], folder: Path) -> tuple[object, dict[str, set[str]]]:
    """What the package gives, and by path the functions that it entered."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    root, entered = folder / "src", dict[str, set[str]]()

    def note(frame: FrameType, event: str, _: object) -> None:
        code: CodeType = frame.f_code
        if event == "call" and code.co_filename.startswith(str(root)) and code.co_name != "<module>":
            path = str(Path(code.co_filename).relative_to(folder))
            entered.setdefault(path, set()).add(getattr(code, "co_qualname", code.co_name))

    sys.path.insert(0, str(root))
    try:
        importlib.invalidate_caches()
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            return repr(importlib.import_module("pkg").main()), entered
        finally:
            sys.setprofile(before)
    except Exception as error:
        return repr(error), entered
    finally:
        sys.path.remove(str(root))
        for name in [name for name in sys.modules if name.partition(".")[0] == "pkg"]:
            del sys.modules[name]


def noticed_of(changed: Mapping[str, str | None], entered: Mapping[str, set[str]]) -> str:
    head = {path: text for path, text in {**FILES, **changed}.items() if text is not None}
    pairs = [(version(path, FILES.get(path)), version(path, head.get(path))) for path in changed]
    return noticed(pairs, entered)


# An edit of the library, and what of it the run notices; empty where it keeps its verdict.
EDITS: tuple[tuple[str, str, str], ...] = (
    # The bodies of functions that the run never enters.
    ("return [x, deep]", "return [deep, x, LIMIT]", ""),
    ("return x - 1", "return spare(x - 2)", ""),
    ("return self.size", "return 7", ""),
    ('return "Base"', 'return "Other"', ""),
    ("    yield x", "    yield x\n    yield 2", ""),
    ("async def spare_wait():\n    return 1", "async def spare_wait():\n    return 2", ""),
    ("return spare(1)", "import json\n\n        return json", ""),
    # Nothing but comments, layout, and what no run can tell apart.
    ("LIMIT = 3", "# The limit.\nLIMIT = 3", ""),
    ("def helper(x):\n", 'def helper(x):\n    """Add one."""\n', ""),
    # What comes or goes, whether anything asks for it or not.
    ("\n\nclass Own(Base)", "\n\ndef new(x):\n    return x\n\n\nclass Own(Base)", "imported"),
    ("LIMIT = 3\n", "LIMIT = 3\nMORE = 4\n", "imported"),
    # The bodies of those that it enters.
    ("return x + 1", "return x + 2", "helper was entered"),
    ("return x * 2", "return x * 3", "Base.step was entered"),
    ("        return y\n", "        return y + 1\n", "outer was entered"),
    ("    def chosen():\n        return 2", "    def chosen():\n        return 3", ""),
    # A method that takes the place of an entered one, a special one, and one that code may ask for by name.
    (
        "    def unused(self)",
        "    def step(self, x):\n        return 0\n\n    def unused(self)",
        "imported",
    ),
    (
        "    def unused(self)",
        "    def extra(self):\n        return 0\n\n    def unused(self)",
        "imported",
    ),
    (
        "    def unused(self)",
        "    def __getattribute__(self, name):\n        return 5\n\n    def unused(self)",
        "imported",
    ),
    ("    def spare(self, x):\n        return x - 1\n\n", "", "imported"),
    ("class Own(Base):\n    def unused(self)", "class Own(Base):\n    def renamed(self)", "imported"),
    # How it is made and called: what asks for it need not enter it.
    ("def spare(x, *, deep=False)", "def spare(x, *, wide=False)", "spare is called in another way"),
    ("def spare(x, *", "def spare(x, y, *", "spare is called in another way"),
    ("    yield x", "    return [x]", "spare_stream is called in another way"),
    ("async def spare_wait", "def spare_wait", "imported"),
    # What runs when it is imported.
    ("def spare(x, *, deep=False)", "def spare(x, *, deep=True)", "imported"),
    ("def spare(x, *", "def spare(x: int, *", "imported"),
    ("    @property\n    def width", "    def width", "imported"),
    ("    def spare(self, x)", "    @staticmethod\n    def spare(self, x)", "imported"),
    ("def spare(x, *", "@register\ndef spare(x, *", "imported"),
    ("@register\ndef idle_kind", "def idle_kind", "imported"),
    ("    return -x", "    return x", "imported"),
    ("def idle_kind", "def other_kind", "imported"),
    ("import functools\n", "import functools\nimport this_is_missing\n", "imported"),
    ("from pkg.registry import KINDS,", "from pkg.registry import KINDS as KINDS,", "imported"),
    ("\n\nclass Own(Base)", "\n\nKINDS['x'] = 1\n\n\nclass Own(Base)", "imported"),
    ("class Own(Base)", "class Own(Base, dict)", "imported"),
    ("class Own(Base)", "class Own(Base, metaclass=type)", "imported"),
    ("class Own(Base):\n", "class Own(Base):\n    __slots__ = ()\n\n", "imported"),
    ("def sys_module", "def __getattr__(name):\n    return 1\n\n\ndef sys_module", "imported"),
    ("def sys_module", "def extra():\n    return 1\n\n\ndef sys_module", "imported"),
    ('TABLE = {"a": 1}', 'TABLE = {"a": 2}', "imported"),
    ("LIMIT = 3", "LIMIT = 4", "imported"),
    ("    size = 1\n", "    size = 2\n", "imported"),
    ("    size = 1\n", "    size = 1\n    extra = 2\n", "imported"),
    ("        def spare(self):\n            return 1", "        def spare(self):\n            return 2", "Base"),
    ("def helper(x)", "def _helper(x)", "imported"),
    # What Python cannot read or compile.
    ("LIMIT = 3", "LIMIT = = 3", "not Python"),
    ("LIMIT = 3", "return 3", "not Python"),
)


@pytest.mark.parametrize(("old", "new", "expected"), EDITS)
def test_an_edit_is_noticed_where_it_may_change_what_the_run_does(
    old: str, new: str, expected: str, tmp_path: Path
) -> None:
    result, entered = ran(FILES, tmp_path / "before")
    assert old in LIB
    edited = {PATH: LIB.replace(old, new, 1)}
    found = noticed_of(edited, entered)
    assert (expected in found) if expected else found == "", found
    # An edit with another result is noticed whatever the table says.
    assert found or ran({**FILES, **edited}, tmp_path / "after")[0] == result


def test_a_file_that_comes_or_goes_is_noticed(tmp_path: Path) -> None:
    entered = ran(FILES, tmp_path)[1]
    for path in ("src/pkg/new.py", "src/pkg/unread.py"):
        assert noticed_of({path: None if path in FILES else "x = 1\n"}, entered) == f"{path}: the file came or went"
    assert noticed_of({}, entered) == ""


@pytest.mark.parametrize(
    "word",
    (
        b"@torch.jit.script",
        b"from torch.jit import script",
        b"from torch.jit import (\n    trace,\n    script,\n)",
        b"import torch.jit as compiler",
        b"from torch import nn, jit",
        b"from torch import (\n    nn,\n    jit as compiler,\n)",
        b"import numba",
        b"import triton\nkernel = triton.jit(spare)",
        b"import cutlass.cute as cute",
    ),
)
def test_what_other_compilers_read_is_not_trusted_to_a_record(word: bytes) -> None:
    assert may_be_compiled(b"import torch\n" + word)
    assert not may_be_compiled(b"from megatron.core.jit import jit_fuser\n@torch.compile\ndescription")
    for text in (b"from torch import nn\nfrom a.jit import b", b"torch.jit.is_tracing()", b"import torchjit"):
        assert not may_be_compiled(text)


def test_lists_that_do_not_end_take_no_time_to_look_through() -> None:
    before = time.process_time()
    assert not may_be_compiled(b"from torch import (\n" * 20_000)
    assert time.process_time() - before < 1
