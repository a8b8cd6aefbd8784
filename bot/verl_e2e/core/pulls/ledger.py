"""What the bot remembers of a repository: commands, approvals, overrides, runs. Frozen documents, appended or replaced.

In App mode they lie in tables (`verl_e2e.adapters.store`), in Action mode they are read off GitHub each time.
Run keys make dispatch idempotent: one live run per key, whatever is delivered twice. Here too: the status of a job, and
everything that a person or GitHub sees of it, in one table."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from verl_e2e.core.compare.rehearsal import CellOutcome
from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.access import DEFAULT_GATE
from verl_e2e.core.model.document import Document
from verl_e2e.core.model.jobs import Digest, Job, RehearsalJob, RunOrder, Sha
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import CauseId, Recurrence, Result, Stage
from verl_e2e.core.pulls.forge import CheckStatus, Conclusion

# The command; it counts for every head of a pull request, not only for the one on which it was given.
PRIORITY = "priority"
# Before the name of the branch, in the source of what a schedule asks for.
SCHEDULED = "schedule:"


class Priority(StrEnum):
    """How urgent the runs of a pull request are; the first is started first."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class QueueTerms(Document):
    """What the queue orders a run by."""

    priority: Priority = Priority.NORMAL
    # Since when the pull request waits for this job, where a push took an earlier run out of the queue; else None.
    since: AwareDatetime | None = None


class _Given(Document):
    # Where it was given, unique: `comment:<id>:<line>`, `label:<name>:<head>`, `check:<id>:<action>`, or
    # `schedule:<branch>` where no one gave it.
    source: str
    # `owner/name`.
    repository: str
    # The pull request.
    number: int
    # The login of the person.
    actor: str
    # When it was given or read.
    at: AwareDatetime


class RecordedCommand(_Given):
    """One command of an authorised person, as it was understood."""

    # A verb of the table in `verl_e2e.core.pulls.commands`.
    verb: str
    # Its arguments, in order.
    arguments: tuple[str, ...] = ()
    # Its options by name.
    options: dict[str, str] = Field(default_factory=dict)
    # The head when it was read.
    head_sha: str
    # When its comment was created, by GitHub's clock; None for a label or a button.
    written: AwareDatetime | None = None
    # Whether the actor has a role in the repository.
    by_person: bool = True


class _OfHead(_Given):
    # The head.
    head_sha: Sha
    # The branch whose policy lets the actor give it.
    base: str


class Approval(_OfHead):
    """Permission for one exact head to run on the GPUs; any other head is not covered."""


class Override(_OfHead):
    """A level of one exact head that a person takes responsibility for; never removed."""

    # The level.
    level: Level
    # The person's reason.
    reason: str


class RunState(StrEnum):
    """The state of a run; the last four are final."""

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


class RehearsalFailure(Document):
    """What failed first in a rehearsal."""

    # The cell, and what fails in it at the head and not at the base.
    what: str
    # The line of code, or the quantity; empty where that is not known.
    where: str = ""
    # The first changed function that it depends on; empty where that is not known.
    edited: str = ""


class Rehearsed(Document):
    """What a rehearsal came to, as we judged its records ourselves."""

    # The verdict.
    outcome: CellOutcome
    # Whether every cell ran and is equal, so that the change moves nothing that a rehearsal can see.
    equal_everywhere: bool = False
    # How many changed functions have lines that no cell entered.
    unentered: Annotated[int, Field(ge=0)] = 0
    # The section of the card, in Markdown.
    section: str = ""
    # None where nothing failed.
    failure: RehearsalFailure | None = None
    # What the cells entered of the changed files at the head, packed; empty where that is not known, or too much.
    cells: str = ""


class RunOfHead(Document):
    """A run, and the head that it is of."""

    # `run_key(...)`.
    key: Digest
    # `owner/name`.
    repository: str
    # The pull request, None for a merge group and for a commit of a watched branch.
    number: int | None
    # The head.
    head_sha: Sha


