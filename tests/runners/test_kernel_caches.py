"""The operator's kernel caches: what a run takes of them, who sees the copy, and how a run fills such a folder."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any

import pytest

from tests.runners.whole_runs import NO_TOOLS, job_with, log_of, run_whole
from tests.runners.world import STAND_IN_RAY, World, fingerprint
from verl_e2e.adapters.files.run_folder import read_record
from verl_e2e.core.judge.verdict import host_rows
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import (
    ORIGIN_FILE,
    CachesOrigin,
    Check,
    EndReason,
    Gpu,
    RepositoryState,
)
from verl_e2e_runner.place import find_isolation
from verl_e2e_runner.preflight import kernel_caches
from verl_e2e_runner.preflight.kernel_caches import (
    CacheCopy,
    CacheRefusedError,
    TakenCaches,
    caches_origin,
    keep_caches,
    take_caches,
)
from verl_e2e_runner.process.cage import KERNEL_CACHES, Session, open_plain_folder

GPU = Gpu(index=0, name="stand-in", memory_total_mib=1000, memory_used_mib=0)
ORIGIN = CachesOrigin(
    filled="2026-11-23T22:00:00+00:00",
    job="0-lora-ddp",
    commits={"bridge": "b" * 40, "verl": "c" * 40},
    packages={"torch": "2.11.0", "triton": "3.6.0"},
    gpus=("stand-in",),
)
KEY = "TJ4ZQ"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What an operator keeps: a kernel as Triton stores it, and a table of vLLM's."""
    made = tmp_path / "kernels"
    kernel = made / "triton" / KEY
    kernel.mkdir(parents=True)
    (kernel / "kernel.cubin").write_bytes(b"\x7fELF")
    (kernel / "kernel.json").write_text("{}")
    group = {"child_paths": {name: f"/gone/{KEY}/{name}" for name in ("kernel.cubin", "kernel.json")}}
    (kernel / "__grp__kernel.json").write_text(json.dumps(group))
    (made / "vllm/modelinfos").mkdir(parents=True)
    (made / "vllm/modelinfos/qwen2.json").write_text("{}")
    (made / ORIGIN_FILE).write_text(ORIGIN.model_dump_json())
    for path in (made, *made.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (1e9, 1e9))
    return made


def taken(given: object, tmp_path: Path, **session: Any) -> TakenCaches:
    work = tmp_path / "own"
    work.mkdir(exist_ok=True)
    caches = Session("0" * 32, tmp_path / "ray", tmp_path / "imports.jsonl", caches=work / "cache")
    return take_caches(str(given), replace(caches, **session), work)


def refusal(given: object, tmp_path: Path) -> str:
    found = taken(given, tmp_path)
    (finding,) = found.findings
    assert found.caches is None
    assert (finding.check, finding.ok, finding.blocking) == (Check.KERNEL_CACHES, False, True)
    assert "--keep-caches" in finding.fix
    return finding.summary


def test_a_run_begins_with_a_copy_that_triton_finds(folder: Path, tmp_path: Path) -> None:
    before = fingerprint(folder)
    found = taken(folder, tmp_path)
    assert found.caches is not None
    assert (found.caches.folders, found.caches.files, found.caches.origin) == (("triton", "vllm"), 4, ORIGIN)
    assert [finding.ok for finding in found.findings] == [True]
    assert f"triton, vllm: 4 files, 0.0 MiB, sha256 {found.caches.digest[:12]}" in found.findings[0].summary
    assert "filled by a run of Bridge bbbbbbbbbbbb" in found.findings[0].summary
    cache = tmp_path / "own/cache"
    assert not cache.exists(), "the copy is there for the wrapper alone"
    found.give(None)
    kernel = cache / "triton" / KEY
    assert (kernel / "kernel.cubin").read_bytes() == b"\x7fELF"
    assert (kernel / "kernel.cubin").stat().st_mtime == 1e9
    paths = json.loads((kernel / "__grp__kernel.json").read_text())["child_paths"]
    assert paths == {name: str(kernel / name) for name in ("kernel.cubin", "kernel.json")}
    (kernel / "kernel.cubin").write_bytes(b"changed")
    assert fingerprint(folder) == before


