"""The worker: processes deliveries, reconciles wanted targets, and writes messages.

What is to be done lies in the tables, so it survives a restart. One process at a time works on them, see
`verl_e2e.ports.ActiveLock`. Each of the three kinds of work has threads of its own, in lanes: a lane that waits for a
slow GitHub does not delay another. One thread calls each `round`, which starts what can be started and waits for
nothing.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from verl_e2e.core.model.errors import UserError
from verl_e2e.core.pulls.deliveries import PEOPLE, ClaimedTarget, Letter, Posting, Received
from verl_e2e.log_context import log_context, log_context_of
from verl_e2e.ports import (
    ActiveLock,
    BackendError,
    Clock,
    Deliveries,
    ForgeError,
    Outbox,
    UnreadableDeliveryError,
    Worklist,
)

_FIRST_RETRY_S, _LAST_RETRY_S = 5.0, 900.0
# Deliveries that need no answer from GitHub have their own threads. The lanes share the others; people get most.
_QUICK_THREADS, _ASKING_THREADS, _PEOPLE_AT_ONCE, _OTHERS_AT_ONCE = 2, 16, 8, 3
_DELIVERIES_AT_ONCE = 64
# Deliveries in memory at once, with their bodies; the others wait in the table.
_MOST_HELD, _MOST_HELD_BYTES = 2_000, 64 * 1024 * 1024
# With the waits of `retry_at` about 3 days, as long as GitHub would deliver it again.
_DELIVERY_ATTEMPTS = 300
# Additional threads for targets that someone with a role has just asked about.
_FOR_PEOPLE = 2
# Threads that show a first sign on a pull request while all others are busy.
_SIGNS = 4
_MAIL_THREADS, _MESSAGES_AT_ONCE = 6, 32
# About a day with the waits of `retry_at`; after that no one waits for an answer.
_MESSAGE_ATTEMPTS = 100

# Between two looks at the tables: long enough for a burst about one pull request to become one reconcile.
_ROUND_S, _IDLE_S = 0.1, 0.5
_CLEANING_S, _CLEANING_ON_S = 300.0, 5.0
# Pull requests to which something happened lately are looked at again, a few with each tick: what someone changed
# without a webhook, such as a deleted card, is found this way. GitHub grants 5,000 requests an hour, and a look takes
# up to 4 that it charges, so with 1,000 open pull requests these looks take no more than two fifths.
_RECENT, _RECENT_EVERY, _RECENT_AT_ONCE = timedelta(days=3), timedelta(minutes=15), 8
_GRACE_S = 10

log = logging.getLogger(__name__)

# Makes a pool of so many threads with this prefix of their names; a test may give one that uses the caller's thread.
MakePool = Callable[[int, str], Executor]


def thread_pool(threads: int, name: str) -> Executor:
    """Threads of the standard library."""
    return ThreadPoolExecutor(threads, thread_name_prefix=name)


class Lanes:
    """Threads that work off items by key: of one lane in the order of `put`, at most so many at once.

    `done` is called, in the thread, after each item.
    """

    def __init__(
        self, threads: int, in_lane: Callable[[str], int], name: str, done: Callable[[], None], make_pool: MakePool
    ) -> None:
        self._pool = make_pool(threads, name)
        self._threads, self._in_lane, self._done = threads, in_lane, done
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[tuple[str, Callable[[], None]]]] = {}
        self._running: Counter[str] = Counter()
        self._keys: set[str] = set()

    def put(self, key: str, lane: str, work: Callable[[], None]) -> bool:
        """Take one item; false while one with its key waits or runs."""
        with self._lock:
            if key in self._keys:
                return False
            self._keys.add(key)
            self._waiting.setdefault(lane, deque()).append((key, work))
        self._begin()
        return True

    @property
    def keys(self) -> Collection[str]:
        """The keys of the items that wait or run."""
        with self._lock:
            return tuple(self._keys)

    def filled(self, most: int) -> Collection[str]:
        """The lanes in which so many items wait."""
        with self._lock:
            return tuple(lane for lane, items in self._waiting.items() if len(items) >= most)

    def stop(self) -> None:
        """Begin nothing more, and wait for nothing."""
        with self._lock:
            self._keys -= {key for items in self._waiting.values() for key, _ in items}
            self._waiting.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        begun = []
        with self._lock:
            for lane in list(self._waiting):
                items = self._waiting[lane]
                while items and self._running[lane] < self._in_lane(lane) and self._running.total() < self._threads:
                    key, work = items.popleft()
                    self._running[lane] += 1
                    begun.append((key, lane, work))
                if items:
                    # The next lane that waits comes first the next time.
                    self._waiting[lane] = self._waiting.pop(lane)
                else:
                    del self._waiting[lane]
        # Not under the lock: a pool may work in this thread.
        for item in begun:
            with suppress(RuntimeError):  # the pool was stopped meanwhile
                self._pool.submit(self._work, *item)

    def _work(self, key: str, lane: str, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._lock:
                self._keys.discard(key)
                self._running[lane] -= 1
                if not self._running[lane]:
                    del self._running[lane]
            self._begin()
            self._done()


def retry_at(now: datetime, attempts: int, error: Exception) -> datetime:
    """When to try again: later with each failure, or at the time that an answer named."""
    named_s = float(getattr(error, "wait_s", 0.0))
    return now + timedelta(seconds=named_s or min(_FIRST_RETRY_S * 2 ** min(attempts, 20), _LAST_RETRY_S))


def log_failure(what: str, error: Exception) -> None:
    """Log a failure: an expected error in one line, an internal error with its traceback."""
    expected = isinstance(error, UserError | ForgeError | BackendError)
    log.warning("%s: %s", what, error, exc_info=None if expected else error)


def problem(error: Exception) -> str:
    """A failure as text for the tables."""
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class Processed:
    """The results of some deliveries."""

    count: int
    """Their number."""
    targets: Collection[str] = ()
    """The targets to reconcile."""
    urgent: Collection[str] = ()
    """Those that someone with a role asked about."""


class DeliveryProcessing:
    """Takes deliveries from the table, has each processed for itself, and stores the results.

    `process` gives the targets of a delivery, `lane_of` what it may wait for: see
    `verl_e2e.core.pulls.deliveries.delivery_lane`.
    """

    def __init__(
        self,
        process: Callable[[Received], Collection[str]],
        lane_of: Callable[[Received], str],
        deliveries: Deliveries,
        now: Callable[[], datetime],
        wake: Callable[[], None],
        make_pool: MakePool,
    ) -> None:
        self._process, self._lane_of, self._deliveries, self._now = process, lane_of, deliveries, now
        self._quick = Lanes(_QUICK_THREADS, lambda _: _QUICK_THREADS, "process", wake, make_pool)

        def at_once(lane: str) -> int:
            return _PEOPLE_AT_ONCE if lane.endswith(f":{PEOPLE}") else _OTHERS_AT_ONCE

        self._asking = Lanes(_ASKING_THREADS, at_once, "ask", wake, make_pool)
        self._lock = threading.Lock()
        # The bytes of the deliveries in memory, and of those that ended their lane and targets.
        self._held: dict[str, int] = {}
        self._ended: dict[str, tuple[str, Collection[str] | None]] = {}

    def round(self) -> tuple[Processed, bool]:
        """Store the results so far and start more work; gives the results, and whether anything was started."""
        with self._lock:
            ended = dict(self._ended)
        processed = [(key, targets) for key, (_, targets) in ended.items() if targets is not None]
        if processed:
            self._deliveries.processed(processed, self._now())
        with self._lock:
            for key in ended:
                self._ended.pop(key)
                self._held.pop(key, None)
            sizes = tuple(self._held.values())
        by_people = (targets or () for lane, targets in ended.values() if lane.endswith(f":{PEOPLE}"))
        results = Processed(
            len(processed),
            {target for _, targets in processed for target in targets},
            {target for targets in by_people for target in targets},
        )
        if len(sizes) >= _MOST_HELD or sum(sizes) >= _MOST_HELD_BYTES:
            return results, False
        batch = self._deliveries.take(self._now(), _DELIVERIES_AT_ONCE)
        lanes = [(self._lane_of(delivery), delivery) for delivery in batch]
        with self._lock:
            self._held |= {delivery.id: len(delivery.body) for delivery in batch}
        for lane, delivery in lanes:
            (self._asking if lane else self._quick).put(delivery.id, lane, partial(self._work, delivery, lane))
        return results, bool(batch)

    @property
    def held(self) -> Collection[str]:
        """The deliveries that were taken from the table and are not processed yet."""
        with self._lock:
            return tuple(self._held)

    @property
    def busy(self) -> bool:
        """Whether a thread still works on a delivery."""
        return bool(self._quick.keys or self._asking.keys)

    def stop(self) -> None:
        """Start nothing more."""
        self._quick.stop()
        self._asking.stop()

    def _work(self, delivery: Received, lane: str) -> None:
        targets: Collection[str] | None = None
        try:
            with log_context(delivery=delivery.id, event=delivery.event):
                try:
                    targets = self._process(delivery)
                    log.info("delivery processed", extra={"targets": " ".join(sorted(targets))})
                except UnreadableDeliveryError as error:
                    log.warning("delivery refused: %s", error)
                    self._failed(delivery.id, str(error), None)
                except Exception as error:
                    log_failure("delivery not processed", error)
                    given_up = delivery.attempts + 1 >= _DELIVERY_ATTEMPTS
                    again_at = None if given_up else retry_at(self._now(), delivery.attempts, error)
                    self._failed(delivery.id, problem(error), again_at)
        finally:
            with self._lock:
                self._ended[delivery.id] = (lane, targets)

    def _failed(self, delivery_id: str, what: str, again_at: datetime | None) -> None:
        try:
            self._deliveries.failed(delivery_id, what, again_at)
        except Exception as error:
            # The database went away meanwhile: the delivery still waits there.
            log_failure("failure of a delivery not stored", error)


@dataclass(slots=True)
class WorkCounts:
    """What was done since the start of the process."""

    processed: int = 0
    reconciled: int = 0
    failed: int = 0


class Reconciling:
    """Takes wanted targets and has them reconciled: several at once, but never one target twice at the same time."""

    def __init__(
        self,
        reconcile: Callable[[str], float | None],
        announce: Callable[[str], None],
        worklist: Worklist,
        now: Callable[[], datetime],
        wake: Callable[[], None],
        make_pool: MakePool,
        *,
        workers: int,
    ) -> None:
        self._reconcile, self._announce, self._worklist, self._now = reconcile, announce, worklist, now
        self._threads = workers + _FOR_PEOPLE
        self._looks = Lanes(self._threads, lambda _: self._threads, "look", wake, make_pool)
        self._signs = Lanes(_SIGNS, lambda _: _SIGNS // 2, "sign", wake, make_pool)
        self._urgent: set[str] = set()
        self._fresh: set[str] = set()
        self.counts = WorkCounts()
        # Set when an answer of the database was lost, and with it perhaps that a target is free again.
        self.unsure = threading.Event()

    @property
    def held(self) -> Collection[str]:
        """The targets that were taken and are not returned yet."""
        return (*self._looks.keys, *self._signs.keys)

    def round(self, fresh: Collection[str], urgent: Collection[str]) -> bool:
        """Start what can be started; whether that was anything.

        `fresh` targets come from new deliveries, `urgent` ones from people. Some threads are reserved for urgent ones.
        A fresh target without a free thread at least shows a first sign.
        """
        self._fresh |= set(fresh)
        self._urgent |= set(urgent)
        room = self._threads - len(self._looks.keys)
        begun = self._take(room - _FOR_PEOPLE, first={*self._urgent, *self._fresh})
        if self._urgent:
            begun += self._take(room - len(begun), only=self._urgent)
        for taken in begun:
            self._put(self._looks, "", taken, self._look)
        if self._urgent and len(begun) < room:
            # No one waits for the others: they are being looked at, or were.
            self._urgent &= set(self.held)
        shown = self._take(len(self._fresh), only=self._fresh) if self._fresh else ()
        self._fresh.clear()
        for taken in shown:
            self._put(self._signs, taken.target.partition("/")[0], taken, self._sign)
        return bool(begun or shown)

    def stop(self) -> None:
        """Start nothing more."""
        self._looks.stop()
        self._signs.stop()

    def _take(
        self, limit: int, *, first: Collection[str] = (), only: Collection[str] | None = None
    ) -> tuple[ClaimedTarget, ...]:
        if limit <= 0:
            return ()
        found = self._worklist.take(self._now(), limit, first=first, only=only)
        targets = {taken.target for taken in found}
        self._urgent -= targets
        self._fresh -= targets
        return found

    def _put(self, lanes: Lanes, lane: str, taken: ClaimedTarget, work: Callable[[ClaimedTarget], None]) -> None:
        def with_context() -> None:
            with log_context_of(taken.target):
                work(taken)

        if not lanes.put(taken.target, lane, with_context):
            # The thread of the look before has returned the target and is about to end.
            self._worklist.release(taken.target)

    def _look(self, taken: ClaimedTarget) -> None:
        """Reconcile one target once. After a failure it is wanted again later."""
        started, target = time.monotonic(), taken.target
        try:
            again_s = self._reconcile(target)
        except Exception as error:
            log_failure("reconcile failed", error)
            what, again_at = problem(error), retry_at(self._now(), taken.attempts, error)
            self._return(lambda: self._worklist.postpone(target, what, again_at))
            self.counts.failed += 1
        else:
            now = self._now()
            later = None if again_s is None else now + timedelta(seconds=again_s)
            self._return(lambda: self._worklist.finish(taken, now, later))
            self.counts.reconciled += 1
            log.info("reconciled", extra={"seconds": round(time.monotonic() - started, 3)})

    def _sign(self, taken: ClaimedTarget) -> None:
        """Show a first sign on the pull request; it is reconciled later."""
        try:
            self._announce(taken.target)
        except Exception as error:
            log_failure("first sign not shown", error)
        self._return(lambda: self._worklist.release(taken.target))

    def _return(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:
            # The database went away: the target is looked at again when it is back, which changes nothing.
            self.unsure.set()
            log_failure("result of a reconcile not stored", error)


class Mailing:
    """Takes messages from the outbox and has them written, one at a time in each lane; no gate waits for them."""

    def __init__(
        self,
        write: Callable[[Posting], None],
        outbox: Outbox,
        now: Callable[[], datetime],
        wake: Callable[[], None],
        make_pool: MakePool,
    ) -> None:
        self._write, self._outbox, self._now = write, outbox, now
        self._lanes = Lanes(_MAIL_THREADS, lambda _: 1, "mail", wake, make_pool)

    @property
    def held(self) -> Collection[int]:
        """The messages that were taken from the outbox and are not written yet."""
        return tuple(map(int, self._lanes.keys))

    def round(self) -> bool:
        """Start what can be started; whether that was anything."""
        letters = self._outbox.take(self._now(), _MESSAGES_AT_ONCE, besides=self._lanes.filled(_MESSAGES_AT_ONCE // 2))
        for letter in letters:
            self._lanes.put(str(letter.number), letter.message.lane, partial(self._work, letter))
        return bool(letters)

    def stop(self) -> None:
        """Start nothing more."""
        self._lanes.stop()

    def _work(self, letter: Letter) -> None:
        message, stored = letter.message, partial(self._outbox.written, letter.number)
        with log_context(repository=message.repository, pull_request=message.number, subject=message.subject):
            try:
                self._write(message)
            except Exception as error:
                log_failure("message not written", error)
                refused = isinstance(error, ForgeError) and not error.passing
                given_up = refused or letter.attempts + 1 >= _MESSAGE_ATTEMPTS
                again_at = None if given_up else retry_at(self._now(), letter.attempts, error)
                stored = partial(self._outbox.failed, letter.number, problem(error), again_at)
            try:
                stored()
            except Exception as error:
                # The database went away: the message still waits there, and writing it again changes nothing.
                log_failure("result of a message not stored", error)


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
    write: Callable[[Posting], None]
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
    def counts(self) -> WorkCounts:
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
        while time.monotonic() < deadline:
            if not (self._delivering.busy or self._mailing.held or self._reconciling.held or self._aside.keys):
                return
            time.sleep(0.05)

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

        def search() -> None:
            """Find targets that no delivery named; after a failure the next search tries again."""
            try:
                if missed := self._work.missed_targets():
                    log.warning("found targets without a delivery", extra={"targets": " ".join(sorted(missed))})
                    self._worklist.want(missed, self._clock.now())
            except Exception as error:
                log_failure("search for targets without a delivery failed", error)

        def clean() -> None:
            """Remove some old data, and soon more if more is left."""
            try:
                if self._clean():
                    self._next_cleaning = self._clock.monotonic() + _CLEANING_ON_S
            except Exception as error:
                log_failure("clean-up failed", error)

        searched = now_s >= self._next_search and self._aside.put("search", "search", search)
        if searched:
            self._next_search = now_s + self._tick_s
        if now_s >= self._next_cleaning and self._aside.put("clean", "clean", clean):
            self._next_cleaning = now_s + _CLEANING_S
        return searched
