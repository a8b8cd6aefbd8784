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

from verl_e2e.adapters.durable.failures import problem, retry_at, tell
from verl_e2e.adapters.durable.hearing import Hearing
from verl_e2e.adapters.durable.lanes import Lanes
from verl_e2e.adapters.durable.mailing import Mailing
from verl_e2e.adapters.durable.queue import TargetQueue
from verl_e2e.core.pulls.deliveries import Received
from verl_e2e.core.pulls.messages import Message
from verl_e2e.ports import Deliveries, Outbox, Worklist

# Between two looks at the tables: long enough for a burst about one pull request to become one reconcile.
_ROUND_S, _IDLE_S = 0.1, 0.5
# Workers beside the others, for what somebody with a role has just asked about.
_FOR_PEOPLE = 2
# Threads that show on a pull request that it was seen, while every worker is busy.
_SIGNS = 4
# A target that was handed over and not heard of for so long is handed over again; the queue refuses a double.
_HANDED_S = 120.0
_LOOKS_KEPT = timedelta(hours=1)
_CLEANING_S, _CLEANING_ON_S = 300.0, 5.0
# Pull requests to which something happened lately are looked at again, a few with each tick; a push of which
# no delivery told is found so. GitHub grants 5,000 requests an hour, and a look takes about 3.
_RECENT, _RECENT_EVERY, _RECENT_AT_ONCE = timedelta(days=3), timedelta(minutes=15), 20
_GRACE_S = 10

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """What the worker calls. A target is text."""

    hear: Callable[[Received], Collection[str]]
    """Records the fact that a delivery carries and gives the targets to look at; UnreadableDeliveryError when it never
    can, anything else to be asked again later."""
    reconcile: Callable[[str], float | None]
    """Looks at a target, does what is due, and says in how many seconds to look again, None for never."""
    open_targets: Callable[[], Collection[str]]
    """Those with runs under way."""
    missed_targets: Callable[[], Collection[str]]
    """Those that exist and that no delivery told of."""
    now: Callable[[], datetime]
    """The time."""
    lane_of: Callable[[Received], str]
    """What hearing a delivery may wait for; empty for nothing."""
    write: Callable[[Message], None]
    """Writes a message of the outbox."""
    clean: Callable[[], bool]
    """Removes some of what nobody will ask for again; whether more is left."""
    resume: Callable[[], None]
    """Called after rounds that failed; raises while none may succeed."""
    announce: Callable[[str], None]
    """Shows on a target that it was seen, when it cannot be looked at yet."""


@dataclass(slots=True)
class Counts:
    """What was done since the start."""

    heard: int = 0
    reconciled: int = 0
    failed: int = 0


