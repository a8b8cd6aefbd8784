"""The bot's memory in a database: SQLite by default, PostgreSQL by URL, the same statements on both."""

from verl_e2e.adapters.store.database import Store, StoreError, open_store
from verl_e2e.adapters.store.ledger import SqlLedger
from verl_e2e.adapters.store.run_lists import SqlRunLists
from verl_e2e.adapters.store.work import Retention, SqlDeliveries, SqlFigures, SqlOutbox, SqlWorklist

__all__ = [
    "Retention",
    "SqlDeliveries",
    "SqlFigures",
    "SqlLedger",
    "SqlOutbox",
    "SqlRunLists",
    "SqlWorklist",
    "Store",
    "StoreError",
    "open_store",
]
