"""What the service does for GitHub: the handlers that the settings name, and the work that the worker calls."""

import logging
from collections.abc import Callable, Collection, Mapping

from verl_e2e.adapters.dispatch.local_backend import PUBLIC_KEYS, LocalBackend
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.adapters.github.actions import DispatchSettings, GitHubActionsBackend, runners_by_size
from verl_e2e.adapters.github.administration import GithubAdministration
from verl_e2e.adapters.github.conversation import GithubConversation
from verl_e2e.adapters.github.pace import Lane
from verl_e2e.adapters.github.retry import RetryPolicy
from verl_e2e.adapters.github.session import GitHub, as_app
from verl_e2e.adapters.github.workflows import GithubWorkflows
from verl_e2e.adapters.mirror import Mirrors
from verl_e2e.adapters.store import SqlLedger, SqlOutbox, SqlWorklist
from verl_e2e.adapters.worker import Work
from verl_e2e.app.deliveries import DeliveryHandler, LostEvents, Redelivery, lane_of
from verl_e2e.app.merge_groups import MergeGroups
from verl_e2e.app.required_jobs import JobSources
from verl_e2e.config.profiles import load_profile
from verl_e2e.config.settings import Settings
from verl_e2e.core.model.jobs import Repository, SiteProfile
from verl_e2e.core.plan.build import Sources
from verl_e2e.core.plan.images import with_image
from verl_e2e.core.pulls.job_order import portable_sources
from verl_e2e.core.pulls.pull_address import web_of
from verl_e2e.core.pulls.references import read_reference, reference_text
from verl_e2e.ports import (
    Backend,
    Clock,
)
from verl_e2e.wiring.analysis import LimitedAnalysis, ServiceAnalysis
from verl_e2e.wiring.app import MakeWork
from verl_e2e.wiring.attestation import verify_attestations
from verl_e2e.wiring.handlers import Handlers, JobPorts, build_handlers, github_ports
from verl_e2e.wiring.verl import verl_source

# A write that must wait longer gives way: what was to be written is tried again then, and others go on meanwhile.
_RETRY_POLICY = RetryPolicy(total_s=4.0)
# GitHub grants 5,000 requests an hour and a look at a run takes about 3: when more run than this, each waits longer.
_LOOKS_IN_A_TICK = 10

log = logging.getLogger(__name__)


Connect = Callable[[Settings], GitHub]
MakeAnalysis = Callable[[Settings, Mirrors], ServiceAnalysis]


def connect_app(settings: Settings) -> GitHub:
    """GitHub as the App of the settings sees it."""
    return as_app(settings.app_id, settings.private_key, api_url=settings.api_url, retry_policy=_RETRY_POLICY)


def limited_analysis(settings: Settings, mirrors: Mirrors) -> LimitedAnalysis:
    """What strangers wrote is read in child processes."""
    recorders = settings.data / "local" / PUBLIC_KEYS if settings.backend == "local" else None
    return LimitedAnalysis(settings.data, web_of(settings.api_url), settings.data, mirrors, recorders=recorders)


def github_work(
    environ: Mapping[str, str], *, connect: Connect = connect_app, make_analysis: MakeAnalysis = limited_analysis
) -> MakeWork:
    """How the service's work is made; `environ` is what git and jobs on this machine may see of the environment."""

    def make(
        settings: Settings,
        ledger: SqlLedger,
        worklist: SqlWorklist,
        outbox: SqlOutbox,
        clock: Clock,
    ) -> Work:
        github, served = connect(settings), settings.repositories
        handlers = _handlers(settings, github, ledger, outbox, clock, environ, make_analysis)
        redelivery = Redelivery(GithubAdministration(github), clock)
        deliveries = DeliveryHandler(handlers.events, handlers.base_changes, worklist, served)
        lost = LostEvents(handlers.pulls, handlers.heads, handlers.base_changes, worklist, served)

        def missed() -> Collection[str]:
            redelivery.ask_again()
            return lost.search(worklist.known())

        def reconcile(target: str) -> float | None:
            again_s = handlers.crash_loops.reconcile_counted(read_reference(target))
            return _stretched(again_s, float(settings.tick_s), ledger)

        return Work(
            process=deliveries.process,
            reconcile=reconcile,
            open_targets=lambda: _open_targets(ledger, handlers.groups),
            missed_targets=missed,
            lane_of=lane_of,
            write=handlers.comments.write,
            announce=lambda target: handlers.reconciler.announce(read_reference(target)),
        )

    return make


def _handlers(
    settings: Settings,
    github: GitHub,
    ledger: SqlLedger,
    outbox: SqlOutbox,
    clock: Clock,
    environ: Mapping[str, str],
    make_analysis: MakeAnalysis,
) -> Handlers:
    tokens = github.tokens
    mirrors = Mirrors(
        settings.data,
        web_of(settings.api_url),
        token=lambda repository: tokens.token(repository) if tokens else None,
        environ=environ,
    )
    analysis = make_analysis(settings, mirrors)
    jobs = JobPorts(
        backend=_backend(settings, github, analysis, clock, environ),
        analysis=analysis,
        changes=mirrors.changes,
        sources=JobSources(verl_source(settings.verl), _site(settings, environ), _places(settings)),
        artifacts=settings.data / "runs",
        poll_s=float(settings.tick_s),
    )
    courtesy = GithubConversation(github.in_lane(Lane.COURTESY))
    forge = github_ports(github, app_id=settings.app_id, lag_s=float(settings.list_lag_s), courtesy=courtesy)
    return build_handlers(forge, jobs, ledger, clock, analysis.commands, outbox, ledger.bookkeeping)


def _stretched(again_s: float | None, poll_s: float, ledger: SqlLedger) -> float | None:
    """A look by the clock comes later when many runs are open; what is due for another reason comes when it is due."""
    return again_s if again_s != poll_s else poll_s * max(1.0, ledger.open_count() / _LOOKS_IN_A_TICK)


def _open_targets(ledger: SqlLedger, groups: MergeGroups) -> Collection[str]:
    found = map(groups.reference_of, ledger.open_runs())
    return {reference_text(reference) for reference in found if reference is not None}


def _backend(
    settings: Settings, github: GitHub, analysis: ServiceAnalysis, clock: Clock, environ: Mapping[str, str]
) -> Backend:
    if settings.backend == "local":
        return LocalBackend(settings.data / "local", environ=environ, clock=clock, open_log=open_log)
    repository, sha = settings.tool
    actions = DispatchSettings(
        branch=settings.workflow_ref,
        tool_repository=repository,
        tool_sha=sha,
        workflow=settings.workflow,
        runners=settings.runners or runners_by_size(),
        fork_runners=settings.fork_runners,
        attestation=settings.attestation,
        verify=verify_attestations(settings.trusted_root),
    )
    return GitHubActionsBackend(GithubWorkflows(github, analysis.unpack), actions, clock)


def _site(settings: Settings, environ: Mapping[str, str]) -> SiteProfile:
    """The site of the jobs; the image that a setting names is that of the workflow's containers."""
    site = load_profile(settings.site_profile, settings.site_values, {"home": environ.get("HOME", "/root")})
    return site if settings.backend == "local" else with_image(site, settings.image)


def _places(settings: Settings) -> Callable[[str, str], Sources]:
    """Where a job finds its repositories: on this machine for `local`, else by the names of folders."""
    if settings.backend != "local":
        return portable_sources
    return lambda bridge_commit, verl_commit: Sources(
        bridge=Repository(path=settings.bridge, commit=bridge_commit),
        verl=Repository(path=settings.verl, commit=verl_commit),
    )