class Worker:
    """Start it once in a process, `wake` it when something arrived, stop it at the end.

    `queue_url` is where the queue keeps its own tables: see `verl_e2e.adapters.durable.queue_url`.
    """

    def __init__(
        self,
        work: Work,
        deliveries: Deliveries,
        worklist: Worklist,
        outbox: Outbox,
        queue_url: str,
        *,
        workers: int,
        tick_s: float,
    ) -> None:
        self._work, self._deliveries, self._worklist = work, deliveries, worklist
        self._workers, self._tick_s = workers, tick_s
        self._queue = TargetQueue(queue_url, self._look, workers=workers + _FOR_PEOPLE)
        self._wake, self._stop = threading.Event(), threading.Event()
        self._handed: dict[str, float] = {}
        self._lock = threading.Lock()
        self._urgent: set[str] = set()
        self._fresh: set[str] = set()
        self._announced: set[str] = set()
        self._signs = Lanes(_SIGNS, lambda _: _SIGNS // 2, "sign", self._wake.set)
        self._hearing = Hearing(work.hear, work.lane_of, deliveries, work.now, self._wake.set)
        self._mailing = Mailing(work.write, outbox, work.now, self._wake.set)
        self._aside = ThreadPoolExecutor(2, thread_name_prefix="aside")
        self._searching: Future[None] = _done()
        self._cleaning: Future[None] = _done()
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
        self._hearing.stop()
        self._mailing.stop()
        self._signs.stop()
        self._aside.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + _GRACE_S
        while self._handed and time.monotonic() < deadline:
            time.sleep(0.05)
        self._queue.stop()

    def _rounds(self) -> None:
        failed_since = 0.0
        while not self._stop.is_set():
            try:
                if failed_since:
                    self._work.resume()
                busy = self._hear() | self._hand_over()
                self._mailing.round()
                self._tick()
            except Exception:
                # The database, most likely; the tables say what is to be done when it is back.
                if not failed_since:
                    log.exception("the worker's round failed; it is tried again until it does not, and told then")
                failed_since = failed_since or time.monotonic()
                busy = False
                self._stop.wait(_IDLE_S)
            else:
                if failed_since:
                    seconds = round(time.monotonic() - failed_since, 1)
                    log.warning("the worker's rounds succeed again", extra={"seconds": seconds})
                    # What was refused meanwhile is asked for at once.
                    failed_since = self._next_search = 0.0
            self._wake.wait(_ROUND_S if busy else _IDLE_S)
            self._wake.clear()
            self._stop.wait(_ROUND_S)

    def _hear(self) -> bool:
        """Hear what was delivered; whether there may be more."""
        heard, more = self._hearing.round()
        if heard.count:
            self.counts.heard += heard.count
            with self._lock:
                self._fresh |= set(heard.targets)
                self._urgent |= set(heard.urgent)
        return more

    def _hand_over(self) -> bool:
        """Give wanted targets to the queue, one for each worker; whether more wait.

        Two workers are kept for what somebody with a role has just asked about.
        """
        now = time.monotonic()
        with self._lock:
            self._handed = {target: at for target, at in self._handed.items() if now - at < _HANDED_S}
            handed, urgent, fresh = {*self._handed, *self._announced}, set(self._urgent), set(self._fresh)
            room = self._workers + _FOR_PEOPLE - len(self._handed)
        if room <= 0 and not fresh:
            return False  # a look that ends wakes the worker
        first = {*urgent, *fresh}
        wanted = self._worklist.wanted(self._work.now(), len(handed) + len(first) + max(room, 0), first=first)
        found = [target for target in wanted if target not in handed]
        with self._lock:
            self._urgent &= {*wanted, *handed}
            self._fresh &= {*wanted, *handed}
        for target in found:
            if room > _FOR_PEOPLE or (room > 0 and target in urgent):
                self._enqueue(target)
                room -= 1
            elif target in fresh:
                self._announce(target)
        return len(found) > room

    def _enqueue(self, target: str) -> None:
        with self._lock:
            self._handed[target] = time.monotonic()
            self._urgent.discard(target)
            self._fresh.discard(target)
        if not self._queue.put(target):
            # The look before is not over yet; the target stays wanted.
            self._release(target)

    def _announce(self, target: str) -> None:
        """Every worker is busy: let the pull request show by then that it was seen, and look at it afterwards."""
        with self._lock:
            self._fresh.discard(target)
            self._announced.add(target)

        def work() -> None:
            try:
                self._work.announce(target)
            except Exception as error:
                tell("not announced", error, {"target": target})
            finally:
                with self._lock:
                    self._announced.discard(target)

        self._signs.put(target, target.partition("/")[0], work)

    def _look(self, target: str) -> None:
        """The workflow: one look at one target. It always succeeds, because what failed is wanted again later."""
        started = time.monotonic()
        try:
            asked = self._worklist.asked(target)
            try:
                again_s = self._work.reconcile(target)
            except Exception as error:
                tell("reconcile failed", error, {"target": target})
                again_at = retry_at(self._work.now(), self._worklist.attempts(target), error)
                self._worklist.postpone(target, problem(error), again_at)
                self.counts.failed += 1
            else:
                now = self._work.now()
                later = None if again_s is None else now + timedelta(seconds=again_s)
                self._worklist.finish(target, asked, now, later)
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
            self._next_search = time.monotonic() + self._tick_s
            # Aside: GitHub may take its time, and nothing waits for this.
            self._searching = self._aside.submit(self._search)
        if time.monotonic() >= self._next_cleaning and self._cleaning.done():
            self._next_cleaning = time.monotonic() + _CLEANING_S
            self._cleaning = self._aside.submit(self._clean)

    def _search(self) -> None:
        """Find what no delivery told of; what GitHub does not answer now it will later."""
        try:
            missed = self._work.missed_targets()
            if missed:
                log.warning("found what no delivery told of", extra={"targets": " ".join(sorted(missed))})
                self._worklist.want(missed, self._work.now())
        except Exception as error:
            tell("nothing found of what no delivery told of", error, {})

    def _clean(self) -> None:
        """Remove some of what nobody will ask for again, and soon more if more is left."""
        try:
            more = self._work.clean() | self._queue.forget(self._work.now() - _LOOKS_KEPT)
            if more:
                self._next_cleaning = time.monotonic() + _CLEANING_ON_S
        except Exception as error:
            tell("nothing removed of what nobody will ask for again", error, {})


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future
