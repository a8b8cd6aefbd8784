"""Look up who someone is, as far as the policy asks."""

from dataclasses import dataclass, field, replace
from datetime import timedelta

from verl_e2e.app.kept_values import Kept
from verl_e2e.core.model.access import WIDE_ROLES, Access, Capability, Grant
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.ledger import Approval
from verl_e2e.core.pulls.messages import MEMBERS
from verl_e2e.core.pulls.pull import MergeGroup, Pull, Target
from verl_e2e.core.pulls.requests import Entry
from verl_e2e.core.pulls.trust import (
    Actor,
    Denied,
    Granted,
    NeedsApproval,
    Trusted,
    has_role,
    is_of_author,
    may,
    may_run,
)
from verl_e2e.ports import Clock, People

# An author who loses a role may run so long yet; a person who gives a command is looked up each time.
AUTHOR_KEPT = timedelta(minutes=5)
# A person who gave a permission is looked up again at each reconcile, but for looks that follow at once.
GIVER_KEPT = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Permissions:
    """Who someone is, and what the policy lets them do."""

    clock: Clock
    people: People
    authors: Kept[tuple[float, Actor]] = field(default_factory=lambda: Kept(256))

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
        found = self.authors.find(key)
        if found is None or now_s - found[0] >= kept.total_seconds():
            grant = policy.capabilities.of(capability)
            found = self.authors.put(key, (now_s, self.actor_for(login, grant, pull)))
        return found[1]
