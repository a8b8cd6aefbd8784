"""No change that alters a run of verl, or what its imports execute, is planned as nothing, however it is written."""

from collections.abc import Mapping

import pytest

from tests.fakes.small_bridge import ASIDE, BASE, CORE, INIT, LORA, TOP, USES
from tests.fakes.trees import FakeSummaries, FakeTrees, Files, LinkTo
from verl_e2e.app.plan_change import Planner
from verl_e2e.config.policy import packaged_policy

POLICY = packaged_policy()


def levels(new: Mapping[str, str | bytes | None]) -> list[int]:
    """The levels of a head that differs from BASE by these files; None deletes one."""
    head = {path: text for path, text in {**BASE, **new}.items() if text is not None}
    planner = Planner(FakeTrees({"base": BASE, "head": head}), USES, FakeSummaries())
    return [int(level) for level in planner.plan("base", "head", POLICY).plan.levels]


def edited(path: str, old: str, new: str) -> dict[str, str]:
    text = BASE[path]
    assert isinstance(text, str)
    assert text.count(old) >= 1, old
    return {path: text.replace(old, new, 1)}


EVIL = "exit(1)"
IN_CORE = (
    # Nesting.
    ("                continue\n", "            continue\n"),
    ("                first(one)\n", "            first(one)\n"),
    ("            second(one)\n", "        second(one)\n"),
    ("            second(one)\n", "                second(one)\n"),
    (
        '            raise ValueError("nothing to load")',
        '            pass\n        raise ValueError("nothing to load")',
    ),
    # Log calls, messages, and the places of docstrings.
    ('logger.info("skipped %s", one)', "logger.info(tasks.clear())"),
    ('logger.info("skipped %s", one)', 'logger.info("skipped %s", tasks.pop())'),
    ('logger.info("skipped %s", one)', "print(x := [])"),
    ('logger.info("skipped %s", one)', 'logger.info(f"{tasks.clear()}")'),
    ('logger.info("skipped %s", one)', "logger.info(model.weights)"),
    ('logger.info("skipped %s", one)', 'logger.addFilter("skipped")'),
    ('logger.info("skipped %s", one)', 'warnings.simplefilter("error")'),
    ('logger.info("skipped %s", one)', 'logging.disable("x")'),
    ('"""Load all tasks."""', f'f"""{{{EVIL}}}"""'),
    ('"""Load all tasks."""', "tasks.clear()"),
    ('"no tasks"', EVIL),
    ("assert tasks,", "assert tasks.clear(),"),
    ('ValueError("nothing to load")', f"ValueError({EVIL})"),
    ('ValueError("nothing to load")', 'SystemExit("nothing to load")'),
    ('ValueError("nothing to load")', "ValueError(tasks.clear())"),
    ('raise ValueError("nothing to load")', 'raise ValueError("nothing to load") from None'),
    # Type checking.
    ("if TYPE_CHECKING:\n    from megatron.core import Model", f"if not TYPE_CHECKING:\n    {EVIL}"),
    ("if TYPE_CHECKING:\n    from megatron.core import Model", f"if TYPE_CHECKING or {EVIL}:\n    import x"),
    ("if TYPE_CHECKING:\n    from megatron.core import Model", f"if TYPE_CHECKING:\n    import x\nelse:\n    {EVIL}"),
    ("from typing import TYPE_CHECKING", "from .names import first as TYPE_CHECKING"),
    ("logger = logging", "TYPE_CHECKING = True\nlogger = logging"),
    ('        """Load all tasks."""', "        if TYPE_CHECKING:\n            import torch"),
    # Imports.
    ("import torch\n", ""),
    ("import torch\n", "import evil as torch\n"),
    ("from . import names", "from .. import names"),
    ("import first, second", "import first as second, second as first"),
    ("from .names import third as fourth", "from .names import second as fourth"),
    ("from .names import third as fourth", "from ..names import third as fourth"),
    ("except ImportError", "except ValueError"),
    (
        "try:\n    from megatron.core import fused\nexcept ImportError:\n    fused = None",
        "from megatron.core import fused",
    ),
    ("from __future__ import annotations\n", ""),
    ("import logging\n", "import evil\nimport logging\n"),
    ("import logging\n", "import logging, antigravity\n"),
    ("from .names import first, second", "from .names import first, second, missing"),
    ("from .names import first, second", "from .names import *"),
    # Code at import that nothing mentions.
    ("LIMIT = 3", f"LIMIT = 3\n_unread = {EVIL}"),
    ("LIMIT = 3", f"LIMIT = 3\n_unread: {EVIL}"),
    ("LIMIT = 3", "LIMIT = 3\ndel logging"),
    ("LIMIT = 3", "LIMIT = 3\nimport sys\nsys.modules['torch'] = None"),
    ("LIMIT = 3", "LIMIT = 3\nfor torch in ():\n    pass"),
    ("LIMIT = 3", "LIMIT = 3\ntorch = None"),
    ("LIMIT = 3", "LIMIT = 3\n__getattr__ = None"),
    ("LIMIT = 3", "LIMIT = 3\nprint = None"),
    ("LIMIT = 3", f"LIMIT = 3\nassert 1, {EVIL}\nassert {EVIL}"),
    ("LIMIT = 3", "LIMIT = missing"),
    ("limit=LIMIT", f"limit={EVIL}"),
    ("limit=LIMIT", "limit=missing"),
    ("def task", f"@{EVIL}\ndef task"),
    ("def task", f"@overload\ndef task(x={EVIL}): ...\n\n\ndef task"),
    ("def task(x, limit=LIMIT):\n", "def task(x, limit=LIMIT):\n    nonlocal nowhere\n"),
    ("    return x\n", "    return x\n\n\nreturn\n"),
    ("    return x\n", "    return x\n\n\ndef twice(x, x): ...\n"),
    # Classes.
    ("class Bridge:", f"class Bridge({EVIL}):"),
    ("class Bridge:", f"class Bridge(metaclass={EVIL}):"),
    ("class Bridge:", f"@{EVIL}\nclass Bridge:"),
    ("    class Inner:", f"    class Inner({EVIL}):"),
    ("    class Inner:", f"    @{EVIL}\n    class Inner:"),
    ("        size = 1", f"        size = {EVIL}"),
    ('    name = "bridge"', f'    name = "bridge"\n    other = {EVIL}'),
    ('    name = "bridge"', f'    name = "bridge"\n    other: {EVIL} = 1'),
    ('    name = "bridge"', f'    name = "bridge"\n    def unread(self, x={EVIL}): ...'),
    ('    name = "bridge"', f'    name = "bridge"\n    def __init_subclass__(cls): {EVIL}'),
    ("    @staticmethod\n", ""),
    ("    @staticmethod\n", "    @classmethod\n"),
    ("    dim: int = 8", "    rank: int = 8"),
    ("    dim: int = 8", "    dim: int = []"),
    ("    dim: int = 8", "    dim: int"),
    ("    alpha: int = 16", "    alpha: int = 16\n    needed: int"),
    ("    dim: int = 8", "    dim: ClassVar[int] = 8"),
    ("@dataclass\n", "@dataclass(frozen=True)\n"),
    # What Python does not compile, or reads otherwise.
    ("LIMIT = 3", "LIMIT = (3"),
    ('"""The bridge."""', "# -*- coding: utf-16 -*-"),
    ("LIMIT = 3", "LIMIT = " + "+".join(["a"] * 3000)),
    ("LIMIT = 3", "LIMIT = 3 # \0"),
)


