"""What the user of the code under test cannot read is found before the run, by trying as that user in a real cage."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runners.test_isolation import caged
from tests.runners.whole_runs import ONE_GPU, run_whole
from tests.runners.world import World
from verl_e2e.adapters.files.run_folder import read_record
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.model.jobs import Checkpoint, Data
from verl_e2e.core.model.outcome import Result, of_preflight
from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.preflight.inputs import _TRY, check_readable
from verl_e2e_runner.preflight.preflight import preflight
from verl_e2e_runner.process.cage import Session, cached_snapshot, ray_folder
from verl_e2e_runner.trees import Trees

pytestmark = [pytest.mark.bwrap, pytest.mark.host, pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")]

NOBODY = 65534
PLACES = ("kit/model", "kit/data", "kit/site", "kit/reward", "bridge", "mlm", "verl")


def open_above(folder: Path) -> None:
    """pytest's own folders are closed to others."""
    for parent in (folder, *folder.parents):
        if not parent.stat().st_mode & 0o001:
            parent.chmod(0o711 if parent != folder else 0o755)


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    open_above(tmp_path)
    for name in PLACES:
        (tmp_path / name / "part").mkdir(parents=True)
        (tmp_path / name / "part/__pycache__").mkdir()
        (tmp_path / name / "part/file").write_text("x")
    for name in ("model/config.json", "reward/config.json", "data/train.parquet", "data/test.parquet"):
        (tmp_path / "kit" / name).write_bytes(b"PAR1 rows PAR1")
    return tmp_path


def checked(world: World, root: Path, *, in_cage: bool = True) -> tuple[Finding, ...]:
    """What the check says of a job that reads everything below `root`."""
    data = Data(train_files=str(root / "kit/data/train.parquet"), val_files=str(root / "kit/data/test.parquet"))
    site = world.site(python="/usr/bin/python3", python_path=(str(root / "kit/site"),))
    model = Checkpoint(model_id="org/tiny", model_path=str(root / "kit/model"))
    job = world.job(site=site, data=data, checkpoint=model)
    trees = Trees(root / "bridge", root / "mlm", root / "verl", root)
    cage = caged(root, reads=tuple(root / name for name in PLACES)) if in_cage else None
    config = {"reward": {"reward_model": {"enable": True, "model_path": str(root / "kit/reward")}}}
    model_path = str(root / "kit/model")
    return check_readable(job, replace(trees, cage=cage), {"PATH": "/usr/bin:/bin"}, config, model=model_path)


def test_a_kit_that_everyone_can_read_is_good(world: World, kit: Path) -> None:
    (kit / "kit/site/part/__pycache__").chmod(0o700)
    (kit / "kit/model/dangling").symlink_to("nowhere")
    (kit / "kit/model/loop").symlink_to(".")
    (finding,) = checked(world, kit)
    assert (finding.check, finding.ok) == (Check.READABLE, True)


@pytest.mark.parametrize(
    ("path", "mode", "name"),
    [
        ("kit/model/config.json", 0o600, "the model org/tiny"),
        ("kit/model", 0o700, "the model org/tiny"),
        ("kit/model/part", 0o644, "the model org/tiny"),
        ("kit/model/part/file", 0o000, "the model org/tiny"),
        ("kit/data/test.parquet", 0o640, "data.val_files"),
        ("kit/site/part/file", 0o600, "python_path"),
        ("kit/reward/part", 0o711, "the reward model"),
        ("bridge/part/file", 0o400, "the tree of Megatron-Bridge"),
        ("mlm/part", 0o700, "the tree of Megatron-LM"),
        ("verl", 0o750, "the tree of verl"),
    ],
)
def test_what_the_user_cannot_read_is_named_with_owner_and_mode(
    world: World, kit: Path, path: str, mode: int, name: str
) -> None:
    (kit / path).chmod(mode)
    (finding,) = checked(world, kit)
    assert (finding.check, finding.ok, finding.blocking) == (Check.READABLE, False, True)
    assert finding.summary.startswith(name)
    assert f"cannot read {kit / path} (owner root, mode {mode:03o})" in finding.summary
    assert "chmod -R o+rX" in finding.fix


def test_a_file_that_a_link_leads_to_counts_wherever_it_lies(world: World, kit: Path) -> None:
    """The snapshots of a Hugging Face cache are links to blobs."""
    (kit / "blob").write_text("weights")
    (kit / "kit/model/model.safetensors").symlink_to(kit / "blob")
    (finding,) = checked(world, kit)
    assert not finding.ok
    assert f"{kit / 'kit/model/model.safetensors'} (leads to {kit / 'blob'}, owner root, mode" in finding.summary


