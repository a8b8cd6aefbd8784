"""The bot's memory in a database: SQLite by default, PostgreSQL by URL, the same statements on both."""

from bot.adapters.ledger.deliveries import SqlDeliveries
from bot.adapters.ledger.entries import SqlLedger
from bot.adapters.ledger.outbox import SqlOutbox
from bot.adapters.ledger.retention import Retention
from bot.adapters.ledger.spool import Spool, SpooledDeliveries
from bot.adapters.ledger.store import Store, StoreError, open_store
from bot.adapters.ledger.worklist import SqlWorklist

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
