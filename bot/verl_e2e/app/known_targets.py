"""What is known of targets and people: which pull requests have a head, the policy of a base branch, who may do what.

A policy is read at the tip of its branch. GitHub leaves a pull request's `base.sha` where the base was at the last push
of the head, so nothing that says who may do what is read there. The policy as it is now is compared with the one under
which a head was last looked at, so a push of which no webhook reported is found as well.
What people allowed counts while they may still allow it: looked up again at each look, by the policy of now.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from threading import Lock
from typing import Generic, TypeVar

from verl_e2e.config.policy import POLICY_PATH, load_policy, packaged_policy
from verl_e2e.config.validation import ConfigError
from verl_e2e.core.model.access import WIDE_ROLES, Access, Capability, Grant
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.commands import (
    OWN_HEAD,
    PAUSE,
    RESUME,
    VERBS,
    Actor,
    Denied,
    GivenEntry,
    Granted,
    NeedsApproval,
    Trusted,
    Uncounted,
    has_role,
    is_of_author,
    may,
    may_run,
)
from verl_e2e.core.pulls.decide import Actions, decide_actions
from verl_e2e.core.pulls.deliveries import MEMBERS
from verl_e2e.core.pulls.forge import (
    Branch,
    MergeGroup,
    OpenPull,
    Pull,
    PullRef,
    PullState,
    Reference,
    Target,
    reference_text,
    repository_of,
)
from verl_e2e.core.pulls.gate import Gate
from verl_e2e.core.pulls.ledger import (
    PRIORITY,
    Approval,
    JobStatus,
    Override,
    Pushers,
    ReadPolicy,
    RecordedCommand,
    Run,
)
from verl_e2e.core.pulls.target_state import OtherPull, TargetState
from verl_e2e.ports import Clock, Ledger, People, Pulls, UnknownPullError, Worklist

_Value = TypeVar("_Value")


class RecentValues(Generic[_Value]):
    """The values last asked for by key, at most so many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[tuple[str, ...], _Value] = OrderedDict()

    def get(self, key: tuple[str, ...], make: Callable[[], _Value]) -> _Value:
        """The value of a key, made when it is not there."""
        # Several looks share this: the second one makes the value again, which changes nothing.
        found = self._values.pop(key, None)
        if found is None:
            found = make()
        return self.put(key, found)

    def find(self, key: tuple[str, ...]) -> _Value | None:
        """The value of a key, None when it is not there."""
        return self._values.get(key)

    def put(self, key: tuple[str, ...], value: _Value) -> _Value:
        """Keep a value under a key, in the place of what was there."""
        self._values.pop(key, None)
        self._values[key] = value
        while len(self._values) > self._most:
            self._values.popitem(last=False)
        return value


_GONE = "gone"


@dataclass(frozen=True, slots=True)
class BaseText:
    """The policy file of a base: as it is there, and by which name people know the place."""

    # A branch, or the first digits of a merge group's base commit.
    name: str
    # None where the base has no such file.
    content: bytes | None = None
    # Whether there is no such branch any more.
    is_gone: bool = False

    @property
    def digest(self) -> str:
        """SHA-256 of the file, empty where the base has none, `gone` where there is no such base."""
        if self.is_gone:
            return _GONE
        return "" if self.content is None else hashlib.sha256(self.content).hexdigest()


class NoPolicyError(UserError):
    """There is no policy that could be used: the text is one clause that says why and what to do.

    `digest` is that of the file that cannot be used.
    """

    def __init__(self, message: str, digest: str) -> None:
        super().__init__(message)
        self.digest = digest


def base_text(
    repository: str, branch: str, pulls: Pulls, read: Callable[[str, str], bytes | None] | None = None
) -> BaseText:
    """The policy file at the tip of a branch as it is now; `read` gives that of a commit, from memory perhaps."""
    commit = pulls.tip(repository, branch)
    if commit is None:
        return BaseText(branch, is_gone=True)
    return BaseText(branch, read(repository, commit) if read else pulls.file_at(repository, commit, POLICY_PATH))


def read_policy(base: BaseText) -> Policy:
    """The policy of a base, the packaged one where it has none; NoPolicyError when there is none to be used."""
    if base.is_gone:
        what = f"the base branch {base.name} is not there any more, so nothing says what is required"
        raise NoPolicyError(f"{what}; give the pull request another base", base.digest)
    if base.content is None:
        return packaged_policy()
    try:
        return load_policy(base.content, f"{base.name}:{POLICY_PATH}", base.digest)
    except ConfigError as error:
        what = f"the policy of the base branch cannot be used: {error.problems[0]}"
        raise NoPolicyError(what, base.digest) from None


# GitHub grants 5,000 requests an hour, and a look that finds nothing new takes about 4.
AT_ONCE, _PAUSE = 10, timedelta(seconds=30)


def _subject(ref: PullRef, head_sha: str) -> str:
    return f"{head_sha}:{ref.number}:policy"


