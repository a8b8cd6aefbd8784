"""What GitHub delivers, and what it failed to deliver: both end as targets to look at."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from verl_e2e.app.base_branch_changed import BaseChanges
from verl_e2e.app.known_heads import KnownHeads
from verl_e2e.app.on_event import EventHandler
from verl_e2e.core.pulls.checkup import failed_deliveries
from verl_e2e.core.pulls.deliveries import Received
from verl_e2e.core.pulls.messages import delivery_lane
from verl_e2e.core.pulls.pull import OpenPull, PullRef
from verl_e2e.core.pulls.references import read_reference, reference_text
from verl_e2e.core.pulls.webhook_events import PushEvent
from verl_e2e.core.pulls.webhooks import BadDeliveryError, parse_event
from verl_e2e.log_context import add_to_log_context
from verl_e2e.ports import Clock, ForgeError, Pulls, UnknownPullError, UnreadableDeliveryError, WebhookHistory, Worklist

# As long as GitHub can deliver again.
KEPT = timedelta(days=3)
# What was on its way at the last look may have failed since.
_OVERLAP = timedelta(minutes=2)
# One that our own door refuses is refused each time.
MOST_TIMES = 3

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
        """Known pull requests with a head that was never looked at: the push was not delivered."""
        refs = frozenset(known)
        shared = ((pull.ref, self.heads.sharing(pull.ref.repository, pull.head_sha)) for pull in listed)
        return {ref for ref, seen in shared if ref in refs and ref not in seen}

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


class Redelivery:
    """Asks GitHub once more for webhooks that did not reach us: it never does so by itself, and forgets in three days.

    It remembers how far it looked and what it asked for; a new process looks at all that GitHub still has.
    """

    def __init__(self, history: WebhookHistory, clock: Clock) -> None:
        self._history = history
        self._clock = clock
        self._looked: datetime | None = None
        self._asked: Counter[str] = Counter()

    def ask_again(self) -> int:
        """Ask for every delivery of which no attempt succeeded, three times at most; gives how many. ForgeError."""
        now = self._clock.now()
        since = now - KEPT if self._looked is None else self._looked - _OVERLAP
        failed = failed_deliveries(self._history.deliveries(since))
        due = [attempt for attempt in failed if self._asked[attempt.guid] < MOST_TIMES]
        for attempt in reversed(due):
            self._history.redeliver(attempt.id)
            self._asked[attempt.guid] += 1
        self._looked = now
        return len(due)
