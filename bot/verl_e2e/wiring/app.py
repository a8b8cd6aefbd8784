"""The service: one database, one worker, one door, and the work that the worker calls: what `verl-e2e serve` runs.

The handlers of events and targets, each with the few things that it takes, are the same for the App and the Action.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar, cast

from verl_e2e.adapters.dispatch.local_backend import LocalBackend
from verl_e2e.adapters.dispatch.order_folder import PUBLIC_KEYS
from verl_e2e.adapters.dispatch.ray_backend import RayBackend
from verl_e2e.adapters.dispatch.slurm_backend import SlurmBackend, SlurmCommands
from verl_e2e.adapters.files.logs import LogBounds, bounded
from verl_e2e.adapters.github.actions import DispatchSettings, GitHubActionsBackend, runners_by_size
from verl_e2e.adapters.github.administration import GithubAdministration
from verl_e2e.adapters.github.checks import GithubChecks
from verl_e2e.adapters.github.pulls import GithubConversation, GithubIssues, GithubPeople, GithubPulls
from verl_e2e.adapters.github.requester import Lane, RetryPolicy
from verl_e2e.adapters.github.session import GitHub, as_app
from verl_e2e.adapters.github.visitors import GithubVisitors
from verl_e2e.adapters.github.workflows import GithubWorkflows
from verl_e2e.adapters.metrics import ApiCollector, CountsCollector, Metrics, SharedCollector
from verl_e2e.adapters.mirror import Mirrors
from verl_e2e.adapters.store import (
    Retention,
    SqlDeliveries,
    SqlFigures,
    SqlLedger,
    SqlOutbox,
    SqlWorklist,
    Store,
    open_store,
)
from verl_e2e.adapters.worker import MakePool, Work, Worker, thread_pool
from verl_e2e.app.analysis import Analysis
from verl_e2e.app.known_targets import Grants, KnownTargets
from verl_e2e.app.on_event import DeliveryHandler, EventHandler, Redelivery, lane_of
from verl_e2e.app.publish import CheckPublisher, CommentPublisher, Creations, PostRestorer
from verl_e2e.app.reconcile import Reconciler
from verl_e2e.app.required_jobs import JobSources, RequiredJobs, VerdictReuse
from verl_e2e.app.runs import BackendRuns, RunQueue, SharedQueue, glance
from verl_e2e.app.watch import Watcher
from verl_e2e.config.policy import POLICY_PATH, policy_values
from verl_e2e.config.settings import Settings
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.needs import Capacity
from verl_e2e.core.plan.policy import PolicyValue
from verl_e2e.core.pulls.commands import CommandLine
from verl_e2e.core.pulls.deliveries import Received
from verl_e2e.core.pulls.forge import BranchCommit, Reference, Target, read_reference, reference_text, web_of
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.pulls.run_lines import Glance
from verl_e2e.ports import (
    Backend,
    Checks,
    Clock,
    Conversation,
    ForgeError,
    History,
    Issues,
    Ledger,
    Outbox,
    People,
    Pulls,
    RunWatcher,
    SourceTrees,
    UnreadableDeliveryError,
)
from verl_e2e.wiring.analysis import LimitedAnalysis, ServiceAnalysis
from verl_e2e.wiring.engines import ray_client, ray_cluster, site_of, slurm_cluster, verify_attestations
from verl_e2e.wiring.pulls import verl_source


@dataclass(frozen=True, slots=True)
class Handlers:
    """What an entry point calls."""

    events: EventHandler
    reconciler: Reconciler
    queue: RunQueue
    known: KnownTargets
    # Writes what waited in the outbox.
    comments: CommentPublisher


@dataclass(frozen=True, slots=True)
class GithubPorts:
    """One forge, as the handlers see it."""

    pulls: Pulls
    conversation: Conversation
    checks: Checks
    people: People
    issues: Issues
    # Our App's id, None where GitHub's own token speaks for us.
    app_id: int | None = None
    # How long GitHub's lists may not show what was created; 0 where a process waits for that by itself.
    lag_s: float = 0.0
    # Where messages of the outbox are written, in a lane of their own; None for `conversation`.
    courtesy: Conversation | None = None


@dataclass(frozen=True, slots=True)
class JobPorts:
    """Where jobs are planned, run and judged."""

    backend: Backend
    # Reads what strangers wrote.
    analysis: Analysis
    # The trees of a target, base and head among them.
    changes: Callable[[Target], SourceTrees]
    # The commits of the branch that a commit is on.
    history: Callable[[BranchCommit], History]
    sources: JobSources
    # The folder that run folders are brought into.
    artifacts: Path
    # Takes notice of runs and of calls to the back end.
    watcher: RunWatcher
    # How long a run under way is left alone when no event tells of it: short where none ever does.
    poll_s: float = 30.0


def github_ports(
    github: GitHub, *, app_id: int | None, lag_s: float = 0.0, courtesy: Conversation | None = None
) -> GithubPorts:
    """GitHub itself; the rest is as in `GithubPorts`."""
    return GithubPorts(
        pulls=GithubPulls(github),
        conversation=GithubConversation(github),
        checks=GithubChecks(github),
        people=GithubPeople(github),
        issues=GithubIssues(github),
        app_id=app_id,
        lag_s=lag_s,
        courtesy=courtesy,
    )


def build_handlers(
    github: GithubPorts,
    jobs: JobPorts,
    ledger: Ledger,
    clock: Clock,
    read_commands: Callable[[str], tuple[CommandLine, ...]],
    outbox: Outbox | None = None,
    shared_queue: SharedQueue | None = None,
) -> Handlers:
    """The handlers.

    `read_commands` finds the command lines of a comment; without `outbox` messages are written at once.
    `shared_queue` is the queue of all that one database knows; without it runs start at once.
    """
    # Held while a remembered list is read and changed.
    pulls, lock = github.pulls, Lock()
    known = KnownTargets(clock, ledger, pulls)
    grants = Grants(clock, ledger, github.people, pulls, lock)
    creations = Creations(clock, github.lag_s, ledger)
    checks = CheckPublisher(creations, known, github.app_id, github.checks, clock, ledger, lock)
    comments = CommentPublisher(creations, github.app_id, clock, github.conversation, ledger, outbox)
    restorer = PostRestorer(checks, comments, clock, ledger)
    queue = RunQueue(clock, ledger, known, shared_queue)
    runs = BackendRuns(
        creations=creations,
        analysis=jobs.analysis,
        artifacts=jobs.artifacts,
        backend=jobs.backend,
        clock=clock,
        ledger=ledger,
        pulls=pulls,
        watcher=jobs.watcher,
    )
    required_jobs = RequiredJobs(jobs.analysis, jobs.changes, jobs.sources, ledger, clock)
    branches = Watcher(
        analysis=jobs.analysis,
        clock=clock,
        conversation=github.conversation,
        history=jobs.history,
        issues=github.issues,
        known=known,
        ledger=ledger,
        queue=queue,
        required_jobs=required_jobs,
        runs=runs,
        verl=jobs.sources.verl,
        poll_s=jobs.poll_s,
    )
    reconciler = Reconciler(
        grants=grants,
        required_jobs=required_jobs,
        branches=branches,
        reuse=VerdictReuse(jobs.analysis, jobs.artifacts, clock, ledger),
        runs=runs,
        known=known,
        queue=queue,
        check_posts=checks,
        comments=comments,
        restorer=restorer,
        analysis=jobs.analysis,
        clock=clock,
        ledger=ledger,
        poll_s=jobs.poll_s,
    )
    events = EventHandler(
        app_id=github.app_id,
        check_posts=checks,
        comments=comments,
        grants=grants,
        known=known,
        ledger=ledger,
        restorer=restorer,
        read_commands=read_commands,
        clock=clock,
        queue=queue,
        verl=jobs.sources.verl,
    )
    courtesy = comments if github.courtesy is None else replace(comments, conversation=github.courtesy)
    return Handlers(events, reconciler, queue, known, courtesy)


# The worker begins a round several times a second; one that has not for so long hangs.
_SILENT_S = 120.0
# The database has so long to answer a check or a request for metrics.
_DATABASE_S = 3.0


_Answer = TypeVar("_Answer")
# So long an answer of GitHub is believed, and what was not found out is not asked for again.
_BELIEVED_S = 60.0
_MOST_KNOWN = 10_000
# A page waits so long for an answer; so many questions are under way at most, so that a slow GitHub stops no reader.
_ASKED_S, _MOST_ASKED = 3.0, 4


class GithubViews:
    """What pages ask of GitHub, as it answered a minute ago at most; nothing is public before `ask_public` is set.

    It is asked of those repositories alone that the database knows. Where GitHub does not answer nothing is shown.
    """

    def __init__(self, clock: Clock) -> None:
        self.ask_public: Callable[[str], bool] = lambda _: False
        # The commit of the default branch, and its policy file if it has one.
        self.ask_policy: Callable[[str], tuple[str, bytes | None] | None] = lambda _: None
        # Of a run under way, by its back end.
        self.glance: Callable[[Run], Glance] = lambda _: Glance()
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, object]] = {}
        self._threads = ThreadPoolExecutor(_MOST_ASKED, thread_name_prefix="views")
        self._free = threading.Semaphore(_MOST_ASKED)

    def is_public(self, repository: str) -> bool:
        """Whether anyone may read a repository."""
        return self._recent("visibility", repository, self.ask_public) is True

    def reads(self, visitors: GithubVisitors, token: str, repository: str) -> bool:
        """Whether the bearer of a token may read a repository."""
        about = hashlib.sha256(token.encode()).hexdigest()
        return self._recent(about, repository, lambda name: visitors.reads(token, name)) is True

    def policy(self, repository: str) -> tuple[PolicyValue, ...] | str:
        """The policy of the default branch, or why it is not known."""

        def ask(name: str) -> tuple[PolicyValue, ...] | str:
            found = self.ask_policy(name)
            if found is None:
                return "GitHub did not say what the default branch is"
            try:
                return policy_values(found[1], f"{found[0][:12]}:{POLICY_PATH}")
            except UserError as error:
                return str(error)

        return self._recent("policy", repository, ask) or "GitHub does not answer"

    def _recent(self, about: str, repository: str, ask: Callable[[str], _Answer]) -> _Answer | None:
        at, known = self._known.get((about, repository), (-_BELIEVED_S, None))
        if self._clock.monotonic() - at < _BELIEVED_S:
            return cast("_Answer | None", known)
        if not self._free.acquire(blocking=False):
            return None
        try:
            return self._threads.submit(self._ask, about, repository, ask).result(_ASKED_S)
        except TimeoutError:
            return None

    def _ask(self, about: str, repository: str, ask: Callable[[str], _Answer]) -> _Answer | None:
        try:
            known = ask(repository)
        except ForgeError as error:
            log.warning("%s of %s is not shown on pages: %s", about, repository, error)
            known = None
        finally:
            self._free.release()
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[about, repository] = (self._clock.monotonic(), known)
        return known


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Where this process says how it is, and which repositories its pages may show."""

    views: GithubViews
    metrics: Metrics = field(default_factory=Metrics)
    # Checks of readiness beyond the service's own, by name: what is wrong, empty for nothing.
    checks: dict[str, Callable[[], str]] = field(default_factory=dict)