def test_a_folder_above_that_stops_the_way_is_the_one_that_is_named(tmp_path: Path) -> None:
    """Where there is no cage, permissions of all folders above count; in one, those of what is mounted."""
    (tmp_path / "shut/open/model").mkdir(parents=True)
    (tmp_path / "shut").chmod(0o700)
    open_above(tmp_path)
    question = json.dumps({"model": str(tmp_path / "shut/open/model"), "other": str(tmp_path)})
    argv = ["/usr/bin/python3", "-I", "-S", "-c", _TRY]
    done = subprocess.run(argv, input=question, user=NOBODY, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"model": [str(tmp_path / "shut")], "other": [str(tmp_path / "shut")]}


def test_a_run_that_could_not_read_its_model_is_blocked_and_says_whose_file_it_is(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.root / "model", tmp_path / "kit/model")
    open_above(tmp_path)
    weights = tmp_path / "kit/model/model.safetensors"
    weights.write_text("weights")
    weights.chmod(0o600)
    job = world.job(checkpoint=Checkpoint(model_id="org/tiny", model_path=str(tmp_path / "kit/model")))
    out = tmp_path / "out"
    run_whole(job, out, {"PATH": os.environ["PATH"]})
    verdict = judge(read_record(out), None)
    assert (verdict.result, of_preflight(Check.READABLE) in verdict.causes) == (Result.BLOCKED, True)
    assert "kit/model/model.safetensors (owner root, mode 600)" in verdict.sentence


@pytest.mark.parametrize(
    ("path", "mode", "named"),
    [
        ("kit/data", 0o700, "kit/data"),
        ("kit/data/train.parquet", 0o600, "kit/data/train.parquet"),
        ("kit/model", 0o700, "kit/model"),
        ("kit", 0o700, "kit"),
        ("shut", 0o700, "kit/model/weights"),
    ],
)
def test_a_runner_that_may_not_look_itself_says_what_is_closed(
    world: World, kit: Path, path: str, mode: int, named: str
) -> None:
    """Without a cage, or on a disk of other hosts, where root is a user as any other."""
    (kit / "shut").mkdir()
    (kit / "shut/weights").write_text("weights")
    (kit / "kit/model/weights").symlink_to(kit / "shut/weights")
    (kit / path).chmod(mode)
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.setuid(NOBODY)
        try:
            os.write(writing, "\n".join(finding.summary for finding in checked(world, kit, in_cage=False)).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading) as answer:
        said = answer.read()
    assert f"the code under test runs as user {NOBODY}, who cannot read {kit / named} (" in said
    assert "owner root, mode" in said


def test_preflight_says_what_is_closed_and_does_not_look_into_it(world: World, kit: Path) -> None:
    """Without a cage, where the runner may not read it either."""
    (kit / "kit/data/train.parquet").chmod(0o600)
    (kit / "work").mkdir()
    (kit / "work").chmod(0o777)
    data = Data(train_files=str(kit / "kit/data/train.parquet"), val_files=str(kit / "kit/data/test.parquet"))
    model = Checkpoint(model_id="org/tiny", model_path=str(kit / "kit/model"))
    job = world.job(site=world.site(python="/usr/bin/python3"), data=data, checkpoint=model)
    trees = Trees(kit / "bridge", kit / "mlm", kit / "verl", kit)
    session = Session("0" * 32, ray_folder("0" * 32), kit / "imports.jsonl")
    base = {"PATH": "/usr/bin:/bin", "HOME": str(kit / "work")}

    def emit(kind: str, **data: object) -> None:
        if kind == "finding" and not data["ok"]:
            os.write(writing, f"{data['check']}: {data['summary']}\n".encode())

    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.setuid(NOBODY)
        try:
            preflight(job, trees, session, base=base, work=kit / "work", emit=emit, devices=lambda: ONE_GPU)
        except PermissionError as error:
            os.write(writing, f"{error}\n".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading) as answer:
        said = answer.read()
    assert "Permission denied" not in said
    assert f"{Check.READABLE}: data.train_files {kit / 'kit/data/train.parquet'}: the code under test runs as" in said


def test_a_hub_cache_of_someone_else_holds_no_model_for_us(tmp_path: Path) -> None:
    (tmp_path / "models--org--tiny/refs").mkdir(parents=True)
    (tmp_path / "models--org--tiny/refs/main").mkdir()
    assert cached_snapshot("org/tiny", {"HF_HUB_CACHE": str(tmp_path)}) is None


def test_a_python_that_does_not_start_says_so(world: World, kit: Path) -> None:
    job = world.job(site=world.site(python="/usr/bin/python-of-no-one"))
    (finding,) = check_readable(job, Trees(kit, kit, kit, kit), {}, None, model=None)
    assert "the job's Python /usr/bin/python-of-no-one does not start as user" in finding.summary
