"""Look again at open pull requests when the policy of their base branch changed: nothing else happened to them.

What is compared is the policy as it is now with the one under which a head was last looked at, so a push of which no
webhook reported is found as well. A push that leaves the policy alone concerns no one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from verl_e2e.app.base_policy import BasePolicies
from verl_e2e.core.pulls.deliveries import PushEvent
from verl_e2e.core.pulls.pull import OpenPull, reference_text
from verl_e2e.ports import Clock, Pulls, Worklist

# GitHub grants 5,000 requests an hour, and a look that finds nothing new takes about 4.
AT_ONCE, _PAUSE = 10, timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class BaseChanges:
    """Finds the pull requests whose base got another policy."""

    policies: BasePolicies
    clock: Clock
    pulls: Pulls

    def base_pushed(self, event: PushEvent, worklist: Worklist) -> int:
        """Want another look at what a push to a base branch concerns; gives how many pull requests that are."""
        pulls = self.pulls.open_pulls(event.repository.full_name, base=event.branch)
        return self.look_again(pulls, worklist)

    def outdated(self, pulls: Iterable[OpenPull]) -> Iterator[OpenPull]:
        """Those that were last looked at under another policy than their base has now; one never looked at is not."""
        digests: dict[tuple[str, str], str] = {}
        for pull in pulls:
            noted = self.policies.noted_digest(pull.ref, pull.head_sha)
            if noted is None:
                continue
            base = (pull.ref.repository, pull.base_branch)
            if base not in digests:
                digests[base] = self.policies.tip_text(*base).digest
            if noted != digests[base]:
                yield pull

    def look_again(self, pulls: Iterable[OpenPull], worklist: Worklist) -> int:
        """Want another look at those that are outdated, newest first, a few at a time; gives how many."""
        found = sorted(self.outdated(pulls), key=lambda pull: pull.ref.number, reverse=True)
        now = self.clock.now()
        for turn in range(0, len(found), AT_ONCE):
            batch = found[turn : turn + AT_ONCE]
            # One with a run under way waits for its next look by the clock, which may be long after.
            worklist.want([reference_text(pull.ref) for pull in batch], now + _PAUSE * (turn // AT_ONCE), at_once=True)
        return len(found)
