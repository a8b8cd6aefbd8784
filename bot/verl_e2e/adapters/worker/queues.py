"""The three kinds of work, each in threads of its own: deliveries, targets and messages.

One thread calls each `round`, which starts what can be started and waits for nothing.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from verl_e2e.adapters.worker.lanes import Lanes, MakePool, log_failure, problem, retry_at
from verl_e2e.core.pulls.deliveries import PEOPLE, ClaimedTarget, Letter, Message, Received
from verl_e2e.log_context import log_context, log_context_of
from verl_e2e.ports import Deliveries, ForgeError, Outbox, UnreadableDeliveryError, Worklist

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

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Processed:
    """The results of some deliveries."""

    count: int
    """Their number."""
    targets: Collection[str]
    """The targets to reconcile."""
    urgent: Collection[str]
    """The targets that someone with a role asked about."""


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
        self._process_one, self._lane_of, self._deliveries, self._now = process, lane_of, deliveries, now
        self._quick = Lanes(_QUICK_THREADS, lambda _: _QUICK_THREADS, "process", wake, make_pool)
        self._asking = Lanes(_ASKING_THREADS, _people_first, "ask", wake, make_pool)
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}
        self._ended: dict[str, tuple[str, Collection[str] | None]] = {}

    def round(self) -> tuple["Processed", bool]:
        """Store the results so far and start more work; gives the results, and whether anything was started."""
        processed = self._keep()
        return processed, self._take()

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

    def _take(self) -> bool:
        """Put more of the waiting deliveries into their lanes; whether there were any."""
        with self._lock:
            sizes = tuple(self._held.values())
        if len(sizes) >= _MOST_HELD or sum(sizes) >= _MOST_HELD_BYTES:
            return False
        batch = self._deliveries.take(self._now(), _DELIVERIES_AT_ONCE)
        lanes = {delivery.id: (self._lane_of(delivery), delivery) for delivery in batch}
        with self._lock:
            self._held |= {key: len(delivery.body) for key, (_, delivery) in lanes.items()}
        for key, (lane, delivery) in lanes.items():
            (self._asking if lane else self._quick).put(key, lane, partial(self._work, delivery, lane))
        return bool(batch)

    def _keep(self) -> "Processed":
        """Store the results in one write."""
        with self._lock:
            ended = dict(self._ended)
        processed = [(key, targets) for key, (_, targets) in ended.items() if targets is not None]
        if processed:
            self._deliveries.processed(processed, self._now())
        with self._lock:
            for key in ended:
                self._ended.pop(key)
                self._held.pop(key, None)
        by_people = (targets or () for lane, targets in ended.values() if lane.endswith(f":{PEOPLE}"))
        everything = {target for _, targets in processed for target in targets}
        return Processed(len(processed), everything, {target for targets in by_people for target in targets})

    def _work(self, delivery: Received, lane: str) -> None:
        targets: Collection[str] | None = None
        try:
            with log_context(delivery=delivery.id, event=delivery.event):
                targets = self._process(delivery)
        finally:
            with self._lock:
                self._ended[delivery.id] = (lane, targets)

    def _process(self, delivery: Received) -> Collection[str] | None:
        """The targets of a delivery, None when it could not be processed; the failure is stored."""
        try:
            targets = self._process_one(delivery)
            log.info("delivery processed", extra={"targets": " ".join(sorted(targets))})
            return targets
        except UnreadableDeliveryError as error:
            log.warning("delivery refused: %s", error)
            self._failed(delivery.id, str(error), None)
        except Exception as error:
            log_failure("delivery not processed", error, {})
            given_up = delivery.attempts + 1 >= _DELIVERY_ATTEMPTS
            self._failed(
                delivery.id, problem(error), None if given_up else retry_at(self._now(), delivery.attempts, error)
            )
        return None

    def _failed(self, delivery_id: str, what: str, again_at: datetime | None) -> None:
        try:
            self._deliveries.failed(delivery_id, what, again_at)
        except Exception as error:
            # The database went away meanwhile: the delivery still waits there.
            log_failure("failure of a delivery not stored", error, {})


@dataclass(slots=True)
class Counts:
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
        self.counts = Counts()
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
        if not lanes.put(taken.target, lane, partial(_about, work, taken)):
            # The thread of the look before has returned the target and is about to end.
            self._worklist.release(taken.target)

    def _look(self, taken: ClaimedTarget) -> None:
        """Reconcile one target once. After a failure it is wanted again later."""
        started, target = time.monotonic(), taken.target
        try:
            again_s = self._reconcile(target)
        except Exception as error:
            log_failure("reconcile failed", error, {})
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
            log_failure("first sign not shown", error, {})
        self._return(lambda: self._worklist.release(taken.target))

    def _return(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:
            # The database went away: the target is looked at again when it is back, which changes nothing.
            self.unsure.set()
            log_failure("result of a reconcile not stored", error, {})


def _about(work: Callable[[ClaimedTarget], None], taken: ClaimedTarget) -> None:
    """The work on a target, whose log lines name it."""
    with log_context_of(taken.target):
        work(taken)


class Mailing:
    """Takes messages from the outbox and has them written, one at a time in each lane; no gate waits for them."""

    def __init__(
        self,
        write: Callable[[Message], None],
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
        message = letter.message
        try:
            with log_context(repository=message.repository, pull_request=message.number, subject=message.subject):
                self._try(letter)
        except Exception as error:
            # The database went away: the message still waits there, and writing it again changes nothing.
            log_failure("result of a message not stored", error, {})

    def _try(self, letter: Letter) -> None:
        try:
            self._write(letter.message)
        except Exception as error:
            log_failure("message not written", error, {})
            refused = isinstance(error, ForgeError) and not error.passing
            given_up = refused or letter.attempts + 1 >= _MESSAGE_ATTEMPTS
            again_at = None if given_up else retry_at(self._now(), letter.attempts, error)
            self._outbox.failed(letter.number, problem(error), again_at)
        else:
            self._outbox.written(letter.number)


def _people_first(lane: str) -> int:
    """How many deliveries of a lane are processed at once."""
    return _PEOPLE_AT_ONCE if lane.endswith(f":{PEOPLE}") else _OTHERS_AT_ONCE
