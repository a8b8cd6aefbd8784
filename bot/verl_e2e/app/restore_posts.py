"""Hold what is on GitHub against what should be there: someone may have edited, hidden or deleted our card or a check.

What we wrote last is remembered and not read again at each look. So now and then, when someone asks for `status`, and
when GitHub tells that a comment of ours was touched, the real thing is read; what differs is forgotten and so written
again. Nothing is written where nothing differs, so our own edits lead to nothing.
"""

from dataclasses import dataclass
from datetime import timedelta

from verl_e2e.app.publish_checks import CHECK, CheckPublisher, check_subject
from verl_e2e.app.publish_comments import CARD
from verl_e2e.core.pulls.check_runs import CheckRun
from verl_e2e.core.pulls.ledger import Posted, RecordedCommand
from verl_e2e.core.pulls.pull import Pull, PullRef, Target, repository_of
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.ports import Checks, Clock, Conversation, Ledger

# How long what stands on GitHub is believed without being read. Two requests for a pull request.
BELIEVED = timedelta(minutes=30)
# The ledger's `at` is when GitHub was read, `digest` the source of the last `status` by then, or `_TOUCHED`.
_READ, _TOUCHED = "read", "touched"


@dataclass(frozen=True, slots=True)
class PostRestorer:
    """Finds out what of ours someone edited, hid or deleted."""

    check_posts: CheckPublisher
    checks: Checks
    clock: Clock
    conversation: Conversation
    ledger: Ledger

    def touched(self, ref: PullRef) -> None:
        """Someone touched a comment of ours: the next look reads what is there."""
        self._remember(ref, _TOUCHED)

    def restore(self, target_state: TargetState, checks: tuple[CheckRun, ...], card: str) -> None:
        """Forget what GitHub does not show as it should, when it is time to read it."""
        target = target_state.target
        if not isinstance(target, Pull):
            return
        asked = [
            entry.source
            for entry in target_state.entries
            if isinstance(entry, RecordedCommand) and entry.verb == "status"
        ]
        latest = asked[-1] if asked else ""
        known = self.ledger.posted(target.ref.repository, _READ, f"{target.ref.number}:read")
        if known is not None and known.digest == latest and self.clock.now() - known.at < BELIEVED:
            return
        if known is not None or latest:
            self._read_card(target.ref, card)
            self._read_checks(target, checks)
        self._remember(target.ref, latest)

    def _read_card(self, ref: PullRef, wanted: str) -> None:
        posted = self.ledger.posted(ref.repository, CARD, str(ref.number))
        if posted is None:
            return
        found = self.conversation.read(ref, posted.remote_id)
        if found is not None and found.minimized:
            # No way leads back but to write it again in another place.
            self.conversation.delete(ref, found.id)
        if found is None or found.minimized or not _is_same_text(found.body, wanted):
            self.ledger.put_posted(posted.model_copy(update={"digest": ""}))

    def _read_checks(self, target: Target, wanted: tuple[CheckRun, ...]) -> None:
        repository = repository_of(target)
        there = {check.id: check for check in self.checks.check_runs(repository, target.head_sha)}
        for check in wanted:
            posted = self.ledger.posted(repository, CHECK, check_subject(check.head_sha, check.name))
            if posted is None or check.head_sha != target.head_sha:
                continue
            found = there.get(posted.remote_id)
            if found is None or not _says_the_same(found, check):
                self.check_posts.forget_check(repository, check.head_sha, check.name)

    def _remember(self, ref: PullRef, digest: str) -> None:
        subject, now = f"{ref.number}:read", self.clock.now()
        self.ledger.put_posted(
            Posted(repository=ref.repository, kind=_READ, subject=subject, remote_id=0, digest=digest, at=now)
        )


def _says_the_same(found: CheckRun, wanted: CheckRun) -> bool:
    states = (found.status, found.conclusion) == (wanted.status, wanted.conclusion)
    texts = ((found.title, wanted.title), (found.summary, wanted.summary), (found.text, wanted.text))
    return states and all(_is_same_text(old, new) for old, new in texts)


def _is_same_text(found: str, wanted: str) -> bool:
    """Whether GitHub keeps the text, which it may give other line ends."""
    return _plain(found) == _plain(wanted)


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").strip()
