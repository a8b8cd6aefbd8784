"""What the service does for GitHub: the handlers that the settings name, and the work that the worker calls."""

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from verl_e2e.adapters.dispatch.local_backend import LocalBackend
from verl_e2e.adapters.dispatch.order_folder import PUBLIC_KEYS
from verl_e2e.adapters.dispatch.ray_backend import RayBackend
from verl_e2e.adapters.dispatch.slurm_backend import SlurmBackend, SlurmCommands
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.adapters.github.actions import DispatchSettings, GitHubActionsBackend, runners_by_size
from verl_e2e.adapters.github.administration import GithubAdministration
from verl_e2e.adapters.github.pulls import GithubConversation
from verl_e2e.adapters.github.requester import Lane, RetryPolicy
from verl_e2e.adapters.github.session import GitHub, as_app
from verl_e2e.adapters.github.workflows import GithubWorkflows
from verl_e2e.adapters.metrics import ApiCollector
from verl_e2e.adapters.mirror import Mirrors
from verl_e2e.adapters.store import SqlLedger, SqlOutbox, SqlWorklist
from verl_e2e.adapters.worker import Work
from verl_e2e.app.on_event import DeliveryHandler, LostEvents, Redelivery, lane_of
from verl_e2e.app.required_jobs import JobSources
from verl_e2e.app.run_queue import SharedQueue
from verl_e2e.config.settings import Settings
from verl_e2e.core.model.needs import Capacity
from verl_e2e.core.pulls.pull import Reference, read_reference, reference_text, web_of
from verl_e2e.ports import Backend, Clock, ForgeError, RunWatcher
from verl_e2e.wiring.analysis import LimitedAnalysis, ServiceAnalysis
from verl_e2e.wiring.app import Bounded, MakeWork, Monitoring
from verl_e2e.wiring.engines import ray_client, ray_cluster, site_of, slurm_cluster, verify_attestations
from verl_e2e.wiring.handlers import Handlers, JobPorts, build_handlers, github_ports
from verl_e2e.wiring.pulls import verl_source

# The bot decides and judges, and the runner runs; both come from one wheel.
_PACKAGES = ("verl_e2e", "verl_e2e_runner")


def program_digest(*elsewhere: str) -> str:
    """SHA-256 of all files of the installed packages, and of what names the program on other machines.

    `elsewhere` is what the settings say of it: a pinned commit, or the command of an installation.
    """
    return hashlib.sha256("\0".join((_installed(), *elsewhere)).encode("utf-8", "surrogateescape")).hexdigest()


@cache
def _installed() -> str:
    digest = hashlib.sha256()
    for package in _PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    digest.update(f"{package}/{path.relative_to(folder).as_posix()}\0".encode())
                    digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


# A write that must wait longer gives way: what was to be written is tried again then, and others go on meanwhile.
_RETRY_POLICY = RetryPolicy(total_s=4.0)
# GitHub grants 5,000 requests an hour and a look at a run takes about 3: when more run than this, each waits longer.
_LOOKS_IN_A_TICK = 10

# So long a look at readiness waits for GitHub.
_READY_S = 3.0

log = logging.getLogger(__name__)


Connect = Callable[[Settings], GitHub]
MakeAnalysis = Callable[[Settings, Mirrors], ServiceAnalysis]
MakeBackend = Callable[[Settings, GitHub, ServiceAnalysis, Clock, Mapping[str, str]], Backend]


@dataclass(frozen=True, slots=True)
class _Makers:
    """How the parts are made that a test or a measurement may have made otherwise."""

    analysis: MakeAnalysis
    backend: MakeBackend


def connect_app(settings: Settings) -> GitHub:
    """GitHub as the App of the settings sees it."""
    return as_app(settings.app_id, settings.private_key, api_url=settings.api_url, retry_policy=_RETRY_POLICY)


def limited_analysis(settings: Settings, mirrors: Mirrors) -> LimitedAnalysis:
    """What strangers wrote is read in child processes."""
    orders = _orders(settings)
    recorders = orders / PUBLIC_KEYS if orders is not None else None
    return LimitedAnalysis(settings.data, web_of(settings.api_url), settings.data, mirrors, recorders=recorders)


