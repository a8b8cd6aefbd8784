"""The worker: processes deliveries, reconciles wanted targets, and writes messages.

What is to be done lies in the tables. One process at a time works on them, see `verl_e2e.ports.ActiveLock`.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta

from verl_e2e.adapters.worker.lanes import Lanes, MakePool, log_failure, thread_pool
from verl_e2e.adapters.worker.queues import Counts, DeliveryProcessing, Mailing, Reconciling
from verl_e2e.core.pulls.deliveries import Message, Received
from verl_e2e.ports import ActiveLock, Clock, Deliveries, Outbox, Worklist

# Between two looks at the tables: long enough for a burst about one pull request to become one reconcile.
_ROUND_S, _IDLE_S = 0.1, 0.5
_CLEANING_S, _CLEANING_ON_S = 300.0, 5.0
# Pull requests to which something happened lately are looked at again, a few with each tick: what someone changed
# without a webhook, such as a deleted card, is found this way. GitHub grants 5,000 requests an hour, and a look takes
# up to 4 that it charges, so with 1,000 open pull requests these looks take no more than two fifths.
_RECENT, _RECENT_EVERY, _RECENT_AT_ONCE = timedelta(days=3), timedelta(minutes=15), 8
_GRACE_S = 10

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """What the worker calls. A target is text."""

    process: Callable[[Received], Collection[str]]
    """Stores the facts of a delivery and gives the targets to reconcile. UnreadableDeliveryError: it can never be
    processed; after any other error it is tried again."""
    reconcile: Callable[[str], float | None]
    """Reconciles a target, and says in how many seconds to do it again, None for never."""
    open_targets: Callable[[], Collection[str]]
    """The targets with open runs."""
    missed_targets: Callable[[], Collection[str]]
    """The targets that exist and that no delivery named."""
    lane_of: Callable[[Received], str]
    """The lane in which a delivery may wait; empty when it never waits."""
    write: Callable[[Message], None]
    """Writes a message of the outbox."""
    announce: Callable[[str], None]
    """Shows a first sign on a target that cannot be reconciled yet."""


class Worker:
    """The worker of a process: start it once, `wake` it when something arrives, stop it at the end.

    `clean` removes some old data and says whether more is left. `make_pool` gives the threads.
    """

    def __init__(
        self,
        work: Work,
        deliveries: Deliveries,
        worklist: Worklist,
        outbox: Outbox,
        active_lock: ActiveLock,
        clock: Clock,
        clean: Callable[[], bool],
        *,
        workers: int,
        tick_s: float,
        make_pool: MakePool = thread_pool,
    ) -> None:
        self._work, self._worklist, self._active_lock = work, worklist, active_lock
        self._clock, self._clean, self._tick_s = clock, clean, tick_s
        self._wake, self._stop = threading.Event(), threading.Event()
        self._delivering = DeliveryProcessing(work.process, work.lane_of, deliveries, clock.now, self.wake, make_pool)
        self._reconciling = Reconciling(
            work.reconcile, work.announce, worklist, clock.now, self.wake, make_pool, workers=workers
        )
        self._mailing = Mailing(work.write, outbox, clock.now, self.wake, make_pool)
        # Searching and cleaning, one of each at a time: GitHub may take its time, and nothing waits for them.
        self._aside = Lanes(2, lambda _: 1, "aside", lambda: None, make_pool)
        self._thread = threading.Thread(target=self._rounds, name="worker", daemon=True)
        self._active = False
        self._began_round = time.monotonic()
        self._next_tick = self._next_search = self._next_cleaning = clock.monotonic()
        self._began = False

    @property
    def counts(self) -> Counts:
        """What was done since the start."""
        return self._reconciling.counts

    def start(self) -> None:
        """Go on until `stop`."""
        self._thread.start()

    def wake(self) -> None:
        """Something arrived: start a round now and not after the pause."""
        self._wake.set()

    @property
    def alive(self) -> bool:
        """Whether the thread of the worker still runs."""
        return self._thread.is_alive()

    @property
    def active(self) -> bool:
        """Whether this process works on the database, and does not stand by."""
        return self._active

    @property
    def silent_s(self) -> float:
        """Seconds since the thread of the worker began its last round."""
        return time.monotonic() - self._began_round

    def stop(self) -> None:
        """Start nothing more, and wait a few seconds for running work; the next process repeats what is cut off."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_GRACE_S)
        for part in (self._delivering, self._mailing, self._reconciling, self._aside):
            part.stop()
        deadline = time.monotonic() + _GRACE_S
        while self._is_busy() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _is_busy(self) -> bool:
        return bool(self._delivering.busy or self._mailing.held or self._reconciling.held or self._aside.keys)

    def round(self) -> bool:
        """Start and store all that is possible; whether that was anything. Called by one thread."""
        if not self._active_lock.is_active():
            if self._active:
                log.warning("this process lost the database and stands by")
            self._active = False
            return False
        if not self._active or self._reconciling.unsure.is_set():
            self._reconciling.unsure.clear()
            self._active_lock.free_rows(self._delivering.held, self._mailing.held, self._reconciling.held)
        if not self._active:
            log.info("this process works on the database")
            # No one knows what happened while no process worked.
            self._active, self._began = True, False
            self._next_tick = self._next_search = self._clock.monotonic()
        processed, began = self._delivering.round()
        self.counts.processed += processed.count
        looked = self._reconciling.round(processed.targets, processed.urgent)
        wrote = self._mailing.round()
        searched = self._look_around()
        return bool(processed.count or began or looked or wrote or searched)

    def _rounds(self) -> None:
        failed_since = 0.0
        while not self._stop.is_set():
            self._began_round = time.monotonic()
            try:
                busy = self.round()
            except Exception:
                # The database, most likely; the tables say what is to be done when it is back.
                if not failed_since:
                    log.exception("the worker's round failed; it is repeated until it succeeds")
                failed_since = failed_since or time.monotonic()
                self._reconciling.unsure.set()
                busy = False
                self._stop.wait(_IDLE_S)
            else:
                if failed_since:
                    seconds = round(time.monotonic() - failed_since, 1)
                    log.warning("the worker's rounds succeed again", extra={"seconds": seconds})
                    # What was refused meanwhile is asked for at once.
                    failed_since, self._next_search = 0.0, self._clock.monotonic()
            self._wake.wait(_ROUND_S if busy else _IDLE_S)
            self._wake.clear()
            self._stop.wait(_ROUND_S)

    def _look_around(self) -> bool:
        """Want targets that may have no delivery: open runs and recent pull requests; whether there was a search."""
        now, now_s = self._clock.now(), self._clock.monotonic()
        if now_s >= self._next_tick:
            self._worklist.want(self._work.open_targets(), now, at_once=not self._began)
            self._worklist.want(self._worklist.stale(now - _RECENT, now - _RECENT_EVERY, _RECENT_AT_ONCE), now)
            self._began, self._next_tick = True, now_s + self._tick_s
        searched = now_s >= self._next_search and self._aside.put("search", "search", self._search)
        if searched:
            self._next_search = now_s + self._tick_s
        if now_s >= self._next_cleaning and self._aside.put("clean", "clean", self._remove):
            self._next_cleaning = now_s + _CLEANING_S
        return searched

    def _search(self) -> None:
        """Find targets that no delivery named; after a failure the next search tries again."""
        try:
            missed = self._work.missed_targets()
            if missed:
                log.warning("found targets without a delivery", extra={"targets": " ".join(sorted(missed))})
                self._worklist.want(missed, self._clock.now())
        except Exception as error:
            log_failure("search for targets without a delivery failed", error, {})

    def _remove(self) -> None:
        """Remove some old data, and soon more if more is left."""
        try:
            if self._clean():
                self._next_cleaning = self._clock.monotonic() + _CLEANING_ON_S
        except Exception as error:
            log_failure("clean-up failed", error, {})
