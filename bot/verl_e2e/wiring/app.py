"""The service: one database, one worker, one door; what is named here is what `verl-e2e serve` runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from verl_e2e.adapters.durable import Work, Worker, queue_url
from verl_e2e.adapters.ledger import (
    Retention,
    Spool,
    SpooledDeliveries,
    SqlDeliveries,
    SqlLedger,
    SqlOutbox,
    SqlWorklist,
    Store,
    open_store,
)
from verl_e2e.config.settings import Settings
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.pulls.deliveries import Received

MakeWork = Callable[[Settings, SqlLedger, SqlWorklist, SqlOutbox, Callable[[], datetime]], Work]


@dataclass(frozen=True, slots=True)
class Service:
    """An opened service: start it, let `keep` fill it, stop it."""

    store: Store
    deliveries: SpooledDeliveries
    worker: Worker
    now: Callable[[], datetime]

    def start(self) -> None:
        """Begin to work; UserError when another process works on this database."""
        if not self.store.claim():
            raise UserError("DATABASE_URL: another verl-e2e serve works on this database; stop it, or name another")
        self.worker.start()

    def keep(self, received: Sequence[Received]) -> tuple[bool, ...]:
        """Keep deliveries, all or none; false for one that was kept before."""
        return self.deliveries.keep(received)

    def health(self) -> Mapping[str, float]:
        """Figures for /metrics by name; an error when the service is not well."""
        if not self.worker.alive:
            raise RuntimeError("the worker has ended")
        backlog, counts = self.deliveries.backlog(self.now()), self.worker.counts
        return {
            "deliveries_waiting": backlog.deliveries_waiting,
            "deliveries_refused": backlog.deliveries_refused,
            "targets_waiting": backlog.targets_waiting,
            "oldest_waiting_seconds": round(backlog.oldest_s, 3),
            "runs_open": backlog.runs_open,
            "deliveries_heard_total": counts.heard,
            "reconciles_total": counts.reconciled,
            "reconciles_failed_total": counts.failed,
        }

    def stop(self) -> None:
        """End in good order."""
        self.worker.stop()
        self.store.close()


def open_service(settings: Settings, now: Callable[[], datetime], make_work: MakeWork) -> Service:
    """Open the database and everything that the settings name, and start nothing yet."""
    try:
        settings.data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"VERL_E2E_DATA {settings.data}: {error.strerror}"
        raise UserError(f"{what}; name a folder that is there, or can be made") from None
    store = open_store(settings.database_url)
    ledger, worklist = SqlLedger(store), SqlWorklist(store)
    deliveries = SpooledDeliveries(SqlDeliveries(store), _spool(settings))
    retention = Retention(store, settings.data / "runs")

    def clean() -> bool:
        return retention.remove(now() - timedelta(days=settings.keep_days))

    outbox = SqlOutbox(store)
    work = replace(make_work(settings, ledger, worklist, outbox, now), clean=clean, resume=store.claim_again)
    queue = queue_url(settings.database_url)
    worker = Worker(work, deliveries, worklist, outbox, queue, workers=settings.workers, tick_s=settings.tick_s)
    return Service(store, deliveries, worker, now)


def _spool(settings: Settings) -> Spool:
    try:
        return Spool(settings.data / "spool")
    except OSError as error:
        what = f"VERL_E2E_DATA {settings.data}: its folder spool: {error.strerror}"
        raise UserError(f"{what}; see that it can be written") from None
