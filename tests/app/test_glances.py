"""A look at a run under way: how far it is and the end of its log, and nothing where no one can tell."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from tests.fakes.app import FakeBackend
from tests.fakes.run_folders import FakeFolders
from verl_e2e.app.runs import glance
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.pulls.run_lines import Glance
from verl_e2e.ports import BackendError

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
RUN = Run(key="a" * 64, repository="octo/bridge", number=1, head_sha="b" * 40, job_id="0-lora-ddp", job_digest="c" * 64,
          attempt=1, created=NOW, updated=NOW)  # fmt: skip


@dataclass
class Telling(FakeBackend):
    """A back end that prints these blocks."""

    blocks: tuple[bytes | Exception, ...] = ()

    def where(self, run: Run) -> str:  # noqa: ARG002  (the signature of the port)
        return "step 3"

    def log(self, run: Run) -> Iterator[bytes]:  # noqa: ARG002
        for block in self.blocks:
            if isinstance(block, Exception):
                raise block
            yield block


@pytest.mark.parametrize(
    ("blocks", "lines"),
    [
        ((), ()),
        ((b"one\ntw", b"o\nthree"), ("one", "two", "three")),
        ((b"cut \xff\n",), ("cut \ufffd",)),
        ((b"".join(b"%d\n" % n for n in range(100)),), tuple(str(n) for n in range(60, 100))),
    ],
)
def test_the_last_lines_are_those_of_the_log_so_far(blocks: tuple[bytes, ...], lines: tuple[str, ...]) -> None:
    assert glance(Telling(FakeFolders(), blocks=blocks), RUN) == Glance("step 3", lines)


@pytest.mark.parametrize(
    "block",
    [
        b"git clone https://bot:hunter2@git.example/verl\n",
        b"HF_TOKEN=hunter2hunter2\n",
        b"HF_TOKEN=" + b"hunter2" * 3_000 + b"\nend\n",
    ],
)
def test_what_no_recorder_redacted_shows_no_secret(block: bytes) -> None:
    found = glance(Telling(FakeFolders(), blocks=(block,)), RUN)
    assert found.last_lines
    assert "hunter2" not in "".join(found.last_lines)


def test_a_log_too_long_to_read_at_each_look_says_so() -> None:
    found = glance(Telling(FakeFolders(), blocks=(b"x" * (1 << 20),) * 65), RUN)
    assert (found.where, "longer than 64 MB" in found.last_lines[0], len(found.last_lines)) == ("step 3", True, 1)


@pytest.mark.parametrize("error", [BackendError("the disk is away"), UserError("log.txt.zst: it is no text")])
def test_a_back_end_that_cannot_tell_leaves_the_page_without(error: Exception) -> None:
    assert glance(Telling(FakeFolders(), blocks=(b"one\n", error)), RUN) == Glance()
