"""Preflight on this machine: all cheap checks reported together, each with its figures and fix."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.core.builders import make_job
from tests.runners.world import SUBMODULE, World
from verl_e2e.core.consumer.verl import BASE_WRAPPER
from verl_e2e.core.model.jobs import Checkpoint, Data, Job, Repository, SiteProfile
from verl_e2e.core.model.needs import SiteNeeds
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import Check, Finding, Gpu, RunContainer
from verl_e2e_runner.preflight.host import check_disk, check_gpus, check_image, check_ray_cpus, usable_processors
from verl_e2e_runner.preflight.inputs import check_data, check_model, check_reward_model, check_stale_checkpoints
from verl_e2e_runner.preflight.preflight import Preflight, preflight
from verl_e2e_runner.process.cage import Session, ray_folder
from verl_e2e_runner.reporting import stops
from verl_e2e_runner.samplers import Device, Devices, visible
from verl_e2e_runner.trees import apply_patches, prepare_trees

pytestmark = pytest.mark.host

DEVICES = tuple(
    Device(Gpu(index=index, name="NVIDIA H200", memory_total_mib=143771, memory_used_mib=4), f"GPU-{index}a2b-{index}")
    for index in range(4)
)


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        ("0, 3", [0, 3]),
        ("1,9,2", [1]),
        ("1,1", [1]),
        ("GPU-3a2b-3,GPU-0", [3, 0]),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_is_honoured(setting: str | None, shown: list[int]) -> None:
    assert [device.gpu.index for device in visible(DEVICES, setting)] == shown


@pytest.mark.parametrize(
    ("devices", "variables", "ok", "words"),
    [
        (Devices(problem="NVML Shared Library Not Found"), {}, False, "no GPU: NVML Shared Library Not Found; the job"),
        (Devices(DEVICES), {}, True, "4 GPUs visible, 2 needed: NVIDIA H200 143771 MiB"),
        (Devices(DEVICES), {"CUDA_VISIBLE_DEVICES": "1"}, False, "1 GPUs visible (CUDA_VISIBLE_DEVICES='1', 4 on the"),
        (Devices(DEVICES[:1]), {}, False, "1 GPUs visible, the job needs 2"),
    ],
)
def test_gpus(devices: Devices, variables: dict[str, str], ok: bool, words: str, world: World) -> None:
    finding, other, _ = check_gpus(world.job(gpu_count=2), devices, variables)
    assert (finding.check, finding.ok, other.ok) == (Check.GPUS, ok, True)
    assert words in finding.summary
    assert ok or (finding.blocking and finding.fix)


@pytest.mark.parametrize(
    ("used_mib", "share", "ok"), [(4, 1.0, True), (900, 1.0, False), (600, 0.25, True), (900, 0.25, False)]
)
def test_neighbours_count_on_the_gpus_of_the_run_alone(used_mib: int, share: float, ok: bool) -> None:
    def device(index: int, used: int) -> Device:
        gpu = Gpu(index=index, name="G", memory_total_mib=1000, memory_used_mib=used)
        return Device(gpu, f"GPU-{index}", {4711: 5 << 30} if used > 4 else {})

    site = SiteProfile(name="a", needs=SiteNeeds(gpu_share=share))
    host = Devices((device(0, 990), device(1, used_mib)))
    *_, found = check_gpus(make_job(site=site), host, {"CUDA_VISIBLE_DEVICES": "1"})
    assert (found.check, found.ok) == (Check.NEIGHBOURS, ok)
    assert ("neighbour (process 4711)" in found.summary) != ok


def test_gpus_of_a_job_of_several_nodes_are_counted_on_each_and_need_a_cluster(world: World) -> None:
    job = world.job(gpu_count=8, site=world.site(gpus_per_node=4))
    (finding,) = check_gpus(job, Devices(DEVICES), {})
    assert (finding.ok, finding.blocking) == (False, True)
    assert "needs 2 nodes with 4 GPUs each, and no Ray cluster of them was given" in finding.summary
    finding, *_ = check_gpus(job, Devices(DEVICES), {}, "192.0.2.1:6400")
    assert (finding.ok, "4 GPUs visible, 4 needed" in finding.summary) == (True, True)


def data_workers(count: int) -> dict[str, Any]:
    return {"transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": count}}}}


@pytest.mark.parametrize(
    ("gpus", "site", "config", "processors", "blocks", "words"),
    [
        (4, {}, {}, 64, False, "Ray gets 22 logical CPUs, 22 for 4 GPUs and 8 data workers on 1 node(s) needed"),
        # What the packaged profile gave on every host.
        (4, {"ray_cpus": 16}, {}, 64, True, "Ray gets 16 logical CPUs, and the job holds 22 for 4 GPUs"),
        (4, {"ray_cpus": 40}, {}, 64, False, "Ray gets 40 logical CPUs"),
        (1, {"ray_cpus": 12}, {}, 64, True, "the job holds 13 for 1 GPUs"),
        # An override of the job or the site, and a verl with more data workers, as verl composes them.
        (4, {}, {"ray_kwargs": {"ray_init": {"num_cpus": 20}}}, 64, True, "Ray gets 20 logical CPUs"),
        (
            4,
            {},
            {"transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 16}}}},
            64,
            True,
            "holds 30",
        ),
        # Without a number Ray takes what the host has.
        (4, {}, {"ray_kwargs": {"ray_init": {"num_cpus": None}}}, 8, True, "Ray gets 8 logical CPUs"),
        (
            8,
            {"gpus_per_node": 4},
            {},
            64,
            False,
            "18 for 4 GPUs and 8 data workers on 2 node(s)",
        ),
        (8, {"gpus_per_node": 4, "ray_cpus": 16}, {}, 64, True, "Ray gets 16 logical CPUs, and the job holds 18"),
        (4, {"ray_address": "192.0.2.1:6379"}, {}, 64, False, "the cluster at 192.0.2.1:6379 must have 22 for 4 GPUs"),
    ],
)
def test_ray_gets_the_cpus_that_the_job_holds_or_the_number_is_named(
    gpus: int, site: dict[str, Any], config: dict[str, Any], processors: int, blocks: bool, words: str, world: World
) -> None:
    finding = check_ray_cpus(world.job(gpu_count=gpus, site=world.site(**site)), config, processors)
    assert (finding.check, finding.ok, stops([finding])) == (Check.RAY_CPUS, not blocks, blocks)
    assert words in finding.summary
    assert not blocks or re.search(r"give \d+$", finding.fix)


def test_few_processors_are_a_note_because_rays_cpus_are_logical(world: World, tmp_path: Path) -> None:
    finding = check_ray_cpus(world.job(gpu_count=4), {}, 2)
    assert (finding.ok, finding.blocking) == (False, False)
    assert "2 processors for 4 GPUs" in finding.summary
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    everything = usable_processors(tmp_path)
    for text, expected in (
        ("max 100000", everything),
        ("50000 100000", 1),
        ("100000 100000", 1),
        ("rubbish", everything),
    ):
        (tmp_path / "sys/fs/cgroup/cpu.max").write_text(text)
        assert usable_processors(tmp_path) == expected


def test_rocr_next_to_cuda_blocks(world: World) -> None:
    variables = {"ROCR_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}
    assert check_gpus(world.job(), Devices(DEVICES), {"ROCR_VISIBLE_DEVICES": "0"})[1].ok
    finding = check_gpus(world.job(), Devices(DEVICES), variables)[1]
    assert (finding.check, finding.ok, finding.fix) == (Check.GPU_VARIABLES, False, "unset ROCR_VISIBLE_DEVICES")


def test_disk_is_judged_once_for_each_disk_with_figures(tmp_path: Path) -> None:
    folders = {"hub cache": tmp_path / "a/b/c", "checkpoints": tmp_path}
    (enough,) = check_disk(folders, 0.001)
    (short,) = check_disk(folders, 1e9)
    assert enough.ok
    assert not short.ok
    assert "needed (site.min_free_gib)" in short.summary
    assert str(tmp_path / "a/b/c") in short.summary


PIN, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
PINNED = f"verlai/verl@{PIN}"


def of_image(name: str, *digests: str) -> RunContainer:
    return RunContainer(engine="docker", id="c" * 64, image=name, digests=digests, image_from="docker inspect")


@pytest.mark.parametrize(
    ("asked", "container", "ok", "blocking", "words"),
    [
        (PINNED, of_image(PINNED, PIN), True, True, "image verlai/verl@sha256:aaaa"),
        (PINNED, of_image("verlai/verl:tag", OTHER, PIN), True, True, "image verlai/verl:tag@sha256:"),
        (PINNED, of_image(f"verlai/verl@{OTHER}", OTHER), False, True, f"and the job needs {PINNED}"),
        (PINNED, of_image("other/verl:vllm", OTHER), False, True, f"other/verl:vllm@{OTHER}, and the job needs"),
        (
            PINNED,
            RunContainer(),
            False,
            False,
            f"is not recorded, because nothing in it names the image; {PINNED} was requested",
        ),
        (PINNED, of_image("verlai/verl:vllm1"), False, False, "its digest is unknown"),
        (
            "verlai/verl:vllm",
            RunContainer(engine="docker", id="c" * 64),
            False,
            False,
            "verlai/verl:vllm was requested",
        ),
        ("", RunContainer(), False, False, "is not recorded, because nothing in it names the image"),
        ("verlai/verl:vllm1", of_image("x/sglang", OTHER), False, False, "does not look like a vLLM image"),
        ("verlai/verl:vllm1", of_image("verlai/verl:vllm1"), True, True, "image verlai/verl:vllm1 (by docker inspect)"),
    ],
)
def test_what_runs_is_held_against_what_is_pinned(
    asked: str, container: RunContainer, ok: bool, blocking: bool, words: str, world: World
) -> None:
    finding = check_image(world.job(site=world.site(image=asked)), container)
    assert (finding.ok, finding.blocking) == (ok, blocking)
    assert words in finding.summary
    assert ok or not blocking or finding.fix


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is not a parquet file (43 bytes, starts with b'vers')"),
        (b"PAR1 cut short by a full disk", "is not a parquet file"),
    ],
)
def test_data_that_is_no_parquet_blocks(content: bytes | None, words: str, world: World, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "train.parquet").write_bytes(content)
    data = Data(train_files="train.parquet", val_files=f"[{world.root}/data/test.parquet]", prepare="none")
    train, val = check_data(world.job(data=data), tmp_path, {}, prepared=False)
    assert (train.ok, train.stage, val.ok) == (False, Stage.DATA, True)
    assert f"data.train_files = {tmp_path / 'train.parquet'} {words}" in train.summary


def test_absent_gsm8k_is_no_fault_until_it_was_to_be_made(world: World, tmp_path: Path) -> None:
    job = world.job(data=Data(train_files="a.parquet", val_files="b.parquet"))
    assert [finding.ok for finding in check_data(job, tmp_path, {}, prepared=False)] == [True, True]
    assert [finding.ok for finding in check_data(job, tmp_path, {}, prepared=True)] == [False, False]


def hub(root: Path, model: str) -> Path:
    folder = root / "hub" / f"models--{model.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("abc123")
    (folder / "snapshots/abc123").mkdir(parents=True)
    (folder / "snapshots/abc123/config.json").write_text("{}")
    return folder / "snapshots/abc123"


def test_models(world: World, tmp_path: Path) -> None:
    snapshot = hub(tmp_path, "org/cached")
    (tmp_path / "bare").mkdir()
    (tmp_path / "tiny.json").write_text("{}")
    online = {"HF_HOME": str(tmp_path)}
    offline = {**online, "HF_HUB_OFFLINE": "1"}

    def check(variables: dict[str, str], prepared: bool = False, **checkpoint: Any) -> list[Finding]:
        job = world.job(checkpoint=Checkpoint(**checkpoint))
        return list(check_model(job, tmp_path, variables, prepared=prepared))

    (cached,) = check(offline, model_id="org/cached")
    assert cached.ok
    assert str(snapshot) in cached.summary
    (absent,) = check(offline, model_id="org/other")
    assert (absent.ok, absent.stage) == (False, Stage.MODEL_DOWNLOAD)
    assert "the hub is offline" in absent.summary
    assert check(online, model_id="org/other")[0].ok
    assert not check(online, prepared=True, model_id="org/other")[0].ok
    (folder,) = check(online, model_id="x", model_path=str(tmp_path / "bare"))
    assert "has no config.json" in folder.summary
    dummy, base = check(online, model_id="org/cached", dummy_config="tiny.json")
    assert dummy.ok
    assert base.ok
    assert not check(online, model_id="org/cached", dummy_config="gone.json")[0].ok


def test_the_reward_model_counts_when_the_composed_configuration_enables_it(world: World, tmp_path: Path) -> None:
    (tmp_path / "rm").mkdir()
    (tmp_path / "rm/config.json").write_text("{}")

    def config(path: str, *, enable: bool = True) -> dict[str, Any]:
        return {"reward": {"reward_model": {"enable": enable, "model_path": path}}}

    job = world.job()
    assert check_reward_model(job, tmp_path, {}, config("gone", enable=False)).ok
    assert check_reward_model(job, tmp_path, {}, config("rm")).ok
    finding = check_reward_model(job, tmp_path, {}, config("gone"))
    assert (finding.ok, finding.stage) == (False, Stage.REWARD_MODEL)
    # One of the hub is still to be downloaded, unless nothing can be.
    named = world.job(reward_model=Checkpoint(model_id="org/scores"))
    assert check_reward_model(named, tmp_path, {}, config("org/scores")).ok
    offline = check_reward_model(named, tmp_path, {"HF_HUB_OFFLINE": "1"}, config("org/scores"))
    assert (offline.ok, offline.stage) == (False, Stage.REWARD_MODEL)


def test_stale_checkpoints_block_and_stay(world: World, tmp_path: Path) -> None:
    job = world.job()
    config = {"trainer": {"default_local_dir": "mine/here"}}
    assert check_stale_checkpoints(job, tmp_path, config).ok
    (tmp_path / "mine/here/global_step_1").mkdir(parents=True)
    finding = check_stale_checkpoints(job, tmp_path, config)
    assert (finding.ok, finding.stage) == (False, Stage.CHECKPOINT_LOAD)
    assert "global_step_1" in finding.summary
    assert (tmp_path / "mine/here/global_step_1").is_dir()


class Recorded:
    """An emit that keeps what it gets."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def __call__(self, kind: str, **data: object) -> None:
        self.events.append((kind, data))


