"""The bot's memory in a database: SQLite by default, PostgreSQL by URL, the same statements on both."""

from verl_e2e.adapters.store.database import Store, StoreError, open_store
from verl_e2e.adapters.store.deliveries import SqlDeliveries
from verl_e2e.adapters.store.figures import SqlFigures
from verl_e2e.adapters.store.leases import SqlLeases
from verl_e2e.adapters.store.ledger import SqlLedger
from verl_e2e.adapters.store.outbox import SqlOutbox
from verl_e2e.adapters.store.retention import Retention
from verl_e2e.adapters.store.spool import Spool, SpooledDeliveries
from verl_e2e.adapters.store.targets import SqlWorklist

__all__ = [
    "Retention",
    "Spool",
    "SpooledDeliveries",
    "SqlDeliveries",
    "SqlFigures",
    "SqlLeases",
    "SqlLedger",
    "SqlOutbox",
    "SqlWorklist",
    "Store",
    "StoreError",
    "open_store",
]
