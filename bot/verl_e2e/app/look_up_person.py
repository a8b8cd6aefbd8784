"""Look up who someone is, as far as the policy asks."""

from datetime import timedelta

from verl_e2e.app.services import AppRooms
from verl_e2e.core.model.access import Access, Capability, Grant
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.ledger import Approval
from verl_e2e.core.pulls.pull import MergeGroup, Pull, Target
from verl_e2e.core.pulls.requests import Entry
from verl_e2e.core.pulls.trust import Actor, Denied, Granted, NeedsApproval, Trusted, may, may_run

# An author who loses a role may run so long yet; whoever gives a command is looked up each time.
AUTHOR_KEPT = timedelta(minutes=5)
# Whoever gave a leave is looked up again at each look, but for looks that follow at once.
GIVER_KEPT = timedelta(minutes=1)


def allowed(login: str, capability: Capability, pull: Pull, access: Access, rooms: AppRooms) -> Granted | Denied:
    """Whether someone may ask for this on a pull request."""
    return may(actor_for(login, access.of(capability), pull, rooms), capability, access)


def actor_for(login: str, grant: Grant, pull: Pull, rooms: AppRooms) -> Actor:
    """What is known of someone, as far as a grant asks for it: no one is looked up in vain."""
    is_author = login == pull.author
    if grant.anyone or (grant.author and is_author):
        return Actor(login, is_author=is_author)
    role = rooms.people.role(pull.ref.repository, login)
    teams = frozenset(team for team in grant.teams if rooms.people.in_team(team, login))
    return Actor(login, role, teams, is_author)


def trust_of(target: Target, entries: tuple[Entry, ...], policy: Policy, rooms: AppRooms) -> Trusted | NeedsApproval:
    """Whether the head may run: a merge group's may, for whoever queued it could have merged it."""
    if isinstance(target, MergeGroup):
        return Trusted("the merge queue made this commit from approved pull requests")
    approvals = tuple(entry for entry in entries if isinstance(entry, Approval))
    unknown = may_run(target, approvals, Actor(target.author), policy.capabilities)
    if isinstance(unknown, Trusted) or target.from_fork:
        return unknown
    return may_run(target, approvals, _author(target, policy, rooms), policy.capabilities)


def _author(pull: Pull, policy: Policy, rooms: AppRooms) -> Actor:
    return known_actor(pull.author, Capability.RUN, pull, policy, rooms, AUTHOR_KEPT)


def known_actor(
    login: str, capability: Capability, pull: Pull, policy: Policy, rooms: AppRooms, kept: timedelta = GIVER_KEPT
) -> Actor:
    """What is known of someone as far as a capability asks for it, looked up again when that is longer ago."""
    now, key = rooms.clock.now(), (str(pull.ref), login.lower(), capability.value, policy.source, policy.text_digest)
    found = rooms.authors.find(key)
    if found is None or now - found[0] >= kept:
        grant = policy.capabilities.of(capability)
        found = rooms.authors.put(key, (now, actor_for(login, grant, pull, rooms)))
    return found[1]
