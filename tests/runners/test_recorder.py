"""The run folder: what is on disk at any moment, also after a kill, and that nothing private of the host ever is."""

import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from verl_e2e.core.model.record import EVENTS_FILE, LOG_FILE, Event, ImportLine
from verl_e2e.core.text.redact import redactor
from verl_e2e_runner.folder.recorder import FRAME_BYTES, FolderInUseError, Recorder, host_redactor

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

REDACTOR = redactor(paths=[("/home/ada", "$HOME")], secrets=[("tuna-Sandwich!99", "SITE_KEY")])


class Hand:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hand() -> Hand:
    return Hand()


def opened(tmp_path: Path, hand: Hand) -> Recorder:
    return Recorder(tmp_path / "run", redactor=REDACTOR, monotonic=hand)


def readable(folder: Path) -> bytes:
    """What a reader can get from the log now, whether or not its last frame has ended."""
    text, rest = b"", (folder / LOG_FILE).read_bytes()
    while rest:
        frame = zstd.ZstdDecompressor()
        text += frame.decompress(rest)
        rest = frame.unused_data
    return text


def events(folder: Path) -> list[Event]:
    return [Event.model_validate_json(line) for line in (folder / EVENTS_FILE).read_text().splitlines()]


def test_events_are_on_disk_at_once_with_seconds_since_the_start(tmp_path: Path, hand: Hand) -> None:
    recorder = opened(tmp_path, hand)
    recorder.event("started", folder="/home/ada/run")
    hand.now += 2.5
    assert recorder.event("stage", stage="ray") == 2.5
    assert [(event.t_s, event.kind, event.data) for event in events(recorder.folder)] == [
        (0.0, "started", {"folder": "$HOME/run"}),
        (2.5, "stage", {"stage": "ray"}),
    ]
    recorder.close()


def test_the_log_is_readable_a_second_after_it_was_written(tmp_path: Path, hand: Hand) -> None:
    with opened(tmp_path, hand) as recorder:
        recorder.log(b"one\n")
        assert readable(recorder.folder) == b""
        hand.now += 1.0
        recorder.log(b"two\nthr")
        assert readable(recorder.folder) == b"one\ntwo\n"
        recorder.log(b"ee\n")
        hand.now += 0.5
        recorder.flush(if_older_s=1.0)
        assert readable(recorder.folder) == b"one\ntwo\n"
        hand.now += 0.5
        recorder.flush(if_older_s=1.0)
        assert readable(recorder.folder) == b"one\ntwo\nthree\n"


