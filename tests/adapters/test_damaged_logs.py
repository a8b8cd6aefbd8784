"""Compressed logs cut anywhere: judged as far as they go, named as truncated, and no pass by half a line."""

import gzip
import lzma
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from backports import zstd

from tests.fakes.places import FIXTURES
from verl_e2e.adapters.files.logs import log_facts, open_log
from verl_e2e.core.log.scan import scan
from verl_e2e.core.triage.triage import TRUNCATED, TriageVerdict, triage

LOGS = FIXTURES / "logs"
PASSING = "level0-pass"
NAMES = (PASSING, "level0-dataset-missing", "level0-no-apex-gradient-fusion")
CUTS = 14


def flushed(data: bytes) -> bytes:
    """One Zstandard frame, flushed now and then, as a program does that compresses its own log."""
    packer = zstd.ZstdCompressor()
    parts = [packer.compress(data[at : at + 8192], zstd.ZstdCompressor.FLUSH_BLOCK) for at in range(0, len(data), 8192)]
    return b"".join([*parts, packer.flush()])


PACK: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "xz": lzma.compress, "zst": flushed}


@cache
def log(name: str) -> bytes:
    return b"".join(open_log(LOGS / f"{name}.log.xz"))


@pytest.mark.parametrize("cut", range(1, CUTS))
@pytest.mark.parametrize("form", PACK)
@pytest.mark.parametrize("name", NAMES)
def test_a_cut_log_is_judged_as_far_as_it_goes_and_says_so(name: str, form: str, cut: int, tmp_path: Path) -> None:
    packed = PACK[form](log(name))
    file = tmp_path / f"run.log.{form}"
    file.write_bytes(packed[: len(packed) * cut // CUTS])
    stream = open_log(file)
    readable = b"".join(stream)
    assert stream.truncated
    answer, plain = triage(log_facts(str(file))), triage(scan([readable]))
    assert (answer.verdict, answer.stage, answer.line) == (plain.verdict, plain.stage, plain.line)
    assert answer.cause == f"{plain.cause}; {TRUNCATED}"
    assert answer.verdict is not TriageVerdict.PASS or (name == PASSING and b"Training Progress: 100%" in readable)


@pytest.mark.parametrize("form", PACK)
def test_a_whole_log_is_not_called_truncated(form: str, tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    file.write_bytes(PACK[form](log(PASSING)))
    answer = triage(log_facts(str(file)))
    assert answer.verdict is TriageVerdict.PASS
    assert TRUNCATED not in answer.cause


def test_a_truncated_log_passes_only_by_whole_lines() -> None:
    rows = b"step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5\n"
    rows += b"Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]"
    half, whole = scan([rows]), scan([rows + b"\n"])
    assert triage(half).verdict is TriageVerdict.PASS
    assert triage(replace(whole, truncated=True)).verdict is TriageVerdict.PASS
    answer = triage(replace(half, truncated=True))
    assert (answer.verdict, answer.rule, answer.line) == (TriageVerdict.BLOCKED, "incomplete", 2)
    assert answer.cause == f"the line that shows the completion is cut; {TRUNCATED}"