def github_work(
    environ: Mapping[str, str],
    *,
    connect: Connect = connect_app,
    make_analysis: MakeAnalysis = limited_analysis,
    make_backend: MakeBackend | None = None,
) -> MakeWork:
    """How the service's work is made; `environ` is what git and jobs on this machine may see of the environment."""

    def make(
        settings: Settings,
        ledger: SqlLedger,
        worklist: SqlWorklist,
        outbox: SqlOutbox,
        clock: Clock,
        monitoring: Monitoring,
    ) -> Work:
        github, served = connect(settings), settings.repositories
        monitoring.checks["github"] = Bounded(github.trouble, _READY_S)
        monitoring.metrics.watch(
            ApiCollector(github.calls.by_answer, lambda: github.calls.budgets(clock.now().timestamp()))
        )

        def wake(references: Collection[Reference]) -> None:
            worklist.want(set(map(reference_text, references)), clock.now(), at_once=True)

        queue = SharedQueue(ledger, settings.slots, wake)
        makers = _Makers(make_analysis, make_backend or backend_of)
        handlers = _handlers(settings, github, ledger, outbox, clock, environ, makers, monitoring.metrics, queue)
        redelivery = Redelivery(GithubAdministration(github), clock)
        deliveries = DeliveryHandler(handlers.events, handlers.base_changes, worklist, served)
        lost = LostEvents(handlers.pulls, handlers.heads, handlers.base_changes, worklist, served)

        def missed() -> Collection[str]:
            try:
                redelivery.ask_again()
            except ForgeError as error:
                # What the lists of pull requests show is found all the same.
                log.warning("failed webhooks not asked for again: %s", error)
            return lost.search(worklist.known())

        def reconcile(target: str) -> float | None:
            again_s = handlers.reconciler.reconcile(read_reference(target))
            return _stretched(again_s, float(settings.tick_s), ledger)

        return Work(
            process=deliveries.process,
            reconcile=reconcile,
            open_targets=lambda: _open_targets(ledger, handlers),
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
    makers: _Makers,
    watcher: RunWatcher,
    queue: SharedQueue,
) -> Handlers:
    tokens = github.tokens
    mirrors = Mirrors(
        settings.data,
        web_of(settings.api_url),
        token=lambda repository: tokens.token(repository) if tokens else None,
        environ=environ,
    )
    analysis = makers.analysis(settings, mirrors)
    jobs = JobPorts(
        backend=makers.backend(settings, github, analysis, clock, environ),
        analysis=analysis,
        changes=mirrors.changes,
        sources=JobSources(
            verl_source(settings.verl),
            site_of(settings, environ),
            web_of(settings.api_url) if settings.fetches else "",
            program=_program(settings),
        ),
        artifacts=settings.data / "runs",
        watcher=watcher,
        poll_s=float(settings.tick_s),
    )
    courtesy = GithubConversation(github.in_lane(Lane.COURTESY))
    forge = github_ports(github, app_id=settings.app_id, lag_s=float(settings.list_lag_s), courtesy=courtesy)
    return build_handlers(forge, jobs, ledger, clock, analysis.commands, outbox, queue)


def _stretched(again_s: float | None, poll_s: float, ledger: SqlLedger) -> float | None:
    """A look by the clock comes later when many runs are open; what is due for another reason comes when it is due."""
    return again_s if again_s != poll_s else poll_s * max(1.0, ledger.open_count() / _LOOKS_IN_A_TICK)


def _open_targets(ledger: SqlLedger, handlers: Handlers) -> Collection[str]:
    # What a process that was killed left undone in the queue.
    handlers.queue.give_slots()
    handlers.queue.wake_stragglers()
    found = map(handlers.groups.reference_of, ledger.open_runs())
    return {reference_text(reference) for reference in found if reference is not None}


def backend_of(
    settings: Settings, github: GitHub, analysis: ServiceAnalysis, clock: Clock, environ: Mapping[str, str]
) -> Backend:
    """The back end that the settings name."""
    orders = _orders(settings)
    if settings.backend == "slurm" and orders is not None:
        cluster, commands = slurm_cluster(settings, orders), SlurmCommands(settings.slurm_host, environ)
        return SlurmBackend(cluster, commands, clock=clock, open_log=open_log)
    if settings.backend == "ray" and orders is not None:
        client = ray_client(settings, environ)
        return RayBackend(ray_cluster(settings), client, clock=clock, open_log=open_log)
    if orders is not None:
        capacity = Capacity(settings.local_slots, settings.local_gpus)
        return LocalBackend(orders, environ=environ, clock=clock, open_log=open_log, capacity=capacity)
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


def _orders(settings: Settings) -> Path | None:
    """Where orders lie for the recorders that sign their folders; None where another machine hands them over."""
    if settings.backend == "slurm":
        return settings.slurm_folder
    if settings.backend == "ray":
        return settings.ray_folder
    return settings.data / "local" if settings.backend == "local" else None


def _program(settings: Settings) -> str:
    """What judges here and runs there: the packages of this process, and what the back end calls."""
    called = {"slurm": settings.slurm_command, "ray": settings.ray_command}.get(settings.backend, "")
    return program_digest(*settings.tool, str(called))