def test_what_a_program_before_the_wrapper_left_is_not_mixed_with_it(folder: Path, tmp_path: Path) -> None:
    found = taken(folder, tmp_path)
    planted = tmp_path / "own/cache/triton/planted"
    planted.mkdir(parents=True)
    found.give(None)
    assert sorted(path.name for path in planted.parent.iterdir()) == [KEY]


def test_the_digest_is_that_of_the_content_wherever_the_copy_is_used(folder: Path, tmp_path: Path) -> None:
    def digest(target: str, *, seen_at: str = "/seen", names: tuple[str, ...] = ("triton", "vllm")) -> str:
        (tmp_path / target).mkdir()
        copied = CacheCopy(PurePath(seen_at), owners=None)
        with open_plain_folder(folder) as source:
            for name in names:
                copied.copy(source, name, tmp_path / target / name)
        return copied.digest

    first = digest("first")
    assert digest("elsewhere", seen_at="/other") == first
    assert digest("in-another-order", names=("vllm", "triton")) == first
    assert digest("a-part", names=("vllm",)) != first
    (folder / "vllm/modelinfos/qwen2.json").write_text("[]")
    assert digest("changed") != first


def test_a_list_of_files_that_is_none_is_copied_as_it_is(folder: Path, tmp_path: Path) -> None:
    texts = ("no json", "[]", "[" * 100_000, '{"child_paths": 1}')
    for number, text in enumerate(texts):
        (folder / f"triton/__grp__{number}.json").write_text(text)
    found = taken(folder, tmp_path)
    assert [(found.copy / f"triton/__grp__{number}.json").read_text() for number in range(4)] == list(texts)


def test_a_folder_that_is_not_there_or_not_a_folder_blocks_the_run(folder: Path, tmp_path: Path) -> None:
    assert "No such file or directory" in refusal(tmp_path / "gone", tmp_path)
    assert "not an absolute path" in refusal("kernels", tmp_path)
    assert "Not a directory" in refusal(folder / ORIGIN_FILE, tmp_path)
    (tmp_path / "link").symlink_to(folder)
    assert "it is a link" in refusal(tmp_path / "link", tmp_path)
    assert "it is not a path" in refusal(f"{folder}\0", tmp_path)
    assert "File name too long" in refusal(f"/{'a' * 300}", tmp_path)
    (tmp_path / "empty").mkdir()
    assert "none of the folders triton, inductor, vllm, cuda" in refusal(tmp_path / "empty", tmp_path)


def _deep(folder: Path) -> None:
    above = os.open(folder / "triton", os.O_RDONLY)
    for _ in range(150):
        os.mkdir("d", dir_fd=above)
        below = os.open("d", os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)


def _linked_origin(folder: Path) -> None:
    (folder / ORIGIN_FILE).rename(folder / "origin")
    (folder / ORIGIN_FILE).symlink_to("origin")


PLANTED: dict[str, Callable[[Path], object]] = {
    "triton/\\xff is a link": lambda folder: os.symlink("kernel", os.fsencode(folder) + b"/triton/\xff"),
    "its folders lie more than 100 deep": _deep,
    f"{ORIGIN_FILE} is a link": _linked_origin,
    f"others than its owner may write {ORIGIN_FILE}": lambda folder: (folder / ORIGIN_FILE).chmod(0o666),
    "triton/link is a link": lambda folder: (folder / "triton/link").symlink_to("/etc/passwd"),
    "vllm/pipe is neither a file nor a folder": lambda folder: os.mkfifo(folder / "vllm/pipe"),
    "it cannot be copied: Not a directory (cuda)": lambda folder: (folder / "cuda").symlink_to(folder / "triton"),
    f"others than its owner may write triton/{KEY}/kernel.cubin": lambda folder: (
        folder / "triton" / KEY / "kernel.cubin"
    ).chmod(0o664),
    "others than its owner may write vllm": lambda folder: (folder / "vllm").chmod(0o757),
    "others than its owner may write /": lambda folder: folder.chmod(0o1777),
}


