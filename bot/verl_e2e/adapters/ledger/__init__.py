"""The bot's memory in a database: SQLite by default, PostgreSQL by URL, the same statements on both."""

from verl_e2e.adapters.ledger.deliveries import SqlDeliveries
from verl_e2e.adapters.ledger.entries import SqlLedger
from verl_e2e.adapters.ledger.outbox import SqlOutbox
from verl_e2e.adapters.ledger.retention import Retention
from verl_e2e.adapters.ledger.spool import Spool, SpooledDeliveries
from verl_e2e.adapters.ledger.store import Store, StoreError, open_store
from verl_e2e.adapters.ledger.worklist import SqlWorklist

__all__ = [
    "Retention",
    "Spool",
    "SpooledDeliveries",
    "SqlDeliveries",
    "SqlLedger",
    "SqlOutbox",
    "SqlWorklist",
    "Store",
    "StoreError",
    "open_store",
]
