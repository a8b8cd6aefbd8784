"""What is tested on GitHub: a pull request or a merge group, by its address, its head and its name in our tables."""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pydantic import TypeAdapter

from verl_e2e.core.model.errors import UserError


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


_NAME = r"(?P<repository>[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9._-]+)"
_PAGE = re.compile(rf"(?P<web>https?://[^/\s?#@]+)/{_NAME}/pull/(?P<number>\d{{1,9}})(?:[/?#]\S*)?")
_SHORT = re.compile(rf"{_NAME}#(?P<number>\d{{1,9}})")
_PUBLIC = re.compile(r"https?://(www\.)?github\.com", re.I)
PUBLIC_WEB = "https://github.com"
PUBLIC_API = "https://api.github.com"
_ENTERPRISE = "/api/v3"


class BadAddressError(UserError):
    """A text that names no pull request."""


@dataclass(frozen=True, slots=True)
class PullAddress:
    """A pull request and the site that it is on, `https://host`; empty when the text named no site."""

    ref: PullRef
    web: str = ""


def read_address(text: str) -> PullAddress:
    """What a text names; BadAddressError."""
    found = _PAGE.fullmatch(text.strip()) or _SHORT.fullmatch(text.strip())
    if found is None or found["repository"].endswith(("/.", "/..")) or int(found["number"]) == 0:
        message = f"{PUBLIC_WEB}/OWNER/REPO/pull/N or OWNER/REPO#N"
        raise BadAddressError(f"{text!r} names no pull request; give its address, {message}")
    web = found.groupdict().get("web") or ""
    return PullAddress(PullRef(found["repository"], int(found["number"])), web)


def api_of(web: str) -> str:
    """The API of a site: GitHub's own, or that of an Enterprise server."""
    return PUBLIC_API if not web or _PUBLIC.fullmatch(web) else f"{web}{_ENTERPRISE}"


def web_of(api: str) -> str:
    """The site of an API, where its repositories are cloned from."""
    return PUBLIC_WEB if api == PUBLIC_API else api.removesuffix(_ENTERPRISE)


Reference = PullRef | MergeGroup
_GROUP = TypeAdapter(MergeGroup)


def reference_text(reference: Reference) -> str:
    """The reference as text that `read_reference` reads: the same text for the same reference."""
    if isinstance(reference, PullRef):
        return str(reference)
    return _GROUP.dump_json(reference).decode()


def read_reference(text: str) -> Reference:
    """A reference from its text; ValueError for anything else."""
    if text.startswith("{"):
        return _GROUP.validate_json(text)
    repository, _, number = text.rpartition("#")
    if not repository or not number.isdigit():
        raise ValueError(f"{text!r} is not a reference")
    return PullRef(repository, int(number))
