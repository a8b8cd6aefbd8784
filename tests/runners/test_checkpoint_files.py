"""What the first rank reads of a checkpoint's files, in real processes over stand-ins of PyTorch, verl and Bridge."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from verl_e2e.core.model.fingerprints import Point, Snapshot
from verl_e2e_runner.launch.launcher import INSTRUMENTATION

STAND_INS = Path(__file__).parent.parent / "fixtures" / "fingerprints"
FIRST_RANK = "import torch; torch.distributed.get_rank = lambda: 0\n"
ENGINE = """
from verl.workers.engine.megatron.transformer_impl import MegatronEngineWithLMHead
engine = MegatronEngineWithLMHead()
"""
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of two tensors in two files, with its index."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_file({EMBEDDING: np.arange(6, dtype=np.float32).reshape(3, 2)}, folder / "model-1.safetensors")
    save_file({HEAD: np.full(4, 2, np.float32), "spare": np.ones(1, np.float32)}, folder / "model-2.safetensors")
    index(folder, {EMBEDDING: "model-1.safetensors", HEAD: "model-2.safetensors"})
    return folder


def index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def process(code: str, out: Path) -> None:
    environment = {
        "PYTHONPATH": os.pathsep.join((str(INSTRUMENTATION), str(STAND_INS))),
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "VERL_E2E_FINGERPRINTS": str(out),
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def taken(out: Path) -> dict[Point, list[Snapshot]]:
    lines = (json.loads(line) for file in out.glob("*.jsonl") for line in file.read_text().splitlines())
    found: dict[Point, list[Snapshot]] = {}
    for line in lines:
        if line["kind"] == "snapshot":
            snapshot = Snapshot.model_validate(line)
            found.setdefault(snapshot.point, []).append(snapshot)
    return found


def of_files(checkpoint: Path, tmp_path: Path, setting: str = "") -> Snapshot:
    """The one snapshot of the files, in a run that imported the weights as without it."""
    code = f"{FIRST_RANK}{ENGINE}engine.local_path = {str(checkpoint)!r}\n{setting}\nengine.initialize()"
    process(code, tmp_path / "out")
    found = taken(tmp_path / "out")
    assert len(found[Point.WEIGHTS_IMPORTED]) == 1
    assert not found[Point.WEIGHTS_IMPORTED][0].problem
    (snapshot,) = found[Point.CHECKPOINT_FILE]
    return snapshot


def sums(snapshot: Snapshot) -> dict[str, float]:
    return {tensor.name: tensor.sum for tensor in snapshot.tensors}


def test_the_files_of_the_index_are_read(checkpoint: Path, tmp_path: Path) -> None:
    snapshot = of_files(checkpoint, tmp_path)
    assert sums(snapshot) == {EMBEDDING: 15, HEAD: 8}
    assert (snapshot.model, snapshot.ranks.rank, snapshot.problem, snapshot.left_out) == ("actor", 0, "", 0)
    (embedding, _) = snapshot.tensors
    assert (embedding.shape, embedding.dtype) == ((3, 2), "float32")


def test_all_files_are_read_without_an_index(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "model.safetensors.index.json").unlink()
    assert set(sums(of_files(checkpoint, tmp_path))) == {EMBEDDING, HEAD, "spare"}


@pytest.mark.parametrize(
    "setting", ["import torch; torch.distributed.get_rank = lambda: 1", "engine.is_value_model = True"]
)
def test_other_ranks_and_models_read_no_files(setting: str, checkpoint: Path, tmp_path: Path) -> None:
    code = f"{FIRST_RANK}{ENGINE}engine.local_path = {str(checkpoint)!r}\n{setting}\nengine.initialize()"
    process(code, tmp_path / "out")
    assert Point.CHECKPOINT_FILE not in taken(tmp_path / "out")


def test_files_are_read_once_in_a_process(checkpoint: Path, tmp_path: Path) -> None:
    code = f"{FIRST_RANK}{ENGINE}engine.local_path = {str(checkpoint)!r}\n"
    process(code + "engine.initialize(); engine.initialize(); engine.load_checkpoint('/c')", tmp_path / "out")
    found = taken(tmp_path / "out")
    assert (len(found[Point.CHECKPOINT_FILE]), len(found[Point.WEIGHTS_IMPORTED])) == (1, 2)


def _empty(checkpoint: Path) -> None:
    for file in checkpoint.iterdir():
        file.unlink()


def _outside(checkpoint: Path) -> None:
    index(checkpoint, {EMBEDDING: "../other.safetensors"})


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (_empty, "the checkpoint's folder holds no safetensors files"),
        (_outside, "the index model.safetensors.index.json names what is not a file of the folder"),
    ],
)
def test_a_folder_without_files_is_said(spoil: Any, problem: str, checkpoint: Path, tmp_path: Path) -> None:
    spoil(checkpoint)
    snapshot = of_files(checkpoint, tmp_path)
    assert (snapshot.problem, snapshot.tensors) == (problem, ())


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("engine.local_path = 'Qwen/Qwen3-0.6B'", "the checkpoint is not a local folder"),
        ("engine.local_path = None", "the checkpoint is not a local folder"),
        ("import sys; del sys.modules['safetensors']", "the library safetensors is not loaded"),
    ],
)
def test_what_cannot_be_looked_at_is_said(setting: str, problem: str, checkpoint: Path, tmp_path: Path) -> None:
    snapshot = of_files(checkpoint, tmp_path, setting)
    assert (snapshot.problem, snapshot.tensors) == (problem, ())


def _damaged(checkpoint: Path) -> None:
    (checkpoint / "model-2.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{]")


def _missing(checkpoint: Path) -> None:
    (checkpoint / "model-2.safetensors").unlink()


def _no_index(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors.index.json").write_text("[]")


@pytest.mark.parametrize(
    ("spoil", "problem", "read"),
    [
        (_damaged, "JSONDecodeError", {EMBEDDING}),
        (_missing, "FileNotFoundError", set()),
        (_no_index, "TypeError", set()),
    ],
)
def test_a_fault_of_the_files_is_written_and_changes_nothing(
    spoil: Any, problem: str, read: set[str], checkpoint: Path, tmp_path: Path
) -> None:
    spoil(checkpoint)
    snapshot = of_files(checkpoint, tmp_path)
    assert snapshot.problem.startswith(problem)
    assert set(sums(snapshot)) == read


def test_of_large_files_the_same_sample_is_read_as_of_an_export(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    names = [f"layers.{number}.weight" for number in range(40)]
    save_file({name: np.ones(64, np.float32) for name in names}, folder / "model.safetensors")
    small = "import verl_e2e_snapshots\nverl_e2e_snapshots.Sample.__init__.__defaults__ = (6_000,)"
    snapshot = of_files(folder, tmp_path, small)
    assert 0 < len(snapshot.tensors) == 40 - snapshot.left_out < 40
    code = f"import sys; sys.path.insert(0, {str(INSTRUMENTATION)!r})\nfrom verl_e2e_snapshots import Sample\n"
    code += f"sample = Sample({(folder / 'model.safetensors').stat().st_size}, 6_000)\n"
    code += f"print([name for name in {names} if name.replace('.weight', '.base_layer.weight') in sample])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.replace("'", '"')) == [name for name in names if name in sums(snapshot)]
