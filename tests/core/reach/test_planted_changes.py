"""Changes of a small package that alter what a run gives: none is called idle."""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.core.reach.programs import effects

ENTRY = ("pkg", "main")
REGISTRY = "KINDS = {}\n\n\ndef register(kind):\n    KINDS[kind.__name__] = kind\n    return kind\n"
KIND = "from pkg.registry import register\n\n\n@register\ndef kind():\n    return 1\n"
CONF = "class Conf:\n    limit = 5\n    _limit = 6\n    bound = 7\n"
LOAD = "def main():\n    from pkg.load import load\n\n    return load()\n"
SPARE = "\n\ndef spare():\n    return 3\n"
BY_TEXT = (
    "import importlib\n\nNAMED = {}\n\n\ndef load():\n    return hasattr(importlib.import_module(NAMED[0]), NAMED[1])\n"
)
LISTED = "import inspect\n\nimport pkg.lib\n\n\ndef load():\n    return sorted(name for name, _ in {})\n"
OWN = "def main():\n    return sorted(name for name in {} if name[:1] != '_')\n"
FROM_CONF = "def {0}():\n    return 3\n\n\ndef main():\n    from pkg.conf import Conf\n\n    return {1}\n"
STEPS = "class Base:\n    def {0}(self):\n        return 1\n\n    def run(self):\n        return self.{0}()\n\n\n"
OVERRIDING = "from pkg.lib import Base\n\n\nclass Own(Base):\n    def step(self):\n        return 2\n"
RUN_OWN = "def main():\n    from pkg.own import Own\n\n    return Own().run()\n"
KINDS_HERE = "from pkg import registry\n\n\ndef main():\n    return sorted(registry.KINDS)\n"

UNUSED = "\n\ndef unused():\n    import pkg.late\n\n\nTABLE = [unused]\n"
LAZY = "one = 1\n\n\ndef __getattr__(name):\n    from pkg import kinds\n\n    return kinds.kind\n"

Edit = tuple[Mapping[str, str], Mapping[str, str | None]]

# Files, and those that change; every package has an `__init__` that imports `main` from `lib`.
ALTERING: Mapping[str, Edit] = {
    "an attribute has the name that a function gives up": (
        {"lib": FROM_CONF.format("limit", "Conf().limit"), "conf": CONF},
        {"lib": FROM_CONF.format("bound", "Conf().bound")},
    ),
    "a text has the name that a function gives up": (
        {"lib": FROM_CONF.format("limit", "getattr(Conf(), 'limit')"), "conf": CONF},
        {"lib": FROM_CONF.format("_limit", "getattr(Conf(), '_limit')")},
    ),
    "a subclass elsewhere overrides the method that gets a private name": (
        {"lib": STEPS.format("step") + RUN_OWN, "own": OVERRIDING},
        {"lib": STEPS.format("_step") + RUN_OWN},
    ),
    "the only import of a module that registers goes": (
        {"lib": f"from pkg import kinds\n{KINDS_HERE}", "registry": REGISTRY, "kinds": KIND},
        {"lib": KINDS_HERE},
    ),
    "one of two modules of a package is imported no more": (
        {
            "lib": f"from pkg.models import one, two\n{KINDS_HERE}",
            "models/__init__": "",
            "models/one": "",
            "models/two": KIND,
            "registry": REGISTRY,
        },
        {"lib": f"from pkg.models import one\n{KINDS_HERE}"},
    ),
    "a name goes whose package loads a module for it": (
        {
            "lib": f"from pkg.models import one, two\n{KINDS_HERE}",
            "models/__init__": LAZY,
            "kinds": KIND,
            "registry": REGISTRY,
        },
        {"lib": f"from pkg.models import one\n{KINDS_HERE}"},
    ),
    "an import comes that only a function that does not run has": (
        {
            "lib": f"from pkg.models import one\n{KINDS_HERE}{UNUSED}",
            "late": "from pkg.models import two\n",
            "models/__init__": "",
            "models/one": "",
            "models/two": KIND,
            "registry": REGISTRY,
        },
        {"lib": f"from pkg.models import one, two\n{KINDS_HERE}{UNUSED}"},
    ),
    "a text names the function that goes": (
        {"lib": LOAD + SPARE, "load": BY_TEXT.format("'pkg.lib.spare'.rsplit('.', 1)")},
        {"lib": LOAD},
    ),
    "a text names the function that comes": (
        {"lib": LOAD, "load": BY_TEXT.format("'pkg.lib.spare'.rsplit('.', 1)")},
        {"lib": LOAD + SPARE},
    ),
    "a text names the module, and another one the function": (
        {"lib": LOAD + SPARE, "load": BY_TEXT.format("dict(enumerate(['pkg.lib', 'spare']))")},
        {"lib": LOAD},
    ),
    "the members of the module are listed": (
        {"lib": LOAD, "load": LISTED.format("inspect.getmembers(pkg.lib)")},
        {"lib": LOAD + SPARE},
    ),
    "the module's dictionary is read": (
        {"lib": LOAD, "load": LISTED.format("pkg.lib.__dict__.items()")},
        {"lib": LOAD + "\n\nLIMIT = 3\n"},
    ),
    "the file lists its own names": ({"lib": OWN.format("globals()")}, {"lib": OWN.format("globals()") + SPARE}),
    "the file finds itself among the modules": (
        {"lib": "import sys\n\n\n" + OWN.format("vars(sys.modules[__name__])")},
        {"lib": "import sys\n\n\n" + OWN.format("vars(sys.modules[__name__])") + SPARE},
    ),
    "the file lists its names while it is imported": (
        {"lib": OWN.format("NAMES") + "\n\nNAMES = dir()\n"},
        {"lib": OWN.format("NAMES") + SPARE + "\n\nNAMES = dir()\n"},
    ),
    "the file asks for one of its names": (
        {"lib": OWN.format("[name for name in map('make_{}'.format, 'ab') if name in globals()]")},
        {
            "lib": OWN.format("[name for name in map('make_{}'.format, 'ab') if name in globals()]")
            + "\n\ndef make_a():\n    return 1\n"
        },
    ),
}


def files_of(given: Mapping[str, str | None]) -> dict[str, str | None]:
    return {f"src/pkg/{name}.py": text for name, text in given.items()}


def given_by(files: Mapping[str, str], folder: Path) -> str:
    """What the package gives, or how it fails."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    root = folder / "src"
    sys.path.insert(0, str(root))
    try:
        importlib.invalidate_caches()
        return repr(importlib.import_module("pkg").main())
    except Exception as error:
        return repr(error)
    finally:
        sys.path.remove(str(root))
        for name in [name for name in sys.modules if name.partition(".")[0] == "pkg"]:
            del sys.modules[name]


@pytest.mark.parametrize("what", ALTERING)
def test_a_change_that_alters_what_a_run_gives_is_planned(what: str, tmp_path: Path) -> None:
    files, edits = ALTERING[what]
    before = {path: text or "" for path, text in files_of({"__init__": "from pkg.lib import main\n", **files}).items()}
    changed = files_of(edits)
    after = {path: text for path, text in {**before, **changed}.items() if text is not None}
    assert given_by(before, tmp_path / "before") != given_by(after, tmp_path / "after")
    found = effects(before, changed, ENTRY)
    # A newly imported name is for the rules to judge; what importing it does is judged here.
    kinds = {effect.kind for inside in found.paths.values() for effect in (*inside.effects, *inside.at_import)}
    assert kinds - {"imports"} or found.unread
