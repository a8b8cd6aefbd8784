"""The rooms of Action mode: GitHub by the workflow's own token, its memory read off GitHub, jobs on Actions runners."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

from verl_e2e.adapters.derived_ledger import DerivedLedger
from verl_e2e.adapters.dispatch.github_actions import ActionsSettings, GitHubActionsBackend, runners_by_size
from verl_e2e.adapters.github.checks import GithubChecks
from verl_e2e.adapters.github.conversation import GithubConversation
from verl_e2e.adapters.github.people import GithubPeople
from verl_e2e.adapters.github.pulls import GithubPulls
from verl_e2e.adapters.github.session import GitHub, with_token
from verl_e2e.adapters.github.workflows import GithubWorkflows
from verl_e2e.adapters.mirror import Mirrors
from verl_e2e.app.services import AppRooms
from verl_e2e.config.action_settings import ActionSettings
from verl_e2e.config.profiles import load_profile
from verl_e2e.core.plan.images import with_image
from verl_e2e.ports import Clock, Revisions
from verl_e2e.wiring.analysis import LimitedAnalysis
from verl_e2e.wiring.attestation import verify_attestations
from verl_e2e.wiring.verl import verl_at


@contextmanager
def action_rooms(
    settings: ActionSettings, environ: Mapping[str, str], clock: Clock
) -> Iterator[tuple[AppRooms, DerivedLedger]]:
    """The rooms and their memory, for as long as the block lasts; git gets `environ`."""
    github = with_token(settings.token, app_id=settings.app_id, api_url=settings.api_url)
    try:
        yield _rooms(settings, environ, github, clock)
    finally:
        github.close()


def _rooms(
    settings: ActionSettings, environ: Mapping[str, str], github: GitHub, clock: Clock
) -> tuple[AppRooms, DerivedLedger]:
    pulls, conversation, checks = GithubPulls(github), GithubConversation(github), GithubChecks(github)
    memory = DerivedLedger(checks, conversation, pulls, clock, app_id=settings.app_id, before=settings.before)
    folder = settings.work / "mirrors"
    mirrors = Mirrors(
        folder,
        settings.web_url,
        token=lambda _: settings.token,
        environ=environ,
    )
    analysis = LimitedAnalysis(folder, settings.web_url, settings.work / "summaries", mirrors)
    rooms = AppRooms(
        pulls=pulls,
        conversation=conversation,
        checks=checks,
        people=GithubPeople(github),
        ledger=memory,
        backend=GitHubActionsBackend(GithubWorkflows(github, analysis.unpack), _dispatching(settings), clock),
        analysis=analysis,
        clock=clock,
        changes=mirrors.changes,
        verl=_verl(settings.verl),
        site=with_image(load_profile(settings.site, settings.site_values, {"home": settings.home}), settings.image),
        artifacts=settings.work / "artifacts",
        read_commands=analysis.commands,
        app_id=settings.app_id,
    )
    return rooms, memory


def _dispatching(settings: ActionSettings) -> ActionsSettings:
    return ActionsSettings(
        branch=settings.branch,
        tool_repository=settings.tool[0],
        tool_sha=settings.tool[1],
        workflow=settings.workflow,
        runners=settings.runners or runners_by_size(),
        fork_runners=settings.fork_runners,
        attestation=settings.attestation,
        verify=verify_attestations(),
        followed=True,
    )


def _verl(place: str) -> Callable[[str], Revisions]:
    opened = lru_cache(1)(verl_at)
    return lambda _: opened(place)
