"""The driver of a rehearsal, apart from the recorder and within its limits: real processes that try to do more."""

import os
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from verl_e2e.core.compare.rehearsal import MOST_RECORD_BYTES, RunNote
from verl_e2e.core.model.errors import UserError
from verl_e2e_runner.rehearsal.apart import Apart, DriverLimits, collect_records, limits_of, open_apart, run_apart

GENEROUS = limits_of(2, 60)
CAGED = pytest.param(True, marks=pytest.mark.bwrap)


class Opens(Protocol):
    def __call__(self, limits: DriverLimits = GENEROUS, *, caged: bool = False) -> Apart: ...


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opens:
    """Opens a place for a driver; without a cage where no program is found that makes one."""

    def place(limits: DriverLimits = GENEROUS, *, caged: bool = False) -> Apart:
        if not caged:
            monkeypatch.setattr("verl_e2e_runner.place._UTILITIES", "/nowhere")
        given = {"PATH": os.environ["PATH"] if caged else "/nowhere"}
        tree = tmp_path / "tree"
        tree.mkdir(exist_ok=True)
        (tree / "code.py").write_text("READ = 1\n")
        return open_apart(tmp_path / "own", Path(sys.executable), [tree], given, limits, require_cage=caged)

    return place


def ran(apart: Apart, source: str, limits: DriverLimits = GENEROUS, **variables: str) -> tuple[str, RunNote]:
    """What a driver of this source printed, and the note on it."""
    script = apart.scratch / "driver.py"
    script.write_text(source)
    argv = (sys.executable, "-S", str(script))
    finished, note = run_apart(apart, argv, {"PATH": os.environ["PATH"], **variables}, limits)
    return finished.stdout, note


@pytest.mark.parametrize("caged", [False, CAGED])
def test_a_driver_that_ends_by_itself_leaves_its_records(tmp_path: Path, opened: Opens, caged: bool) -> None:
    apart = opened(caged=caged)
    source = f"print(open({str(tmp_path / 'tree/code.py')!r}).read()); open('import.json', 'w').write('{{}}')"
    printed, note = ran(apart, source)
    assert printed.strip() == "READ = 1"
    assert (note.ended, note.isolated) == ("", caged)
    assert ("in a cage" in note.isolation) is caged
    out = tmp_path / "records"
    out.mkdir()
    collect_records(apart, ["import.json", "complete.json"], out)
    assert [file.name for file in out.iterdir()] == ["import.json"]


@pytest.mark.parametrize("caged", [False, CAGED])
def test_a_driver_that_takes_too_much_memory_is_ended(opened: Opens, caged: bool) -> None:
    limits = replace(GENEROUS, memory_gib=0.25)
    # Each of its processes takes less than all of them may.
    source = "import os, time\nfor _ in range(4):\n    if not os.fork():\n        break\n"
    source += "else:\n    time.sleep(50)\nheld = os.urandom(1 << 20) * 120\ntime.sleep(50)"
    _printed, note = ran(opened(limits, caged=caged), source, limits)
    assert note.ended.endswith("GiB of memory, more than 0.25")
    assert note.peak_mib > 256
    assert note.seconds < 45