@pytest.mark.parametrize(("old", "new"), IN_CORE)
def test_an_edit_of_a_reached_module_is_never_nothing(old: str, new: str) -> None:
    assert 0 in levels(edited(CORE, old, new))


TREES: tuple[Mapping[str, str | bytes | None], ...] = (
    {f"{TOP}models/conversion/model_bridge/__init__.py": LinkTo("../../../../../../docs/x.md")},
    {f"{TOP}models/conversion/model_bridge": LinkTo("../../../../../docs")},
    {CORE: LinkTo("../../../../../docs/x.md")},
    {CORE: LinkTo("../../../../../tools/moved.py"), "tools/moved.py": BASE[CORE]},
    {f"{TOP}recipes/link.py": LinkTo("../../../../docs/x.md")},
    {f"{TOP}models/conversion/model_bridge/__init__.py": "raise SystemExit\n"},
    {f"{TOP}models/conversion/model_bridge.so": b"\x7fELF"},
    {f"{TOP}models/conversion/model_bridge.cpython-312-x86_64-linux-gnu.so": b"\x7fELF"},
    {f"{TOP}__pycache__/__init__.cpython-312.pyc": b"\x00"},
    {f"{TOP}recipes/__pycache__/one.cpython-312.pyc": b"\x00"},
    {"src/sitecustomize.py": "raise SystemExit\n"},
    {"src/usercustomize.py": ""},
    {"src/torch.py": ""},
    {"src/torch/__init__.py": ""},
    {"src/evil.pth": "import os\n"},
    {"src/megatron/__init__.py": ""},
    {"src/megatron/core/__init__.py": ""},
    {"src": LinkTo("docs")},
    {".gitattributes": "*.py working-tree-encoding=UTF-16\n"},
    {f"{TOP}diffusion/.gitattributes": "*.py ident\n"},
    {"src/.gitattributes": "*.py filter=evil\n"},
    {".gitmodules": '[submodule "x"]\n'},
    {".lfsconfig": "[lfs]\n"},
    {".unheard-of": ""},
    {"setup.py": ""},
    {"conftest.py": ""},
    {"sitecustomize.py": ""},
    {CORE: None, "examples/model_bridge.py": BASE[CORE]},
    {f"{TOP}models/__init__.py": None},
    {
        f"{TOP}tests/__init__.py": "raise SystemExit\n",
        **edited(INIT, "import megatron.bridge.models\n", "from .tests import *\n"),
    },
    {
        f"{TOP}models/conversion/tools/__init__.py": "raise SystemExit\n",
        **edited(CORE, "import names", "import names, tools"),
    },
    {
        f"{TOP}tools/__init__.py": "exit(1)\n",
        **edited(LORA, "import dataclass\n", "import dataclass\nimport megatron.bridge.tools\n"),
    },
    {ASIDE: "def f(:\n"},
    {ASIDE: b"\xff\xfe\x00"},
    {ASIDE: "import missing\n"},
    {ASIDE: "STEPS = " + "-" * 100_000 + "1\n"},
    {ASIDE: None},
    edited(ASIDE, "STEPS = 3", "STEPS = exit(1)"),
    edited(ASIDE, "def sample():", "def sample(x=exit(1)):"),
    edited(ASIDE, "STEPS = 3", "STEPS = 3\n\n\ndef run():\n    exit(1)\n\n\nDONE = run()"),
    edited(INIT, "import megatron.bridge.models\n", ""),
    edited(INIT, "from megatron.bridge.peft.lora import LoRA\n", ""),
    edited(INIT, "import Bridge\n", "import Settings as Bridge\n"),
    edited(
        CORE, "from . import names\n", "from .names import last\nfrom . import names\n\n\ndef last(x):\n    return x\n"
    ),
    edited(f"{TOP}models/conversion/names.py", "def third(x):\n    return x\n", ""),
    {
        f"{TOP}models/conversion/names.py": "import megatron.bridge.models.conversion.model_bridge\n"
        + str(BASE[f"{TOP}models/conversion/names.py"])
    },
    edited(INIT, "import megatron.bridge.models\n", "import megatron.bridge.recipes.one\n"),
    edited(LORA, "dim: int", "rank: int"),
    edited(CORE, "LIMIT = 3", "LIMIT = 3\nUNREAD = 4"),
    edited(CORE, "class Bridge:", "def unread(x, y=None):\n    return exit(1)\n\n\nclass Bridge:"),
    edited(CORE, "model: Model", "model: 'Model | None'"),
    edited(LORA, "-> int", "-> missing"),
    edited(LORA, "x: int = 1", "x: missing = 1"),
    edited("pyproject.toml", 'where = ["src"]', 'where = ["docs"]'),
    edited("pyproject.toml", '"setuptools"', '"evil"'),
    edited("pyproject.toml", "[tool.ruff]", '[project.scripts]\nx = "y:z"\n\n[tool.ruff]'),
)


