"""The exercises about small pictures, made by the job's Python over stand-ins of `datasets` and Pillow."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.runners.world import World
from verl_e2e.core.model.jobs import PICTURES, Job
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import Check
from verl_e2e_runner.launch.verl import wrapper_map
from verl_e2e_runner.preflight.inputs import check_data, data_files
from verl_e2e_runner.preflight.preflight import prepare
from verl_e2e_runner.trees import Trees

# They write as JSON what the libraries would write as parquet and PNG files.
DATASETS = """
import json
Features, Image, Value = dict, object, str
def Sequence(kind):
    return [kind]
class Dataset:
    @classmethod
    def from_list(cls, rows, features):
        assert all(set(row) == set(features) for row in rows)
        self = cls()
        self.rows = [{**row, "images": [json.loads(image["bytes"]) for image in row["images"]]} for row in rows]
        return self
    def to_parquet(self, file):
        with open(file, "w") as stream:
            stream.write("PAR1" + json.dumps(self.rows) + "PAR1")
"""
PILLOW = """
import json
class _Picture:
    def __init__(self, size):
        self.size, self.squares = size, []
    def save(self, stream, format):
        stream.write(json.dumps([format, self.size, self.squares]).encode())
class _Images:
    def new(self, mode, size, background):
        return _Picture(size)
class _Draws:
    def Draw(self, image):
        class Draw:
            def rectangle(self, box, fill):
                image.squares.append(box)
        return Draw()
Image, ImageDraw = _Images(), _Draws()
"""


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    folder = tmp_path / "libraries"
    folder.mkdir()
    (folder / "datasets.py").write_text(DATASETS)
    (folder / "PIL.py").write_text(PILLOW)
    return folder


def job_with(world: World, libraries: Path) -> Job:
    return world.job(data=PICTURES, site=world.site(python_path=(str(libraries),)))


def rows(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text().removeprefix("PAR1").removesuffix("PAR1"))
    return found


def test_both_files_are_made_where_the_wrapper_looks_for_them(
    world: World, shared_trees: Trees, base: dict[str, str], libraries: Path, tmp_path: Path
) -> None:
    job, variables = job_with(world, libraries), {**base, "HF_HOME": str(tmp_path / "hf")}
    before = check_data(job, shared_trees.cwd, variables, prepared=False)
    assert [(finding.ok, "this program will make it" in finding.summary) for finding in before] == [(True, True)] * 2
    assert not any(finding.ok for finding in check_data(job, shared_trees.cwd, variables, prepared=True))
    for _ in range(2):
        (finding,) = prepare(job, shared_trees, variables, base, tmp_path)
        assert (finding.ok, finding.check) == (True, Check.DATA), finding.summary
    assert all(finding.ok for finding in check_data(job, shared_trees.cwd, variables, prepared=True))
    made = wrapper_map(job, shared_trees, base=variables)
    files = data_files(job, shared_trees.cwd, variables)
    assert (made["TRAIN_FILES"], made["VAL_FILES"]) == (str(files["train_files"][0]), str(files["val_files"][0]))
    assert files["train_files"][0].is_relative_to(tmp_path / "hf/hub/verl-e2e-synthetic")
    assert [len(rows(file)) for (file,) in files.values()] == [256, 32]


def test_runs_that_make_them_at_once_do_not_take_them_from_each_other(
    world: World, shared_trees: Trees, base: dict[str, str], libraries: Path, tmp_path: Path
) -> None:
    job, variables = job_with(world, libraries), {**base, "HF_HOME": str(tmp_path / "hf")}
    slow = "        import time; time.sleep(0.2)\n        with open(file"
    (libraries / "datasets.py").write_text(DATASETS.replace("        with open(file", slow))
    places = [tmp_path / str(number) for number in range(4)]
    for place in places:
        place.mkdir()
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda place: prepare(job, shared_trees, variables, base, place), places)]
    assert [finding.summary for (finding,) in found if not finding.ok] == []
    # A run that reads them keeps what it reads, however often they are made.
    folder = tmp_path / "hf/hub/verl-e2e-synthetic/images"
    before = {path: path.stat().st_ino for path in (folder, *folder.iterdir())}
    prepare(job, shared_trees, variables, base, tmp_path)
    assert {path: path.stat().st_ino for path in (folder, *folder.iterdir())} == before


def test_each_answer_is_the_number_of_squares_and_what_is_added(
    world: World, shared_trees: Trees, base: dict[str, str], libraries: Path, tmp_path: Path
) -> None:
    job, variables = job_with(world, libraries), {**base, "HF_HOME": str(tmp_path / "hf")}
    prepare(job, shared_trees, variables, base, tmp_path)
    made = [row for (file,) in data_files(job, tmp_path, variables).values() for row in rows(file)]
    for row in made:
        ((kind, (width, height), squares),) = row["images"]
        more = int(row["prompt"][0]["content"].partition("Add ")[2].partition(" ")[0])
        # No square lies on another one, and none beyond the edge.
        assert len({tuple(box) for box in squares}) == int(row["reward_model"]["ground_truth"]) - more
        assert all(0 <= left < right < width and 0 <= top < bottom < height for left, top, right, bottom in squares)
        assert (kind, width != height, row["data_source"]) == ("PNG", True, "openai/gsm8k")
        assert row["prompt"][0]["content"].count("<image>") == 1
    assert len({(row["prompt"][0]["content"], row["reward_model"]["ground_truth"]) for row in made}) == len(made)
    assert {tuple(row["images"][0][1]) for row in made} == {(112, 84), (84, 112), (140, 84), (84, 140)}


def test_a_python_without_the_libraries_blocks_at_the_data_stage(
    world: World, shared_trees: Trees, base: dict[str, str], libraries: Path, tmp_path: Path
) -> None:
    (libraries / "datasets.py").write_text("raise ImportError('no such library here')")
    job, variables = job_with(world, libraries), {**base, "HF_HOME": str(tmp_path / "hf")}
    (finding,) = prepare(job, shared_trees, variables, base, tmp_path)
    assert (finding.ok, finding.check, finding.stage) == (False, Check.DATA, Stage.DATA)
    assert "no such library here" in finding.summary
    assert not (tmp_path / "hf/hub/verl-e2e-synthetic/images").exists()
