"""The handlers of Action mode: GitHub by the workflow's token, its memory read off GitHub, jobs on Actions runners."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from verl_e2e.adapters.derived_ledger import DerivedLedger
from verl_e2e.adapters.github.actions import DispatchSettings, GitHubActionsBackend, runners_by_size
from verl_e2e.adapters.github.session import GitHub, with_token
from verl_e2e.adapters.github.workflows import GithubWorkflows
from verl_e2e.adapters.metrics import Metrics
from verl_e2e.adapters.mirror import Mirrors
from verl_e2e.app.required_jobs import JobSources
from verl_e2e.config.action_settings import ActionSettings
from verl_e2e.config.profiles import load_profile
from verl_e2e.core.plan.outline import with_image
from verl_e2e.ports import Clock
from verl_e2e.wiring.analysis import LimitedAnalysis
from verl_e2e.wiring.app import program_digest
from verl_e2e.wiring.engines import verify_attestations
from verl_e2e.wiring.handlers import Handlers, JobPorts, build_handlers, github_ports
from verl_e2e.wiring.pulls import verl_source


@contextmanager
def action_handlers(
    settings: ActionSettings, environ: Mapping[str, str], clock: Clock
) -> Iterator[tuple[Handlers, DerivedLedger]]:
    """The handlers and their memory, for as long as the block lasts; git gets `environ`."""
    github = with_token(settings.token, app_id=settings.app_id, api_url=settings.api_url)
    try:
        yield _handlers(settings, environ, github, clock)
    finally:
        github.close()


def _handlers(
    settings: ActionSettings, environ: Mapping[str, str], github: GitHub, clock: Clock
) -> tuple[Handlers, DerivedLedger]:
    forge = github_ports(github, app_id=settings.app_id)
    memory = DerivedLedger(
        forge.checks, forge.conversation, forge.pulls, clock, app_id=settings.app_id, before=settings.before
    )
    folder = settings.work / "mirrors"
    mirrors = Mirrors(folder, settings.web_url, token=lambda _: settings.token, environ=environ)
    analysis = LimitedAnalysis(folder, settings.web_url, settings.work / "summaries", mirrors)
    site = with_image(load_profile(settings.site, settings.site_values, {"home": settings.home}), settings.image)
    jobs = JobPorts(
        backend=GitHubActionsBackend(GithubWorkflows(github, analysis.unpack), _dispatching(settings), clock),
        analysis=analysis,
        changes=mirrors.changes,
        sources=JobSources(verl_source(settings.verl), site, program=program_digest(*settings.tool)),
        artifacts=settings.work / "artifacts",
        watcher=Metrics(),
    )
    return build_handlers(forge, jobs, memory, clock, analysis.commands), memory


def _dispatching(settings: ActionSettings) -> DispatchSettings:
    return DispatchSettings(
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
