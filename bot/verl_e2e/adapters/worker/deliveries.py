"""Process deliveries independently, so that one that waits for GitHub does not delay another."""

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from verl_e2e.adapters.worker.lanes import Lanes, MakePool, log_failure, problem, retry_at
from verl_e2e.core.pulls.deliveries import Received
from verl_e2e.core.pulls.messages import PEOPLE
from verl_e2e.log_context import log_context
from verl_e2e.ports import Deliveries, UnreadableDeliveryError

# Deliveries that need no answer from GitHub have their own threads. The lanes share the others; people get most.
_QUICK_THREADS, _THREADS, _PEOPLE_AT_ONCE, _OTHERS_AT_ONCE = 2, 16, 8, 3
_BATCH = 64
# Deliveries in memory at once, with their bodies; the others wait in the table.
_MOST_HELD, _MOST_HELD_BYTES = 2_000, 64 * 1024 * 1024
# With the waits of `retry_at` about 3 days, as long as GitHub would deliver it again.
_ATTEMPTS = 300

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
    """Takes deliveries from the table, has them processed and stores the results. Only one thread calls `round`.

    `process` gives the targets of a delivery, `lane_of` what it may wait for: see
    `verl_e2e.core.pulls.messages.delivery_lane`.
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
        self._asking = Lanes(_THREADS, _at_once, "ask", wake, make_pool)
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
        batch = self._deliveries.take(self._now(), _BATCH)
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
            given_up = delivery.attempts + 1 >= _ATTEMPTS
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


def _at_once(lane: str) -> int:
    return _PEOPLE_AT_ONCE if lane.endswith(f":{PEOPLE}") else _OTHERS_AT_ONCE
