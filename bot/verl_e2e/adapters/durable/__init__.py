"""Work that outlives the process: deliveries are heard, targets looked at one at a time, and again after a failure."""

from verl_e2e.adapters.durable.queue import queue_url
from verl_e2e.adapters.durable.worker import Counts, Work, Worker

__all__ = ["Counts", "Work", "Worker", "queue_url"]
