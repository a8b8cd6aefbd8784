"""What the bot remembers of a repository: commands, approvals, overrides, runs. Frozen documents, appended or replaced.

In App mode they lie in tables (`verl_e2e.adapters.store`), in Action mode they are read off GitHub each time.
Run keys make dispatch idempotent: one live run per key, whatever is delivered twice.
"""

import hashlib
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import AwareDatetime, Field

from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.access import DEFAULT_GATE
from verl_e2e.core.model.jobs import Digest, Document, Job, Sha
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result


class RecordedCommand(Document):
    """One command of an authorised person, as it was understood.

    `source` names where it stands and is unique: `comment:<id>:<line>`, `label:<name>:<head>`, `check:<id>:<action>`.
    `verb` and `arguments` are those of the table in `verl_e2e.core.pulls.commands`; `head_sha` is the head when it was
    read. `written` is when a comment was created, by GitHub's clock; None for a label or a button. `by_person` says
    whether the actor has a role in the repository.
    """

    source: str
    repository: str
    number: int
    actor: str
    verb: str
    arguments: tuple[str, ...] = ()
    options: dict[str, str] = Field(default_factory=dict)
    head_sha: str
    at: AwareDatetime
    written: AwareDatetime | None = None
    by_person: bool = True


class Approval(Document):
    """Leave for one exact head to run on the GPUs; any other head is not covered.

    `base` is the branch whose policy let the actor say so, and holds for no other; empty in entries of old.
    """

    repository: str
    number: int
    head_sha: Sha
    actor: str
    source: str
    at: AwareDatetime
    base: str = ""


class Override(Document):
    """A level of one exact head that a person takes the responsibility for, with the reason; never removed.

    `base` is as in an approval.
    """

    repository: str
    number: int
    head_sha: Sha
    level: Level
    reason: str
    actor: str
    source: str
    at: AwareDatetime
    base: str = ""


class RunState(StrEnum):
    """Where a run stands; the last four are final."""

    QUEUED = "queued"
    SUBMITTED = "submitted"
    RUNNING = "running"
    CANCELLING = "cancelling"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    LOST = "lost"
    REFUSED = "refused"

    @property
    def final(self) -> bool:
        """Whether nothing more will happen to the run."""
        return self in _FINAL


_FINAL = frozenset({RunState.FINISHED, RunState.CANCELLED, RunState.LOST, RunState.REFUSED})


class Run(Document):
    """One run of one job for one head.

    `key` is `run_key(...)`. `number` is None for a merge group. `required` says whether the plan asks for it (an extra
    or narrowed run never satisfies the gate). `handle` is the back end's own name for it once submitted. `result`,
    `sentence` and `verdict` (the text of verdict.json as the bot judged it itself) are there when it is finished.
    `carried_from` is the head that the verdict was taken from. `url` is where its log can be read. `asked_by` is the
    source of the entry that asked for it, empty for a job of the plan's first attempt. `merge_base` is the commit that
    a failure is held against, empty where there is none.
    """

    key: Digest
    repository: str
    number: int | None
    head_sha: Sha
    job_id: str
    job_digest: str
    attempt: Annotated[int, Field(ge=1)] = 1
    required: bool = True
    state: RunState = RunState.QUEUED
    handle: str = ""
    result: Result | None = None
    sentence: str = ""
    verdict: str = ""
    reason: str = ""
    url: str = ""
    carried_from: str = ""
    asked_by: str = ""
    merge_base: str = ""
    gpu_minutes: float = 0.0
    created: AwareDatetime
    updated: AwareDatetime
    job: Job | None = None
    # Whether the head lies in a fork, which has runners of its own.
    from_fork: bool = False
    # How long it may wait for a machine, in seconds: `gate.queue_deadline_s` of the policy when it was ordered.
    queue_deadline_s: Annotated[int, Field(ge=1)] = DEFAULT_GATE.queue_deadline_s
    # What the order holds and the run must return, made at random when it is given to the back end.
    nonce: str = ""
    # Whether we ended it ourselves for what may pass, so that it starts again by itself once that has.
    may_start_again: bool = False
    # What the back end itself knows of the run, once it has ended.
    took: BackendTimes | None = None


class Posted(Document):
    """What the bot has on GitHub for one subject, so that it edits and never posts twice.

    `kind` is `card` (subject: the pull request's number) or `check` (subject: `<head>:<name>`); `digest` that of the
    content last sent.
    """

    repository: str
    kind: str
    subject: str
    remote_id: int
    digest: str = ""
    at: datetime


def run_key(repository: str, head_sha: str, job_digest: str, attempt: int) -> str:
    """SHA-256 over repository, head, job and attempt: the same order is never two live runs."""
    return hashlib.sha256("\0".join((repository, head_sha, job_digest, str(attempt))).encode()).hexdigest()
