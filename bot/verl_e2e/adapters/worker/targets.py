"""Reconcile the wanted targets: several at once, but never one target twice at the same time."""

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from verl_e2e.adapters.worker.lanes import Lanes, MakePool, log_failure, problem, retry_at
from verl_e2e.core.pulls.deliveries import ClaimedTarget
from verl_e2e.log_context import log_context_of
from verl_e2e.ports import Worklist

# Additional threads for targets that someone with a role has just asked about.
_FOR_PEOPLE = 2
# Threads that show a first sign on a pull request while all others are busy.
_SIGNS = 4

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counts:
    """What was done since the start of the process."""

    processed: int = 0
    reconciled: int = 0
    failed: int = 0


class Reconciling:
    """Takes wanted targets and has them reconciled; `round` is called by one thread."""

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
