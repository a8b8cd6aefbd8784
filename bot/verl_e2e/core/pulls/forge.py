"""What GitHub has: pull requests, merge groups, check runs, workflow runs, the installation, branches, attestations."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
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
    # GitHub's own count; a listing of files may be shorter.
    changed_files: int = 0
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


@dataclass(frozen=True, slots=True)
class BranchCommit(MergeGroup):
    """A commit of a watched branch. It is merged already, and a schedule says which jobs it gets."""


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


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch whose commits are watched."""

    # `owner/name`.
    repository: str
    # Its name.
    name: str

    def __str__(self) -> str:
        return f"{self.repository}@{self.name}"


Reference = PullRef | MergeGroup | Branch
_GROUP = TypeAdapter(MergeGroup)


def reference_text(reference: Reference) -> str:
    """The reference as text that `read_reference` reads: the same text for the same reference."""
    if isinstance(reference, PullRef | Branch):
        return str(reference)
    return _GROUP.dump_json(reference).decode()


def read_reference(text: str) -> Reference:
    """A reference from its text; ValueError for anything else."""
    if text.startswith("{"):
        return _GROUP.validate_json(text)
    repository, at, branch = text.partition("@")
    if at and "#" not in repository and repository and branch:
        return Branch(repository, branch)
    repository, _, number = text.rpartition("#")
    if not repository or not number.isdigit():
        raise ValueError(f"{text!r} is not a reference")
    return PullRef(repository, int(number))


@dataclass(frozen=True, slots=True)
class WorkflowRun:
    """A run of a workflow. `status` and `conclusion` are GitHub's words; `conclusion` is empty until it ended.

    `created` is when GitHub took the order, None where it is not known.
    """

    id: int
    status: str = ""
    conclusion: str = ""
    title: str = ""
    url: str = ""
    head_sha: str = ""
    attempt: int = 1
    created: datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.status == "completed"


@dataclass(frozen=True, slots=True)
class WorkflowStep:
    """One step of a job. `conclusion` is GitHub's word, empty until it ended."""

    name: str
    status: str
    conclusion: str = ""

    @property
    def begun(self) -> bool:
        """Whether it was started at all: one that was passed over or never reached was not."""
        return self.status == "in_progress" or (self.status == "completed" and self.conclusion != "skipped")


@dataclass(frozen=True, slots=True)
class WorkflowJob:
    """One job of a workflow run; `runner` is empty until a machine has taken it, `labels` are those it asked for."""

    id: int
    name: str
    status: str
    conclusion: str = ""
    runner: str = ""
    labels: tuple[str, ...] = ()
    url: str = ""
    # When a machine began it, None before.
    started: datetime | None = None
    # When it ended, None before.
    ended: datetime | None = None
    # Its steps, as far as GitHub lists them.
    steps: tuple[WorkflowStep, ...] = ()

    def never_reached(self, step: str, but_for: str) -> bool:
        """Whether it ended without success before a step that GitHub lists, and not in the step `but_for`."""
        listed = [item for item in self.steps if item.name == step]
        failed_there = any(item.name == but_for and item.conclusion == "failure" for item in self.steps)
        over = self.status == "completed" and self.conclusion != "success"
        return over and bool(listed) and not any(item.begun for item in listed) and not failed_there

    @property
    def lost_its_machine(self) -> bool:
        """Whether it ended without success in the middle of a step: its machine did not say how that step ended."""
        over = self.status == "completed" and self.conclusion != "success"
        return over and any(item.status == "in_progress" for item in self.steps)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a workflow run left behind, as a zip archive of `size` bytes."""

    id: int
    name: str
    size: int
    expired: bool = False
    # The SHA-256 of the archive, 64 hexadecimal digits; empty where GitHub does not tell it.
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Installation:
    """Our App in a repository: what it was given (permission to `read` or `write`) and which events reach it."""

    id: int
    app_id: int
    app_slug: str
    permissions: dict[str, str] = field(default_factory=dict)
    events: frozenset[str] = frozenset()
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class RequiredCheck:
    """A check that a branch asks for; `app_id` is None where any writer will do. `source` names what asks."""

    name: str
    app_id: int | None
    source: str


@dataclass(frozen=True, slots=True)
class BranchRules:
    """What must hold before something is merged into a branch. `queue_minutes` is the merge queue's patience."""

    required: tuple[RequiredCheck, ...] = ()
    queue_minutes: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """A self-hosted runner of the repository, or of its organisation."""

    name: str
    online: bool
    busy: bool
    labels: tuple[str, ...]
    # Whether it serves one job and is gone; None where GitHub does not tell.
    ephemeral: bool | None = None


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """One attempt to deliver a webhook; `guid` is the same on every attempt. `code` is what our server answered."""

    id: int
    guid: str
    event: str
    action: str
    code: int
    at: datetime
    redelivery: bool = False

    @property
    def failed(self) -> bool:
        """Whether our server did not take it."""
        return not 200 <= self.code < 300


# GitHub refuses a longer summary, text or title, and more annotations in one request.
MAX_OUTPUT = 65_000
MAX_CHECK_TITLE = 255
MAX_ANNOTATIONS = 50
# What the buttons of the gate's check tell us; the number of a level follows the last.
RERUN, CANCEL, LEVEL_BUTTON = "rerun", "cancel", "level:"
_CHECK_ID = re.compile(r"verl-e2e:(\d{1,9}):([0-9a-f]{40}):([0-9a-z-]{0,200})")


class CheckStatus(StrEnum):
    """How far a check run is."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


class Conclusion(StrEnum):
    """How a check run ended. GitHub's `neutral` and `skipped` satisfy a required check, so we have neither."""

    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    ACTION_REQUIRED = "action_required"


