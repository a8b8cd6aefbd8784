"""What is tested on GitHub: a pull request's head, or the head of a merge group."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


@dataclass(frozen=True, slots=True, order=True)
class PullRef:
    """A pull request by its repository, `owner/name`, and its number."""

    repository: str
    number: int

    def __str__(self) -> str:
        return f"{self.repository}#{self.number}"


class PullState(StrEnum):
    """Whether a pull request can still change."""

    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Pull:
    """A pull request as GitHub has it now.

    `head_repository` is empty when the fork is gone. `author_association` is GitHub's word (`MEMBER`,
    `FIRST_TIME_CONTRIBUTOR`, ...). `changed_files` is GitHub's own count, which a listing of files may fall short of.
    """

    ref: PullRef
    base_branch: str
    base_sha: str
    head_sha: str
    head_repository: str
    author: str
    author_association: str
    draft: bool
    state: PullState
    labels: tuple[str, ...] = ()
    changed_files: int = 0
    title: str = ""

    @property
    def from_fork(self) -> bool:
        """Whether the head lies outside the repository."""
        return self.head_repository != self.ref.repository


@dataclass(frozen=True, slots=True)
class OpenPull:
    """An open pull request as a list tells of it."""

    # Which one it is.
    ref: PullRef
    # The branch that it is to be merged into.
    base_branch: str
    # Its newest commit.
    head_sha: str


@dataclass(frozen=True, slots=True)
class MergeGroup:
    """A merge queue's candidate: `head_sha` is what would be merged onto `base_sha`; `pulls` are those inside.

    `since` is when the queue asked, `destroyed` that it wants no answer any more.
    """

    repository: str
    base_branch: str
    base_sha: str
    head_sha: str
    pulls: tuple[int, ...] = ()
    since: datetime | None = None
    destroyed: bool = False


Target = Pull | MergeGroup


def repository_of(target: Target) -> str:
    """The repository, `owner/name`, that a target belongs to."""
    return target.ref.repository if isinstance(target, Pull) else target.repository
