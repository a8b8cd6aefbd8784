"""Webhooks of GitHub as typed events, and what is written there, as our tables keep it.

The sender's signature was checked before; still a body is taken as hostile: its size, depth, types and numbers. Only
events that we act on are read, and of them only the keys that we read.
"""

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, NoReturn, get_args

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from verl_e2e.core.model.jobs import Sha

# GitHub's own bound for a comment.
_MAX_TEXT = 262_144
_NO_NUL = r"^[^\x00]*$"

FullName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}$")]
Login = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,100}(\[bot\])?$")]
PayloadName = Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=_NO_NUL)]
Short = Annotated[str, StringConstraints(max_length=1024, pattern=_NO_NUL)]
Id = Annotated[int, Field(strict=True, ge=1, lt=2**63)]
Number = Annotated[int, Field(strict=True, ge=1, lt=2**31)]


class _PayloadPart(BaseModel):
    """A part of a payload; what we do not read is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Repo(_PayloadPart):
    full_name: FullName
    default_branch: str = ""


class _Account(_PayloadPart):
    login: Login


class _Labelled(_PayloadPart):
    name: PayloadName


class _Commit(_PayloadPart):
    sha: Sha


class _PullPart(_PayloadPart):
    """A pull request in an event: what is decided is read again, this only tells which."""

    number: Number
    head: _Commit


class _NumberPart(_PayloadPart):
    number: Number


class _AppPart(_PayloadPart):
    id: Id


class PullRequestEvent(_PayloadPart):
    """A pull request was opened, pushed to, labelled, closed."""

    action: Literal[
        "opened",
        "synchronize",
        "reopened",
        "ready_for_review",
        "converted_to_draft",
        "closed",
        "labeled",
        "edited",
    ]
    repository: _Repo
    sender: _Account
    pull_request: _PullPart
    label: _Labelled | None = None
    # The head that a push replaced.
    before: Sha | None = None


class _IssuePart(_PayloadPart):
    """The issue or pull request of a comment; `pull_request` is None for an issue."""

    number: Number
    pull_request: dict[str, Any] | None = None


class _CommentPart(_PayloadPart):
    id: Id
    body: Annotated[str, StringConstraints(max_length=_MAX_TEXT, pattern=_NO_NUL)]
    user: _Account
    created_at: AwareDatetime
    updated_at: AwareDatetime
    performed_via_github_app: _AppPart | None = None
    author_association: Short = ""


class CommentEvent(_PayloadPart):
    """Someone wrote a comment on a pull request, or touched one: what was not just created is never a command."""

    action: Literal["created", "edited", "deleted"]
    repository: _Repo
    sender: _Account
    issue: _IssuePart
    comment: _CommentPart


class _ActionPart(_PayloadPart):
    identifier: Annotated[str, StringConstraints(min_length=1, max_length=20, pattern=_NO_NUL)]


class _CheckPart(_PayloadPart):
    id: Id
    name: PayloadName
    head_sha: Sha
    external_id: Short | None = None
    app: _AppPart | None = None


class CheckRunEvent(_PayloadPart):
    """Someone asked for a check run again, or pressed one of its buttons."""

    action: Literal["rerequested", "requested_action"]
    repository: _Repo
    sender: _Account
    check_run: _CheckPart
    requested_action: _ActionPart | None = None


class _SuitePart(_PayloadPart):
    id: Id
    head_sha: Sha
    app: _AppPart | None = None
    pull_requests: tuple[_NumberPart, ...] = ()


class CheckSuiteEvent(_PayloadPart):
    """Someone asked for all our check runs of a commit again."""

    action: Literal["rerequested"]
    repository: _Repo
    sender: _Account
    check_suite: _SuitePart


class _GroupPart(_PayloadPart):
    head_sha: Sha
    head_ref: PayloadName
    base_sha: Sha
    base_ref: PayloadName


class MergeGroupEvent(_PayloadPart):
    """A merge queue asks for the checks of a candidate, or has given it up."""

    action: Literal["checks_requested", "destroyed"]
    repository: _Repo
    merge_group: _GroupPart


class _WorkflowRunPart(_PayloadPart):
    id: Id


class WorkflowRunEvent(_PayloadPart):
    """The state of a workflow run changed. That it was requested is not reported: its dispatcher knows."""

    action: Literal["in_progress", "completed"]
    repository: _Repo
    workflow_run: _WorkflowRunPart


class _WorkflowJobPart(_PayloadPart):
    run_id: Id


class WorkflowJobEvent(_PayloadPart):
    """The state of a job of a workflow run changed. That it was queued is not reported."""

    action: Literal["waiting", "in_progress", "completed"]
    repository: _Repo
    workflow_job: _WorkflowJobPart


# copy-pr-bot's branch for a pull request whose head may run.
MIRROR_REF = re.compile(r"refs/heads/pull-request/([1-9][0-9]{0,8})")


class PushEvent(_PayloadPart):
    """A branch of the repository itself was pushed, made or removed."""

    ref: Annotated[str, StringConstraints(pattern=r"^refs/heads/[^\x00-\x20\x7f]{1,500}$")]
    after: Sha
    deleted: bool = False
    repository: _Repo

    @property
    def number(self) -> int | None:
        """The pull request whose vetted head was copied to `pull-request/<number>`; None for any other branch."""
        found = MIRROR_REF.fullmatch(self.ref)
        return int(found[1]) if found and not self.deleted else None

    @property
    def branch(self) -> str:
        """The branch, which may be a base of pull requests."""
        return self.ref.removeprefix("refs/heads/")


WebhookEvent = (
    PullRequestEvent
    | CommentEvent
    | CheckRunEvent
    | CheckSuiteEvent
    | MergeGroupEvent
    | WorkflowRunEvent
    | WorkflowJobEvent
    | PushEvent
)

MODELS: dict[str, type[WebhookEvent]] = {
    "pull_request": PullRequestEvent,
    "issue_comment": CommentEvent,
    "check_run": CheckRunEvent,
    "check_suite": CheckSuiteEvent,
    "merge_group": MergeGroupEvent,
    "workflow_run": WorkflowRunEvent,
    "workflow_job": WorkflowJobEvent,
    "push": PushEvent,
}


# GitHub sends no more than 25 MB; what we read of it is far smaller.
MAX_BODY = 25_000_000


class BadDeliveryError(Exception):
    """A delivery that GitHub would not send; the text says what is odd, in one line, without quoting the body."""


def parse_event(name: str, body: bytes) -> WebhookEvent | None:
    """The event that GitHub calls `name`; None for an event or an action that we do not act on; BadDeliveryError."""
    model = MODELS.get(name)
    if model is None:
        return None
    if len(body) > MAX_BODY:
        raise BadDeliveryError(f"A delivery has {len(body):,} bytes; GitHub sends at most {MAX_BODY:,}")
    try:
        payload = json.loads(body.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadDeliveryError(f"A delivery is not JSON text: {type(error).__name__}") from None
    if not isinstance(payload, dict):
        raise BadDeliveryError("A delivery is not a JSON object")
    # What is malformed is not passed over, so that it is refused and seen.
    actions, action, ref = model.model_fields.get("action"), payload.get("action"), payload.get("ref")
    if actions is not None and isinstance(action, str) and action not in get_args(actions.annotation):
        return None
    if model is PushEvent and isinstance(ref, str) and not ref.startswith("refs/heads/"):
        return None
    try:
        event = model.model_validate(payload)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise BadDeliveryError(f"A {name} delivery is not what GitHub sends: {where}: {first['type']}") from None
    return None if isinstance(event, CommentEvent) and event.issue.pull_request is None else event


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)


@dataclass(frozen=True, slots=True)
class Received:
    """One webhook POST whose signature was right: GitHub's own id (kept on redelivery), the event, the raw body.

    `attempts` counts how often it was tried to act on it before.
    """

    id: str
    event: str
    body: bytes
    received: datetime
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class ClaimedTarget:
    """A target that one process has taken to look at."""

    target: str
    """The pull request or merge group, as text."""
    asked: int
    """How often it was asked for up to then."""
    attempts: int
    """How often looking at it failed since it last succeeded."""


# GitHub's words for how someone belongs to a repository, as a signed delivery states them.
MEMBERS = frozenset({"OWNER", "MEMBER", "COLLABORATOR"})
PEOPLE, OTHERS, PUSHES = "people", "others", "pushes"


@dataclass(frozen=True, slots=True)
class Posting:
    """One reaction or one reply on a pull request."""

    repository: str
    """`owner/name`."""
    number: int
    """The pull request."""
    subject: str
    """What it answers; there is one message for each subject of a repository."""
    comment_id: int = 0
    """The comment that is reacted to; 0 for a reply."""
    reaction: str = ""
    """GitHub's word for the reaction; empty for a reply."""
    body: str = ""
    """The reply in Markdown; empty for a reaction."""
    person: bool = False
    """Whether it answers someone with a role: others have a small budget of their own."""
    to: str = ""
    """The login of who is answered, empty where that is not known."""

    @property
    def lane(self) -> str:
        """Messages of one lane wait for each other, those of different lanes do not."""
        return f"{self.repository.partition('/')[0].lower()}:{PEOPLE if self.person else OTHERS}"


