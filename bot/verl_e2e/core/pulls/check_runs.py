"""A check run as plain values, within GitHub's limits."""

import re
from dataclasses import dataclass
from enum import StrEnum

# GitHub refuses a longer summary or text, a longer label, and more annotations in one request.
MAX_OUTPUT = 65_000
MAX_LABEL, MAX_DESCRIPTION, MAX_IDENTIFIER = 20, 40, 20
MAX_ANNOTATIONS = 50
MAX_ACTIONS = 3
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
