"""Who may ask for what, whose code may run on the GPUs, and which overrides count. Every refusal carries its reason."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from verl_e2e.core.model.access import ROLES, WIDE_ROLES, Access, Capability, Grant, OverrideRules
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.ledger import Approval, Override
from verl_e2e.core.pulls.pull import Pull

# GitHub's words for an author of whom nothing was ever merged here.
_FIRST_TIME = frozenset({"FIRST_TIME_CONTRIBUTOR", "FIRST_TIMER", "MANNEQUIN"})


@dataclass(frozen=True, slots=True)
class Actor:
    """What is known of someone: role in the repository, those of the policy's teams that they are in."""

    login: str
    role: str = "none"
    teams: frozenset[str] = frozenset()
    is_author: bool = False


@dataclass(frozen=True, slots=True)
class Granted:
    """Leave, and what it rests on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Denied:
    """No leave, and why; one sentence without a full stop."""

    reason: str


def may(actor: Actor, capability: Capability, access: Access) -> Granted | Denied:
    """Whether someone has a capability by the policy of the base branch."""
    grant = access.of(capability)
    if grant.anyone:
        return Granted("anyone may")
    if grant.author and actor.is_author:
        return Granted("they opened the pull request")
    if actor.login.lower() in {item.lower() for item in grant.logins}:
        return Granted("the policy names them")
    if actor.role in grant.custom_roles or any(_has_role(actor.role, item) for item in grant.roles):
        return Granted(f"their role is {actor.role}")
    team = next((item for item in grant.teams if item in actor.teams), "")
    if team:
        return Granted(f"they are in {team}")
    return Denied(f"`{capability}` needs {_needed(grant)}, and {actor.login} has the role {actor.role}")


def _has_role(role: str, wanted: str) -> bool:
    return role in ROLES and ROLES.index(role) >= ROLES.index(wanted)


def has_role(actor: Actor, access: Access) -> bool:
    """Whether someone has a role that not everyone has, or may run levels in another way."""
    return actor.role not in WIDE_ROLES or isinstance(may(actor, Capability.RUN, access), Granted)


def is_of_author(pull: Pull) -> bool:
    """Whether the author's own role speaks for the head: it lies in the repository or in an account of theirs.

    Anyone can open a pull request of someone else's fork, whose owner pushes into it.
    """
    return not pull.from_fork or pull.head_repository.partition("/")[0].lower() == pull.author.lower()


def _needed(grant: Grant) -> str:
    ways = [f"the role {role}" for role in (*grant.roles, *grant.custom_roles)] + [
        f"the team {team}" for team in grant.teams
    ]
    ways += ["to be named in the policy"] * bool(grant.logins) + ["to be the author"] * grant.author
    return " or ".join(ways) or "a permission that the policy gives to no one"


@dataclass(frozen=True, slots=True)
class Trusted:
    """This head may run on the GPUs, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class NeedsApproval:
    """This head may not run before someone approves it by its full SHA, and why."""

    reason: str
    # Whether it is the head of an author who is known to have a role in the repository, see `has_role`.
    has_role: bool = False


def needs_leave(pull: Pull, approvals: Iterable[Approval]) -> bool:
    """Whether the head is one that runs with an approval alone, given or not."""
    return pull.from_fork or any(_covers(approval, pull) for approval in approvals)


def may_run(pull: Pull, approvals: Iterable[Approval], author: Actor, access: Access) -> Trusted | NeedsApproval:
    """Whether the head, as it is now, may run.

    A fork's head and a first-time author's need an approval of exactly this commit, so every push withdraws it. Other
    heads lie in the repository itself and are covered by the author's own capability to run.
    """
    given = next((approval for approval in approvals if _covers(approval, pull)), None)
    if given is not None:
        return Trusted(f"{given.actor} approved {pull.head_sha[:12]}")
    if pull.from_fork:
        where = pull.head_repository or "a fork that is gone"
        return NeedsApproval(f"the head lies in {where}, outside the repository")
    if pull.author_association.upper() in _FIRST_TIME:
        return NeedsApproval(f"it is {pull.author}'s first contribution here")
    leave = may(author, Capability.RUN, access)
    if isinstance(leave, Granted):
        return Trusted(f"{pull.author} may run levels: {leave.reason}")
    return NeedsApproval(leave.reason)


def _covers(approval: Approval, pull: Pull) -> bool:
    same = approval.repository == pull.ref.repository and approval.number == pull.ref.number
    return same and approval.head_sha == pull.head_sha and approval.base == pull.base_branch


OWN_HEAD = "who opened the pull request, pushed its head or wrote one of its commits cannot override its levels"
SECOND_PERSON = "a second person has to override it too"


@dataclass(frozen=True, slots=True)
class Uncounted:
    """An override that does not count."""

    override: Override
    # A clause for people.
    why: str
    # Whether it counts as soon as a second person gives it too.
    needs_second_person: bool = False


@dataclass(frozen=True, slots=True)
class Counted:
    """The overrides of a head, apart."""

    # Those that count; of a level that needs two people, one of each.
    overrides: tuple[Override, ...] = ()
    # The others, in the order in which they were given.
    uncounted: tuple[Uncounted, ...] = ()


def counted(overrides: Iterable[Override], rules: OverrideRules, now: datetime) -> Counted:
    """Which of a head's overrides count now; the givers' roles are looked at elsewhere."""
    left, refused = [], []
    for override in overrides:
        why = _why_not(override, rules, now)
        if why:
            refused.append(Uncounted(override, why))
        else:
            left.append(override)
    levels: list[Level] = []
    counting: list[Override] = []
    for level in dict.fromkeys(artifact.level for artifact in left):
        by_person = {artifact.actor.lower(): artifact for artifact in reversed(left) if artifact.level is level}
        given = sorted(by_person.values(), key=lambda item: item.at)
        if len(given) < needed(level, rules):
            refused.extend(Uncounted(item, SECOND_PERSON, needs_second_person=True) for item in given)
        elif len(levels) >= rules.most:
            why = f"the policy lets {rules.most} levels of one head be overridden at once"
            refused.extend(Uncounted(item, why) for item in given)
        else:
            levels.append(level)
            counting.extend(given)
    return Counted(tuple(counting), tuple(refused))


def needed(level: Level, rules: OverrideRules) -> int:
    """How many people must override a level."""
    return 2 if level in rules.two_persons else 1


def expires_at(override: Override, rules: OverrideRules) -> datetime:
    """When an override ends to count."""
    return override.at + timedelta(hours=rules.expires_h)


def _why_not(override: Override, rules: OverrideRules, now: datetime) -> str:
    if override.level not in rules.levels:
        return f"the policy lets no one override level {int(override.level)}"
    if now >= expires_at(override, rules):
        return f"it was given more than {rules.expires_h} hours ago"
    return ""
