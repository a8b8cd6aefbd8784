"""The queue: one short DBOS workflow for each look at a target, never two of one target at once, kill or not.

DBOS keeps one instance for each process, and so does this.
"""

import hashlib
import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from dbos import DBOS, DBOSConfig, SetEnqueueOptions
from dbos import error as dbos_error

from verl_e2e.adapters.durable.plain_json import drop_pickled, serializer

log = logging.getLogger(__name__)
_QUEUE, _WORKFLOW = "reconcile", "verl-e2e.reconcile"
_POLL_S = 0.2
_FORGOTTEN_AT_ONCE = 1000
_BEGINNING, _TOLD_EVERY_S = 40, 60.0
_OVER = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]


class TargetQueue:
    """Calls `look` with targets, so many at a time; what an earlier process began is begun again by `start`.

    `url` is where DBOS keeps its own tables: see `queue_url`.
    """

    def __init__(self, url: str, look: Callable[[str], None], *, workers: int) -> None:
        self._url, self._look, self._workers = url, look, workers

    def start(self) -> None:
        """Take up what was begun, and be ready for more."""
        _set_up_file(self._url)
        if dropped := drop_pickled(self._url):
            log.warning("removed %d looks that an earlier version had queued; their targets are wanted still", dropped)
        DBOS(config=_config(self._url))
        _adopt_logger()

        # DBOS writes on the function that it is given, which a bound method does not allow.
        @DBOS.workflow(name=_WORKFLOW)
        def look(target: str) -> None:
            self._look(target)

        self._workflow: Callable[[str], None] = look
        DBOS.launch()
        DBOS.register_queue(_QUEUE, worker_concurrency=self._workers, polling_interval_sec=_POLL_S)

    def put(self, target: str) -> bool:
        """Have a target looked at; false while the look before it is not over."""
        try:
            with SetEnqueueOptions(deduplication_id=hashlib.sha256(target.encode()).hexdigest()):
                DBOS.enqueue_workflow(_QUEUE, self._workflow, target)
        except dbos_error.DBOSQueueDeduplicatedError:
            return False
        return True

    def forget(self, before: datetime) -> bool:
        """Remove some records of looks that began before then and are over; whether more are left."""
        over = DBOS.list_workflows(
            status=_OVER, end_time=before.isoformat(), limit=_FORGOTTEN_AT_ONCE, load_input=False, load_output=False
        )
        if over:
            DBOS.delete_workflows([workflow.workflow_id for workflow in over])
            _shrink(self._url)
        return len(over) == _FORGOTTEN_AT_ONCE

    def stop(self) -> None:
        """Begin no look any more."""
        DBOS.destroy(destroy_registry=True)


def queue_url(database_url: str) -> str:
    """Where DBOS keeps its tables: a schema of its own on PostgreSQL, a file of its own beside one of SQLite.

    In one SQLite file its many small writes would hold up the webhook's single one; docs/design.md has the figures.
    """
    if not database_url.startswith("sqlite"):
        return database_url
    file = Path(database_url.removeprefix("sqlite:///").partition("?")[0])
    return f"sqlite:///{file.with_name(f'{file.stem}-queue{file.suffix}')}"


def _set_up_file(url: str) -> None:
    """Readers and the writer of an SQLite file do not wait for each other in this mode, which the file remembers."""
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            # Heeded in a new file only.
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
            connection.execute("PRAGMA journal_mode=WAL")


def _shrink(url: str) -> None:
    """Give freed pages back to the file system."""
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=5)) as connection:
            connection.execute("PRAGMA incremental_vacuum(2000)").fetchall()


class _QuickConnection(sqlite3.Connection):
    """Commits that outlive a kill and perhaps no power cut: what is to be done lies elsewhere."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.execute("PRAGMA synchronous=NORMAL")


def _config(url: str) -> DBOSConfig:
    # Version and executor never change: whatever process starts next takes up what was begun.
    return {
        "name": "verl-e2e",
        "system_database_url": url,
        "application_version": "1",
        "executor_id": "verl-e2e",
        "log_level": "WARNING",
        "sys_db_pool_size": 5,
        "serializer": serializer(),
        "db_engine_kwargs": {"connect_args": {"factory": _QuickConnection}} if url.startswith("sqlite") else {},
    }


def _adopt_logger() -> None:
    """Let DBOS write into our log and not beside it."""
    theirs = logging.getLogger("dbos")
    for handler in list(theirs.handlers):
        theirs.removeHandler(handler)
    theirs.propagate = True
    if not any(isinstance(one, _OncePerMinute) for one in theirs.filters):
        theirs.addFilter(_OncePerMinute())


class _OncePerMinute(logging.Filter):
    """Lets a line of one beginning through once a minute: each thread of DBOS tells each second of a lost database."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line is told."""
        beginning, now = record.getMessage()[:_BEGINNING], time.monotonic()
        if now < self._told.get(beginning, -_TOLD_EVERY_S) + _TOLD_EVERY_S:
            return False
        self._told[beginning] = now
        return True
