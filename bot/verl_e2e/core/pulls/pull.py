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
    """A pull request as GitHub has it now."""

    # Its repository and number.
    ref: PullRef
    # The branch that it would be merged into.
    base_branch: str
    # The commit of that branch.
    base_sha: str
    # Its head.
    head_sha: str
    # The repository of the head, empty when the fork is gone.
    head_repository: str
    # The login of its author.
    author: str
    # GitHub's word for the author: `MEMBER`, `FIRST_TIME_CONTRIBUTOR`, ...
    author_association: str
    # Whether it is a draft.
    draft: bool
    # Whether it is open.
    state: PullState
    # The names of its labels.
    labels: tuple[str, ...] = ()
    # GitHub's own count; a listing of files may be shorter.
    changed_files: int = 0
    # Its title.
    title: str = ""
    # The default branch of its repository, empty where it is not known.
    default_branch: str = ""

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
    """A merge queue's candidate."""

    # `owner/name`.
    repository: str
    # The branch that it would be merged into.
    base_branch: str
    # The commit that it would be merged onto.
    base_sha: str
    # The commit that would be merged.
    head_sha: str
    # The numbers of the pull requests inside.
    pulls: tuple[int, ...] = ()
    # When the queue asked, None where it is not known.
    since: datetime | None = None
    # Whether the queue no longer wants an answer.
    destroyed: bool = False


Target = Pull | MergeGroup


def repository_of(target: Target) -> str:
    """The repository, `owner/name`, that a target belongs to."""
    return target.ref.repository if isinstance(target, Pull) else target.repository