MakeWork = Callable[[Settings, SqlLedger, SqlWorklist, SqlOutbox, Clock, Monitoring], Work]


class Bounded(Generic[_Answer]):
    """Asks a question in a thread of its own, one at a time; while one hangs, no other is begun.

    Calling it gives the answer, the question's own error, or TimeoutError after `limit_s`. Who calls it while a
    question is under way gets that answer.
    """

    def __init__(self, ask: Callable[[], _Answer], limit_s: float) -> None:
        self._ask, self._limit_s = ask, limit_s
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ask")
        self._running: Future[_Answer] | None = None

    def __call__(self) -> _Answer:
        """The answer; see the class."""
        with self._lock:
            if self._running is None or self._running.done():
                self._running = self._thread.submit(self._ask)
            running = self._running
        return running.result(self._limit_s)


@dataclass(frozen=True, slots=True)
class Service:
    """An opened service: start it, let `keep` fill it, stop it."""

    settings: Settings
    store: Store
    deliveries: SqlDeliveries
    worker: Worker
    clock: Clock
    monitoring: Monitoring
    # True; an error where the database does not answer in time.
    database_answers: Callable[[], bool]

    def enter(self) -> None:
        """Take the folder of the settings, and on SQLite the database; UserError where another process has it."""
        if not self.store.hold(self.settings.data / "serve.lock"):
            what = f"VERL_E2E_DATA {self.settings.data}: another verl-e2e serve uses this folder"
            raise UserError(f"{what}; stop it, or name another")
        if self.store.dialect == "sqlite" and not self.store.is_active():
            raise UserError("DATABASE_URL: another verl-e2e serve works on this database; stop it, or name another")

    def start(self) -> None:
        """Begin to work, on PostgreSQL as soon as no other process does; UserError as `enter`."""
        self.enter()
        self.worker.start()

    def keep(self, received: Sequence[Received]) -> tuple[bool, ...]:
        """Keep deliveries, all or none; false for one that was kept before."""
        return self.deliveries.keep(received)

    def stalled(self) -> str:
        """Why this process should be started again; empty while it need not.

        A thread that waits for a database that does not answer is not stalled: a new start would not help.
        """
        if not self.worker.alive:
            return "the thread of the worker has ended"
        if self.worker.silent_s < _SILENT_S or not self._database_is_there():
            return ""
        return "the thread of the worker hangs"

    def readiness(self) -> Mapping[str, str]:
        """Each thing that the work needs, with what is wrong with it; empty for nothing. No secrets."""
        database = "" if self._database_is_there() else "it does not answer"
        checks = {"database": database, "worker": self.stalled()}
        for name, check in self.monitoring.checks.items():
            try:
                checks[name] = check()
            except TimeoutError:
                checks[name] = "it does not answer in time"
            except Exception as error:
                # Its text may hold anything.
                checks[name] = f"it cannot be checked ({type(error).__name__})"
        return checks

    def _database_is_there(self) -> bool:
        try:
            return self.database_answers()
        except Exception:
            return False

    def stop(self) -> None:
        """End in good order."""
        self.worker.stop()
        self.store.close()

    def counters(self) -> Iterable[tuple[str, str, float]]:
        """What the worker did since the start of the process, as rows of metrics."""
        counts = self.worker.counts
        return (
            ("deliveries_processed", "Deliveries that were processed, with their results stored.", counts.processed),
            ("reconciles", "Reconciliations that succeeded.", counts.reconciled),
            ("reconciles_failed", "Reconciliations that failed and are tried again.", counts.failed),
        )

    def gauges(self) -> Iterable[tuple[str, str, float]]:
        """How this process is, as rows of metrics."""
        return (
            ("active", "1 in the process that works on the database, 0 in one that stands by.", self.worker.active),
            ("worker_silent_seconds", "Time since the worker began its last round.", self.worker.silent_s),
        )


