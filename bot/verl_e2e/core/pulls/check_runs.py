"""A check run as plain values, within GitHub's limits."""

from dataclasses import dataclass
from enum import StrEnum

# GitHub refuses a longer summary or text, a longer label, and more annotations in one request.
MAX_OUTPUT = 65_000
MAX_LABEL, MAX_DESCRIPTION, MAX_IDENTIFIER = 20, 40, 20
MAX_ANNOTATIONS = 50
MAX_ACTIONS = 3


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
    # Our own id of it, see `verl_e2e.core.pulls.checks_wanted.CheckId`.
    external_id: str


@dataclass(frozen=True, slots=True)
class Annotation:
    """A remark on changed lines, 1-based and inclusive; `level` is notice, warning or failure."""

    path: str
    first_line: int
    last_line: int
    level: str
    title: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckRun:
    """A check run as we want it, or as GitHub has it (`id` > 0).

    `status` is queued, in_progress or completed; `conclusion` is empty until completed. `external_id` is ours.
    `actions` are (label, description, identifier), at most three.
    """

    name: str
    head_sha: str
    status: str
    conclusion: str = ""
    title: str = ""
    summary: str = ""
    text: str = ""
    details_url: str = ""
    external_id: str = ""
    actions: tuple[tuple[str, str, str], ...] = ()
    annotations: tuple[Annotation, ...] = ()
    id: int = 0
    app_id: int | None = None
