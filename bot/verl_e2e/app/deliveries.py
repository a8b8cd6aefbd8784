"""What GitHub delivers, and what it failed to deliver: both end as targets to look at."""

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from verl_e2e.app.base_policy import BaseChanges
from verl_e2e.app.known_heads import KnownHeads
from verl_e2e.app.on_event import EventHandler
from verl_e2e.core.pulls.checkup import failed_deliveries
from verl_e2e.core.pulls.deliveries import BadDeliveryError, PushEvent, Received, delivery_lane, parse_event
from verl_e2e.core.pulls.forge import DeliveryAttempt
from verl_e2e.core.pulls.pull import OpenPull, PullRef, read_reference, reference_text
from verl_e2e.log_context import add_to_log_context
from verl_e2e.ports import Clock, ForgeError, Pulls, UnknownPullError, UnreadableDeliveryError, WebhookHistory, Worklist

# As long as GitHub can deliver again.
KEPT = timedelta(days=3)
# What was on its way at the last look may have failed since.
_OVERLAP = timedelta(minutes=2)
_FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 900.0
# What our own door says to what it never takes, and how often that is asked for all the same.
_REFUSALS, MOST_TIMES = frozenset({400, 401, 413, 415}), 3

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeliveryHandler:
    """Hears what was delivered for the repositories that are served."""

    events: EventHandler
    base_changes: BaseChanges
    worklist: Worklist
    # Names in any case; every repository when there are none.
    served: tuple[str, ...] = ()

    def process(self, delivery: Received) -> Collection[str]:
        """The targets of a delivery, as text; UnreadableDeliveryError."""
        try:
            event = parse_event(delivery.event, delivery.body)
        except BadDeliveryError as error:
            raise UnreadableDeliveryError(str(error)) from None
        if event is None or not _is_served(_repository_of(event), self.served):
            return ()
        add_to_log_context(repository=_repository_of(event) or None)
        if isinstance(event, PushEvent) and event.number is None:
            self.base_changes.base_pushed(event, self.worklist)
        return tuple(map(reference_text, self.events.hear(event, delivery.id)))


def _repository_of(event: object) -> str:
    return getattr(getattr(event, "repository", None), "full_name", "")


def _is_served(repository: str, served: tuple[str, ...]) -> bool:
    # GitHub takes names in any case for the same repository.
    return not served or repository.lower() in {name.lower() for name in served}


def lane_of(delivery: Received) -> str:
    """What hearing a delivery may wait for; empty for nothing."""
    try:
        return delivery_lane(parse_event(delivery.event, delivery.body))
    except BadDeliveryError:
        return ""  # hearing it refuses it


@dataclass(frozen=True, slots=True)
class LostEvents:
    """Finds targets that no delivery named."""

    pulls: Pulls
    heads: KnownHeads
    base_changes: BaseChanges
    worklist: Worklist
    # Names in any case; every repository with a known pull request when there are none.
    served: tuple[str, ...] = ()

    def search(self, known: Collection[str]) -> Collection[str]:
        """The targets to look at, as text, in addition to the known ones; a policy that changed is wanted at once."""
        refs = [reference for reference in map(read_reference, known) if isinstance(reference, PullRef)]
        found = set[PullRef]()
        for repository in dict.fromkeys(ref.repository for ref in refs):
            if _is_served(repository, self.served):
                listed = self._listed(repository)
                self.base_changes.look_again(listed, self.worklist)
                found |= self._lost_pushes(listed, refs) | missed_openings(listed, refs)
        return {reference_text(ref) for ref in found}

    def _lost_pushes(self, listed: Iterable[OpenPull], known: Collection[PullRef]) -> set[PullRef]:
        """Known pull requests with another head than when they were last looked at: the push was not delivered.

        That may be a head that they had before, to which someone went back.
        """
        refs = frozenset(known)
        of_known = (pull for pull in listed if pull.ref in refs)
        return {pull.ref for pull in of_known if not self.heads.was_last_seen_with(pull.ref, pull.head_sha)}

    def _listed(self, repository: str) -> tuple[OpenPull, ...]:
        """The open pull requests; none where the App is no longer, which must not hide what the others have."""
        try:
            return self.pulls.open_pulls(repository)
        except (ForgeError, UnknownPullError) as error:
            log.warning("open pull requests not listed: %s", error, extra={"repository": repository})
            return ()


def missed_openings(listed: Iterable[OpenPull], known: Iterable[PullRef]) -> set[PullRef]:
    """The open pull requests that are newer than every known one of their repository: no delivery named their opening.

    Older ones that are not known were there before the service was; they wait until something happens to them.
    """
    newest: dict[str, int] = {}
    for ref in known:
        newest[ref.repository] = max(newest.get(ref.repository, 0), ref.number)
    return {pull.ref for pull in listed if pull.ref.number > newest.get(pull.ref.repository, pull.ref.number)}


@dataclass(slots=True)
class _Failing:
    """A delivery that never reached us."""

    # Its newest attempt.
    attempt: DeliveryAttempt
    # When it was first seen to have failed.
    since: datetime
    asked: int = 0
    # When to ask for it again, by the monotonic clock.
    again_s: float = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether to ask for it now."""
        if self.attempt.code in _REFUSALS and self.asked >= MOST_TIMES:
            return False
        return not self.asked or self.again_s <= now_s


class Redelivery:
    """Asks GitHub to send a webhook again until it reaches us: GitHub does not by itself, and forgets in three days.

    What fails again is asked for later each time, for no one knows how long GitHub cannot reach us. A new process looks
    at all that GitHub still has.
    """

    def __init__(self, history: WebhookHistory, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._looked: datetime | None = None
        self._failing: dict[str, _Failing] = {}

    def ask_again(self) -> int:
        """Ask for what is due, first for what was asked for least; gives how many that were. ForgeError."""
        self._look()
        now_s = self._clock.monotonic()
        due = [failing for failing in self._failing.values() if failing.is_due(now_s)]
        for failing in sorted(due, key=lambda failing: (failing.asked, failing.attempt.at, failing.attempt.id)):
            try:
                self._history.redeliver(failing.attempt.id)
            except ForgeError as error:
                if error.passing:
                    raise
                log.warning("webhook not sent again: %s", error, extra={"delivery": failing.attempt.guid})
            failing.again_s = now_s + min(_FIRST_WAIT_S * 2 ** min(failing.asked, 20), LONGEST_WAIT_S)
            failing.asked += 1
        return len(due)

    def _look(self) -> None:
        """Note which deliveries failed or arrived since the last look."""
        now = self._clock.now()
        attempts = self._history.deliveries(now - KEPT if self._looked is None else min(self._looked, now) - _OVERLAP)
        for attempt in attempts:
            if not attempt.failed:
                self._failing.pop(attempt.guid, None)
        for attempt in failed_deliveries(attempts):
            self._failing.setdefault(attempt.guid, _Failing(attempt, now)).attempt = attempt
        self._failing = {guid: failing for guid, failing in self._failing.items() if now - failing.since <= KEPT}
        self._looked = now