def open_service(settings: Settings, clock: Clock, make_work: MakeWork, make_pool: MakePool = thread_pool) -> Service:
    """Open the database and everything that the settings name, and start nothing yet."""
    monitoring = Monitoring(GithubViews(clock))
    metrics = monitoring.metrics
    try:
        settings.data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"VERL_E2E_DATA {settings.data}: {error.strerror}"
        raise UserError(f"{what}; name a folder that is there, or can be made") from None
    store = open_store(settings.database_url)
    ledger, worklist, outbox = SqlLedger(store, metrics), SqlWorklist(store), SqlOutbox(store)
    deliveries, figures = SqlDeliveries(store), SqlFigures(store)
    retention = Retention(store, settings.data / "runs")
    work = make_work(settings, ledger, worklist, outbox, clock, monitoring)

    def process(delivery: Received) -> Collection[str]:
        outcome = "failed"
        try:
            targets = work.process(delivery)
            outcome = "processed"
            return targets
        except UnreadableDeliveryError:
            outcome = "refused"
            raise
        finally:
            metrics.processed(delivery.event, outcome)

    def reconcile(target: str) -> float | None:
        began = time.perf_counter()
        try:
            return work.reconcile(target)
        finally:
            metrics.reconciled(time.perf_counter() - began)

    worker = Worker(
        replace(work, process=process, reconcile=reconcile),
        deliveries,
        worklist,
        outbox,
        store,
        clock,
        lambda: retention.remove(clock.now() - timedelta(days=settings.keep_days)),
        workers=settings.workers,
        tick_s=settings.tick_s,
        make_pool=make_pool,
    )
    answers = Bounded(figures.answers, _DATABASE_S)
    service = Service(settings, store, deliveries, worker, clock, monitoring, answers)
    metrics.watch(CountsCollector(service.counters, service.gauges))
    metrics.watch(SharedCollector(Bounded(lambda: figures.read(clock.now()), _DATABASE_S)))
    return service


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


