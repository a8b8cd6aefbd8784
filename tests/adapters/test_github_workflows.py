"""Workflow runs over real HTTP: one run for one key whatever breaks, and artifacts that cannot write elsewhere."""

import stat
import struct
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.adapters.github_adapters import REPOSITORY, GithubAdapters, github_adapters
from tests.fakes.github_standin.faults import Fault, When, cut, server_error, silence, slow_down
from verl_e2e.adapters.github.session import with_token
from verl_e2e.adapters.github.workflows import GithubWorkflows, safe_member, unpack_archive
from verl_e2e.core.pulls.forge import Artifact, WorkflowRun
from verl_e2e.ports import ForgeError

FILE = "verl-e2e.yml"
KEY = "k" * 64
WORKFLOW = b"""
name: verl-e2e
run-name: job ${{ inputs.run_key }}
on:
  workflow_dispatch:
    inputs:
      run_key: {required: true}
      job: {default: ""}
jobs:
  run:
    runs-on: [self-hosted, gpu-8]
"""


@pytest.fixture
def at(tmp_path: Path) -> Iterator[GithubAdapters]:
    with github_adapters(tmp_path / "world", timeout_s=1) as made:
        made.world.commit({f".github/workflows/{FILE}": WORKFLOW})
        yield made


def start(at: GithubAdapters, key: str = KEY) -> WorkflowRun:
    return GithubWorkflows(at.github).dispatch(REPOSITORY, FILE, "main", {"run_key": key, "job": "{}"}, key)


def artifact(at: GithubAdapters, files: Mapping[str, bytes]) -> Artifact:
    run = start(at)
    at.world.finish_run(files)
    (found,) = GithubWorkflows(at.github).artifacts(REPOSITORY, run.id)
    return found


def test_a_run_from_its_start_to_its_end(at: GithubAdapters) -> None:
    workflows = GithubWorkflows(at.github)
    run = start(at)
    assert run.url
    (job,) = workflows.jobs(REPOSITORY, run.id)
    assert (job.status, job.labels) == ("queued", ("self-hosted", "gpu-8"))
    at.world.start_run(log=b"first line\n")
    at.world.finish_run({"verdict.json": b"{}"}, conclusion="failure")
    ended = workflows.run(REPOSITORY, run.id)
    assert ended is not None
    assert (ended.ended, ended.conclusion, KEY in ended.title) == (True, "failure", True)
    assert workflows.run(REPOSITORY, 999_999) is None


def test_a_run_is_found_by_its_key(at: GithubAdapters) -> None:
    runs = {key: start(at, key).id for key in ("a" * 64, "b" * 64)}
    workflows = GithubWorkflows(at.github)
    for key, run_id in runs.items():
        found = workflows.find(REPOSITORY, FILE, key, "main")
        assert found is not None
        assert found.id == run_id
    assert workflows.find(REPOSITORY, FILE, "c" * 64, "main") is None
    assert workflows.find(REPOSITORY, FILE, "a" * 64, "other") is None, "another branch may hold a changed copy"


def test_a_run_that_a_person_started_under_our_key_is_not_ours(at: GithubAdapters) -> None:
    at.world.person("mallory", "write")
    at.world.user_token("a-writer", "mallory")
    forged = GithubWorkflows(with_token("a-writer", api_url=at.world.url))
    run = forged.dispatch(REPOSITORY, FILE, "main", {"run_key": KEY, "job": "{}"}, KEY)
    started = forged.run(REPOSITORY, run.id)
    assert started is not None
    assert KEY in started.title
    assert GithubWorkflows(at.github).find(REPOSITORY, FILE, KEY, "main") is None
    ours = start(at)
    found = GithubWorkflows(at.github).find(REPOSITORY, FILE, KEY, "main")
    assert found is not None
    assert found.id == ours.id != run.id


