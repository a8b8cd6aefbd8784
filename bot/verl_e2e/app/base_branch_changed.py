"""Look again at open pull requests when the policy of their base branch changed: nothing else happened to them.

What is compared is the policy as it is now with the one under which a head was last looked at, so a push of which no
webhook told is found as well. A push that leaves the policy alone concerns no one.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta

from verl_e2e.app.base_policy import noted_digest, tip_text
from verl_e2e.app.services import AppRooms
from verl_e2e.core.pulls.pull import OpenPull
from verl_e2e.core.pulls.references import reference_text
from verl_e2e.core.pulls.webhook_events import PushEvent
from verl_e2e.ports import Worklist

# GitHub grants 5,000 requests an hour, and a look that finds nothing new takes about 4.
AT_ONCE, PAUSE = 10, timedelta(seconds=30)


def base_pushed(event: PushEvent, rooms: AppRooms, worklist: Worklist) -> int:
    """Want another look at what a push to a base branch concerns; gives how many pull requests that are."""
    pulls = rooms.pulls.open_pulls(event.repository.full_name, base=event.branch)
    return look_again(pulls, rooms, worklist)


def outdated(pulls: Iterable[OpenPull], rooms: AppRooms) -> Iterator[OpenPull]:
    """Those that were last looked at under another policy than their base has now; one never looked at is not."""
    digests: dict[tuple[str, str], str] = {}
    for pull in pulls:
        noted = noted_digest(pull.ref, pull.head_sha, rooms)
        if noted is None:
            continue
        base = (pull.ref.repository, pull.base_branch)
        if base not in digests:
            digests[base] = tip_text(*base, rooms).digest
        if noted != digests[base]:
            yield pull


def look_again(pulls: Iterable[OpenPull], rooms: AppRooms, worklist: Worklist) -> int:
    """Want another look at those that are outdated, newest first, a few at a time; gives how many."""
    found = sorted(outdated(pulls, rooms), key=lambda pull: pull.ref.number, reverse=True)
    now = rooms.clock.now()
    for turn in range(0, len(found), AT_ONCE):
        batch = found[turn : turn + AT_ONCE]
        # One with a run under way waits for its next look by the clock, which may be long after.
        worklist.want([reference_text(pull.ref) for pull in batch], now + PAUSE * (turn // AT_ONCE), at_once=True)
    return len(found)