def connect_app(settings: Settings) -> GitHub:
    """GitHub as the App of the settings sees it."""
    return as_app(settings.app_id, settings.private_key, api_url=settings.api_url, retry_policy=_RETRY_POLICY)


def limited_analysis(settings: Settings, mirrors: Mirrors) -> LimitedAnalysis:
    """What strangers wrote is read in child processes."""
    orders = _orders(settings)
    recorders = orders / PUBLIC_KEYS if orders is not None else None
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
        monitoring: Monitoring,
    ) -> Work:
        github, metrics, web_url = connect(settings), monitoring.metrics, web_of(settings.api_url)
        monitoring.checks["github"] = Bounded(github.trouble, _READY_S)
        administration, pulls = GithubAdministration(github), GithubPulls(github)

        def default_policy(repository: str) -> tuple[str, bytes | None] | None:
            commit = pulls.tip(repository, administration.default_branch(repository))
            return (commit, pulls.file_at(repository, commit, POLICY_PATH)) if commit else None

        monitoring.views.ask_public, monitoring.views.ask_policy = administration.is_public, default_policy
        metrics.watch(ApiCollector(github.calls.by_answer, lambda: github.calls.budgets(clock.now().timestamp())))
        mirrors = Mirrors(settings.data, web_url, token=github.token, environ=environ)
        analysis = make_analysis(settings, mirrors)
        # What judges here and runs there: the packages of this process, and what the back end calls.
        backend = backend_of(settings, github, analysis, clock, environ)
        monitoring.views.glance = partial(glance, backend)
        called = {"slurm": settings.slurm_command, "ray": settings.ray_command}.get(settings.backend, "")
        program = program_digest(*settings.tool, str(called))
        jobs = JobPorts(
            backend=backend,
            analysis=analysis,
            changes=mirrors.changes,
            history=mirrors.changes,
            sources=JobSources(
                verl_source(settings.verl),
                site_of(settings, environ),
                web_url if settings.fetches else "",
                program=program,
            ),
            artifacts=settings.data / "runs",
            watcher=metrics,
            poll_s=float(settings.tick_s),
        )
        courtesy = GithubConversation(github.in_lane(Lane.COURTESY))
        forge = github_ports(github, app_id=settings.app_id, lag_s=float(settings.list_lag_s), courtesy=courtesy)

        def wake(references: Collection[Reference]) -> None:
            worklist.want(set(map(reference_text, references)), clock.now(), at_once=True)

        queue = SharedQueue(ledger, settings.slots, wake)
        handlers = build_handlers(forge, jobs, ledger, clock, analysis.commands, outbox, queue)
        redelivery = Redelivery(GithubAdministration(github), clock)
        deliveries = DeliveryHandler(handlers.events, worklist, settings.repositories)

        def missed() -> Collection[str]:
            try:
                redelivery.ask_again()
            except ForgeError as error:
                # What the lists of pull requests show is found all the same.
                log.warning("failed webhooks not asked for again: %s", error)
            return deliveries.lost(worklist.known())

        def reconcile(target: str) -> float | None:
            again_s, poll_s = handlers.reconciler.reconcile(read_reference(target)), float(settings.tick_s)
            # A look by the clock comes later when many runs are open; what is due for another reason, when it is due.
            return again_s if again_s != poll_s else poll_s * max(1.0, ledger.open_count() / _LOOKS_IN_A_TICK)

        def open_targets() -> Collection[str]:
            # What a process that was killed left undone in the queue.
            handlers.queue.give_slots()
            handlers.queue.wake_stragglers()
            found = map(handlers.known.reference_of, ledger.open_runs())
            return {reference_text(reference) for reference in found if reference is not None}

        return Work(
            process=deliveries.process,
            reconcile=reconcile,
            open_targets=open_targets,
            missed_targets=missed,
            lane_of=lane_of,
            write=handlers.comments.write,
            announce=lambda target: handlers.reconciler.announce(read_reference(target)),
        )

    return make


# Pages look at the log of a run under way, which its code may have written, and other readers wait meanwhile.
_look_at_log = partial(bounded, bounds=LogBounds(seconds=2.0))


def backend_of(
    settings: Settings, github: GitHub, analysis: ServiceAnalysis, clock: Clock, environ: Mapping[str, str]
) -> Backend:
    """The back end that the settings name."""
    orders = _orders(settings)
    if settings.backend == "slurm" and orders is not None:
        cluster, commands = slurm_cluster(settings, orders), SlurmCommands(settings.slurm_host, environ)
        return SlurmBackend(cluster, commands, clock=clock, open_log=_look_at_log)
    if settings.backend == "ray" and orders is not None:
        client = ray_client(settings, environ)
        return RayBackend(ray_cluster(settings), client, clock=clock, open_log=_look_at_log)
    if orders is not None:
        capacity = Capacity(settings.local_slots, settings.local_gpus)
        return LocalBackend(orders, environ=environ, clock=clock, open_log=_look_at_log, capacity=capacity)
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
