"""Logs on disk in every form, whole, cut, broken and absent."""

import gzip
import io
import itertools
import lzma
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd

from verl_e2e.adapters.files.logs import CHUNK, LogBounds, LogError, bounded, log_lines, open_log

TEXT = b"".join(b"line %d of a log\n" % number for number in range(20_000))
PACK: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstd.compress}


def read(path: Path) -> bytes:
    return b"".join(open_log(path))


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_a_plain_log(tmp_path: Path) -> None:
    assert read(written(tmp_path, "run.log", TEXT)) == TEXT
    assert read(written(tmp_path, "empty.log", b"")) == b""
    assert read(written(tmp_path, "short.log", b"ab")) == b"ab"


@pytest.mark.parametrize(
    "text", [b"", b"a", b"a\n", b"\n", b"\n\na", b"one\ntwo\n\nfour", "h\u00e9\n\u65e5".encode(), b"\xff\n"]
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_are_whole_wherever_a_block_ends(text: bytes, size: int) -> None:
    blocks = [text[at : at + size] for at in range(0, len(text), size)]
    *lines, last = text.decode(errors="replace").split("\n")
    assert list(log_lines(blocks)) == [*lines, *([last] if last else [])]


def test_a_line_as_long_as_the_log_takes_time_by_its_length() -> None:
    began = time.process_time()
    (line,) = log_lines(b"x" * 64 for _ in range(100_000))
    assert len(line) == 6_400_000
    # Copied for each block it would be 320 GB.
    assert time.process_time() - began < 10


@pytest.mark.parametrize("form", PACK)
@pytest.mark.parametrize("suffix", ["log", "gz", "xz", "zst", ""])
def test_the_first_bytes_say_what_it_is_and_not_the_name(tmp_path: Path, form: str, suffix: str) -> None:
    assert read(written(tmp_path, f"run.{suffix}", PACK[form](TEXT))) == TEXT


@pytest.mark.parametrize("form", PACK)
def test_members_one_after_the_other(tmp_path: Path, form: str) -> None:
    pack = PACK[form]
    assert read(written(tmp_path, "run", pack(b"one\n") + pack(TEXT) + pack(b"end\n"))) == b"one\n" + TEXT + b"end\n"
    assert read(written(tmp_path, "padded", pack(TEXT) + b"\x00" * 512)) == TEXT


@pytest.mark.parametrize("form", PACK)
def test_a_crash_leaves_a_cut_member_that_is_read_as_far_as_it_goes(tmp_path: Path, form: str) -> None:
    pack = PACK[form]
    path = written(tmp_path, "run", pack(TEXT) + pack(TEXT)[:-30])
    found = read(path)
    assert found.startswith(TEXT)
    assert (TEXT + TEXT).startswith(found)


def test_every_cut_of_a_frame_is_survived(tmp_path: Path) -> None:
    packed = zstd.compress(TEXT)
    for end in range(4, len(packed), 997):
        assert TEXT.startswith(read(written(tmp_path, "cut.zst", packed[:end])))


@pytest.mark.parametrize("form", PACK)
def test_a_broken_log_is_an_error_that_names_it(tmp_path: Path, form: str) -> None:
    checked = {int(zstd.CompressionParameter.checksum_flag): 1}
    packed = bytearray(zstd.compress(TEXT, options=checked) if form == "zst" else PACK[form](TEXT))
    packed[-5:] = bytes(255 - byte for byte in packed[-5:])
    path = written(tmp_path, "run", bytes(packed))
    with pytest.raises(LogError, match="broken") as caught:
        read(path)
    assert caught.value.file == str(path)
    assert caught.value.fix


@pytest.mark.parametrize("form", PACK)
def test_only_a_cut_member_is_truncated(tmp_path: Path, form: str) -> None:
    packed = PACK[form](TEXT)
    whole = open_log(written(tmp_path, "run", packed))
    assert (b"".join(whole), whole.truncated) == (TEXT, False)
    for kept in (len(packed) - 1, len(packed) // 2):
        for cut in (open_log(written(tmp_path, "run", packed[:kept])), bounded(tmp_path / "run", LogBounds())):
            assert TEXT.startswith(b"".join(cut))
            assert cut.truncated
    assert not open_log(written(tmp_path, "plain", TEXT)).truncated


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"this is a binary file, not a console log\. Give the console log that"):
        read(written(tmp_path, "run.log", b"\x89PNG\r\n\x1a\n" + bytes(range(256))))
    with tarfile.open(tmp_path / "logs.tar.gz", "w:gz") as archive:
        archive.add(written(tmp_path, "run.log", TEXT), "run.log")
    with pytest.raises(LogError, match=r"this is a tar archive, not a console log\. Unpack it"):
        read(tmp_path / "logs.tar.gz")


def test_rubbish_after_a_whole_member_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="broken"):
        read(written(tmp_path, "run.zst", zstd.compress(TEXT) + b"rubbish"))


def test_logs_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="there is no such file"):
        read(tmp_path / "absent.log")
    with pytest.raises(LogError, match="this is a folder"):
        read(tmp_path)
    with pytest.raises(LogError, match="cannot be opened"):
        b"".join(open_log("a\x00b"))


@pytest.mark.parametrize("form", PACK)
def test_a_bomb_comes_out_in_bounded_pieces(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, "bomb", PACK[form](b"\x00" * (24 * CHUNK)))
    assert path.stat().st_size < CHUNK // 8
    sizes = [len(piece) for piece in open_log(path)]
    assert sum(sizes) == 24 * CHUNK
    assert max(sizes) <= CHUNK


@pytest.mark.parametrize(
    "empty",
    [gzip.compress(b""), zstd.compress(b""), b"\x50\x2a\x4d\x18" + bytes(4), bytes(CHUNK)],
    ids=["gzip", "zstd", "skipped", "padding"],
)
def test_what_unpacks_to_nothing_for_long_is_given_up(tmp_path: Path, empty: bytes) -> None:
    pack = gzip.compress if empty[0] in (0, 0x1F) else zstd.compress
    for number, broken in ((50, False), (150, True)):
        path = written(tmp_path, "empty", pack(TEXT) + empty * number + pack(TEXT))
        if not broken:
            assert read(path) == TEXT + TEXT
            continue
        with pytest.raises(LogError, match="unpacks to nothing"):
            read(path)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(zstd.compress(TEXT))))
    assert b"".join(open_log("-")) == TEXT


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (LogBounds(total_bytes=1 << 20), "more than 1 MiB unpacked"),
        (LogBounds(lines=1_000_000), "more than 1,000,000 lines"),
        (LogBounds(seconds=0.0), "more than 0 s of work"),
    ],
)
def test_a_small_file_that_unpacks_to_a_huge_log_is_given_up(tmp_path: Path, bounds: LogBounds, message: str) -> None:
    bomb = tmp_path / "log.txt.zst"
    bomb.write_bytes(zstd.compress(b"\n" * (64 << 20)))
    assert bomb.stat().st_size < 16_384
    blocks = bounded(bomb, bounds)
    with pytest.raises(LogError, match=message):
        list(itertools.islice(blocks, 4))


def test_a_log_within_its_bounds_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    file.write_bytes(b"one\ntwo\n")
    assert b"".join(bounded(file, LogBounds())) == b"one\ntwo\n"
