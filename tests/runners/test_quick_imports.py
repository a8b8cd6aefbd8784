"""Quicker imports inside real Python processes: what they find and raise is what they would find and raise without."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from verl_e2e.core.model.record import QUICK_VARIABLE
from verl_e2e_runner.verl_wrapper import INSTRUMENTATION

USUAL = "import gc; print(gc.get_threshold())\n"


def python(code: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, (INSTRUMENTATION, folder)))
    environment = {"PYTHONPATH": path, "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **variables}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def both(code: str, folder: Path) -> tuple[str, str]:
    """What a program prints without and with quicker imports."""
    quick = {QUICK_VARIABLE: str(folder / "shared.json")}
    done = [python(code, folder, **variables) for variables in ({}, quick)]
    assert [item.returncode for item in done] == [0, 0], done
    return done[0].stdout, done[1].stdout


def modules(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


def test_frames_of_the_importer_have_no_module_and_nothing_is_searched_for_them(tmp_path: Path) -> None:
    """PyTorch asks `inspect` for the frames above each operator that a package registers."""
    inner = "import inspect\nFRAMES = [entry.frame for entry in inspect.stack()]\n"
    modules(tmp_path, {"outer": "import inner\n", "inner": inner})
    code = (
        "import inspect, sys, types\n"
        "looks = []\n"
        "class Watched(types.ModuleType):\n"
        "    @property\n"
        "    def __file__(self):\n"
        "        looks.append(1)\n"
        "        return '/nowhere/watched.py'\n"
        "sys.modules['watched'] = Watched('watched')\n"
        "import outer, inner\n"
        "found = [inspect.getmodule(frame, frame.f_code.co_filename) for frame in inner.FRAMES]\n"
        "print([module.__name__ for module in found if module], None in found)\n"
        "looks.clear()\n"
        "frozen = [frame for frame in inner.FRAMES if frame.f_code.co_filename.startswith('<frozen')]\n"
        "infos = [inspect.getframeinfo(frame) for frame in frozen]\n"
        "print(len(infos) > 5, len(looks) > 0)\n"
    )
    without, quick = both(code, tmp_path)
    assert without.splitlines()[0] == quick.splitlines()[0]
    assert quick.startswith("['inner', 'outer'] True")
    assert [text.splitlines()[1] for text in (without, quick)] == ["True True", "True False"]


def test_which_package_brings_which_module_is_found_out_once_for_one_search_path(tmp_path: Path) -> None:
    info = tmp_path / "thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    (info / "RECORD").write_text("thing_module/__init__.py,,\n")
    code = (
        "import json\nfrom importlib.metadata import packages_distributions\n"
        "print(json.dumps(packages_distributions(), sort_keys=True))"
    )
    without, quick = both(code, tmp_path)
    assert json.loads(quick) == json.loads(without)
    assert json.loads(quick)["thing_module"] == ["thing"]
    shared = tmp_path / "shared.json"
    written = json.loads(shared.read_text())
    shared.write_text(json.dumps({**written, "found": {"seen": ["in the file"]}}))
    assert json.loads(both(code, tmp_path)[1]) == {"seen": ["in the file"]}
    other = python(f"import sys; sys.path.append('/nowhere')\n{code}", tmp_path, **{QUICK_VARIABLE: str(shared)})
    assert json.loads(other.stdout) == json.loads(without)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"key": 1, "found": {}}', "\ud800"])
def test_an_answer_that_cannot_be_read_or_written_is_found_out_again(content: str, tmp_path: Path) -> None:
    code = "from importlib.metadata import packages_distributions\nprint(sorted(packages_distributions().items()))"
    places = [tmp_path / "shared.json", tmp_path / "no/folder.json"]
    places[0].write_bytes(content.encode("utf-8", "surrogatepass"))
    seen = [python(code, tmp_path, **given) for given in ({}, *({QUICK_VARIABLE: str(place)} for place in places))]
    assert [item.returncode for item in seen] == [0, 0, 0]
    assert len({item.stdout for item in seen}) == 1


def test_garbage_is_collected_less_often_only_while_modules_are_imported(tmp_path: Path) -> None:
    modules(tmp_path, {"inner": USUAL, "outer": f"import inner\n{USUAL}"})
    code = f"{USUAL}import outer\n{USUAL}import importlib; importlib.import_module('inner')\n{USUAL}"
    without, quick = both(code, tmp_path)
    usual = without.splitlines()[0]
    assert set(without.splitlines()) == {usual}
    shown = quick.splitlines()
    assert (shown[0], shown[1], shown[2], *shown[3:]) == (usual, shown[2], shown[1], usual, usual)
    assert shown[1].startswith("(200000, ")


def test_what_a_module_asks_of_the_collector_stays(tmp_path: Path) -> None:
    modules(tmp_path, {"sets": "import gc; gc.set_threshold(5000, 3, 3)\n", "stops": "import gc; gc.disable()\n"})
    code = f"import sets\n{USUAL}import stops\n{USUAL}print(gc.isenabled())\ngc.set_threshold(0)\nimport wave\n{USUAL}"
    without, quick = both(code, tmp_path)
    assert without == quick
    assert quick.splitlines()[0].startswith("(5000, 3")


def test_a_failed_import_reads_and_leaves_things_as_it_would_without(tmp_path: Path) -> None:
    modules(tmp_path, {"outer": "import inner\n", "inner": "import nothing_of_that_name\n", "broken": "1 / 0\n"})
    code = (
        "import traceback\n"
        "for name in ('outer', 'broken', 'nothing_at_all'):\n"
        "    try:\n"
        "        __import__(name)\n"
        "    except Exception:\n"
        "        traceback.print_exc(file=__import__('sys').stdout)\n" + USUAL
    )
    without, quick = both(code, tmp_path)
    assert without == quick
    assert "ZeroDivisionError" in quick


def test_other_threads_and_warnings_are_as_without(tmp_path: Path) -> None:
    threaded = f"import threading\nthread = threading.Thread(target=lambda: __import__('other'))\n{USUAL}"
    modules(tmp_path, {"other": USUAL, "warns": "import warnings; warnings.warn('here', stacklevel=2)\n"})
    code = f"{threaded}thread.start(); thread.join()\nimport warnings\nwarnings.simplefilter('always')\nimport warns\n"
    quick = python(code, tmp_path, **{QUICK_VARIABLE: str(tmp_path / "shared.json")})
    without = python(code, tmp_path)
    assert (quick.returncode, quick.stdout, quick.stderr) == (0, without.stdout, without.stderr)
    assert "<string>:" in quick.stderr
