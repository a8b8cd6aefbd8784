"""The service: one database, one worker, one door; what is named here is what `verl-e2e serve` runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from verl_e2e.adapters.store import (
    Retention,
    Spool,
    SpooledDeliveries,
    SqlDeliveries,
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
from verl_e2e.ports import Clock

MakeWork = Callable[[Settings, SqlLedger, SqlWorklist, SqlOutbox, Clock], Work]


@dataclass(frozen=True, slots=True)
class Service:
    """An opened service: start it, let `keep` fill it, stop it."""

    settings: Settings
    store: Store
    deliveries: SpooledDeliveries
    worker: Worker
    clock: Clock

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

    def health(self) -> Mapping[str, float]:
        """Figures for /metrics by name; an error when the service is not well."""
        if not self.worker.alive:
            raise RuntimeError("the worker has ended")
        backlog, counts = self.deliveries.backlog(self.clock.now()), self.worker.counts
        return {
            "deliveries_waiting": backlog.deliveries_waiting,
            "deliveries_refused": backlog.deliveries_refused,
            "targets_waiting": backlog.targets_waiting,
            "oldest_waiting_seconds": round(backlog.oldest_s, 3),
            "runs_open": backlog.runs_open,
            "deliveries_processed_total": counts.processed,
            "reconciles_total": counts.reconciled,
            "reconciles_failed_total": counts.failed,
        }

    def stop(self) -> None:
        """End in good order."""
        self.worker.stop()
        self.store.close()


def open_service(settings: Settings, clock: Clock, make_work: MakeWork, make_pool: MakePool = thread_pool) -> Service:
    """Open the database and everything that the settings name, and start nothing yet."""
    try:
        settings.data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"VERL_E2E_DATA {settings.data}: {error.strerror}"
        raise UserError(f"{what}; name a folder that is there, or can be made") from None
    store = open_store(settings.database_url)
    ledger, worklist, outbox = SqlLedger(store), SqlWorklist(store), SqlOutbox(store)
    deliveries = SpooledDeliveries(SqlDeliveries(store), _spool(settings))
    retention = Retention(store, settings.data / "runs")
    worker = Worker(
        make_work(settings, ledger, worklist, outbox, clock),
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
    return Service(settings, store, deliveries, worker, clock)


def _spool(settings: Settings) -> Spool:
    try:
        return Spool(settings.data / "spool")
    except OSError as error:
        what = f"VERL_E2E_DATA {settings.data}: its folder spool: {error.strerror}"
        raise UserError(f"{what}; see that it can be written") from None