@pytest.mark.parametrize("new", TREES, ids=lambda new: next(iter(new)))
def test_what_a_tree_does_to_the_sources_is_never_nothing(new: Mapping[str, str | bytes | None]) -> None:
    assert 0 in levels(new)


NAMES = f"{TOP}models/conversion/names.py"
EXTRA = f"{TOP}models/conversion/extra.py"


@pytest.mark.parametrize(
    ("base", "head"),
    (
        ({EXTRA: "try:\n    from .names import fifth\nexcept ImportError:\n    fifth = None\n"}, "def fifth(): ...\n"),
        ({EXTRA: "fifth = None\n"}, "def fifth(): ...\n"),
        ({EXTRA: "from .names import *\n"}, "def fifth(): ...\n"),
        ({EXTRA: "from .names import *\n"}, "__all__ = ['first']\n"),
        ({EXTRA: "from .names import first\n"}, "__all__ = ['first']\n"),
        ({EXTRA: "from typing import Any\n"}, "from typing import Any\n"),
        ({EXTRA: "if first:\n    from typing import Any\n"}, "from typing import Any\n"),
        ({EXTRA: "from other import Any\n"}, "from other import Any\n"),
        ({EXTRA: ""}, "import math\n"),
        ({EXTRA: "import math\n"}, "import math\n"),
    ),
)
def test_what_comes_at_import_is_never_nothing(base: Files, head: str) -> None:
    importing = edited(CORE, "from . import names\n", "from . import extra, names\n")
    old: Files = {**BASE, **importing, **base, NAMES: str(BASE[NAMES])}
    new: Files = {**old, NAMES: head + str(BASE[NAMES])}
    planner = Planner(FakeTrees({"base": old, "head": new}), USES, FakeSummaries())
    assert [int(level) for level in planner.plan("base", "head", POLICY).plan.levels] == [0]


