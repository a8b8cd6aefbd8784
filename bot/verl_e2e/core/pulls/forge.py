"""What GitHub says about itself: workflow runs, the installation, what a branch requires, deliveries."""

from dataclasses import dataclass, field
from datetime import datetime


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
