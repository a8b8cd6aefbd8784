"""A workflow's own work: an order as its job takes it, and the handlers of Action mode.

GitHub is asked by the token of the workflow. The memory of Action mode is read off GitHub.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from verl_e2e.adapters.derived_ledger import DerivedLedger
from verl_e2e.adapters.files.folders import folder_files, run_folders
from verl_e2e.adapters.files.run_folder import write_files
from verl_e2e.adapters.github.actions import DispatchSettings, GitHubActionsBackend, runners_by_size
from verl_e2e.adapters.github.pulls import GithubPulls, PublicRepository
from verl_e2e.adapters.github.session import PUBLIC_API_URL, GitHub, anonymously, with_token
from verl_e2e.adapters.github.workflows import GithubWorkflows
from verl_e2e.adapters.metrics import Metrics
from verl_e2e.adapters.mirror import Mirrors
from verl_e2e.app.action_run import AcceptedJob, Order, check_folder, job_text, leave_blocked, take
from verl_e2e.app.required_jobs import JobSources
from verl_e2e.config.action_settings import ActionSettings
from verl_e2e.config.profiles import load_profile
from verl_e2e.core.plan.outline import with_image
from verl_e2e.core.pulls.forge import folder_digest
from verl_e2e.core.pulls.job_order import NONCE_FILE
from verl_e2e.ports import Clock, ForgeError
from verl_e2e.wiring.analysis import LimitedAnalysis
from verl_e2e.wiring.app import Handlers, JobPorts, build_handlers, github_ports, program_digest
from verl_e2e.wiring.engines import verify_attestations
from verl_e2e.wiring.pulls import verl_source


@dataclass(frozen=True, slots=True)
class OrderPlace:
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


def take_order(order: Order, place: OrderPlace) -> AcceptedJob:
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


def leave_nonce(job_file: Path, nonce: str) -> None:
    """Write the nonce next to the job's file, for the user alone; nothing for none. What runs the job reads it once."""
    if nonce:
        file = job_file.with_name(NONCE_FILE)
        file.touch(mode=0o600)
        file.write_text(nonce, encoding="ascii")


def digest_of_folder(folder: Path) -> str:
    """The digest of a run folder; raises FolderFilesError, a user's mistake."""
    return folder_digest(folder_files(folder))


def check_order(job_id: str, packed: str, folder: Path) -> None:
    """Raises OrderError, a user's mistake, where a run folder is not of the job that was ordered."""
    check_folder(job_id, packed, folder, run_folders())


def _tool_commit(settings: ActionSettings, github: GitHub) -> tuple[str, str, str]:
    """Repository, full commit and tag (may be empty) of the verl-e2e that runs the jobs; ForgeError for an unknown tag.

    A tag is read in the trusted workflow alone: a job is ordered with the commit that the tag named then.
    """
    name, revision = settings.tool
    if not revision.startswith("v"):
        return name, revision, ""
    commit = PublicRepository(github, name, seen_from=settings.repository).find(f"tags/{revision}")
    if commit is None:
        raise ForgeError(f"{name} has no tag {revision}; use the tag of a release of verl-e2e, or a full commit")
    return name, commit, revision


@contextmanager
def action_handlers(
    settings: ActionSettings, environ: Mapping[str, str], clock: Clock
) -> Iterator[tuple[Handlers, DerivedLedger]]:
    """The handlers and their memory, for as long as the block lasts; git gets `environ`."""
    github = with_token(settings.token, app_id=settings.app_id, api_url=settings.api_url)
    forge = github_ports(github, app_id=settings.app_id)
    memory = DerivedLedger(
        forge.checks, forge.conversation, forge.pulls, clock, app_id=settings.app_id, before=settings.before
    )
    folder = settings.work / "mirrors"
    mirrors = Mirrors(folder, settings.web_url, token=lambda _: settings.token, environ=environ)
    analysis = LimitedAnalysis(folder, settings.web_url, settings.work / "summaries", mirrors)
    repository, commit, tag = _tool_commit(settings, github)
    dispatching = DispatchSettings(
        branch=settings.branch,
        tool_repository=repository,
        tool_sha=commit,
        tool_tag=tag,
        workflow=settings.workflow,
        runners=settings.runners or runners_by_size(),
        fork_runners=settings.fork_runners,
        attestation=settings.attestation,
        verify=verify_attestations(),
        followed=True,
    )
    try:
        site = with_image(load_profile(settings.site, settings.site_values, {"home": settings.home}), settings.image)
        jobs = JobPorts(
            backend=GitHubActionsBackend(GithubWorkflows(github, analysis.unpack), dispatching, clock),
            analysis=analysis,
            changes=mirrors.changes,
            history=mirrors.changes,
            sources=JobSources(verl_source(settings.verl), site, program=program_digest(repository, commit)),
            artifacts=settings.work / "artifacts",
            watcher=Metrics(),
        )
        yield build_handlers(forge, jobs, memory, clock, analysis.commands), memory
    finally:
        github.close()
