"""An order as a workflow's job takes it: GitHub by the job's own read-only token, files in its own folder."""

from dataclasses import dataclass
from pathlib import Path

from verl_e2e.adapters.files.folders import folder_files, run_folders
from verl_e2e.adapters.files.run_folder import write_files
from verl_e2e.adapters.github.pulls import GithubPulls
from verl_e2e.adapters.github.session import PUBLIC_API_URL, anonymously, with_token
from verl_e2e.app.accept_job import AcceptedJob, Order, check_folder, job_text, leave_blocked, take
from verl_e2e.core.pulls.forge import folder_digest
from verl_e2e.wiring.job_nonce import leave_nonce


@dataclass(frozen=True, slots=True)
class Place:
    """Where the order is taken: `checkouts` will hold the repositories, `work` the job's file and the run folder."""

    api_url: str
    token: str
    checkouts: Path
    work: Path

    @property
    def job_file(self) -> Path:
        """The job's file."""
        return self.work / "job.json"

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.work / "run"


def take_order(order: Order, place: Place) -> AcceptedJob:
    """Lay the job down to be run, or a run folder that says why it is not; raises OrderError, a user's mistake."""
    api_url = place.api_url or PUBLIC_API_URL
    github = with_token(place.token, api_url=api_url) if place.token else anonymously(api_url=api_url)
    try:
        taken = take(order, place.checkouts, GithubPulls(github))
    finally:
        github.close()
    place.work.mkdir(parents=True, exist_ok=True)
    write_files(place.work, {place.job_file.name: job_text(taken.job)})
    leave_nonce(place.job_file, taken.nonce)
    if taken.why:
        leave_blocked(taken, place.folder, run_folders())
    return taken


def digest_of_folder(folder: Path) -> str:
    """The digest of a run folder; raises FolderFilesError, a user's mistake."""
    return folder_digest(folder_files(folder))


def check_order(job_id: str, packed: str, folder: Path) -> None:
    """Raises OrderError, a user's mistake, where a run folder is not of the job that was ordered."""
    check_folder(job_id, packed, folder, run_folders())