class Run(RunOfHead):
    """One run of one job, or one rehearsal, for one head."""

    # The id of its job.
    job_id: str
    # The digest of its job.
    job_digest: str
    # From 1 for each job of a head.
    attempt: Annotated[int, Field(ge=1)] = 1
    # Whether the plan asks for it; an extra or narrowed run never satisfies the gate.
    required: bool = True
    # Whether the plan asked for its job only to be shown.
    shown: bool = False
    # The state of the run.
    state: RunState = RunState.QUEUED
    # The back end's own name for it, once submitted.
    handle: str = ""
    # Its result, once finished.
    result: Result | None = None
    # Whether nothing keeps it from a pass but that it never entered the changed code.
    never_entered: bool = False
    # The sentence of its verdict, once finished.
    sentence: str = ""
    # The text of `verdict.json` as the bot judged it itself, once finished.
    verdict: str = ""
    # Why it ended without a verdict, or why it is to end.
    reason: str = ""
    # Where its log can be read.
    url: str = ""
    # The head that the verdict was taken from, empty for its own.
    carried_from: str = ""
    # The pull request of that head, None for its own and for a merge group.
    origin_number: int | None = None
    # When that verdict was made, None for its own.
    origin_at: AwareDatetime | None = None
    # What its verdict depends on as a digest, empty where that is not known; see `verl_e2e.core.pulls.wanted_jobs`.
    reuse_key: str = ""
    # The sources of Bridge of which it executed something, packed; empty where no whole record tells.
    executed_files: str = ""
    # The source of the entry that requested it, empty for the plan's first attempt.
    asked_by: str = ""
    # The commit that a failure is compared with, empty where there is none.
    merge_base: str = ""
    # What it used.
    gpu_minutes: float = 0.0
    # When it was created.
    created: AwareDatetime
    # When it last changed.
    updated: AwareDatetime
    # The job itself, None for a rehearsal, and where Action mode had no room for that of an ended run.
    job: Job | None = None
    # The rehearsal in the place of a job, None for a job.
    rehearsal: RehearsalJob | None = None
    # What it came to, None before it ended and for a job.
    rehearsed: Rehearsed | None = None
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
    # What kept it from a pass, as identifiers of `verl_e2e.core.model.outcome`; empty where that is not known.
    causes: tuple[CauseId, ...] = ()
    # Whether the change may have caused what blocked it.
    undecided: bool = False
    # What related runs showed of its failure, None where they showed neither.
    recurrence: Recurrence | None = None
    # Where its failure lies, None for a Pass and where that is not known.
    stage: Stage | None = None
    # What identifies its failure, of 16 hexadecimal digits; empty where nothing does.
    fingerprint: Annotated[str, Field(pattern=r"^(?:[0-9a-f]{16})?$")] = ""
    # The key of the run that this one repeats because the infrastructure broke it, empty for every other run.
    retry_of: str = ""
    # Whether it waits in our own queue and the back end does not know of it; see `waits_for_slot`.
    awaits_slot: bool = False
    # When the queue let it start, None before that.
    admitted: AwareDatetime | None = None
    # What the queue orders it by.
    terms: QueueTerms = QueueTerms()

    @property
    def of_plan(self) -> bool:
        """Whether the plan asked for its job, be it only to be shown."""
        return self.required or self.shown

    @property
    def order(self) -> RunOrder | None:
        """What the back end is given to run, None where it is not kept any more."""
        return self.job or self.rehearsal

    @property
    def branch(self) -> str:
        """The watched branch whose schedule asked for it, empty for a run of a pull request or a merge group."""
        return self.asked_by.removeprefix(SCHEDULED) if self.asked_by.startswith(SCHEDULED) else ""

    @property
    def waits_for_slot(self) -> bool:
        """Whether it waits in our own queue, so that nothing has to be ended and no machine is late."""
        return self.awaits_slot and self.state is RunState.QUEUED

    @property
    def ordered(self) -> datetime:
        """Since when a machine may be late: when the queue let it start, else when it was created."""
        return self.admitted or self.created

    def let_start(self, now: datetime) -> "Run":
        """The run once the queue lets it start."""
        return self.model_copy(update={"awaits_slot": False, "admitted": now, "updated": now})


class Note(Document):
    """What is remembered of a subject: each kind of note has a class of its own, and a subject has one of each kind."""

    # `owner/name`.
    repository: str
    # `<head>`, `<head>:...`, `<number of the pull request>` or `<number>:...`.
    subject: str
    # When it was written down.
    at: AwareDatetime


class Posted(Note):
    """What stands on GitHub for a card, a check run or a reply, so that it is edited and never posted twice."""

    kind: Literal["posted"] = "posted"
    # GitHub's id.
    remote_id: int
    # The digest of the content last sent; empty where it is to be sent again.
    digest: str = ""


class CreationStep(StrEnum):
    """How far the creation of something on GitHub is."""

    # It is about to be created, or was asked for without an answer.
    ASKED = "asked"
    # It was created, and its id may not have been kept.
    MADE = "made"
    # It is known, or the last attempt made nothing.
    SETTLED = "settled"


