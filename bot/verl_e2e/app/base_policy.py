"""The policy of a base branch, read at the branch's tip, and the pull requests whose base got another one.

GitHub leaves a pull request's `base.sha` where the base was at the last push of the head, so nothing that says who may
do what is read there. The policy as it is now is compared with the one under which a head was last looked at, so a push
of which no webhook reported is found as well.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta

from verl_e2e.app.kept_values import Kept
from verl_e2e.config.policy import POLICY_PATH, load_policy, packaged_policy
from verl_e2e.config.validation import ConfigError
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.deliveries import PushEvent
from verl_e2e.core.pulls.ledger import Posted
from verl_e2e.core.pulls.pull import MergeGroup, OpenPull, Pull, PullRef, Target, reference_text, repository_of
from verl_e2e.ports import Clock, Ledger, Pulls, Worklist

_GONE = "gone"


@dataclass(frozen=True, slots=True)
class PolicyText:
    """The policy file of a commit."""

    # The file as it is there, None where there is none.
    content: bytes | None


@dataclass(frozen=True, slots=True)
class BaseText:
    """The policy file of a base: as it is there, and by which name people know the place."""

    # A branch, or the first digits of a merge group's base commit.
    name: str
    # None where the branch is gone.
    text: PolicyText | None

    @property
    def digest(self) -> str:
        """SHA-256 of the file, empty where the base has none, `gone` where there is no such base."""
        if self.text is None:
            return _GONE
        return "" if self.text.content is None else hashlib.sha256(self.text.content).hexdigest()


class NoPolicyError(UserError):
    """There is no policy that could be used: the text is one clause that says why and what to do.

    `digest` is that of the file that cannot be used.
    """

    def __init__(self, message: str, digest: str) -> None:
        super().__init__(message)
        self.digest = digest


def text_at(repository: str, commit: str, pulls: Pulls) -> PolicyText:
    """The policy file at a commit."""
    return PolicyText(pulls.file_at(repository, commit, POLICY_PATH))


def base_text(
    repository: str, branch: str, pulls: Pulls, read: Callable[[str, str], PolicyText] | None = None
) -> BaseText:
    """The policy file at the tip of a branch as it is now; `read` gives that of a commit, from memory perhaps."""
    commit = pulls.tip(repository, branch)
    if commit is None:
        return BaseText(branch, None)
    return BaseText(branch, read(repository, commit) if read is not None else text_at(repository, commit, pulls))


def read_policy(base: BaseText) -> Policy:
    """The policy of a base, the packaged one where it has none; NoPolicyError when there is none to be used."""
    if base.text is None:
        what = f"the base branch {base.name} is not there any more, so nothing says what is required"
        raise NoPolicyError(f"{what}; give the pull request another base", base.digest)
    if base.text.content is None:
        return packaged_policy()
    try:
        return load_policy(base.text.content, f"{base.name}:{POLICY_PATH}", base.digest)
    except ConfigError as error:
        what = f"the policy of the base branch cannot be used: {error.problems[0]}"
        raise NoPolicyError(what, base.digest) from None


# The ledger's `digest` holds that of the policy under which a head was last looked at, and the name of its gate.
_POLICY = "policy"


@dataclass(frozen=True, slots=True)
class BasePolicies:
    """The policies of base branches and of merge groups; what a commit holds is read once."""

    clock: Clock
    ledger: Ledger
    pulls: Pulls
    kept: Kept[Policy] = field(default_factory=lambda: Kept(64))
    policy_texts: Kept[PolicyText] = field(default_factory=lambda: Kept(64))

    def policy_of(self, target: Target) -> Policy:
        """The policy at the tip of the base as it is now, never that of the head; a merge group has a base of its own.

        NoPolicyError when there is none that could be used.
        """
        repository = repository_of(target)
        if isinstance(target, MergeGroup):
            base = BaseText(target.base_sha[:12], self._remembered(repository, target.base_sha))
        else:
            base = self.tip_text(repository, target.base_branch)
        # The same text is the same policy, so a push to the base that leaves it alone changes nothing.
        return self.kept.get((repository, base.name, base.digest), lambda: read_policy(base))

    def policy_of_queue(self, pull: Pull) -> Policy:
        """The policy that says who may rule the queue: that of the default branch, because all branches share it.

        By that of the base anyone could who may push a branch. NoPolicyError as above.
        """
        return self.policy_of(replace(pull, base_branch=pull.default_branch))

    def tip_text(self, repository: str, branch: str) -> BaseText:
        """The policy file at the tip of a branch as it is now."""
        return base_text(repository, branch, self.pulls, self._remembered)

    def _remembered(self, repository: str, commit: str) -> PolicyText:
        return self.policy_texts.get((repository, commit), lambda: text_at(repository, commit, self.pulls))

    def note(self, target: Target, policy: Policy) -> None:
        """Put down under which policy a pull request was looked at; `BaseChanges` finds the others."""
        if not isinstance(target, Pull):
            return
        noted, ref = f"{policy.text_digest}:{policy.gate.name}", target.ref
        if noted != self._noted(ref, target.head_sha):
            subject, now = _subject(ref, target.head_sha), self.clock.now()
            self.ledger.put_posted(
                Posted(repository=ref.repository, kind=_POLICY, subject=subject, remote_id=0, digest=noted, at=now)
            )

    def noted_digest(self, ref: PullRef, head_sha: str) -> str | None:
        """The digest of the policy under which a head was last looked at, None when it never was."""
        noted = self._noted(ref, head_sha)
        return None if noted is None else noted.partition(":")[0]

    def without_policy(self, target: Target, error: NoPolicyError) -> Policy:
        """What stands in for a policy that cannot be used: the gate keeps the name under which it was last shown."""
        packaged = packaged_policy()
        noted = self._noted(target.ref, target.head_sha) if isinstance(target, Pull) else None
        name = (noted or "").partition(":")[2] or packaged.gate.name
        gate = packaged.gate.model_copy(update={"name": name})
        return packaged.model_copy(update={"gate": gate, "text_digest": error.digest})

    def _noted(self, ref: PullRef, head_sha: str) -> str | None:
        known = self.ledger.posted(ref.repository, _POLICY, _subject(ref, head_sha))
        return known.digest if known is not None else None


def _subject(ref: PullRef, head_sha: str) -> str:
    return f"{head_sha}:{ref.number}:policy"


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
