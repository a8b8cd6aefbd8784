"""Work that outlives the process: deliveries are heard, targets looked at one at a time, and again after a failure."""

from bot.adapters.durable.queue import queue_url
from bot.adapters.durable.worker import Counts, Work, Worker

__all__ = ["Counts", "Work", "Worker", "queue_url"]
