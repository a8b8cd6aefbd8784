"""Deliveries on the disk while the database is away: GitHub delivers once, so we do not refuse it."""

import json
import logging
import os
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from verl_e2e.adapters.store.deliveries import SqlDeliveries
from verl_e2e.core.pulls.deliveries import Received

# Beyond this a delivery is refused; GitHub keeps it for three days, and it is asked for again.
MOST_FILES, MOST_BYTES = 5_000, 256 * 1024 * 1024
# With less on the disk, a delivery of the largest size may not fit.
_LEAST_FREE, _LEAST_FILES = 64 * 1024 * 1024, 100
# GitHub waits 10 s for an answer. After a failure the database is left alone for a while.
_PATIENCE_S, _PAUSE_S = 4.0, 1.0
_THREADS, _BATCH = 4, 64

log = logging.getLogger(__name__)


class SpoolFullError(Exception):
    """The folder is full."""


class Spool:
    """A folder with one file for each delivery: a line of JSON, then the body. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in folder.glob("*.part"):
            left.unlink(missing_ok=True)
        sizes = [path.stat().st_size for path in self._files()]
        self.count, self._bytes = len(sizes), sum(sizes)

    @property
    def size(self) -> int:
        """Bytes that the deliveries take."""
        return self._bytes

    def trouble(self) -> str:
        """Why it would not take a delivery now; empty when it would."""
        disk = os.statvfs(self._folder)
        if disk.f_flag & os.ST_RDONLY:
            return "the disk of VERL_E2E_DATA cannot be written"
        if disk.f_bavail * disk.f_frsize < _LEAST_FREE or (disk.f_files and disk.f_favail < _LEAST_FILES):
            return "the disk of VERL_E2E_DATA is full"
        if self.count >= MOST_FILES or self._bytes >= MOST_BYTES:
            return "the spool is full"
        return ""

    def keep(self, received: Sequence[Received]) -> None:
        """Write deliveries so that they outlive a power cut; SpoolFullError, OSError."""
        with self._lock:
            for item in received:
                self._write(item)
            _sync(self._folder)

    def batch(self) -> dict[Path, Received]:
        """The deliveries that came first, by the files that hold them; a file that cannot be read is passed over."""
        found = {path: _read(path) for path in self._files()[:_BATCH]}
        return {path: delivery for path, delivery in found.items() if delivery is not None}

    def drop(self, paths: Collection[Path]) -> None:
        """Remove files whose deliveries are in the database."""
        with self._lock:
            for path in paths:
                self._bytes -= path.stat().st_size
                self.count -= 1
                path.unlink()

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.delivery"))

    def _write(self, item: Received) -> None:
        head = {"id": item.id, "event": item.event, "received": item.received.isoformat()}
        text = json.dumps(head).encode() + b"\n" + item.body
        path = self._folder / f"{time.time_ns():020d}-{item.id}.delivery"
        if self.count >= MOST_FILES or self._bytes + len(text) > MOST_BYTES:
            raise SpoolFullError(f"{self._folder} is full: it holds {self.count:,} deliveries")
        part = path.with_suffix(".part")
        try:
            with part.open("wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        self.count += 1
        self._bytes += len(text)


class SpooledDeliveries:
    """`verl_e2e.ports.Deliveries` in a database, or on the disk until it is back."""

    def __init__(self, deliveries: SqlDeliveries, spool: Spool) -> None:
        self._deliveries, self._spool = deliveries, spool
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="keep")
        self._away_until = 0.0

    def keep(self, received: Sequence[Received]) -> tuple[bool, ...]:
        """Keep deliveries until they are processed, all or none; false for one that is known to be stored already."""
        if time.monotonic() >= self._away_until:
            try:
                return self._threads.submit(self._deliveries.keep, received).result(_PATIENCE_S)
            except Exception as error:
                self._away(error)
        self._spool.keep(received)
        return (True,) * len(received)

    def take(self, now: datetime, limit: int) -> tuple[Received, ...]:
        """The deliveries to act on now, oldest first; those on the disk are among them."""
        while self._spool.count and (batch := self._spool.batch()):
            self._deliveries.keep(tuple(batch.values()))
            self._spool.drop(batch.keys())
            log.info("deliveries moved from the disk into the database", extra={"count": len(batch)})
        return self._deliveries.take(now, limit)

    def processed(self, processed: Collection[tuple[str, Collection[str]]], now: datetime) -> None:
        """Deliveries by id are done with, each with the targets that are wanted for it; all at once or not at all."""
        self._deliveries.processed(processed, now)

    def failed(self, delivery_id: str, problem: str, retry_at: datetime | None) -> None:
        """It could not be processed: try again then, or never (None)."""
        self._deliveries.failed(delivery_id, problem, retry_at)

    def _away(self, error: Exception) -> None:
        if not self._spool.count:
            log.warning("the database does not answer, deliveries are stored on the disk: %s", type(error).__name__)
        self._away_until = time.monotonic() + _PAUSE_S


def _read(path: Path) -> Received | None:
    head, _, body = path.read_bytes().partition(b"\n")
    try:
        values = json.loads(head)
        return Received(values["id"], values["event"], body, datetime.fromisoformat(values["received"]))
    except (ValueError, KeyError, TypeError) as error:
        log.error("%s is not a stored delivery: %s", path, error)
        path.rename(path.with_suffix(".damaged"))
        return None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
