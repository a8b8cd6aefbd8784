"""Work that outlives the process: deliveries are heard, targets looked at one at a time, and again after a failure."""

from verl_e2e.adapters.worker.worker import Work, Worker

__all__ = ["Work", "Worker"]
