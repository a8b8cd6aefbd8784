"""The demonstration: a repository made on the spot and a recorded run."""

import shutil
import tempfile
from pathlib import Path

from verl_e2e.adapters.demo_repository import build_demo_repository
from verl_e2e.adapters.files.folders import run_folders
from verl_e2e.app.check import Demonstration, demonstrate
from verl_e2e.config.policy import policy_at
from verl_e2e.core.model.errors import UserError
from verl_e2e.git.repository import GitRepository

DEMO_JOB = "0-lora-ddp"
# The packaged run folder.
RECORDING = Path(__file__).resolve().parents[1] / "demo" / "recording"


def demonstration(out: Path | None) -> Demonstration:
    """Build the demonstration's repository, put the recording next to it, plan and judge; `out` keeps the files."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="verl-e2e-demo-") as folder:
            return _demonstrate(Path(folder) / "demo")
    if out.exists():
        raise UserError(f"{out}: exists already; give --out a new folder")
    return _demonstrate(out)


def _demonstrate(folder: Path) -> Demonstration:
    repository = build_demo_repository(folder / "bridge")
    shutil.copytree(RECORDING, folder / "jobs" / DEMO_JOB)
    changes = GitRepository(repository.path)
    policy = policy_at(changes, repository.base)
    return demonstrate(
        run_folders(), folder, changes=changes, base=repository.base, head=repository.head, policy=policy
    )
