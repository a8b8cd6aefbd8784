"""The policy of a base branch, read at the branch's tip.

GitHub leaves a pull request's `base.sha` where the base was at the last push of the head, so nothing that says who may
do what is read there.
"""

from verl_e2e.app.policy_text import BaseText, NoPolicyError, PolicyText, base_text, read_policy, text_at
from verl_e2e.app.services import AppRooms
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.ledger import Posted
from verl_e2e.core.pulls.pull import MergeGroup, Pull, PullRef, Target, repository_of

# The ledger's `digest` holds that of the policy under which a head was last looked at, and the name of its gate.
_POLICY = "policy"


def policy_of(target: Target, rooms: AppRooms) -> Policy:
    """The policy at the tip of the base as it is now, never that of the head; a merge group has a base of its own.

    NoPolicyError when there is none that could be used.
    """
    repository = repository_of(target)
    if isinstance(target, MergeGroup):
        base = BaseText(target.base_sha[:12], _remembered(repository, target.base_sha, rooms))
    else:
        base = tip_text(repository, target.base_branch, rooms)
    # The same text is the same policy, so a push to the base that leaves it alone changes nothing.
    return rooms.policies.get((repository, base.name, base.digest), lambda: read_policy(base))


def tip_text(repository: str, branch: str, rooms: AppRooms) -> BaseText:
    """The policy file at the tip of a branch as it is now."""
    return base_text(repository, branch, rooms.pulls, lambda where, commit: _remembered(where, commit, rooms))


def _remembered(repository: str, commit: str, rooms: AppRooms) -> PolicyText:
    return rooms.policy_texts.get((repository, commit), lambda: text_at(repository, commit, rooms.pulls))


def note_policy(target: Target, policy: Policy, rooms: AppRooms) -> None:
    """Put down under which policy a pull request was looked at: `verl_e2e.app.base_branch_changed` finds the others."""
    if not isinstance(target, Pull):
        return
    noted, ref = f"{policy.text_digest}:{policy.gate.name}", target.ref
    if noted != _noted(ref, target.head_sha, rooms):
        subject, now = _subject(ref, target.head_sha), rooms.clock.now()
        rooms.ledger.put_posted(
            Posted(repository=ref.repository, kind=_POLICY, subject=subject, remote_id=0, digest=noted, at=now)
        )


def noted_digest(ref: PullRef, head_sha: str, rooms: AppRooms) -> str | None:
    """The digest of the policy under which a head was last looked at, None when it never was."""
    noted = _noted(ref, head_sha, rooms)
    return None if noted is None else noted.partition(":")[0]


def without_policy(target: Target, error: NoPolicyError, rooms: AppRooms) -> Policy:
    """What stands in for a policy that cannot be used: the gate keeps the name under which it was last shown."""
    packaged = packaged_policy()
    noted = _noted(target.ref, target.head_sha, rooms) if isinstance(target, Pull) else None
    name = (noted or "").partition(":")[2] or packaged.gate.name
    gate = packaged.gate.model_copy(update={"name": name})
    return packaged.model_copy(update={"gate": gate, "text_digest": error.digest})


def _noted(ref: PullRef, head_sha: str, rooms: AppRooms) -> str | None:
    known = rooms.ledger.posted(ref.repository, _POLICY, _subject(ref, head_sha))
    return known.digest if known is not None else None


def _subject(ref: PullRef, head_sha: str) -> str:
    return f"{head_sha}:{ref.number}:policy"
