"""How near a file stands to what differs: a table of test files, each with its nearest use."""

import pytest

from tests.core.reach.programs import program
from verl_e2e.core.reach.program import Program
from verl_e2e.core.reach.reader import summarize
from verl_e2e.core.reach.users import ChangedModule, Distance, Use, nearest_use, use_through

PEFT = ChangedModule("lib.peft", "src/lib/peft.py", frozenset({"shape", "Lora.run"}))
FRONT = ChangedModule("lib.front", "src/lib/front/__init__.py", reached=False)
CHANGED = {item.name: item for item in (PEFT, FRONT)}
LIBRARY = program(
    {
        "src/lib/__init__.py": "from lib.peft import shape, attach\nfrom lib.other import g\n",
        "src/lib/peft.py": "def shape(): pass\ndef attach(): pass\n",
        "src/lib/other.py": "def g(): pass\n",
        "src/lib/front/__init__.py": "",
    }
)


@pytest.mark.parametrize(
    ("source", "message"),
    (
        ("import lib.peft", "it imports lib.peft, which differs"),
        ("from lib import peft", "it imports lib.peft, which differs"),
        ("from lib.peft import shape", "it uses shape of lib.peft, which differs"),
        ("from lib.peft import Lora", "it uses Lora of lib.peft, which differs"),
        ("from lib.peft import attach", "it imports lib.peft, which differs"),
        ("from lib.front import x", "it imports x, which lib.front defines, and that module differs"),
        ("from lib import shape", "it uses shape of lib.peft, which differs"),
        ("from lib import attach", "it imports attach, which lib.peft defines, and that module differs"),
        ("from lib import g, gone", ""),
        ("from foreign import x", ""),
        ("import foreign", ""),
        ("NAME = 'lib.peft.shape'", "it uses shape of lib.peft, which differs"),
        ("NAME = 'lib.peft'", "it imports lib.peft, which differs"),
        ("NAME = 'lib.peft.attach.deep'", "it imports lib.peft, which differs"),
        ("NAME = 'other.peft.attach'", ""),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import lib.peft", ""),
        # What the other program runs comes before what it does not.
        ("from lib.front import x\nimport lib.peft", "it imports lib.peft, which differs"),
    ),
)
def test_the_nearest_use_of_a_file(source: str, message: str) -> None:
    found = nearest_use("tests.test_it", summarize(source.encode()), CHANGED, LIBRARY)
    assert str(found or "") == message


def test_without_a_program_there_are_no_re_exports() -> None:
    assert nearest_use("tests.test_it", summarize(b"from lib import attach"), CHANGED, None) is None


@pytest.mark.parametrize(
    ("source", "name"),
    (
        ("from .helper import x", "tests.helper"),
        ("import tests.helper as h", "tests.helper"),
        ("from tests import helper", "tests.helper"),
        ("import other", ""),
    ),
)
def test_a_use_by_way_of_another_file(source: str, name: str) -> None:
    between = {"tests.helper": Use(PEFT, Distance.SYMBOL, "shape")}
    found = use_through("tests.test_it", summarize(source.encode()), between)
    assert (found.name if found else "") == name
    if found:
        assert str(found) == "it imports tests.helper, which uses lib.peft, and that module differs"


def test_a_program_is_asked_for_the_modules_that_it_has() -> None:
    assert isinstance(LIBRARY, Program)
    assert ("lib.peft" in LIBRARY, "lib.gone" in LIBRARY) == (True, False)