@dataclass(frozen=True, slots=True)
class Letter:
    """A message in the outbox."""

    number: int
    """What the outbox calls it."""
    message: Posting
    """What is to be written."""
    attempts: int = 0
    """How often it was tried before."""


def reaction_to(repository: str, number: int, comment_id: int, reaction: str, *, person: bool, to: str = "") -> Posting:
    """A reaction to a comment."""
    subject = f"reaction:{comment_id}:{reaction}"
    return Posting(repository, number, subject, comment_id=comment_id, reaction=reaction, person=person, to=to)


def reply_to(repository: str, number: int, source: str, body: str, *, person: bool, to: str = "") -> Posting:
    """A reply to what `source` names, as in the ledger's entries."""
    return Posting(repository, number, f"reply:{number}:{source}", body=body, person=person, to=to)


def delivery_lane(event: WebhookEvent | None) -> str:
    """The lane in which a delivery is processed; empty when it needs no answer from GitHub and waits for nothing.

    A request of someone with a role does not wait behind what others write, nor for another installation.
    """
    match event:
        case CommentEvent():
            kind = PEOPLE if event.comment.author_association in MEMBERS else OTHERS
        case CheckRunEvent() | CheckSuiteEvent():
            kind = PEOPLE
        case PullRequestEvent() if event.action == "labeled":
            kind = PEOPLE
        case PushEvent() if event.number is None:
            # The pull requests onto the branch are listed.
            kind = PUSHES
        case _:
            return ""
    return f"{event.repository.full_name.partition('/')[0].lower()}:{kind}"
