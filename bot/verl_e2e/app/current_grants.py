"""What people allowed counts while they may still allow it: looked up again at each look, by the policy of now."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Lock

from verl_e2e.app.kept_values import Kept
from verl_e2e.app.look_up_person import Permissions
from verl_e2e.core.model.access import Capability
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.commands import VERBS
from verl_e2e.core.pulls.ledger import Approval, Override, Posted, RecordedCommand
from verl_e2e.core.pulls.overrides import OWN_HEAD, Uncounted
from verl_e2e.core.pulls.pull import Pull, PullRef
from verl_e2e.core.pulls.queue import PAUSE, RESUME
from verl_e2e.core.pulls.queue_terms import PRIORITY
from verl_e2e.core.pulls.requests import Entry
from verl_e2e.core.pulls.trust import Denied, may
from verl_e2e.ports import Clock, Ledger, Pulls

# In the ledger: who pushed a head, as the webhook of the push said, several with a space between.
_PUSHER = "pusher"


@dataclass(frozen=True, slots=True)
class CurrentGrants:
    """Which kept entries count now, and whose head it is."""

    permissions: Permissions
    clock: Clock
    ledger: Ledger
    pulls: Pulls
    # Held while a remembered list is read and changed, for several looks may share it.
    lock: AbstractContextManager[object] = field(default_factory=Lock)
    committers: Kept[frozenset[str]] = field(default_factory=lambda: Kept(256))

    def standing(
        self, pull: Pull, entries: tuple[Entry, ...], policy: Policy
    ) -> tuple[tuple[Entry, ...], tuple[Uncounted, ...]]:
        """The entries of givers who may still give them, and the overrides of this head that do not count for that."""
        standing: list[Entry] = []
        refused: list[Uncounted] = []
        for entry in entries:
            why = self._why_not(entry, pull, policy)
            if not why:
                standing.append(entry)
            elif isinstance(entry, Override):
                refused.append(Uncounted(entry, why))
        return tuple(standing), tuple(refused)

    def _why_not(self, entry: Entry, pull: Pull, policy: Policy) -> str:
        """Why an entry does not count any more, empty when it does; of an earlier head nothing counts anyway."""
        lasting = isinstance(entry, RecordedCommand) and entry.verb == PRIORITY
        if not lasting and entry.head_sha != pull.head_sha:
            return ""
        # To cancel takes nothing that was not the giver's to take, and must not be undone by a lost role; no more than
        # a pause, which ends with `resume`.
        if isinstance(entry, RecordedCommand) and entry.verb in {"cancel", PAUSE, RESUME}:
            return ""
        if isinstance(entry, RecordedCommand) and entry.verb not in VERBS:
            return "the command is gone"
        needs = _needs(entry)
        leave = may(self.permissions.known_actor(entry.actor, needs, pull, policy), needs, policy.capabilities)
        if isinstance(leave, Denied):
            return leave.reason
        return OWN_HEAD if isinstance(entry, Override) and self.is_own_head(entry.actor, pull) else ""

    def is_own_head(self, login: str, pull: Pull) -> bool:
        """Whether someone opened the pull request, pushed its head, or is named by GitHub in one of its commits.

        Who pushed is known where the webhook of the push arrived. Whom a commit names is what its author wrote there.
        """
        name = login.lower()
        known = self.ledger.posted(pull.ref.repository, _PUSHER, _subject(pull.ref, pull.head_sha))
        pushers = known.digest.split() if known is not None else []
        if name in {pull.author.lower(), *pushers}:
            return True
        key = (str(pull.ref), pull.head_sha)
        return name in self.committers.get(
            key, lambda: frozenset(committer.lower() for committer in self.pulls.committers(pull))
        )

    def remember_pusher(self, ref: PullRef, head_sha: str, login: str) -> None:
        """Put down who pushed a head."""
        subject, now = _subject(ref, head_sha), self.clock.now()
        with self.lock:
            known = self.ledger.posted(ref.repository, _PUSHER, subject)
            names = known.digest.split() if known is not None else []
            if login.lower() not in names:
                text = " ".join([*names, login.lower()])
                posted = Posted(
                    repository=ref.repository, kind=_PUSHER, subject=subject, remote_id=0, digest=text, at=now
                )
                self.ledger.put_posted(posted)


def _needs(entry: Entry) -> Capability:
    match entry:
        case Approval():
            return Capability.APPROVE
        case Override():
            return Capability.OVERRIDE
        case RecordedCommand():
            return VERBS[entry.verb].needs


def _subject(ref: PullRef, head_sha: str) -> str:
    return f"{head_sha}:{ref.number}:pusher"