class Creation(Note):
    """The creation of something that there is to be once on GitHub; `at` is when it was last tried."""

    kind: Literal["creation"] = "creation"
    step: CreationStep
    # How often it was tried again without knowing what became of the time before, so that there may be doubles.
    doubts: int = 0
    # How often doubles were looked for since.
    looks: int = 0


class ReadPolicy(Note):
    """Under which policy a head was last looked at."""

    kind: Literal["policy"] = "policy"
    # SHA-256 of its file, empty for the packaged one, `gone` where there was no base.
    digest: str
    # The name of its gate.
    gate_name: str


class Pushers(Note):
    """Who pushed a head, as the webhooks of the pushes said, in small letters."""

    kind: Literal["pushers"] = "pushers"
    logins: tuple[str, ...]


class OpenChecks(Note):
    """The check runs of a head that may be without a conclusion on GitHub, each as name and our own id."""

    kind: Literal["open-checks"] = "open-checks"
    checks: tuple[tuple[str, str], ...]


class OpenHeads(Note):
    """The heads of a target on which check runs may be open."""

    kind: Literal["open-heads"] = "open-heads"
    heads: tuple[Sha, ...]


class ReadPosts(Note):
    """That the posts of a pull request were compared with what they should say."""

    kind: Literal["read"] = "read"
    # The source of the last `status` by then, empty for none.
    status: str = ""
    # Whether someone touched a comment of ours since.
    touched: bool = False


class WatchedJob(Document):
    """How a job stands on a watched branch, or with newer commits of verl."""

    # Its id; the same with another verl is a row of its own.
    job_id: str
    # Whether commits of verl are compared, at the commit of the round.
    of_verl: bool = False
    # The newest commit on which it is known to have passed, empty for none.
    good: Sha | Literal[""] = ""
    # The commit on which it was seen to fail, empty while it passes.
    bad: Sha | Literal[""] = ""
    # What identifies that failure, empty where nothing does.
    fingerprint: str = ""
    # The commits that were run to find what broke it, in order.
    probed: tuple[Sha, ...] = ()
    # In how many rounds in a row it passed, or as a negative number failed.
    streak: int = 0
    # Whether it was said what broke it.
    told: bool = False


class Watched(Note):
    """The last round on a watched branch; `at` is when it began. It stands with the commit that was run."""

    kind: Literal["watched"] = "watched"
    # The commit of the branch.
    head: Sha
    # Whether every job of it has its answer.
    answered: bool = False
    # Whether, besides, it was said of each that failed what broke it.
    over: bool = False
    # The newest commit of verl that was run with it, empty for none.
    verl: Sha | Literal[""] = ""
    # The jobs so far.
    jobs: tuple[WatchedJob, ...] = ()


# The notes that Action mode keeps too.
AnyNote = Annotated[
    Posted | Creation | ReadPolicy | Pushers | OpenChecks | OpenHeads | ReadPosts | Watched,
    Field(discriminator="kind"),
]


def kind_of(note: type[Note]) -> str:
    """The word for a kind of note."""
    return str(note.model_fields["kind"].default)


def run_key(repository: str, head_sha: str, job_digest: str, attempt: int) -> str:
    """SHA-256 over repository, head, job and attempt: the same order is never two live runs."""
    return hashlib.sha256("\0".join((repository, head_sha, job_digest, str(attempt))).encode()).hexdigest()


