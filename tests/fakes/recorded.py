"""A dispatcher that lays recorded run folders of real GPU runs into place, as if the job had just been run."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backports import zstd

from tests.fakes.places import FIXTURES
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import LOG_FILE

RUNS = FIXTURES / "runs"

Change = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Recorded:
    """A recorded run by the name of its folder, and what is altered in its log."""

    name: str
    log: Change | None = None


PASSES = Recorded("level0-image-tree-first")
RAISES = Recorded("level0-lora-exception")
MATCHES_NOTHING = Recorded("level0-lora-matches-nothing")
TEST_FAILS = Recorded("level0-bridge-test-failed")
NO_PACKAGE = Recorded("level0-no-modelopt")
NO_GRADIENT = Recorded(PASSES.name, lambda log: log.replace(b"actor/grad_norm:", b"actor/grad_norm:0.0 - x:"))


def recorded_job(recorded: Recorded = RAISES, **changes: object) -> Job:
    """The job of a recorded run."""
    job = Job.model_validate_json((RUNS / recorded.name / "job.json").read_bytes())
    return job.model_copy(update=changes)


def lay(recorded: Recorded, job: Job, out: Path) -> None:
    """The recorded run as a run of this job: its commits and its digest, everything else as it was recorded."""
    shutil.copytree(RUNS / recorded.name, out)
    was = recorded_job(recorded)
    now = {was.bridge.commit: job.bridge.commit, was.digest(): job.digest()}
    started = json.loads((out / "events.jsonl").read_text().splitlines()[0])["data"]["digest"]
    _replace(out, now | {started: job.digest()})
    if recorded.log is not None:
        log = out / LOG_FILE
        text = zstd.decompress(log.read_bytes())
        changed = recorded.log(text)
        assert changed != text, "the alteration finds nothing to alter"
        log.write_bytes(zstd.compress(changed))


def _replace(out: Path, replacements: Mapping[str, str]) -> None:
    for name in ("job.json", "environment.json", "events.jsonl"):
        text = (out / name).read_text()
        for old, new in replacements.items():
            text = text.replace(old, new)
        (out / name).write_text(text)


@dataclass
class RecordedRuns:
    """Runs jobs by laying recordings: for each Bridge commit a list, taken in turn; the last one stays."""

    by_commit: Mapping[str, Sequence[Recorded | BaseException]]
    ran: list[tuple[Job, Path]] = field(default_factory=list)

    def run(self, job: Job, out: Path) -> int:
        """Lay the next recording of the job's commit, or raise what stands in its place."""
        turn = sum(done.bridge.commit == job.bridge.commit for done, _ in self.ran)
        self.ran.append((job, out))
        scripted = self.by_commit[job.bridge.commit]
        one = scripted[min(turn, len(scripted) - 1)]
        if isinstance(one, BaseException):
            raise one
        lay(one, job, out)
        return 0


@dataclass
class NothingKept:
    """Baselines of which none is there from before; remembers what is kept."""

    kept: dict[str, Path] = field(default_factory=dict)

    def fetch(self, key: str, into: Path, accept: Callable[[Path], bool]) -> bool:
        """Never there."""
        return False

    def keep(self, key: str, folder: Path) -> bool:
        """Remember the folder."""
        self.kept[key] = folder
        return True