def checked(
    job: Job, session: Session, base: dict[str, str], work: Path, **injected: Any
) -> tuple[Preflight, Recorded]:
    trees = apply_patches(job, prepare_trees(job, work / "trees", base=base))
    emit = Recorded()
    return preflight(job, trees, session, base=base, work=work / "work", emit=emit, **injected), emit


def failed(result: Preflight) -> dict[Check, Finding]:
    return {finding.check: finding for finding in result.findings if not finding.ok and finding.blocking}


@pytest.mark.ray
def test_every_check_is_answered_and_all_cheap_faults_come_together(
    world: World, session: Session, base: dict[str, str], tmp_path: Path
) -> None:
    job = world.job(
        process={"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "0"},
        data=Data(train_files="/no/train.parquet", val_files="/no/test.parquet", prepare="none"),
        checkpoint=Checkpoint(model_id="x", model_path="/no/model"),
        site=world.site(required_packages=("modelopt_that_nobody_has",), min_free_gib=1e9),
        expected={"trainer.n_gpus_per_node": 2},
    )
    result, emit = checked(job, session, base, tmp_path)
    faults = failed(result)
    assert faults.keys() == {
        *(Check.GPUS, Check.GPU_VARIABLES, Check.DATA, Check.MODEL, Check.PACKAGES, Check.DISK, Check.HYDRA)
    }
    assert all(finding.fix for finding in faults.values())
    answered = {finding.check for finding in result.findings}
    elsewhere = {Check.BRIDGE_TESTS, Check.OTHER_RUNS, Check.HOST_MEMORY, Check.ISOLATION, Check.KERNEL_CACHES}
    assert answered == set(Check) - elsewhere
    untried = [finding for finding in result.findings if finding.check is Check.IMPORT_WORKER]
    assert "was not checked" in untried[0].summary
    message = [data for kind, data in emit.events if kind == "finding"]
    assert message == [finding.model_dump(mode="json") for finding in result.findings]
    assert [data["name"] for kind, data in emit.events if kind == "phase"] == ["preflight", "preflight"]


def test_a_wrong_repository_still_lets_the_host_be_checked(
    world: World, session: Session, base: dict[str, str], tmp_path: Path
) -> None:
    verl = Repository(path=str(world.verl), commit="e" * 40)
    job = world.job(verl=verl, process={"CUDA_VISIBLE_DEVICES": ""})
    result, _ = checked(job, session, base, tmp_path)
    assert failed(result).keys() == {Check.REPOSITORIES, Check.GPUS}
    assert {finding.check for finding in result.findings} >= {
        Check.WRAPPER,
        Check.HYDRA,
        Check.DISK,
        Check.IMPORT_DRIVER,
    }


@pytest.mark.ray
def test_a_wrong_bridge_still_lets_verl_and_the_packages_be_checked(
    world: World, session: Session, base: dict[str, str], tmp_path: Path
) -> None:
    bridge = Repository(path=str(world.bridge), commit="e" * 40)
    site = world.site(required_packages=("modelopt_that_nobody_has",))
    result, _ = checked(world.job(bridge=bridge, site=site), session, base, tmp_path, devices=lambda: Devices(DEVICES))
    assert failed(result).keys() == {Check.REPOSITORIES, Check.PACKAGES}
    assert {finding.check for finding in result.findings if finding.ok} >= {Check.WRAPPER, Check.HYDRA, Check.GPUS}


def test_a_renamed_wrapper_variable_blocks_with_its_name(
    world: World, session: Session, base: dict[str, str], tmp_path: Path
) -> None:
    job = world.job(wrapper={**BASE_WRAPPER, "LORA_RNK": "4"}, process={"CUDA_VISIBLE_DEVICES": ""})
    result, _ = checked(job, session, base, tmp_path)
    finding = failed(result)[Check.WRAPPER]
    assert "LORA_RNK" in finding.summary
    assert "LORA_RANK" in finding.fix


@pytest.mark.ray
def test_a_wrong_import_path_is_known_before_anything_is_imported(
    world: World, session: Session, base: dict[str, str], tmp_path: Path
) -> None:
    wrong = tmp_path / "site/megatron/bridge"
    wrong.mkdir(parents=True)
    (wrong / "__init__.py").write_text("raise SystemExit('imported')")
    trees = tmp_path / "trees"
    path = os.pathsep.join(map(str, (tmp_path / "site", trees / "bridge" / SUBMODULE, trees / "verl")))
    result, _ = checked(world.job(process={"PYTHONPATH": path}), session, base, tmp_path)
    finding = failed(result)[Check.IMPORT_DRIVER]
    assert finding.stage is Stage.IMPORT
    assert f"megatron.bridge comes from {wrong / '__init__.py'}" in finding.summary


@pytest.mark.ray
def test_bridge_not_on_the_path_blocks_at_the_import_stage(
    world: World, session: Session, base: dict[str, str], tmp_path: Path
) -> None:
    trees = tmp_path / "trees"
    path = os.pathsep.join(map(str, (trees / "bridge" / SUBMODULE, trees / "verl")))
    result, _ = checked(world.job(process={"PYTHONPATH": path}), session, base, tmp_path)
    finding = failed(result)[Check.IMPORT_DRIVER]
    assert finding.stage is Stage.IMPORT
    assert "megatron.bridge is not on the path" in finding.summary


@pytest.mark.ray
def test_a_host_that_has_everything_is_ready_to_launch(world: World, base: dict[str, str], tmp_path: Path) -> None:
    job = world.job(
        data=Data(train_files=str(tmp_path / "train.parquet"), val_files=str(tmp_path / "test.parquet")),
        expected={"trainer.n_gpus_per_node": 1},
    )
    nonce = os.urandom(8).hex()
    session = Session(nonce, ray_folder(nonce), tmp_path / "imports.jsonl")
    try:
        result, emit = checked(job, session, base, tmp_path, devices=lambda: Devices(DEVICES, "580.1"))
    finally:
        shutil.rmtree(session.ray_folder, ignore_errors=True)
    assert not result.blocked, failed(result)
    assert {finding.check for finding in result.findings if finding.ok} == set(Check) - {
        Check.BRIDGE_TESTS,
        Check.OTHER_RUNS,
        Check.HOST_MEMORY,
        Check.IMAGE,
        Check.ISOLATION,
        Check.KERNEL_CACHES,
    }
    assert len(result.imports) == 6
    assert (tmp_path / "train.parquet").read_bytes().startswith(b"PAR1")
    assert (result.driver, len(result.gpus), len(result.launches)) == ("580.1", 4, 1)
    ended = [data["name"] for kind, data in emit.events if kind == "phase" and data["state"] == "end"]
    assert ended == ["preflight", "prepare", "imports"]
    assert not session.imports.exists()