class JobStatus(StrEnum):
    """The status of a job, or of all required jobs together. The value is the word in a sentence."""

    # Before a result on the card.
    icon: str
    # The result on the card.
    word: str
    # The status of the check run.
    check: CheckStatus
    # The conclusion of the check run, None before it is completed.
    conclusion: Conclusion | None

    def __new__(
        cls, value: str, icon: str, word: str, check: CheckStatus, conclusion: Conclusion | None = None
    ) -> "JobStatus":
        """A member with all that is shown of it."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.icon, member.word, member.check, member.conclusion = icon, word, check, conclusion
        return member

    PASSED = "passed", "✅", "Pass", CheckStatus.COMPLETED, Conclusion.SUCCESS
    OVERRIDDEN = "overridden", "⚠️", "Overridden", CheckStatus.COMPLETED, Conclusion.SUCCESS
    FAILED = "failed", "❌", "Fail", CheckStatus.COMPLETED, Conclusion.FAILURE
    BLOCKED = "blocked", "⛔", "Blocked", CheckStatus.COMPLETED, Conclusion.ACTION_REQUIRED
    # Blocked by nothing but that the run never entered the changed code: another job may make up for it.
    UNEXECUTED = "unexecuted", "🚫", "Not executed", CheckStatus.COMPLETED, Conclusion.ACTION_REQUIRED
    # Such a run that another job makes up for, or that the policy allows.
    ACCEPTED = "accepted", "☑️", "Accepted", CheckStatus.COMPLETED, Conclusion.SUCCESS
    # No host can run it, and the policy lets the gate open without it.
    UNCOVERABLE = "not covered", "🚧", "Not covered", CheckStatus.COMPLETED, Conclusion.SUCCESS
    # The policy sets its end aside until a day, and the gate stays closed all the same.
    QUARANTINED = "quarantined", "🧪", "Quarantined", CheckStatus.COMPLETED, Conclusion.ACTION_REQUIRED
    # The same, and the policy lets the gate open: its own check stays what it is.
    TOLERATED = "tolerated", "🩹", "Tolerated", CheckStatus.COMPLETED, Conclusion.ACTION_REQUIRED
    RUNNING = "running", "🔄", "Running", CheckStatus.IN_PROGRESS
    WAITING = "waiting", "⏳", "Waiting", CheckStatus.QUEUED
    SKIPPED = "skipped", "⏭️", "Skipped", CheckStatus.COMPLETED, Conclusion.ACTION_REQUIRED
    HELD = "held", "⏸️", "Held", CheckStatus.COMPLETED, Conclusion.ACTION_REQUIRED
    CANCELLED = "cancelled", "⏹️", "Cancelled", CheckStatus.COMPLETED, Conclusion.CANCELLED
    # Of all jobs together only: the plan requires none.
    NOT_REQUIRED = "not required", "✅", "Nothing required", CheckStatus.COMPLETED, Conclusion.SUCCESS


# Ended without a pass: what can be run again.
ENDED = frozenset(
    {
        *(JobStatus.FAILED, JobStatus.BLOCKED, JobStatus.UNEXECUTED, JobStatus.CANCELLED),
        JobStatus.QUARANTINED,
    }
)
SATISFIED = frozenset(
    {
        *(JobStatus.PASSED, JobStatus.OVERRIDDEN, JobStatus.ACCEPTED, JobStatus.UNCOVERABLE, JobStatus.TOLERATED),
        JobStatus.NOT_REQUIRED,
    }
)
# The run itself was good, so what needs the job may start.
RAN_WELL = SATISFIED | {JobStatus.UNEXECUTED}
UNDERWAY = frozenset({JobStatus.RUNNING, JobStatus.WAITING})
# A held or cancelled job may be started again by a person, so what requires it is not lost.
_MAY_PASS = RAN_WELL | UNDERWAY | {JobStatus.HELD, JobStatus.CANCELLED}
OF_RESULT = {Result.PASS: JobStatus.PASSED, Result.FAIL: JobStatus.FAILED, Result.BLOCKED: JobStatus.BLOCKED}


def status_of_verdict(verdict: Verdict) -> JobStatus:
    """What a verdict comes to for the jobs that need this one."""
    return JobStatus.UNEXECUTED if verdict.never_entered else OF_RESULT[verdict.result]


def status_of_run(run: Run) -> JobStatus:
    """What the state and the result of a run come to; a run that was lost or refused is blocked."""
    if run.state is RunState.CANCELLED:
        return JobStatus.CANCELLED
    if run.state is RunState.FINISHED and run.never_entered:
        return JobStatus.UNEXECUTED
    if run.state.final:
        finished = run.state is RunState.FINISHED and run.result is not None
        return OF_RESULT[run.result] if finished and run.result is not None else JobStatus.BLOCKED
    return JobStatus.WAITING if run.state is RunState.QUEUED else JobStatus.RUNNING


@dataclass(frozen=True, slots=True)
class Turn:
    """What a job waits for, or why it is skipped; both are empty when it may start.

    Level 0 runs first and alone and the rest after it passed, because every other job requires it. One that ran well
    and never entered the changed code lets the rest start: another job may enter it.
    """

    # Why it is not started any more, as a clause.
    skipped: str = ""
    # The first required job that may still pass, and has not.
    waits_for: str = ""

    @property
    def has_come(self) -> bool:
        """Whether the job may start now."""
        return not self.skipped and not self.waits_for


def turn_of(requires: Iterable[str], statuses: Mapping[str, JobStatus]) -> Turn:
    """The turn of a job from the ids that it requires; an id without a status is of a job that no one runs."""
    waiting = ""
    for required in requires:
        status = statuses.get(required)
        if status not in _MAY_PASS:
            return Turn(skipped=f"it needs {required}, which did not pass")
        if status not in RAN_WELL:
            waiting = waiting or required
    return Turn(waits_for=waiting)
