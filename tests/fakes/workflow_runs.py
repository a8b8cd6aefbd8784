"""A repository's workflow runs in memory: what GitHub would say, moved on by the test."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from verl_e2e.adapters.github.workflows import GithubWorkflows
from verl_e2e.core.pulls.forge import Artifact, WorkflowJob, WorkflowRun
from verl_e2e.ports import ForgeError


@dataclass
class FakeWorkflows(GithubWorkflows):
    """No GitHub behind it; `refuse` raises at the next dispatch, after the run was made with `lost_answer`."""

    runs: dict[int, WorkflowRun] = field(default_factory=dict)
    inputs: dict[int, Mapping[str, str]] = field(default_factory=dict)
    left: dict[int, list[tuple[Artifact, Mapping[str, str]]]] = field(default_factory=dict)
    orders: list[tuple[int, bool]] = field(default_factory=list)
    runner: str = ""
    refuse: ForgeError | None = None
    lost_answer: bool = False
    obeys: bool = True
    now: datetime | None = None
    attested: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def dispatch(
        self, repository: str, workflow: str, revision: str, inputs: Mapping[str, str], key: str
    ) -> WorkflowRun:
        """Start a run."""
        refused, self.refuse = self.refuse, None
        if refused and not self.lost_answer:
            raise refused
        number = len(self.runs) + 1
        title = f"verl-e2e {inputs['job_id']} {key}"
        url = f"https://github.test/{repository}/actions/runs/{number}"
        self.runs[number] = WorkflowRun(number, "queued", title=title, url=url, created=self.now)
        self.inputs[number] = inputs
        if refused:
            raise refused
        return self.runs[number]

    def find(self, repository: str, workflow: str, key: str, revision: str) -> WorkflowRun | None:
        """The newest that shows the key."""
        return next((run for run in reversed(self.runs.values()) if key in run.title), None)

    def found(self, repository: str, workflow: str, key: str, revision: str) -> tuple[WorkflowRun, ...]:
        """All that show the key."""
        return tuple(run for run in self.runs.values() if key in run.title)

    def run(self, repository: str, run_id: int) -> WorkflowRun | None:
        """One run."""
        return self.runs.get(run_id)

    def jobs(self, repository: str, run_id: int) -> tuple[WorkflowJob, ...]:
        """Its one job."""
        run = self.runs[run_id]
        return (WorkflowJob(run_id * 10, "run", run.status, run.conclusion, self.runner),)

    def cancel(self, repository: str, run_id: int, *, force: bool = False) -> None:
        """End the run, if it obeys."""
        self.orders.append((run_id, force))
        if self.obeys or force:
            self.becomes(run_id, "completed", "cancelled")

    def artifacts(self, repository: str, run_id: int) -> tuple[Artifact, ...]:
        """What it left."""
        return tuple(artifact for artifact, _ in self.left.get(run_id, []))

    def attestations(self, repository: str, sha256: str) -> tuple[str, ...]:
        """What was attested of a digest."""
        return self.attested.get(sha256, ())

    def fetch(self, repository: str, artifact: Artifact, into: Path, *, limit: int) -> None:
        """Write the files of an artifact."""
        files = next(files for left in self.left.values() for one, files in left if one == artifact)
        if sum(map(len, files.values())) > limit:
            raise ForgeError("The archive unpacks to more bytes than are taken")
        into.mkdir(parents=True)
        for name, text in files.items():
            (into / name).write_text(text)

    def becomes(self, run_id: int, status: str, conclusion: str = "") -> None:
        """Move a run on."""
        self.runs[run_id] = replace(self.runs[run_id], status=status, conclusion=conclusion)

    def leave(
        self,
        run_id: int,
        name: str,
        files: Mapping[str, str],
        *,
        size: int = 0,
        expired: bool = False,
        sha256: str = "",
    ) -> None:
        """Upload an artifact."""
        number = 100 + sum(map(len, self.left.values()))
        self.left.setdefault(run_id, []).append((Artifact(number, name, size, expired, sha256), files))
