"""Where the fault of a failed import lies: each way in which an import can fail between trees and host."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from verl_e2e.core.model.outcome import Attribution
from verl_e2e_runner.launch.launcher import INSTRUMENTATION
from verl_e2e_runner.preflight.imports import ImportFault, ImportRecord, _Prover, import_fault
from verl_e2e_runner.trees import Trees

TREES, UNDECIDED, HOST = Attribution.TREES, Attribution.UNDECIDED, Attribution.HOST
BRIDGE, CORE = "bridge/src/megatron/bridge", "core/megatron/core"
FILES = {
    f"{CORE}/__init__.py": "",
    f"{CORE}/utils.py": "def kept(): ...\n__all__ = ['kept', 'listed']  # also gone_name, once\n",
    f"{CORE}/optional.py": "try:\n    import te_of_the_image\n    Linear = 1\nexcept ImportError:\n    pass\n",
    f"{CORE}/lazy.py": "def __getattr__(name):\n    raise AttributeError(name)\n",
    f"{CORE}/few.py": "def kept(): ...\n",
    f"{CORE}/star.py": "from megatron.core.few import *\n",
    f"{CORE}/cut.py": "x = '''\n" + "y = 1\n",
    f"{CORE}/first.py": "import megatron.core.second\ndef late(): ...\n",
    f"{CORE}/second.py": "from megatron.core.first import late\n",
    f"{CORE}/datasets/__init__.py": "",
    f"{CORE}/datasets/helpers.cpp": "",
    f"{CORE}/plain/module.py": "",
    f"{CORE}/.venv/lib/site-packages/other.py": "from megatron.core.utils import gone_name\n",
    f"{BRIDGE}/__init__.py": "",
    "verl/verl/__init__.py": "",
    "site/thirdparty.py": "from megatron.core.utils import gone_name\n",
    "site/energon_user.py": "import megatron.energon\n",
}
IMPORTS = """
import json, sys
from verl_e2e_imports import prove
(line,) = prove("driver", None, [sys.argv[1]])
print(json.dumps(line))
"""


def trees_in(root: Path) -> Trees:
    return Trees(root / "bridge", root / "core", root / "verl", root)


def fault_of(record: dict[str, object], root: Path) -> ImportFault:
    return import_fault(ImportRecord.model_validate(record), trees_in(root))


def record_of(root: Path, module: str, **files: str) -> dict[str, object]:
    """What the import proof writes when a process imports the module with these files in the trees."""
    for name, text in {**FILES, **files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    path = [str(INSTRUMENTATION), *(str(root / name) for name in ("bridge/src", "core", "verl", "site"))]
    path.append(str(root / CORE / ".venv/lib/site-packages"))
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, module],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(path)},
    )
    record: dict[str, object] = json.loads(done.stdout)
    assert "error" in record
    return record


@pytest.mark.parametrize(
    ("line", "attribution", "asked"),
    [
        ("import megatron.core.gone", TREES, "megatron.core.gone"),
        ("import megatron.core.plain.gone", TREES, "megatron.core.plain.gone"),
        ("from megatron.core import gone_part", TREES, "megatron.core.gone_part"),
        ("from megatron.core.utils import gone_name", TREES, "megatron.core.utils.gone_name"),
        ("from megatron.core.utils import listed", TREES, "megatron.core.utils.listed"),
        ("import megatron.core.utils as u; u.gone_name", TREES, "megatron.core.utils.gone_name"),
        ("import megatron.core.first", TREES, "megatron.core.first.late"),
        # What a package or a compiler of the host may give.
        ("from megatron.core.optional import Linear", UNDECIDED, "megatron.core.optional.Linear"),
        ("from megatron.core.lazy import anything", UNDECIDED, "megatron.core.lazy.anything"),
        ("from megatron.core.star import gone_name", UNDECIDED, "megatron.core.star.gone_name"),
        ("from megatron.core.datasets import helpers_cpp", UNDECIDED, "megatron.core.datasets.helpers_cpp"),
        ("from megatron.core.datasets import anything", UNDECIDED, "megatron.core.datasets.anything"),
        ("import megatron.core.datasets.helpers", UNDECIDED, "megatron.core.datasets.helpers"),
        ("import megatron.core.fused_cuda", UNDECIDED, "megatron.core.fused_cuda"),
        ("import package_of_the_image", UNDECIDED, "package_of_the_image"),
        ("import energon_user", UNDECIDED, "megatron.energon"),
        ("import thirdparty", UNDECIDED, "megatron.core.utils.gone_name"),
        ("import other", UNDECIDED, "megatron.core.utils.gone_name"),
        ("raise ImportError('no fused kernels here')", UNDECIDED, "ImportError: no fused kernels here"),
        (
            "try:\n    import flash_of_the_image\nexcept ImportError:\n    import megatron.core.gone",
            UNDECIDED,
            "flash_of_the_image",
        ),
    ],
)
def test_an_import_that_fails_in_bridge(line: str, attribution: Attribution, asked: str, tmp_path: Path) -> None:
    record = record_of(tmp_path, "megatron.bridge", **{f"{BRIDGE}/__init__.py": line + "\n"})
    fault = fault_of(record, tmp_path)
    assert fault.attribution is attribution
    assert fault.fingerprint.endswith(f" imports {asked}")
    assert str(tmp_path) not in fault.fingerprint


@pytest.mark.parametrize(
    ("line", "attribution"),
    [
        ("import megatron.bridge.gone", UNDECIDED),
        ("from megatron.core.utils import gone_name", UNDECIDED),
        ("import package_of_the_image", HOST),
        ("import verl.gone", HOST),
        ("import energon_user", HOST),
    ],
)
def test_an_import_that_fails_in_verl(line: str, attribution: Attribution, tmp_path: Path) -> None:
    record = record_of(tmp_path, "verl", **{"verl/verl/__init__.py": line + "\n"})
    fault = fault_of(record, tmp_path)
    assert fault.attribution is attribution
    assert bool(fault.fingerprint) == (attribution is UNDECIDED)


def test_a_module_whose_source_cannot_be_read_as_python_decides_nothing(tmp_path: Path) -> None:
    record = record_of(tmp_path, "megatron.bridge", **{f"{BRIDGE}/__init__.py": "import megatron.core.gone\n"})
    cut = {
        **record,
        "asked_module": "megatron.core.cut",
        "asked_name": "x",
        "asked_file": str(tmp_path / CORE / "cut.py"),
    }
    assert fault_of(cut, tmp_path).attribution is UNDECIDED
    gone = {**cut, "asked_file": str(tmp_path / CORE / "nowhere.py")}
    assert fault_of(gone, tmp_path).attribution is UNDECIDED


ODD = {
    "from": "from a\n",
    "import": "import\n",
    "def": "def\n",
    "texts": "x = '''\n" * 40_001,
    "parentheses": "x = (" + "(\n" * 100_000,
    "null": "\0",
    "continued": "x = \\",
    "too large": "x = " + "1" * 600_000,
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_no_source_of_the_trees_stops_the_recorder(text: str, tmp_path: Path) -> None:
    files = {f"{BRIDGE}/__init__.py": "import megatron.core.gone\n", f"{CORE}/odd.py": text}
    record = record_of(tmp_path, "megatron.bridge", **files)
    asked = {"asked_module": "megatron.core.odd", "asked_name": "zz", "asked_file": str(tmp_path / CORE / "odd.py")}
    found = fault_of({**record, **asked}, tmp_path).attribution
    # Of a source that is not read whole nothing is known.
    assert found is UNDECIDED if len(text) > 512 << 10 else found in (UNDECIDED, TREES)


def test_a_record_cannot_make_the_recorder_look_outside_the_trees(tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("")
    record = record_of(tmp_path, "megatron.bridge", **{f"{BRIDGE}/__init__.py": "import megatron.core.gone\n"})
    (tmp_path / "core" / "link.py").symlink_to(tmp_path / "secret.py")
    for file in (f"{tmp_path}/core/../secret.py", f"{tmp_path}/secret.py", f"{tmp_path}/core/link.py", "\0"):
        forged = {**record, "asked_module": "megatron.core.x", "asked_name": "x", "asked_file": file}
        assert fault_of(forged, tmp_path).attribution is UNDECIDED
    nothing = fault_of(
        {"module": "verl", "file": "", "role": "driver", "pid": 1, "process": "", "error": "KeyError: x"}, tmp_path
    )
    assert nothing == ImportFault(HOST)


PLAIN = {"module": "verl", "file": "/v.py", "role": "driver", "pid": 7, "process": "p"}


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "[" * 100_000,
        json.dumps({**PLAIN, "role": "run"}),
        json.dumps({**PLAIN, "pid": None}),
        json.dumps({**PLAIN, "module": "torch"}),
        json.dumps({**PLAIN, "error": 1}),
        json.dumps({**PLAIN, "module": "ray"}),
        json.dumps({name: value for name, value in PLAIN.items() if name != "file"}),
    ],
    ids=["list", "deep", "role", "pid", "module", "error", "ray without an error", "no file"],
)
def test_a_line_that_the_proof_does_not_write_is_none(line: str, tmp_path: Path) -> None:
    file = tmp_path / "imports.jsonl"
    file.write_text(f"{line}\n{json.dumps(PLAIN)}\n{line}")
    prover = _Prover("driver", cast("Any", None), file)
    assert prover.records() == [ImportRecord.model_validate(PLAIN)]