@pytest.mark.parametrize("base", ("", "Plain", "Hooked", "foreign.Thing", "metaclass=Meta"))
def test_a_method_that_comes_is_never_nothing(base: str) -> None:
    text = (
        "import foreign\n\n\nclass Plain:\n    pass\n\n\nclass Hooked:\n    def __init_subclass__(cls): ...\n\n\n"
        f"class Meta(type):\n    pass\n\n\nclass Unread({base}):\n    size = 1\n"
    )
    importing = edited(CORE, "from . import names\n", "from . import extra, names\n")
    old: Files = {**BASE, **importing, EXTRA: text}
    new: Files = {**old, EXTRA: f"{text}\n    def unread(self):\n        return 1\n"}
    planner = Planner(FakeTrees({"base": old, "head": new}), USES, FakeSummaries())
    assert [int(level) for level in planner.plan("base", "head", POLICY).plan.levels] == [0]


def test_a_file_that_a_link_among_the_sources_leads_to_counts_as_source() -> None:
    linked: Files = {**BASE, f"{TOP}peft/extra.py": LinkTo("../../../../tools/run.py")}
    head: Files = {**linked, "tools/run.py": "exit(1)\n"}
    planner = Planner(FakeTrees({"base": linked, "head": head}), USES, FakeSummaries())
    made = planner.plan("base", "head", POLICY).plan
    assert [int(level) for level in made.levels] == [0]
    assert "links to tools/run.py" in made.reasons[0].reason


@pytest.mark.parametrize(
    ("old", "new"),
    (
        ("examples/fast.py", f"{TOP}diffusion/fast.py"),
        ("docs/fast.md", f"{TOP}diffusion/fast.py"),
        (f"{TOP}diffusion/fast.py", "docs/fast.md"),
        (f"{TOP}diffusion/fast.py", f"{TOP}recipes/fast.py"),
    ),
)
def test_a_rename_into_or_out_of_the_imported_sources_is_never_nothing(old: str, new: str) -> None:
    guarded = "try:\n    from megatron.bridge.diffusion import fast\nexcept ImportError:\n    fast = None\n"
    base: Files = {**BASE, ASIDE: guarded, old: "import os\n"}
    head: Files = {**{path: text for path, text in base.items() if path != old}, new: "import os\n"}
    planner = Planner(FakeTrees({"base": base, "head": head}, renames={old: new}), USES, FakeSummaries())
    assert 0 in [int(level) for level in planner.plan("base", "head", POLICY).plan.levels]


@pytest.mark.parametrize(
    "new",
    (
        edited(CORE, "LIMIT = 3", "LIMIT = 3  # three"),
        edited(CORE, '"""Load all tasks."""', '"""Loads them."""'),
        edited(CORE, '"""Loads weights."""', ""),
        edited(CORE, '"nothing to load"', '"no task was given"'),
        edited(CORE, '"no tasks"', '"none"'),
        edited(CORE, '"skipped %s"', '"left out %s"'),
        edited(CORE, "import Model", "import Model, Other"),
        edited(CORE, "settings = Settings()", "settings: Settings = Settings()"),
        edited(CORE, "    return x\n", "    return x + 1\n"),
        edited(ASIDE, "return STEPS", "return exit(1)"),
        edited(ASIDE, '"""Diffusion."""', '"""Diffusion models."""'),
        edited(f"{TOP}recipes/one.py", "return 1", "return exit(1)"),
        edited("pyproject.toml", "119", "120"),
        edited("README.md", "Bridge", "The Bridge"),
        edited("tools/run.py", "print(1)", "print(2)"),
        edited(".gitignore", "*.pyc", "*.pyo"),
        {f"{TOP}recipes/two.py": "exit(1)\n"},
        {"docs/link.md": LinkTo("x.md")},
    ),
    ids=lambda new: next(iter(new)),
)
def test_what_provably_changes_no_run_is_nothing(new: Mapping[str, str | bytes | None]) -> None:
    assert levels(new) == []
