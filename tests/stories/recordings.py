"""Recorded GPU runs, passed off in a story as the run of the job that the story dispatched.

Nothing ran: the recording's commits, model, data and CPUs for Ray are renamed to those of the job, and its job.json is
the job's own.
What such a folder proves is how the bot deals with a real run's folder, not that the job would pass.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from backports import zstd

from tests.fakes.github_standin.state import WorkflowRun
from tests.fakes.places import ROOT
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.pulls.job_order import nonce_of, unpack_order

SMOKE = ROOT / "bot/verl_e2e/demo/recording"
RESUME = ROOT / "tests/fixtures/runs/level1-resume"
STOPPED = ROOT / "tests/fixtures/runs/level0-no-modelopt"
BROKEN = ROOT / "tests/fixtures/runs/level0-lora-exception"
_JUDGED = ("verdict.json", "evidence.json", "card.md", "card.txt")
_PACKED = "log.txt.zst"


def job_of(run: WorkflowRun) -> Job:
    """The job that a workflow run was dispatched with."""
    found = unpack_order(run.inputs["job"])
    assert isinstance(found, Job)
    return found


def left_by(run: WorkflowRun, recording: Path, job: Job | None = None) -> Mapping[str, bytes]:
    """The files of a recorded run folder as a workflow run would leave them, the nonce of its order among them."""
    return adapted(recording, job or job_of(run), nonce_of(run.inputs["job"]))


def adapted(recording: Path, job: Job, nonce: str = "") -> Mapping[str, bytes]:
    """The files of a recorded run folder, renamed to be those of a job; without the judgement of that time."""
    known = json.loads((recording / "job.json").read_bytes())
    renamed = tuple(_renamed(known, job))
    files = {path.relative_to(recording).as_posix(): path for path in sorted(recording.rglob("*")) if path.is_file()}
    found = {name: _read(path, renamed) for name, path in files.items() if name not in _JUDGED}
    found["events.jsonl"] = found["events.jsonl"].replace(b'"reason":', f'"nonce": "{nonce}", "reason":'.encode())
    return {**found, "job.json": job.model_dump_json(indent=2).encode()}


def _read(path: Path, renamed: tuple[tuple[bytes, bytes], ...]) -> bytes:
    packed = path.name == _PACKED
    content = zstd.decompress(path.read_bytes()) if packed else path.read_bytes()
    for old, new in renamed:
        content = content.replace(old, new)
    return zstd.compress(content) if packed else content


def _renamed(known: Mapping[str, Any], job: Job) -> Iterator[tuple[bytes, bytes]]:
    cpus, asked = known["site"]["ray_cpus"], job.site.ray_cpus_of(job.gpus_of_node, job.node_count)
    # As verl's command line, its saved configuration and its log show them.
    for shown in ("num_cpus={}", '"num_cpus": {}', "'num_cpus': {}"):
        yield shown.format(cpus).encode(), shown.format(asked).encode()
    ours = json.loads(job.model_dump_json())
    for keys in (
        ("bridge", "commit"),
        ("verl", "commit"),
        ("checkpoint", "model_id"),
        ("checkpoint", "model_path"),
        ("data", "train_files"),
        ("data", "val_files"),
    ):
        old, new = known[keys[0]][keys[1]], ours[keys[0]][keys[1]]
        if old and new and old != new:
            yield old.encode(), new.encode()
            # Short forms stand in log lines.
            if keys[1] == "commit":
                yield old[:12].encode(), new[:12].encode()
