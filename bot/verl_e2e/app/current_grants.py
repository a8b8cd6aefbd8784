"""What people allowed counts while they may still allow it: looked up again at each look, by the policy of now."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from threading import Lock

from verl_e2e.app.kept_values import Kept
from verl_e2e.core.model.access import WIDE_ROLES, Access, Capability, Grant
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.commands import VERBS, Entry
from verl_e2e.core.pulls.deliveries import MEMBERS
from verl_e2e.core.pulls.ledger import PRIORITY, Approval, Override, Pushers, RecordedCommand
from verl_e2e.core.pulls.pull import MergeGroup, Pull, PullRef, Target
from verl_e2e.core.pulls.queue import PAUSE, RESUME
from verl_e2e.core.pulls.trust import (
    OWN_HEAD,
    Actor,
    Denied,
    Granted,
    NeedsApproval,
    Trusted,
    Uncounted,
    has_role,
    is_of_author,
    may,
    may_run,
)
from verl_e2e.ports import Clock, Ledger, People, Pulls

# An author who loses a role may run so long yet; a person who gives a command is looked up each time.
AUTHOR_KEPT = timedelta(minutes=5)
# A person who gave a permission is looked up again at each reconcile, but for looks that follow at once.
GIVER_KEPT = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Grants:
    """Who someone is, what the policy lets them do, and which kept entries count now."""

    clock: Clock
    ledger: Ledger
    people: People
    pulls: Pulls
    # Held while a remembered list is read and changed, for several looks may share it.
    lock: AbstractContextManager[object] = field(default_factory=Lock)
    actors: Kept[tuple[float, Actor]] = field(default_factory=lambda: Kept(256))
    committers: Kept[frozenset[str]] = field(default_factory=lambda: Kept(256))

    def allowed(self, login: str, capability: Capability, pull: Pull, access: Access) -> Granted | Denied:
        """Whether someone may ask for this on a pull request."""
        return may(self.actor_for(login, access.of(capability), pull), capability, access)

    def is_member(self, repository: str, login: str, association: str) -> bool:
        """Whether someone has a role in the repository; `association` is what GitHub says of them in the event."""
        if association in MEMBERS:
            return True
        # A role that a team gives is not always reported.
        return self.people.role(repository, login) not in WIDE_ROLES

    def actor_for(self, login: str, grant: Grant, pull: Pull) -> Actor:
        """What is known of someone, as far as a grant asks for it: no one is looked up in vain."""
        is_author = login == pull.author
        if grant.anyone or (grant.author and is_author):
            return Actor(login, is_author=is_author)
        role = self.people.role(pull.ref.repository, login)
        teams = frozenset(team for team in grant.teams if self.people.in_team(team, login))
        return Actor(login, role, teams, is_author)

    def trust_of(self, target: Target, entries: tuple[Entry, ...], policy: Policy) -> Trusted | NeedsApproval:
        """Whether the head may run: a merge group's may, because the person who queued it could have merged it."""
        if isinstance(target, MergeGroup):
            return Trusted("the merge queue made this commit from approved pull requests")
        approvals = tuple(entry for entry in entries if isinstance(entry, Approval))
        unknown = may_run(target, approvals, Actor(target.author), policy.capabilities)
        if isinstance(unknown, Trusted) or target.from_fork:
            return unknown
        return may_run(target, approvals, self._author(target, policy), policy.capabilities)

    def with_role(self, trust: Trusted | NeedsApproval, target: Target, policy: Policy) -> Trusted | NeedsApproval:
        """The trust in a head with what is known of its author's role, where an approval is needed."""
        if isinstance(trust, Trusted) or isinstance(target, MergeGroup):
            return trust
        known = is_of_author(target) and has_role(self._author(target, policy), policy.capabilities)
        return replace(trust, has_role=known)

    def _author(self, pull: Pull, policy: Policy) -> Actor:
        return self.known_actor(pull.author, Capability.RUN, pull, policy, AUTHOR_KEPT)

    def known_actor(
        self, login: str, capability: Capability, pull: Pull, policy: Policy, kept: timedelta = GIVER_KEPT
    ) -> Actor:
        """What is known of someone as far as a capability asks for it, looked up again when that is longer ago."""
        # A clock that is set back must not keep a role that someone lost.
        now_s = self.clock.monotonic()
        key = str(pull.ref), login.lower(), capability.value, policy.source, policy.text_digest
        found = self.actors.find(key)
        if found is None or now_s - found[0] >= kept.total_seconds():
            grant = policy.capabilities.of(capability)
            found = self.actors.put(key, (now_s, self.actor_for(login, grant, pull)))
        return found[1]

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
        match entry:
            case Approval():
                needs = Capability.APPROVE
            case Override():
                needs = Capability.OVERRIDE
            case RecordedCommand():
                needs = VERBS[entry.verb].needs
        leave = may(self.known_actor(entry.actor, needs, pull, policy), needs, policy.capabilities)
        if isinstance(leave, Denied):
            return leave.reason
        return OWN_HEAD if isinstance(entry, Override) and self.is_own_head(entry.actor, pull) else ""

    def is_own_head(self, login: str, pull: Pull) -> bool:
        """Whether someone opened the pull request, pushed its head, or is named by GitHub in one of its commits.

        Who pushed is known where the webhook of the push arrived. Whom a commit names is what its author wrote there.
        """
        name = login.lower()
        if name == pull.author.lower() or name in self._pushers(pull.ref, pull.head_sha):
            return True
        key = (str(pull.ref), pull.head_sha)
        return name in self.committers.get(key, lambda: frozenset(map(str.lower, self.pulls.committers(pull))))

    def remember_pusher(self, ref: PullRef, head_sha: str, login: str) -> None:
        """Put down who pushed a head."""
        subject, now = f"{head_sha}:{ref.number}:pusher", self.clock.now()
        with self.lock:
            known = self._pushers(ref, head_sha)
            if login.lower() not in known:
                logins = (*known, login.lower())
                self.ledger.put_note(Pushers(repository=ref.repository, subject=subject, at=now, logins=logins))

    def _pushers(self, ref: PullRef, head_sha: str) -> tuple[str, ...]:
        known = self.ledger.note(Pushers, ref.repository, f"{head_sha}:{ref.number}:pusher")
        return known.logins if known is not None else ()
