"""The policy of a base branch, read at the branch's tip.

GitHub leaves a pull request's `base.sha` where the base was at the last push of the head, so nothing that says who may
do what is read there.
"""

from dataclasses import dataclass, field, replace

from verl_e2e.app.kept_values import Kept
from verl_e2e.app.policy_text import BaseText, NoPolicyError, PolicyText, base_text, read_policy, text_at
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.ledger import Posted
from verl_e2e.core.pulls.pull import MergeGroup, Pull, PullRef, Target, repository_of
from verl_e2e.ports import Clock, Ledger, Pulls

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