@pytest.mark.parametrize("message", PLANTED)
def test_what_others_could_have_planted_blocks_the_run(message: str, folder: Path, tmp_path: Path) -> None:
    PLANTED[message](folder)
    assert message in refusal(folder, tmp_path)


def test_what_another_user_owns_is_refused(folder: Path, tmp_path: Path) -> None:
    strangers = CacheCopy(PurePath("/seen"), owners=frozenset({os.getuid() + 1}))
    with open_plain_folder(folder) as source, pytest.raises(CacheRefusedError, match=f"belongs to user {os.getuid()}"):
        strangers.copy(source, "triton", tmp_path / "copy")


@pytest.mark.parametrize(("limit", "value"), [("MOST_FILES", 3), ("MOST_BYTES", 8)])
def test_a_folder_that_is_too_large_is_refused(
    limit: str, value: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_caches, limit, value)
    assert "it has more than" in refusal(folder, tmp_path)


def test_a_file_that_changes_meanwhile_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*given: Any) -> Any:
        with (folder / "triton" / KEY / "kernel.cubin").open("ab") as kernel:
            kernel.write(b"more")
        return sha256(*given)

    monkeypatch.setattr("verl_e2e_runner.preflight.kernel_caches.hashlib.sha256", changed)
    assert f"triton/{KEY}/kernel.cubin was changed while it was copied" in refusal(folder, tmp_path)


def test_what_else_lies_there_is_named_and_not_taken(folder: Path, tmp_path: Path) -> None:
    (folder / "flashinfer").mkdir()
    os.mkdir(os.fsencode(folder) + b"/\xff")
    found = taken(folder, tmp_path)
    assert found.findings[0].summary.endswith("; not taken: flashinfer, \\xff")
    assert not (found.copy / "flashinfer").exists()


def test_the_folder_need_not_say_who_filled_it(folder: Path, tmp_path: Path) -> None:
    (folder / ORIGIN_FILE).write_text("{}")
    found = taken(folder, tmp_path)
    assert found.caches is not None
    assert found.caches.origin is None
    assert "not known which run filled them" in found.findings[0].summary


def test_caches_are_not_used_with_the_workers_of_another_cluster(folder: Path, tmp_path: Path) -> None:
    found = taken(folder, tmp_path, caches=None)
    assert [(finding.ok, finding.blocking) for finding in found.findings] == [(False, False)]
    assert found.caches is None


def test_a_run_that_fills_caches_begins_with_none(folder: Path, tmp_path: Path) -> None:
    session = Session("0" * 32, tmp_path, tmp_path, caches=tmp_path / "cache")
    found = take_caches(str(folder), session, tmp_path, keep=tmp_path / "new")
    assert (found.caches, [finding.ok for finding in found.findings]) == (None, [True])


