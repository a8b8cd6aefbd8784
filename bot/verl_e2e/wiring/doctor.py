"""The check-up of an installation: our App's view of GitHub, our database, our settings."""

from datetime import datetime
from urllib.parse import quote, urlsplit

from verl_e2e.adapters.github.actions import runners_by_size
from verl_e2e.adapters.github.administration import GithubAdministration
from verl_e2e.adapters.github.pulls import GithubPulls
from verl_e2e.adapters.github.retry import RefusedError, RetryPolicy
from verl_e2e.adapters.github.session import GitHub, anonymously, as_app
from verl_e2e.adapters.github.tokens import PERMISSIONS
from verl_e2e.adapters.store import open_store
from verl_e2e.app.doctor import DoctorServices, Setup, examine
from verl_e2e.config.settings import DEFAULT_VERL, Settings
from verl_e2e.config.workflow_file import workflow_text
from verl_e2e.core.pulls.checkup import Finding
from verl_e2e.core.pulls.pull_address import api_of
from verl_e2e.core.pulls.webhook_events import MODELS
from verl_e2e.git.repository import GitError
from verl_e2e.ports import ForgeError
from verl_e2e.wiring.verl import verl_at

# GitHub sends these to every App, without a subscription.
_UNASKED = frozenset({"installation", "installation_repositories", "ping"})
_ACTIONS = "github-actions"
# Someone waits at a terminal.
_PATIENCE_S = 10.0


def check_up(
    settings: Settings, repository: str, branch: str, now: datetime, *, redeliver: bool
) -> tuple[Finding, ...]:
    """Everything that was looked at for a repository; an empty branch stands for its default one.

    Raises ForgeError for a name that is no repository, or a key that is none.
    """
    patience = RetryPolicy(total_s=_PATIENCE_S)
    github = as_app(settings.app_id, settings.private_key, api_url=settings.api_url, patience=patience)
    try:
        github.requester(repository)
        services = _services(github, settings, repository)
        return examine(repository, branch, _setup(settings), services, now, redeliver=redeliver)
    finally:
        github.close()


def _setup(settings: Settings) -> Setup:
    events = tuple(sorted(set(MODELS) - _UNASKED))
    hook = f"{settings.public_url.rstrip('/')}/webhook" if settings.public_url else ""
    if settings.backend != _ACTIONS:
        return Setup(settings.app_id, PERMISSIONS, events, hook=hook)
    return Setup(
        settings.app_id,
        PERMISSIONS,
        events,
        settings.workflow,
        settings.workflow_ref,
        workflow_text(),
        settings.runners or runners_by_size(),
        hook,
        settings.fork_runners,
    )


def _services(github: GitHub, settings: Settings, repository: str) -> DoctorServices:
    def has_verl(address: str, commit: str) -> bool:
        return _has_commit(github, repository, address, commit)

    return DoctorServices(
        GithubAdministration(github),
        GithubPulls(github).file_at,
        has_verl,
        lambda: _open_database(settings),
        settings.verl if settings.verl != DEFAULT_VERL else "",
        lambda commit: _own_has(settings.verl, commit),
    )


def _own_has(place: str, commit: str) -> bool:
    """Whether the verl that the service reads has a commit: a clone on this machine, or a public repository."""
    try:
        return bool(verl_at(place).resolve(f"{commit}^{{commit}}" if "://" not in place else commit))
    except GitError:
        return False
    except RefusedError as error:
        if error.absent or error.status == 422:
            return False
        raise


def _open_database(settings: Settings) -> None:
    settings.data.mkdir(parents=True, exist_ok=True)
    open_store(settings.database_url).close()


def _has_commit(github: GitHub, repository: str, address: str, commit: str) -> bool:
    """Whether the repository at an address has a commit: seen by our App, or by anyone where it is on another site."""
    parts = urlsplit(address)
    name = parts.path.strip("/").removesuffix(".git")
    api = api_of(f"{parts.scheme}://{parts.netloc}")
    if name.count("/") != 1:
        raise ForgeError(f"{address} is no address of a repository; fix verl.repository in the policy")
    elsewhere = None if api == github.api_url else anonymously(api_url=api, patience=RetryPolicy(total_s=_PATIENCE_S))
    requester = elsewhere.requester(name) if elsewhere else github.requester(repository)
    try:
        requester.ask("GET", f"/repos/{name}/commits/{quote(commit, safe='')}")
    except ForgeError as error:
        if error.passing:
            raise ForgeError(f"{parts.netloc}: {error}", passing=True, wait_s=error.wait_s) from None
        if not isinstance(error, RefusedError):
            raise
        # 422 is GitHub's word for a SHA that no commit has.
        if error.absent or error.status == 422:
            return False
        raise
    finally:
        if elsewhere:
            elsewhere.close()
    return True