@pytest.mark.parametrize(
    "source",
    [
        "while True: open('file', 'ab').write(bytes(1 << 20)); __import__('time').sleep(0.005)",
        "for n in range(10**6): open(f'{n}', 'w')\n__import__('time').sleep(50)",
        "for n in range(10**4): __import__('os').mkdir(f'{n}')\n__import__('time').sleep(50)",
    ],
)
def test_a_driver_that_fills_the_disk_is_ended(opened: Opens, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_e2e_runner.rehearsal.apart._MOST_FILES", 1_000)
    limits = replace(GENEROUS, disk_gib=0.05)
    _printed, note = ran(opened(limits), source, limits)
    assert note.ended == "its files took more than 0.05 GiB"


@pytest.mark.parametrize("caged", [False, CAGED])
def test_a_driver_that_does_not_end_is_ended(opened: Opens, caged: bool) -> None:
    limits = limits_of(2, 1)
    _printed, note = ran(opened(limits, caged=caged), "import time; time.sleep(50)", limits)
    assert note.ended == "it did not end within 1 s"


@pytest.mark.parametrize("caged", [False, CAGED])
def test_no_process_of_a_driver_outlives_it(opened: Opens, caged: bool) -> None:
    limits = limits_of(2, 4)
    source = (
        "import os, time\nif not os.fork():\n    os.setsid()\n    while True:\n        open('alive', 'a').write('x')\n"
    )
    source += "        time.sleep(0.05)\ntime.sleep(50)"
    apart = opened(limits, caged=caged)
    ran(apart, source, limits)
    alive = apart.scratch / "out" / "alive"
    size = alive.stat().st_size
    assert size
    time.sleep(0.5)
    assert alive.stat().st_size == size


def test_a_driver_that_fails_is_told_by_its_last_words(opened: Opens) -> None:
    _printed, note = ran(opened(), "raise SystemExit('no torch')")
    assert note.ended == "the driver ended with exit code 1: no torch"


def test_where_no_cage_can_be_made_it_is_said_and_a_required_one_is_an_error(tmp_path: Path, opened: Opens) -> None:
    apart = opened()
    assert "could not be kept apart from the recorder on this host (bubblewrap" in apart.described
    with pytest.raises(UserError, match="--require-cage: no cage can be made on this host: bubblewrap"):
        open_apart(tmp_path / "own", Path(sys.executable), [], {"PATH": "/nowhere"}, GENEROUS, require_cage=True)


def test_what_a_driver_left_is_read_from_regular_files_of_bounded_size_alone(tmp_path: Path, opened: Opens) -> None:
    apart = opened()
    left = apart.scratch / "out"
    (tmp_path / "secret").write_text("{}")
    (left / "link.json").symlink_to(tmp_path / "secret")
    os.mkfifo(left / "pipe.json")
    (left / "folder.json").mkdir()
    (left / "long.json").write_bytes(bytes(MOST_RECORD_BYTES + 1))
    (left / "good.json").write_bytes(bytes(MOST_RECORD_BYTES))
    out = tmp_path / "records"
    out.mkdir()
    collect_records(apart, [f"{name}.json" for name in ("link", "pipe", "folder", "long", "good", "absent")], out)
    assert [file.name for file in out.iterdir()] == ["good.json"]


HOSTILE = """
import os, socket
def tried(attempt):
    try:
        return attempt()
    except OSError as error:
        return type(error).__name__
def connect():
    with socket.create_connection(("127.0.0.1", {port}), timeout=5):
        return "connected"
def write(path):
    with open(path, "w") as file:
        file.write("x")
    return "written"
print(tried(connect))
print("token" if "GITHUB_TOKEN" in os.environ else "no token")
for path in {paths!r}:
    print(tried(lambda: str(len(open(path).read()))), tried(lambda: write(path)))
print(tried(lambda: write("mine")))
"""


@pytest.mark.bwrap
def test_code_in_the_cage_reaches_no_network_no_file_of_the_host_and_no_other_records(
    tmp_path: Path, opened: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    (tmp_path / "records").mkdir()
    paths = [str(tmp_path / name) for name in ("records/base.json", "secret", "tree/code.py", "own/code/driver.py")]
    for path in paths[:2]:
        Path(path).write_text("base")
    apart = opened(caged=True)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        script_text = HOSTILE.format(port=listener.getsockname()[1], paths=paths)
        printed, note = ran(apart, script_text)
    assert note.ended == ""
    network, token, records, secret, tree, script, mine = printed.splitlines()
    assert (network, token, mine) == ("ConnectionRefusedError", "no token", "written")
    # Written files of the cage's own /tmp are gone with it.
    assert records.startswith("FileNotFoundError")
    assert secret.startswith("FileNotFoundError")
    assert [Path(path).read_text() for path in paths[:2]] == ["base", "base"]
    assert (tree, script) == ("9 OSError", f"{len(script_text)} PermissionError")


def test_more_workers_may_take_more() -> None:
    """A rank had 63 threads and 0.45 GiB on a host of 64 cores; 16 ranks met a limit of 1,024 threads."""
    few, many = limits_of(2), limits_of(48)
    assert (few.memory_gib, few.disk_gib, few.processes) == (6.0, 4.0, 1024)
    assert many.processes > 48 * 63
    assert many.memory_gib > 48 * 0.45