def test_what_a_run_compiled_is_kept_with_its_origin(folder: Path, tmp_path: Path, world: World) -> None:
    (folder / "triton/link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "vllm/pipe")
    states = (
        RepositoryState(name="bridge", root="/b", commit="b" * 40),
        RepositoryState(name="verl", root="/v", commit="c" * 40, patches=("device",)),
    )
    origin = caches_origin(world.job(), states, {"triton": "3.6.0", "zlib": "1"}, (GPU,), driver="570", image="verl:t")
    kept = tmp_path / "kept"
    sentence = keep_caches(folder, kept, origin)
    assert f"kernel caches kept in {kept}: triton, vllm; 4 files" in sentence
    assert f"bridge {'b' * 40}, verl {'c' * 40}, with changes in verl" in sentence
    assert "only if you trust this code" in sentence
    assert not (kept / "triton/link").is_symlink()
    assert not (kept / "vllm/pipe").exists()
    assert CachesOrigin.model_validate_json((kept / ORIGIN_FILE).read_bytes()) == origin
    assert (origin.packages, origin.changed, origin.gpus) == ({"triton": "3.6.0"}, ("verl",), ("stand-in",))
    again = taken(kept, tmp_path).caches
    assert again is not None
    assert again.origin == origin


def test_a_folder_that_was_not_filled_to_its_end_is_not_used(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_caches, "MOST_FILES", 3)
    assert "not whole" in keep_caches(folder, tmp_path / "kept", ORIGIN)
    assert "it has none of the folders" in refusal(tmp_path / "kept", tmp_path)
    assert "not whole" in keep_caches(folder, tmp_path / "kept", ORIGIN)


def test_what_is_kept_can_be_used_where_a_group_may_write_new_files(folder: Path, tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        keep_caches(folder, tmp_path / "kept", ORIGIN)
    finally:
        os.umask(before)
    assert taken(tmp_path / "kept", tmp_path).caches is not None


def test_caches_that_cannot_be_kept_say_so(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "not whole" in keep_caches(folder, tmp_path / "file", ORIGIN)


# A head that looks for the operator's kernels, and leaves some of its own, before the wrapper and in it.
SPY = f"""
import os
from pathlib import Path
places = [Path(os.environ[name]) for name in {tuple(KERNEL_CACHES)!r}]

def look(*, given):
    kernel = places[0] / "{KEY}/kernel.cubin"
    assert kernel.exists() == given, (kernel, given)
    # Bridge tests, import proof and dry call come in no certain order, and each has folders of its own.
    assert not given or not list(places[0].glob("planted-*")), "left by a program before the wrapper"

def plant():
    for place in places:
        (place / f"planted-{{os.getpid()}}").mkdir(parents=True, exist_ok=True)
"""
TRAINER = """
import os
os.environ["TRAINING"] = "1"
import json
import megatron.bridge
from megatron.bridge.spy import places, look, plant
look(given=bool(os.environ["GIVEN"]))
for group in places[0].rglob("__grp__*"):
    found = json.loads(group.read_text())["child_paths"]
    print("GROUP", len(found), all(map(os.path.exists, found.values())))
plant()
kernel = places[0] / "OWN"
kernel.mkdir()
(kernel / "kernel.cubin").write_bytes(b"compiled")
(kernel / "__grp__kernel.json").write_text(json.dumps({"child_paths": {"kernel.cubin": f"{kernel}/kernel.cubin"}}))
print("FOLDER", os.path.exists("/".join(json.loads(os.environ["FOLDER"]))))
print("trained", oct(places[0].stat().st_mode), flush=True)
"""
HEAD = {
    "src/megatron/bridge/__init__.py": "import os, megatron.core\nfrom megatron.bridge.spy import look, plant\n"
    "if 'TRAINING' not in os.environ:\n    look(given=False)\n    plant()\n",
    "src/megatron/bridge/spy.py": SPY,
    "tests/unit/test_good.py": "import megatron.bridge\n\ndef test_good():\n    pass\n",
}


def _job(world: World, tmp_path: Path, caches: Path | None) -> Job:
    job = job_with(world, tmp_path, TRAINER, HEAD, ray=STAND_IN_RAY)
    return job.model_copy(update=_with_caches(world, caches))


def _with_caches(world: World, caches: Path | None) -> dict[str, object]:
    # In parts: a path that a job names is one that its code may read.
    process = {"GIVEN": "1" if caches else "", "FOLDER": json.dumps(str(caches).split("/"))}
    return {"process": process, "site": world.site(kernel_caches=str(caches) if caches else None)}


def _isolation(*, caged: bool) -> Any:
    return find_isolation if caged else lambda *_: NO_TOOLS


CAGED = pytest.param(True, marks=pytest.mark.bwrap)


@pytest.mark.host
@pytest.mark.ray
@pytest.mark.parametrize("caged", [CAGED, False])
def test_the_wrapper_alone_has_a_copy_that_ends_with_the_run(
    caged: bool, folder: Path, world: World, tmp_path: Path, environ: dict[str, str]
) -> None:
    before = fingerprint(folder)
    out = tmp_path / "out"
    run_whole(_job(world, tmp_path, folder), out, environ, isolation=_isolation(caged=caged))
    log = log_of(out)
    assert "GROUP 2 True" in log
    assert "trained" in log
    assert f"FOLDER {not caged}" in log, "a cage does not show the operator's folder"
    assert b'name="test_good"' in (out / "junit.xml").read_bytes()
    assert fingerprint(folder) == before
    environment = read_record(out).environment
    assert environment is not None
    assert environment.isolation is not None
    assert (environment.isolation.mode != "none") is caged
    caches = environment.kernel_caches
    assert caches is not None
    assert (caches.folders, caches.files, caches.origin) == (("triton", "vllm"), 4, ORIGIN)
    assert f"Kernel caches: {caches.text}" in host_rows(read_record(out))
    said = [finding for finding in environment.findings if finding.check is Check.KERNEL_CACHES]
    assert [finding.ok for finding in said] == [True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bridge", "kernels", "out", "verl"]


@pytest.mark.host
@pytest.mark.ray
@pytest.mark.parametrize("caged", [CAGED, False])
def test_a_run_fills_a_folder_that_the_next_one_begins_with(
    caged: bool, world: World, tmp_path: Path, environ: dict[str, str]
) -> None:
    kept = tmp_path / "kept"
    job = _job(world, tmp_path, None)
    said = run_whole(job, tmp_path / "first", environ, isolation=_isolation(caged=caged), keep_caches=kept)
    assert f"bridge {job.bridge.commit}" in said
    assert read_record(tmp_path / "first").environment.kernel_caches is None  # type: ignore[union-attr]
    assert CachesOrigin.model_validate_json((kept / ORIGIN_FILE).read_bytes()).commits["bridge"] == job.bridge.commit
    # What the second run looks for.
    (kept / "triton/OWN").rename(kept / "triton" / KEY)
    for planted in kept.glob("*/planted-*"):
        planted.rmdir()
    job = job.model_copy(update=_with_caches(world, kept))
    run_whole(job, tmp_path / "second", environ, isolation=_isolation(caged=caged))
    assert "GROUP 1 True" in log_of(tmp_path / "second")
    assert "trained" in log_of(tmp_path / "second")


@pytest.mark.host
def test_a_folder_that_is_not_there_ends_the_run_before_its_code_is_started(
    world: World, tmp_path: Path, environ: dict[str, str]
) -> None:
    run_whole(_job(world, tmp_path, tmp_path / "gone"), tmp_path / "out", environ, isolation=_isolation(caged=False))
    events = [json.loads(line) for line in (tmp_path / "out/events.jsonl").read_text().splitlines()]
    assert events[-2]["data"]["reason"] == EndReason.NOT_STARTED
    stopping = [event["data"] for event in events if event["kind"] == "finding" and not event["data"]["ok"]]
    assert any("No such file or directory" in finding["summary"] for finding in stopping)


@pytest.mark.host
@pytest.mark.ray
def test_a_run_that_fails_keeps_nothing(world: World, tmp_path: Path, environ: dict[str, str]) -> None:
    job = _job(world, tmp_path, None)
    failing = job.model_copy(update={"process": {**job.process, "GIVEN": "1"}})
    said = run_whole(
        failing, tmp_path / "out", environ, isolation=_isolation(caged=False), keep_caches=tmp_path / "kept"
    )
    assert "no kernel caches kept" in said
    assert not (tmp_path / "kept").exists()
