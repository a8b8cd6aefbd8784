"""Run jobs on this machine: `verl-e2e run` as a subprocess, its progress passed through to stderr."""

import subprocess
import sys
from pathlib import Path

from bot.core.jobs import Job


class LocalDispatcher:
    """Runs one job after the other here. `work` keeps private worktrees and caches between runs, None for none."""

    def __init__(self, work: Path | None = None) -> None:
        self._work = work

    def run(self, job: Job, out: Path) -> int:
        """Run a job to its end; the run folder is `out`, the job's file lies beside it. Returns the exit code."""
        return subprocess.run(self._command(job, out), stdout=subprocess.DEVNULL, check=False).returncode

    def dry_run(self, job: Job, out: Path) -> str:
        """The exact commands that `run` would start."""
        done = subprocess.run([*self._command(job, out), "--dry-run"], capture_output=True, text=True, check=True)
        return done.stdout

    def _command(self, job: Job, out: Path) -> list[str]:
        out.parent.mkdir(parents=True, exist_ok=True)
        file = out.with_name(f"{out.name}.job.json")
        file.write_text(job.model_dump_json(indent=2) + "\n", encoding="utf-8")
        work = ["--work", str(self._work)] if self._work else []
        return [sys.executable, "-m", "bot", "run", "--job", str(file), "--out", str(out), *work]