@dataclass(frozen=True, slots=True)
class OpenCheck:
    """A check run of ours that may still be without a conclusion on GitHub."""

    # Its name there.
    name: str
    # The commit that it is on, 40 digits.
    head_sha: str
    # Our own id of it, see `CheckId`.
    external_id: str


@dataclass(frozen=True, slots=True)
class Annotation:
    """A message on changed lines, 1-based and inclusive; `level` is notice, warning or failure."""

    path: str
    first_line: int
    last_line: int
    level: str
    title: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckRun:
    """A check run as we want it, or as GitHub has it (`id` > 0)."""

    # Its name on GitHub.
    name: str
    # The commit that it is on.
    head_sha: str
    # queued, in_progress or completed.
    status: str
    # Empty until completed.
    conclusion: str = ""
    # Its title, plain text.
    title: str = ""
    # Its summary in Markdown.
    summary: str = ""
    # Its text in Markdown.
    text: str = ""
    # Where its link leads.
    details_url: str = ""
    # Our own id.
    external_id: str = ""
    # Its buttons as (label, description, identifier), at most three.
    actions: tuple[tuple[str, str, str], ...] = ()
    # Messages on changed lines.
    annotations: tuple[Annotation, ...] = ()
    # GitHub's id, 0 for one that we want.
    id: int = 0
    # The App that it belongs to, None where it is not known.
    app_id: int | None = None


@dataclass(frozen=True, slots=True)
class CheckId:
    """Our own id of a check run, the same for every attempt."""

    # The number of the pull request, 0 for a merge group.
    number: int
    # The commit that it is on, 40 digits.
    head_sha: str
    # The job that it shows, empty for the gate.
    job_id: str = ""

    def __str__(self) -> str:
        return ":".join(("verl-e2e", str(self.number), self.head_sha, self.job_id))


def read_check_id(text: str) -> CheckId | None:
    """The id in a check run's `external_id`, None when it is none of ours."""
    found = _CHECK_ID.fullmatch(text)
    return CheckId(int(found[1]), found[2], found[3]) if found else None


def check_name(gate_name: str, job_id: str) -> str:
    """The name of a job's check run."""
    return f"{gate_name} / {job_id}"


@dataclass(frozen=True, slots=True)
class FolderFile:
    """A plain file of a run folder."""

    path: str
    """Its path below the folder, with slashes."""
    size: int
    """Its length in bytes."""
    sha256: str
    """The digest of its content, 64 hexadecimal digits."""


def folder_digest(files: Iterable[FolderFile]) -> str:
    """The folder's digest as 64 hexadecimal digits: another name, size or content anywhere gives another one."""
    rows = sorted((file.path.encode("utf-8", "surrogateescape"), file.size, file.sha256) for file in files)
    whole = hashlib.sha256()
    for path, size, sha256 in rows:
        # Lengths stand in front of names, so that no name can pass for the end of a row.
        whole.update(b"%d %s %d %s\n" % (len(path), path, size, sha256.encode("ascii")))
    return whole.hexdigest()


ISSUER = "https://token.actions.githubusercontent.com"
PREDICATE = "https://slsa.dev/provenance/v1"
HOSTED = "github-hosted"


class Attestation(StrEnum):
    """Whether a run folder counts without a verified attestation."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class UnprovenError(Exception):
    """An attestation that proves nothing: signature, certificate or log entry does not hold; the text says which."""


@dataclass(frozen=True, slots=True)
class Attested:
    """What an attestation says whose signature, certificate and log entry were verified."""

    predicate: str
    """The type of the statement, an address."""
    digests: frozenset[str]
    """The SHA-256 of each subject, 64 hexadecimal digits."""
    issuer: str
    """Who vouched for the job's identity."""
    repository: str
    """The address of the repository whose workflow ran."""
    workflow: str
    """The workflow that was started, as `ADDRESS/.github/workflows/FILE@REF`."""
    signer: str
    """The workflow whose job signed, in the same form; another one where a reusable workflow was called."""
    commit: str
    """The commit that the started workflow was taken from."""
    run: str
    """The address of the run with its attempt."""
    runner: str
    """`github-hosted` or `self-hosted`."""


@dataclass(frozen=True, slots=True)
class Handover:
    """What an attestation must say for one artifact of one workflow run."""

    digest: str
    """The SHA-256 of the artifact, 64 hexadecimal digits."""
    repository: str
    """The address of the repository that we dispatched in."""
    workflow: str
    """The workflow that we dispatched, as `ADDRESS/.github/workflows/FILE@REF`."""
    signers: tuple[str, ...]
    """The workflows whose job may sign, in the same form."""
    commit: str
    """The commit of the dispatch branch that GitHub started the run at."""
    run: str
    """The address of the run with its attempt."""


def why_not(found: Attested, asked: Handover) -> str:
    """Why an attestation does not vouch for an artifact, empty when it does."""
    message = (
        ("type", found.predicate, (PREDICATE,)),
        ("issuer", found.issuer, (ISSUER,)),
        ("repository", found.repository, (asked.repository,)),
        ("workflow", found.workflow, (asked.workflow,)),
        ("signer", found.signer, asked.signers),
        ("commit", found.commit, (asked.commit,)),
        ("run", found.run, (asked.run,)),
        ("runner", found.runner, (HOSTED,)),
    )
    for what, text, allowed in message:
        if text not in allowed:
            return f"its {what} is {text or 'not stated'}, not {' or '.join(allowed)}"
    return "" if asked.digest in found.digests else "it is about another artifact"
