"""What comes from GitHub and what is to be written there, as our tables keep it."""

from dataclasses import asdict, dataclass, fields
from datetime import datetime

from verl_e2e.core.pulls.webhooks import (
    CheckRunEvent,
    CheckSuiteEvent,
    CommentEvent,
    Event,
    PullRequestEvent,
    PushEvent,
)


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
class Message:
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
    message: Message
    """What is to be written."""
    attempts: int = 0
    """How often it was tried before."""


def reaction_to(repository: str, number: int, comment_id: int, reaction: str, *, person: bool, to: str = "") -> Message:
    """A reaction to a comment."""
    subject = f"reaction:{comment_id}:{reaction}"
    return Message(repository, number, subject, comment_id=comment_id, reaction=reaction, person=person, to=to)


def reply_to(repository: str, number: int, source: str, body: str, *, person: bool, to: str = "") -> Message:
    """A reply to what `source` names, as in the ledger's entries."""
    return Message(repository, number, f"reply:{number}:{source}", body=body, person=person, to=to)


def as_values(message: Message) -> dict[str, object]:
    """The message as plain values."""
    return asdict(message)


def from_values(values: dict[str, object]) -> Message:
    """The message that `as_values` gave; keys of a later version are left out."""
    known = {field.name for field in fields(Message)}
    return Message(**{name: value for name, value in values.items() if name in known})  # type: ignore[arg-type]


def delivery_lane(event: Event | None) -> str:
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
