"""The import instrumentation inside real Python processes: a namespace package over two roots, chained and harmless."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from verl_e2e_runner.launch.launcher import INSTRUMENTATION


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Bridge, Megatron-LM and verl as importable trees."""
    files = {
        "bridge/megatron/bridge/__init__.py": "import megatron.core\n",
        "core/megatron/core/__init__.py": "",
        "verl/verl/__init__.py": "import sys\nSEEN = [type(finder).__name__ for finder in sys.meta_path]\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "bridge", tmp_path / "core", tmp_path / "verl"


def python(code: str, *path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": os.pathsep.join(map(str, path)), "PATH": os.environ["PATH"], **variables}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def lines(file: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_each_process_writes_one_line_for_each_module(roots: tuple[Path, ...], tmp_path: Path) -> None:
    record = tmp_path / "imports.jsonl"
    code = (
        "import subprocess, sys, megatron.bridge, verl, verl\n"
        "subprocess.run([sys.executable, '-c', 'import megatron.core'], check=True)\n"
        "print(verl.__file__, megatron.core.__spec__.name)"
    )
    done = python(code, INSTRUMENTATION, *roots, VERL_E2E_IMPORTS=str(record))
    assert done.returncode == 0, done.stderr
    found = lines(record)
    bridge, core, verl = roots
    files = {
        "megatron.bridge": str(bridge / "megatron/bridge/__init__.py"),
        "megatron.core": str(core / "megatron/core/__init__.py"),
        "verl": str(verl / "verl/__init__.py"),
    }
    assert [(line["module"], line["file"]) for line in found] == [
        (name, files[name]) for name in ("megatron.bridge", "megatron.core", "verl", "megatron.core")
    ]
    assert len({line["pid"] for line in found}) == 2
    assert {line["role"] for line in found} == {"run"}
    assert "python" in found[0]["process"]
    assert done.stdout.split()[0] == files["verl"]


def test_looking_for_a_module_without_importing_it_writes_nothing(roots: tuple[Path, ...], tmp_path: Path) -> None:
    record = tmp_path / "imports.jsonl"
    done = python(
        "import importlib.util as u; print(u.find_spec('verl').name)",
        INSTRUMENTATION,
        *roots,
        VERL_E2E_IMPORTS=str(record),
    )
    assert done.stdout.strip() == "verl"
    assert lines(record) == []


@pytest.mark.parametrize("where", ["/nowhere/at/all.jsonl", "", None])
def test_a_record_that_cannot_be_written_changes_nothing(where: str | None, roots: tuple[Path, ...]) -> None:
    variables = {} if where is None else {"VERL_E2E_IMPORTS": where}
    done = python("import megatron.bridge, verl; print('fine')", INSTRUMENTATION, *roots, **variables)
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)


def test_a_missing_module_fails_as_it_would_without_the_probe(tmp_path: Path) -> None:
    done = python("import verl", INSTRUMENTATION, VERL_E2E_IMPORTS=str(tmp_path / "imports.jsonl"))
    assert "ModuleNotFoundError: No module named 'verl'" in done.stderr
    assert lines(tmp_path / "imports.jsonl") == []


def test_the_images_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.OF_THE_IMAGE = __file__\nNAME = 1\n")
    code = "import sitecustomize; print(OF_THE_IMAGE, sitecustomize.NAME)"
    done = python(code, INSTRUMENTATION, tmp_path, VERL_E2E_IMPORTS=str(tmp_path / "imports.jsonl"))
    assert done.stdout.split() == [str(tmp_path / "sitecustomize.py"), "1"]


def test_what_a_wrapper_puts_first_does_not_hide_the_checkouts(roots: tuple[Path, ...], tmp_path: Path) -> None:
    baked = tmp_path / "workspace"
    (baked / "megatron/core").mkdir(parents=True)
    (baked / "megatron/core/__init__.py").write_text("")
    wanted = os.pathsep.join(map(str, (INSTRUMENTATION, *roots)))
    code = "import megatron.core; print(megatron.core.__file__)"
    hidden = python(code, baked, INSTRUMENTATION, *roots)
    assert hidden.stdout.strip() == str(baked / "megatron/core/__init__.py")
    restored = python(code, baked, INSTRUMENTATION, *roots, VERL_E2E_PATH=wanted)
    assert restored.stdout.strip() == str(roots[1] / "megatron/core/__init__.py")


def test_a_loader_of_another_finder_is_observed_too(tmp_path: Path) -> None:
    """An editable installation brings a finder of its own; so does a zip file."""
    import zipfile

    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("verl/__init__.py", "VALUE = 3\n")
    record = tmp_path / "imports.jsonl"
    done = python(
        "import verl; print(verl.VALUE)", INSTRUMENTATION, tmp_path / "packed.zip", VERL_E2E_IMPORTS=str(record)
    )
    assert done.stdout == "3\n"
    assert [line["file"] for line in lines(record)] == [str(tmp_path / "packed.zip/verl/__init__.py")]