BROKEN = [
    server_error(500),
    server_error(502),
    server_error(500, When.AFTER),
    server_error(503, When.AFTER),
    cut(),
    cut(When.AFTER),
    silence(1.5),
    slow_down(403),
    slow_down(429),
    # A server that does not know `return_run_details`.
    Fault(422, message='Invalid request.\n\n"return_run_details" is not a permitted key.'),
    Fault(400, message='"return_run_details" is not a permitted key.'),
]


@pytest.mark.parametrize("fault", BROKEN, ids=lambda fault: f"{fault.status}-{fault.when.value}-{fault.delay_s}")
def test_a_run_is_started_once_whatever_breaks(at: GithubAdapters, fault: Fault) -> None:
    at.world.faults.add(fault, "POST", "/dispatches")
    run = start(at)
    assert [other_run.id for other_run in at.world.runs()] == [run.id]


def test_a_server_that_tells_no_run_is_asked_for_it(at: GithubAdapters) -> None:
    at.world.faults.add(Fault(204, message="", when=When.AFTER), "POST", "/dispatches")
    run = start(at)
    assert [other_run.id for other_run in at.world.runs()] == [run.id]


@pytest.mark.parametrize(
    ("revision", "inputs", "message"),
    [
        ("nowhere", {"run_key": KEY}, "No ref found"),
        ("main", {"run_key": KEY, "other": "1"}, "Unexpected inputs"),
        ("main", {"job": KEY}, "not provided"),
    ],
)
def test_a_dispatch_that_cannot_work_says_why(
    at: GithubAdapters, revision: str, inputs: dict[str, str], message: str
) -> None:
    with pytest.raises(ForgeError, match=message) as refused:
        GithubWorkflows(at.github).dispatch(REPOSITORY, FILE, revision, inputs, KEY)
    assert not refused.value.passing
    assert at.world.runs() == []


def test_a_run_that_does_not_listen_is_ended_by_force(at: GithubAdapters) -> None:
    workflows = GithubWorkflows(at.github)
    run = start(at)
    at.world.runs()[0].stubborn = True
    workflows.cancel(REPOSITORY, run.id)
    assert at.world.live_runs()
    workflows.cancel(REPOSITORY, run.id, force=True)
    assert not at.world.live_runs()
    workflows.cancel(REPOSITORY, run.id)
    workflows.cancel(REPOSITORY, 999_999)


@pytest.mark.parametrize("fault", [None, server_error(502), cut(), slow_down(429)])
def test_an_artifact_is_brought_whole(at: GithubAdapters, tmp_path: Path, fault: Fault | None) -> None:
    found = artifact(at, {"verdict.json": b"{}", "logs/run.log": b"line\n" * 1000})
    if fault is not None:
        at.world.faults.add(fault, "GET", "/zip$|/_storage/")
    into = tmp_path / "deep" / "run"
    GithubWorkflows(at.github).fetch(REPOSITORY, found, into, limit=1_000_000)
    assert (into / "logs" / "run.log").read_bytes() == b"line\n" * 1000
    assert sorted(path.name for path in into.parent.iterdir()) == ["run"]


@pytest.mark.parametrize("limit", [50, 900])
def test_an_artifact_over_the_limit_is_left(at: GithubAdapters, tmp_path: Path, limit: int) -> None:
    found = artifact(at, {"zeros": b"\0" * 1_000_000})
    with pytest.raises(ForgeError):
        GithubWorkflows(at.github).fetch(REPOSITORY, found, tmp_path / "run", limit=limit)
    assert [path.name for path in tmp_path.iterdir()] == ["world"]


def test_an_artifact_that_is_longer_than_it_says_is_left(at: GithubAdapters, tmp_path: Path) -> None:
    found = artifact(at, {"noise": bytes(range(256)) * 40})
    small = Artifact(found.id, found.name, 1)
    with pytest.raises(ForgeError, match="longer than"):
        GithubWorkflows(at.github).fetch(REPOSITORY, small, tmp_path / "run", limit=100)
    assert [path.name for path in tmp_path.iterdir()] == ["world"]


