"""Work that survives a restart: deliveries are processed, and each target is reconciled, again after a failure."""

from verl_e2e.adapters.worker.worker import Work, Worker

__all__ = ["Work", "Worker"]
