"""The service: one database, one worker, one door; what is named here is what `verl-e2e serve` runs."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Generic, TypeVar

from verl_e2e.adapters.metrics import CountsCollector, Metrics, SharedCollector
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
from verl_e2e.adapters.worker import Work, Worker
from verl_e2e.adapters.worker.lanes import MakePool, thread_pool
from verl_e2e.config.settings import Settings
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.pulls.deliveries import Received
from verl_e2e.ports import Clock, UnreadableDeliveryError

# The worker begins a round several times a second; one that has not for so long hangs.
_SILENT_S = 120.0
# The database has so long to answer a check or a request for metrics.
_DATABASE_S = 3.0


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Where this process says how it is."""

    metrics: Metrics = field(default_factory=Metrics)
    # Checks of readiness beyond the service's own, by name: what is wrong, empty for nothing.
    checks: dict[str, Callable[[], str]] = field(default_factory=dict)


MakeWork = Callable[[Settings, SqlLedger, SqlWorklist, SqlOutbox, Clock, Monitoring], Work]


T = TypeVar("T")


class Bounded(Generic[T]):
    """Asks a question in a thread of its own, one at a time; while one hangs, no other is begun.

    Calling it gives the answer, the question's own error, or TimeoutError after `limit_s`. Who calls it while a
    question is under way gets that answer.
    """

    def __init__(self, ask: Callable[[], T], limit_s: float) -> None:
        self._ask, self._limit_s = ask, limit_s
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ask")
        self._running: Future[T] | None = None

    def __call__(self) -> T:
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
        return checks | {name: _said(check) for name, check in self.monitoring.checks.items()}

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


def _said(check: Callable[[], str]) -> str:
    """What a check says; one that fails says no more than that, because its error may hold anything."""
    try:
        return check()
    except TimeoutError:
        return "it does not answer in time"
    except Exception as error:
        return f"it cannot be checked ({type(error).__name__})"


def open_service(
    settings: Settings,
    clock: Clock,
    make_work: MakeWork,
    make_pool: MakePool = thread_pool,
) -> Service:
    """Open the database and everything that the settings name, and start nothing yet."""
    monitoring = Monitoring()
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
    worker = Worker(
        _counted(make_work(settings, ledger, worklist, outbox, clock, monitoring), metrics),
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


def _counted(work: Work, metrics: Metrics) -> Work:
    """The same work, each piece of which is counted."""

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

    return replace(work, process=process, reconcile=reconcile)