def test_an_artifact_that_is_gone_is_reported(at: GithubAdapters, tmp_path: Path) -> None:
    found = artifact(at, {"a": b"1"})
    at.world.runs()[0].artifacts[0].expired = True
    with pytest.raises(ForgeError, match="410"):
        GithubWorkflows(at.github).fetch(REPOSITORY, found, tmp_path / "run", limit=1_000)


@pytest.mark.parametrize(
    "name",
    ["../up", "/root", "a/../../up", "..", "a\\b", "c:/x", "a\nb", "\x1b[2J", "..\\up", "", ".", "./."],
)
def test_a_member_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    assert safe_member(name) is None
    archive = tmp_path / "odd.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("good", b"1")
        packed.writestr(zipfile.ZipInfo(name or " "), b"2")
    if name:
        with pytest.raises(ForgeError):
            unpack_archive(archive, tmp_path / "into", limit=100)
        assert [path.name for path in tmp_path.iterdir()] == ["odd.zip"]


def test_links_doubles_and_devices_are_refused(tmp_path: Path) -> None:
    for number, members in enumerate(
        [
            [("link", stat.S_IFLNK | 0o777)],
            [("fifo", stat.S_IFIFO | 0o777)],
            [("same", 0), ("SAME", 0)],
            [("a", 0), ("a/b", 0)],
        ]
    ):
        archive = tmp_path / f"{number}.zip"
        with zipfile.ZipFile(archive, "w") as packed:
            for name, mode in members:
                member = zipfile.ZipInfo(name)
                member.external_attr = mode << 16
                packed.writestr(member, b"/etc/passwd")
        with pytest.raises(ForgeError):
            unpack_archive(archive, tmp_path / "into", limit=100)
        assert not (tmp_path / "into").exists()


def test_an_archive_whose_content_is_damaged_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "damaged.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("log.txt", "verl " * 1000)
    raw = bytearray(archive.read_bytes())
    start = 30 + len("log.txt")
    raw[start : start + 8] = b"\xff" * 8
    archive.write_bytes(raw)
    with pytest.raises(ForgeError, match="cannot be unpacked"):
        unpack_archive(archive, tmp_path / "out", limit=1_000_000)
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.zip"]


def test_a_bomb_that_lies_about_its_size_is_stopped(tmp_path: Path) -> None:
    archive = tmp_path / "bomb.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("zeros", b"\0" * 10_000_000)
    raw = archive.read_bytes()
    real, message = (10_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little")
    archive.write_bytes(raw.replace(real, message))
    with pytest.raises(ForgeError):
        unpack_archive(archive, tmp_path / "into", limit=1_000)
    assert [path.name for path in tmp_path.iterdir()] == ["bomb.zip"]


@pytest.mark.parametrize("content", [b"", b"PK", b"no archive", b"PK\x05\x06" + b"\0" * 17])
def test_what_is_no_archive_is_reported(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "x.zip"
    archive.write_bytes(content)
    with pytest.raises(ForgeError, match="cannot be unpacked"):
        unpack_archive(archive, tmp_path / "into", limit=100)


def test_a_directory_of_millions_of_entries_is_refused_before_it_is_read(tmp_path: Path) -> None:
    archive = tmp_path / "many.zip"
    entry = b"PK\1\2" + b"\0" * 24 + struct.pack("<HHH", 5, 0, 0) + b"\0" * 12 + b"a.txt"
    count = 1_000_000
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, count * len(entry), 0, 0)
    archive.write_bytes(entry * count + end)
    began = time.process_time()
    with pytest.raises(ForgeError, match="directory is too long"):
        unpack_archive(archive, tmp_path / "into", limit=100)
    assert time.process_time() - began < 2
    assert [path.name for path in tmp_path.iterdir()] == ["many.zip"]


def test_more_files_than_are_taken_are_refused(tmp_path: Path) -> None:
    archive = tmp_path / "many.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for number in range(10_001):
            packed.writestr(str(number), b"")
    with pytest.raises(ForgeError, match="the limit is 10,000"):
        unpack_archive(archive, tmp_path / "into", limit=100)