def test_a_finished_log_is_an_ordinary_zstandard_file(tmp_path: Path, hand: Hand) -> None:
    line = bytes(range(97, 123)) * 40 + b"\n"
    with opened(tmp_path, hand) as recorder:
        for _ in range(2 * FRAME_BYTES // len(line)):
            recorder.log(line)
            hand.now += 0.01
    with zstd.open(recorder.folder / LOG_FILE) as file:
        assert file.read() == line * (2 * FRAME_BYTES // len(line))
    assert (recorder.folder / LOG_FILE).read_bytes().count(b"\x28\xb5\x2f\xfd") > 1, "more than one frame"


def test_an_empty_log_is_one_too(tmp_path: Path, hand: Hand) -> None:
    opened(tmp_path, hand).close()
    with zstd.open(tmp_path / "run" / LOG_FILE) as file:
        assert file.read() == b""


def test_readers_along_get_what_was_written_and_nothing_else(tmp_path: Path, hand: Hand) -> None:
    with opened(tmp_path, hand) as recorder:
        got = recorder.log(b"key tuna-Sand")
        got += recorder.log(b"wich!99 at /home/ada/x\n")
        got += recorder.log(b"no end")
        got += recorder.end_of_output()
        got += recorder.log(b"second program\n")
        assert got == b"key <redacted:SITE_KEY> at $HOME/x\nno end\nsecond program\n"
        hand.now += 1
        recorder.flush()
        assert readable(recorder.folder) == got


def test_documents_appear_whole_or_not_at_all(tmp_path: Path, hand: Hand) -> None:
    with opened(tmp_path, hand) as recorder:
        recorder.document("job.json", {"path": "/home/ada/verl", "HF_TOKEN": "x1y2"})
        assert json.loads((recorder.folder / "job.json").read_text()) == {
            "path": "$HOME/verl",
            "HF_TOKEN": "<redacted:token>",
        }
        with pytest.raises(ValueError, match="nan"):
            recorder.document("job.json", {"value": float("nan")})
        with pytest.raises(ZeroDivisionError):
            recorder.lines("job.json", ({"n": 1 // n} for n in (1, 0)))
        assert "$HOME/verl" in (recorder.folder / "job.json").read_text()


def test_lines_are_counted_and_redacted(tmp_path: Path, hand: Hand) -> None:
    line = ImportLine(module="verl", file="/home/ada/verl/__init__.py", role="run", pid=7)
    with opened(tmp_path, hand) as recorder:
        assert recorder.lines("imports.jsonl", [line, line]) == 2
        written = (recorder.folder / "imports.jsonl").read_text().splitlines()
        assert ImportLine.model_validate_json(written[1]).file == "$HOME/verl/__init__.py"


def test_text_that_is_no_unicode_does_no_harm(tmp_path: Path, hand: Hand) -> None:
    with opened(tmp_path, hand) as recorder:
        recorder.event("note", text="\ud800 é \udcff")
        recorder.text("card.txt", "\ud800 é")
        assert events(recorder.folder)[0].data["text"] == "? é ?"
        assert (recorder.folder / "card.txt").read_text() == "? é"


def test_a_folder_with_a_run_in_it_is_refused(tmp_path: Path, hand: Hand) -> None:
    opened(tmp_path, hand).close()
    with pytest.raises(FolderInUseError, match="already holds a run"):
        opened(tmp_path, hand)


KILLED = """
import os, signal, sys
from pathlib import Path
from verl_e2e.core.text.redact import redactor
from verl_e2e_runner.folder.recorder import Recorder

now = [0.0]
recorder = Recorder(Path(sys.argv[1]), redactor=redactor(), monotonic=lambda: now[0])
recorder.document("job.json", {"n": 1})
for number in range(5000):
    recorder.log(b"line %d\\n" % number)
    now[0] += 0.01
    recorder.event("step", step=number)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_at_any_moment_leaves_a_readable_prefix(tmp_path: Path) -> None:
    root = ROOT
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "run")], cwd=root, timeout=HANG_S, check=False
    )
    assert killed.returncode == -9
    lines = readable(tmp_path / "run").splitlines()
    assert lines == [b"line %d" % number for number in range(len(lines))]
    assert 4900 <= len(lines) <= 5000, "at most the last second is lost"
    assert len(events(tmp_path / "run")) == 5000
    assert json.loads((tmp_path / "run" / "job.json").read_text()) == {"n": 1}


def test_a_disk_that_takes_only_a_part_of_the_log_is_an_error_at_once(tmp_path: Path, hand: Hand) -> None:
    recorder = opened(tmp_path, hand)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            recorder.log(os.urandom(400_000).hex().encode() + b"\n")
        with pytest.raises(OSError, match="File too large"):
            recorder.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    recorder.close()  # closed already, the full disk notwithstanding


@pytest.mark.parametrize(
    ("output", "line"), [(b"", 1), (b"one\n", 2), (b"one\ntwo\n", 3), (b"one\ntwo", 3), (b"one\r\ntwo\n\n", 4)]
)
def test_the_first_line_of_the_next_phase_is_known_before_it_is_written(
    tmp_path: Path, hand: Hand, output: bytes, line: int
) -> None:
    with opened(tmp_path, hand) as recorder:
        recorder.log(output)
        recorder.end_of_output()
        assert recorder.next_line == line
        recorder.log(b"of the next phase\n")
    with zstd.open(recorder.folder / LOG_FILE) as file:
        assert file.read().split(b"\n").index(b"of the next phase") + 1 == line


SECRET = "tuna-Sandwich!99"


def test_places_are_known_by_name_and_by_what_links_lead_to(tmp_path: Path) -> None:
    (tmp_path / "real" / "verl").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    names = host_redactor({"HOME": str(tmp_path)}, {"$VERL": tmp_path / "link" / "verl"})
    for text in (f"{tmp_path}/link/verl/x.py", f"{tmp_path}/real/verl/x.py"):
        assert names.redact_text(text) == "$VERL/x.py"
    assert names.redact_text(f"{tmp_path}/other /tmp/ray") == "$HOME/other $TMPDIR/ray"


def test_secret_variables_are_known_by_their_values() -> None:
    names = host_redactor({"SITE_API_KEY": SECRET, "GITHUB_SHA": "a1b2c3d4e5", "EOS_TOKEN": "end-of-text"}, {})
    assert names.redact_text(f"{SECRET} a1b2c3d4e5 end-of-text") == "<redacted:SITE_API_KEY> a1b2c3d4e5 end-of-text"


def test_the_host_has_one_placeholder_with_and_without_its_domain(tmp_path: Path) -> None:
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 192.0.2.1\nsearch cluster.example.org. example.org\n")
    names = host_redactor({"HOSTNAME": "gpu-17"}, {}, resolver=resolver)
    one, short, other = names.redact_text("gpu-17.cluster.example.org gpu-17 gpu-18").split()
    assert one == short
    assert one.startswith("host-")
    assert other == "gpu-18"


def test_a_host_named_in_full_is_known_by_its_short_name_too(tmp_path: Path) -> None:
    names = host_redactor({"SLURMD_NODENAME": "node-9.example.org"}, {}, resolver=tmp_path / "none")
    full, short = names.redact_text("node-9.example.org node-9").split()
    assert full == short
    assert short.startswith("host-")


def test_this_machine_passes_nothing_of_itself() -> None:
    names = host_redactor({}, {})
    addresses = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET and not entry.address.startswith("127.")
    ]
    for value in addresses:
        assert value not in names.redact_text(f"at {value}:6379")
    if len(socket.gethostname()) > 10:
        assert socket.gethostname() not in names.redact_text(f"on {socket.gethostname()} now")
    assert names.redact_text("127.0.0.1 localhost") == "127.0.0.1 localhost"


@pytest.mark.parametrize("home", ["/", ""])
def test_an_odd_home_does_not_swallow_every_path(home: str) -> None:
    assert host_redactor({"HOME": home}, {}).redact_text("/usr/lib/x") == "/usr/lib/x"