# A head is shared by a few pull requests at most; someone who opens a hundred with one head delays the rest only.
_MOST_SHARING = 20


@dataclass(frozen=True, slots=True)
class KnownTargets:
    """Which pull requests have which head, the merge groups, and the policies of bases."""

    clock: Clock
    ledger: Ledger
    pulls: Pulls
    policies: RecentValues[Policy] = field(default_factory=lambda: RecentValues(64))
    # The file of a commit, alone in a tuple, because a commit may have none.
    contents: RecentValues[tuple[bytes | None]] = field(default_factory=lambda: RecentValues(64))

    def pull(self, ref: PullRef) -> Pull | None:
        """The pull request as it is now, None when there is none."""
        try:
            return self.pulls.pull(ref)
        except UnknownPullError:
            return None

    def sharing(self, repository: str, head_sha: str) -> tuple[PullRef, ...]:
        """Every pull request that was ever seen with this head, the newest first, at most twenty."""
        return self.ledger.pulls_with(repository, head_sha)[:_MOST_SHARING]

    def with_sharing(self, reference: Reference, heads: Iterable[str]) -> tuple[Reference, ...]:
        """The reference, and every pull request that shares one of the heads: one gate is shown for all of them."""
        found = (self.sharing(reference.repository, head_sha) for head_sha in heads if head_sha)
        return tuple(dict.fromkeys((reference, *(ref for refs in found for ref in refs))))

    def others_with(self, ref: PullRef, head_sha: str) -> tuple[Pull, ...]:
        """The other pull requests that are open and have this head now."""
        found = (self.pull(other) for other in self.sharing(ref.repository, head_sha) if other != ref)
        there = (pull for pull in found if pull is not None and pull.state is PullState.OPEN)
        return tuple(pull for pull in there if pull.head_sha == head_sha)

    def with_others(self, target_state: TargetState, actions: Actions, gate_of: Callable[[Pull], Gate]) -> Actions:
        """The actions as they are with regard to other open pull requests that have this head.

        There is no success before each of them has it by itself, by `gate_of`, which reads it again. A closed
        one leaves the checks to the others.
        """
        if not isinstance(target_state.target, Pull):
            return actions
        others = self.others_with(target_state.target.ref, target_state.head_sha)
        if target_state.over and others:
            return replace(actions, shows_checks=False)
        if not actions.gate.is_open:
            return actions
        gates = [(pull.ref.number, gate) for pull in others if not (gate := gate_of(pull)).is_open]
        if not gates:
            return actions
        # What needs a person is shown before what only needs time.
        number, gate = min(gates, key=lambda found: (found[1].status is JobStatus.RUNNING, found[0]))
        other = OtherPull(number, gate.title, gate.status is JobStatus.RUNNING)
        return decide_actions(replace(target_state, other_pull=other))

    def policy_of(self, target: Target) -> Policy:
        """The policy at the tip of the base as it is now, never that of the head; a merge group has a base of its own.

        NoPolicyError when there is none that could be used.
        """
        repository = repository_of(target)
        if isinstance(target, MergeGroup):
            base = BaseText(target.base_sha[:12], self._remembered(repository, target.base_sha))
        else:
            base = base_text(repository, target.base_branch, self.pulls, self._remembered)
        # The same text is the same policy, so a push to the base that leaves it alone changes nothing.
        return self.policies.get((repository, base.name, base.digest), lambda: read_policy(base))

    def policy_of_queue(self, pull: Pull) -> Policy:
        """The policy that says who may rule the queue: that of the default branch, because all branches share it.

        By that of the base anyone could who may push a branch. NoPolicyError as above.
        """
        return self.policy_of(replace(pull, base_branch=pull.default_branch))

    def _remembered(self, repository: str, commit: str) -> bytes | None:
        key = (repository, commit)
        return self.contents.get(key, lambda: (self.pulls.file_at(repository, commit, POLICY_PATH),))[0]

    def note_policy(self, target: Target, policy: Policy) -> None:
        """Put down under which policy a pull request was looked at."""
        if not isinstance(target, Pull):
            return
        digest, name, ref = policy.text_digest, policy.gate.name, target.ref
        noted = self.noted(ref, target.head_sha)
        if noted is None or (noted.digest, noted.gate_name) != (digest, name):
            subject, now = _subject(ref, target.head_sha), self.clock.now()
            self.ledger.put_note(
                ReadPolicy(repository=ref.repository, subject=subject, at=now, digest=digest, gate_name=name)
            )

    def noted(self, ref: PullRef, head_sha: str) -> ReadPolicy | None:
        """Under which policy a head was last looked at, None when it never was."""
        return self.ledger.note(ReadPolicy, ref.repository, _subject(ref, head_sha))

    def without_policy(self, target: Target, error: NoPolicyError) -> Policy:
        """What stands in for a policy that cannot be used: the gate keeps the name under which it was last shown."""
        packaged = packaged_policy()
        noted = self.noted(target.ref, target.head_sha) if isinstance(target, Pull) else None
        gate = packaged.gate.model_copy(update={"name": noted.gate_name}) if noted is not None else packaged.gate
        return packaged.model_copy(update={"gate": gate, "text_digest": error.digest})

    def outdated(self, pulls: Iterable[OpenPull]) -> Iterator[OpenPull]:
        """Those that were last looked at under another policy than their base has now; one never looked at is not."""
        digests: dict[tuple[str, str], str] = {}
        for pull in pulls:
            noted = self.noted(pull.ref, pull.head_sha)
            if noted is None:
                continue
            base = (pull.ref.repository, pull.base_branch)
            if base not in digests:
                digests[base] = base_text(*base, self.pulls, self._remembered).digest
            if noted.digest != digests[base]:
                yield pull

    def look_again(self, pulls: Iterable[OpenPull], worklist: Worklist) -> int:
        """Want another look at those that are outdated, newest first, a few at a time; gives how many.

        A push that leaves the policy alone concerns no one.
        """
        found = sorted(self.outdated(pulls), key=lambda pull: pull.ref.number, reverse=True)
        now = self.clock.now()
        for turn in range(0, len(found), AT_ONCE):
            batch = found[turn : turn + AT_ONCE]
            # One with a run under way waits for its next look by the clock, which may be long after.
            worklist.want([reference_text(pull.ref) for pull in batch], now + _PAUSE * (turn // AT_ONCE), at_once=True)
        return len(found)

    def remember_group(self, group: MergeGroup, *, destroyed: bool = False) -> None:
        """The queue asked for a group's checks, or gave it up."""
        self.ledger.put_group(replace(group, since=self.clock.now(), destroyed=destroyed))

    def with_group_facts(self, group: MergeGroup) -> MergeGroup:
        """The group with when the queue asked and whether it gave up."""
        known = self.ledger.group(group.repository, group.head_sha)
        return replace(group, since=known.since, destroyed=known.destroyed) if known is not None else group

    def group(self, repository: str, head_sha: str) -> MergeGroup | None:
        """The group of a head as a reference, None when it is not known."""
        known = self.ledger.group(repository, head_sha)
        return replace(known, since=None, destroyed=False) if known is not None else None

    def of_commit(self, repository: str, head_sha: str) -> tuple[Reference, ...]:
        """What runs of a commit were made for that no pull request has: a merge group, or watched branches."""
        runs = self.ledger.runs(repository, head_sha=head_sha)
        found = (self.group(repository, head_sha), *(Branch(repository, run.branch) for run in runs if run.branch))
        return tuple(dict.fromkeys(reference for reference in found if reference is not None))

    def reference_of(self, run: Run) -> Reference | None:
        """What a run was made for; None for a merge group that no one remembers."""
        if run.branch:
            return Branch(run.repository, run.branch)
        if run.number is not None:
            return PullRef(run.repository, run.number)
        return self.group(run.repository, run.head_sha)


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
    actors: RecentValues[tuple[float, Actor]] = field(default_factory=lambda: RecentValues(256))
    committers: RecentValues[frozenset[str]] = field(default_factory=lambda: RecentValues(256))

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

    def trust_of(self, target: Target, entries: tuple[GivenEntry, ...], policy: Policy) -> Trusted | NeedsApproval:
        """Whether the head may run: a merge group's may, because the person who queued it could have merged it."""
        if isinstance(target, MergeGroup):
            return Trusted("the merge queue made this commit from approved pull requests")
        approvals = tuple(entry for entry in entries if isinstance(entry, Approval))
        unknown = may_run(target, approvals, Actor(target.author), policy.capabilities)
        if isinstance(unknown, Trusted) or target.from_fork:
            return unknown
        return may_run(
            target,
            approvals,
            self.known_actor(target.author, Capability.RUN, target, policy, AUTHOR_KEPT),
            policy.capabilities,
        )

    def with_role(self, trust: Trusted | NeedsApproval, target: Target, policy: Policy) -> Trusted | NeedsApproval:
        """The trust in a head with what is known of its author's role, where an approval is needed."""
        if isinstance(trust, Trusted) or isinstance(target, MergeGroup):
            return trust
        known = is_of_author(target) and has_role(
            self.known_actor(target.author, Capability.RUN, target, policy, AUTHOR_KEPT), policy.capabilities
        )
        return replace(trust, has_role=known)

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
        self, pull: Pull, entries: tuple[GivenEntry, ...], policy: Policy
    ) -> tuple[tuple[GivenEntry, ...], tuple[Uncounted, ...]]:
        """The entries of givers who may still give them, and the overrides of this head that do not count for that."""
        standing: list[GivenEntry] = []
        refused: list[Uncounted] = []
        for entry in entries:
            why = self._why_not(entry, pull, policy)
            if not why:
                standing.append(entry)
            elif isinstance(entry, Override):
                refused.append(Uncounted(entry, why))
        return tuple(standing), tuple(refused)

    def _why_not(self, entry: GivenEntry, pull: Pull, policy: Policy) -> str:
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
