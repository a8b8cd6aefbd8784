"""The check-up of an installation: our App's view of GitHub, our database, our settings."""

import time
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType

from verl_e2e.adapters.clock import SystemClock
from verl_e2e.adapters.github.actions import runners_by_size
from verl_e2e.adapters.github.administration import GithubAdministration
from verl_e2e.adapters.github.pulls import GithubPulls, has_commit
from verl_e2e.adapters.github.requester import RetryPolicy
from verl_e2e.adapters.github.session import PERMISSIONS, GitHub, as_app
from verl_e2e.adapters.store import open_store
from verl_e2e.app.doctor import DoctorServices, Setup, examine
from verl_e2e.config.settings import DEFAULT_VERL, Settings
from verl_e2e.config.workflow_file import workflow_text
from verl_e2e.core.pulls.checkup import Finding
from verl_e2e.core.pulls.deliveries import MODELS
from verl_e2e.git.repository import GitError
from verl_e2e.wiring.engines import check_installation, fetch_refusals
from verl_e2e.wiring.pulls import verl_at

# GitHub sends these to every App, without a subscription.
_UNASKED = frozenset({"installation", "installation_repositories", "ping"})
_ACTIONS = "github-actions"
# Someone waits at a terminal.
_PATIENCE_S = 10.0


def check_up(
    settings: Settings,
    repository: str,
    branch: str,
    now: datetime,
    *,
    redeliver: bool,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Finding, ...]:
    """Everything that was looked at for a repository; an empty branch stands for its default one.

    Raises ForgeError for a name that is not a repository, or text that is not a key.
    """
    retry_policy = RetryPolicy(total_s=_PATIENCE_S)
    github = as_app(settings.app_id, settings.private_key, api_url=settings.api_url, retry_policy=retry_policy)
    try:
        github.requester(repository)
        services = _services(github, settings, repository, environ)
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


def _services(github: GitHub, settings: Settings, repository: str, environ: Mapping[str, str]) -> DoctorServices:
    def has_verl(address: str, commit: str) -> bool:
        return has_commit(github, repository, address, commit)

    def ahead_s() -> float | None:
        began = github.calls.booted_s
        return None if began is None else began + time.monotonic() - SystemClock().now().timestamp()

    return DoctorServices(
        GithubAdministration(github),
        GithubPulls(github).file_at,
        has_verl,
        lambda: _open_database(settings),
        lambda: check_installation(settings, environ),
        settings.verl if settings.verl != DEFAULT_VERL else "",
        lambda commit: _own_has(settings.verl, commit),
        lambda repository, policy: fetch_refusals([repository], policy, settings, environ),
        ahead_s,
    )


def _own_has(place: str, commit: str) -> bool:
    """Whether the verl that the service reads has a commit: a clone on this machine, or a public repository."""
    try:
        return verl_at(place).find(commit) is not None
    except GitError:
        return False


def _open_database(settings: Settings) -> None:
    settings.data.mkdir(parents=True, exist_ok=True)
    open_store(settings.database_url).close()
