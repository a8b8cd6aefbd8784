"""The text of a base's policy file, and what is made of it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from verl_e2e.config.policy import POLICY_PATH, load_policy, packaged_policy
from verl_e2e.config.problems import ConfigError
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.plan.policy import Policy
from verl_e2e.ports import Pulls

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
