"""The worker: hears what was delivered and has what is wanted looked at.

What is to be done lies in the deliveries and targets tables; the queue remembers only what is being looked at.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from bot.adapters.durable.queue import TargetQueue
from bot.core.pulls.deliveries import Received
from bot.ports import BackendError, Deliveries, UnreadableDeliveryError, Worklist

# Between two looks at the tables: long enough for a burst about one pull request to become one reconcile.
_ROUND_S, _IDLE_S = 0.1, 0.5
_BATCH = 64
# A target that was handed over and not heard of for so long is handed over again; the queue refuses a double.
_HANDED_S = 120.0
_FIRST_RETRY_S, _LAST_RETRY_S = 5.0, 900.0
# With the waits above about 3 days, as long as GitHub would deliver it again.
_HEARING_ATTEMPTS = 300
# Redeliveries have the id of the delivery, and can be asked for during 7 days on GitHub Enterprise Server.
_DELIVERIES_KEPT, _LOOKS_KEPT = timedelta(days=14), timedelta(hours=1)
_CLEANING_S = 300.0
# Pull requests to which something happened lately are looked at again, a few with each tick; a push of which
# no delivery told is found so. GitHub grants 5,000 requests an hour, and a look takes about 3.
_RECENT, _RECENT_EVERY, _RECENT_AT_ONCE = timedelta(days=3), timedelta(minutes=15), 20
_SEARCH_S = 300.0
_GRACE_S = 10

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """What the worker calls.

    `hear` records the fact that a delivery carries and gives the targets to look at; UnreadableDeliveryError when it
    never can, anything else to be asked again later. A target is text. `reconcile` looks at one, does what is due, and
    says in how many seconds to look again, None when nothing is expected. `open_targets` are those with runs under way,
    `missed_targets` those that exist and that no delivery told of.
    """

    hear: Callable[[Received], Collection[str]]
    reconcile: Callable[[str], float | None]
    open_targets: Callable[[], Collection[str]]
    missed_targets: Callable[[], Collection[str]]
    now: Callable[[], datetime]


@dataclass(slots=True)
class Counts:
    """What was done since the start."""

    heard: int = 0
    reconciled: int = 0
    failed: int = 0


class Worker:
    """Start it once in a process, `wake` it when something arrived, stop it at the end.

    `queue_url` is where the queue keeps its own tables: see `bot.adapters.durable.queue_url`.
    """

    def __init__(
        self, work: Work, deliveries: Deliveries, worklist: Worklist, queue_url: str, *, workers: int, tick_s: float
    ) -> None:
        self._work, self._deliveries, self._worklist = work, deliveries, worklist
        self._workers, self._tick_s = workers, tick_s
        self._queue = TargetQueue(queue_url, self._look, workers=workers)
        self._wake, self._stop = threading.Event(), threading.Event()
        self._handed: dict[str, float] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="hear")
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._searching: Future[None] = Future()
        self._searching.set_result(None)
        self._thread = threading.Thread(target=self._rounds, name="worker", daemon=True)
        self._next_tick = self._next_cleaning = self._next_search = 0.0
        self.counts = Counts()

    def start(self) -> None:
        """Take up what an earlier process left, and go on until `stop`."""
        self._queue.start()
        self._thread.start()

    def wake(self) -> None:
        """Something arrived: look now and not after the pause."""
        self._wake.set()

    @property
    def alive(self) -> bool:
        """Whether the worker still looks."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Begin nothing more, and give what runs a few seconds; what is cut off is done again after the next start."""
        self._stop.set()
        self._wake.set()
        self._thread.join(_GRACE_S)
        for pool in (self._pool, self._aside):
            pool.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + _GRACE_S
        while self._handed and time.monotonic() < deadline:
            time.sleep(0.05)
        self._queue.stop()

    def _rounds(self) -> None:
        while not self._stop.is_set():
            try:
                busy = self._hear() or self._hand_over()
                self._tick()
            except Exception:
                # The database, most likely; the tables say what is to be done when it is back.
                log.exception("the worker's round failed")
                busy = False
            self._wake.wait(_ROUND_S if busy else _IDLE_S)
            self._wake.clear()
            self._stop.wait(_ROUND_S)

    def _hear(self) -> bool:
        """Hear the next deliveries; whether there may be more."""
        batch = self._deliveries.waiting(self._work.now(), _BATCH)
        answers = self._pool.map(self._heard, batch)
        heard = [
            (delivery.id, targets) for delivery, targets in zip(batch, answers, strict=True) if targets is not None
        ]
        if heard:
            self._deliveries.heard(heard, self._work.now())
            self.counts.heard += len(heard)
            self._hand_over()
        return len(batch) == _BATCH

    def _heard(self, delivery: Received) -> Collection[str] | None:
        """The targets of a delivery, None when it could not be heard; that is written down."""
        about = {"delivery": delivery.id, "event": delivery.event}
        try:
            return self._work.hear(delivery)
        except UnreadableDeliveryError as error:
            log.warning("delivery refused: %s", error, extra=about)
            self._deliveries.failed(delivery.id, str(error), None)
        except Exception as error:
            _tell("delivery not heard", error, about)
            given_up = delivery.attempts + 1 >= _HEARING_ATTEMPTS
            retry_at = None if given_up else _retry_at(self._work.now(), delivery.attempts, error)
            self._deliveries.failed(delivery.id, _problem(error), retry_at)
        return None

    def _hand_over(self) -> bool:
        """Give the wanted targets to the queue, a few for each worker; whether more wait."""
        now = time.monotonic()
        with self._lock:
            self._handed = {target: at for target, at in self._handed.items() if now - at < _HANDED_S}
            handed = set(self._handed)
        room = 4 * self._workers - len(handed)
        if room <= 0:
            return False  # a look that ends wakes the worker
        wanted = self._worklist.wanted(self._work.now(), len(handed) + room)
        for target in [target for target in wanted if target not in handed][:room]:
            self._enqueue(target)
        return len(wanted) > len(handed) + room

    def _enqueue(self, target: str) -> None:
        with self._lock:
            self._handed[target] = time.monotonic()
        if not self._queue.put(target):
            # The look before is not over yet; the target stays wanted.
            self._release(target)

    def _look(self, target: str) -> None:
        """The workflow: one look at one target. It always succeeds, because what failed is wanted again later."""
        started = time.monotonic()
        try:
            asked = self._worklist.asked(target)
            try:
                again_s = self._work.reconcile(target)
            except Exception as error:
                self.counts.failed += 1
                _tell("reconcile failed", error, {"target": target})
                retry_at = _retry_at(self._work.now(), self._worklist.attempts(target), error)
                self._worklist.postpone(target, _problem(error), retry_at)
            else:
                now = self._work.now()
                again_at = None if again_s is None else now + timedelta(seconds=again_s)
                self._worklist.finish(target, asked, now, again_at)
                self.counts.reconciled += 1
                log.info("reconciled", extra={"target": target, "seconds": round(time.monotonic() - started, 3)})
        finally:
            self._release(target)
            self._wake.set()

    def _release(self, target: str) -> None:
        with self._lock:
            self._handed.pop(target, None)

    def _tick(self) -> None:
        """Want what no delivery may tell of: runs under way, and recent pull requests now and then."""
        if time.monotonic() >= self._next_tick:
            now = self._work.now()
            # At the start at once: nobody knows what happened while no process listened.
            self._worklist.want(self._work.open_targets(), now, at_once=not self._next_tick)
            self._worklist.want(self._worklist.stale(now - _RECENT, now - _RECENT_EVERY, _RECENT_AT_ONCE), now)
            self._next_tick = time.monotonic() + self._tick_s
        if time.monotonic() >= self._next_search and self._searching.done():
            self._next_search = time.monotonic() + max(_SEARCH_S, self._tick_s)
            # Aside: GitHub may take its time, and nothing waits for this.
            self._searching = self._aside.submit(self._search)
        if time.monotonic() >= self._next_cleaning:
            self._next_cleaning = time.monotonic() + _CLEANING_S
            self._clean()

    def _search(self) -> None:
        """Find what no delivery told of; what GitHub does not answer now it will later."""
        try:
            missed = self._work.missed_targets()
            if missed:
                log.warning("found what no delivery told of", extra={"targets": " ".join(sorted(missed))})
                self._worklist.want(missed, self._work.now())
        except Exception as error:
            _tell("nothing found of what no delivery told of", error, {})

    def _clean(self) -> None:
        """Remove what nobody will ask for again."""
        now = self._work.now()
        self._deliveries.forget(now - _DELIVERIES_KEPT)
        self._queue.forget(now - _LOOKS_KEPT)


def _retry_at(now: datetime, attempts: int, error: Exception) -> datetime:
    """Later with each failure, and not before an answer that named a time wants to be asked again."""
    named_s = float(getattr(error, "wait_s", 0.0))
    return now + timedelta(seconds=max(named_s, min(_FIRST_RETRY_S * 2 ** min(attempts, 20), _LAST_RETRY_S)))


def _tell(what: str, error: Exception, about: dict[str, str]) -> None:
    """What others answered is one line, a fault of ours comes with where it lies."""
    expected = getattr(error, "user_mistake", False) or isinstance(error, BackendError)
    log.warning("%s: %s", what, error, exc_info=None if expected else error, extra=about)


def _problem(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
