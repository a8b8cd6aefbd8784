"""The service: one database, one worker, one door; what is named here is what `verl-e2e serve` runs."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from verl_e2e.adapters.metrics import CountsCollector, Metrics, SharedCollector
from verl_e2e.adapters.store import (
    Retention,
    Spool,
    SpooledDeliveries,
    SqlDeliveries,
    SqlFigures,
    SqlLeases,
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
from verl_e2e.wiring.bounded import Bounded

# The work threads begin a round several times a second; one that has not for so long hangs.
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


@dataclass(frozen=True, slots=True)
class Service:
    """An opened service: start it, let `keep` fill it, stop it."""

    settings: Settings
    store: Store
    deliveries: SpooledDeliveries
    worker: Worker
    clock: Clock
    monitoring: Monitoring
    spool: Spool
    # The versions of the tables: that of the database, and the one that this program knows.
    versions: Callable[[], tuple[int, int]]

    def enter(self) -> None:
        """Be one of the bots on the database; UserError when that cannot be."""
        if not self.store.hold(self.settings.data / "serve.lock"):
            what = f"VERL_E2E_DATA {self.settings.data}: another verl-e2e serve uses this folder"
            raise UserError(f"{what}; stop it, or name another")
        # A run of the local back end can be asked only by the process that started it.
        if not self.store.enter(alone=self.settings.backend == "local"):
            raise UserError("DATABASE_URL: another verl-e2e serve works on this database; stop it, or name another")
        self.worker.renew()

    def start(self) -> None:
        """Begin to work; UserError when another process prevents it."""
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
            return "a thread of the worker has ended"
        if self.worker.silent_s < _SILENT_S or self._versions() is None:
            return ""
        return "a thread of the worker hangs"

    def readiness(self) -> Mapping[str, str]:
        """Each thing that the work needs, with what is wrong with it; empty for nothing. No secrets."""
        checks = dict(zip(("database", "tables"), _database_trouble(self._versions()), strict=True))
        checks["worker"] = self.stalled() or ("another process took the database over" if self.worker.displaced else "")
        checks["spool"] = _said(self.spool.trouble)
        return checks | {name: _said(check) for name, check in self.monitoring.checks.items()}

    def _versions(self) -> tuple[int, int] | None:
        """The versions of the tables: that of the database, and ours; None when it does not answer in time."""
        try:
            return self.versions()
        except Exception:
            return None

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
            ("worker_silent_seconds", "Time since a thread of the worker began its last round.", self.worker.silent_s),
            ("spool_deliveries", "Deliveries on the disk while the database is away.", self.spool.count),
            ("spool_bytes", "Their size.", self.spool.size),
        )


def _database_trouble(versions: tuple[int, int] | None) -> tuple[str, str]:
    """What is wrong with the database, and with its tables."""
    if versions is None:
        return "it does not answer", "the database does not answer"
    have, known = versions
    return "", "" if have == known else f"they are of version {have}, and this program knows {known}"


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
    spool, figures = _spool(settings), SqlFigures(store)
    deliveries = SpooledDeliveries(SqlDeliveries(store), spool)
    retention = Retention(store, settings.data / "runs")
    worker = Worker(
        _counted(make_work(settings, ledger, worklist, outbox, clock, monitoring), metrics),
        deliveries,
        worklist,
        outbox,
        SqlLeases(store),
        clock,
        lambda: retention.remove(clock.now() - timedelta(days=settings.keep_days)),
        workers=settings.workers,
        tick_s=settings.tick_s,
        make_pool=make_pool,
    )
    versions = Bounded(figures.version, _DATABASE_S)
    service = Service(settings, store, deliveries, worker, clock, monitoring, spool, versions)
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


def _spool(settings: Settings) -> Spool:
    try:
        return Spool(settings.data / "spool")
    except OSError as error:
        what = f"VERL_E2E_DATA {settings.data}: its folder spool: {error.strerror}"
        raise UserError(f"{what}; see that it can be written") from None
