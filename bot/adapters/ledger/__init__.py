"""The bot's memory in a database: SQLite by default, PostgreSQL by URL, the same statements on both."""

from bot.adapters.ledger.deliveries import SqlDeliveries
from bot.adapters.ledger.entries import SqlLedger
from bot.adapters.ledger.store import Store, StoreError, open_store
from bot.adapters.ledger.worklist import SqlWorklist

__all__ = ["SqlDeliveries", "SqlLedger", "SqlWorklist", "Store", "StoreError", "open_store"]
