"""All that is known of a target at one moment: what `verl_e2e.core.pulls.decide` decides from.

Here too: where the rehearsal of a head stands, and why nothing starts. The rehearsal comes first. Jobs wait for it, and
a Fail keeps them from starting where the policy says so. What it cannot say is no reason to wait: one that was blocked,
lost or takes too long lets the jobs start, and the card says why.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from verl_e2e.core.compare.rehearsal import CellOutcome
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.model.access import Demand, Start
from verl_e2e.core.model.jobs import REHEARSAL, RehearsalJob
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.commands import (
    Counted,
    GivenEntry,
    NeedsApproval,
    Pause,
    Trusted,
    Uncounted,
    asked_again,
    cancelled_by,
    counted,
    was_begun,
)
from verl_e2e.core.pulls.forge import MergeGroup, OpenCheck, Pull, PullState, Target, repository_of
from verl_e2e.core.pulls.ledger import UNDERWAY, JobStatus, Override, Run, RunState, run_key, status_of_run
from verl_e2e.core.pulls.queue import Held, QueueView
from verl_e2e.core.pulls.wanted_jobs import WantedJob, continued
from verl_e2e.core.text.escape import Prose, prose

CLOSED = "the pull request is closed"


@dataclass(frozen=True, slots=True)
class OtherPull:
    """Another open pull request with the same head, for which the head is not satisfied."""

    # Its number.
    number: int
    # What its own gate says.
    title: str
    # Whether its gate waits for runs alone.
    underway: bool


@dataclass(frozen=True, slots=True)
class TargetState:
    """Everything that is known about a target."""

    # The pull request or merge group.
    target: Target
    # The time of the decision.
    now: datetime
    # The policy of the base.
    policy: Policy
    # Whether the head may run; that of a merge group may, because the queue let it in.
    trust: Trusted | NeedsApproval
    # The plan, None when there is none that can be relied on.
    plan: Plan | None = None
    # Why there is none, or empty.
    problem: str = ""
    # Uses in verl that the head breaks.
    broken: tuple[str, ...] = ()
    # The jobs of the plan and those that people requested, prerequisites first.
    wanted: tuple[WantedJob, ...] = ()
    # The rehearsal of this head; None where the policy has none, or where nothing is changed that one runs.
    rehearsal: RehearsalJob | None = None
    # Why that cannot run anywhere, empty where it can.
    rehearsal_missing: str = ""
    # What people asked for, in order.
    entries: tuple[GivenEntry, ...] = ()
    # The runs of every head of this target.
    runs: tuple[Run, ...] = field(default=())
    # Runs that other pull requests with this head have.
    elsewhere: tuple[Run, ...] = ()
    # Where the head left the base, empty where it is not known.
    merge_base: str = ""
    # The checks of this target, on any head, that may still have no conclusion on GitHub.
    opened: tuple[OpenCheck, ...] = ()
    # A pull request with the same head that keeps the commit's gate closed, None for none.
    other_pull: OtherPull | None = None
    # Overrides of this head whose givers may not give them, or not any more.
    refused: tuple[Uncounted, ...] = ()
    # What it sees of our queue.
    queue: QueueView = field(default_factory=QueueView)

    @property
    def repository(self) -> str:
        """The repository, `owner/name`."""
        return repository_of(self.target)

    @property
    def number(self) -> int | None:
        """The number of the pull request, None for a merge group."""
        return self.target.ref.number if isinstance(self.target, Pull) else None

    @property
    def head_sha(self) -> str:
        """The head as it is now."""
        return self.target.head_sha

    @property
    def over(self) -> str:
        """Why no one waits for this target any more, empty while someone does."""
        if isinstance(self.target, Pull):
            return CLOSED if self.target.state is PullState.CLOSED else ""
        return "the merge queue gave this group up" if self.target.destroyed else ""

    @property
    def draft(self) -> bool:
        """Whether it is a draft: planned, not run."""
        return isinstance(self.target, Pull) and self.target.draft

    @property
    def counted(self) -> Counted:
        """The overrides of this head, given under the policy of its base: those that count, and those that do not."""
        found = (entry for entry in self.entries if isinstance(entry, Override) and entry.head_sha == self.head_sha)
        given = (entry for entry in found if entry.base == self.target.base_branch)
        return counted(given, self.policy.overrides, self.now)

    @property
    def overrides(self) -> tuple[Override, ...]:
        """The overrides of this head that count."""
        return self.counted.overrides

    @property
    def here(self) -> tuple[Run, ...]:
        """The runs of this very head."""
        return tuple(run for run in self.runs if run.head_sha == self.head_sha)

    @property
    def shared(self) -> tuple[Run, ...]:
        """Runs elsewhere that speak for this target too: one that lives, and a pass; and runs that go on for it.

        Any other end may rest on the base of the pull request that it was made for.
        """
        elsewhere = (run for run in self.elsewhere if not run.state.final or run.result is Result.PASS)
        return (*elsewhere, *self.continued)

    @property
    def continued(self) -> tuple[Run, ...]:
        """Live runs of earlier heads that do a job of this one, each as a run of this head."""
        return tuple(continued(self.earlier, self.head_sha, self.wanted, self.here))

    @property
    def earlier(self) -> tuple[Run, ...]:
        """The runs of heads before this one."""
        return tuple(run for run in self.runs if run.head_sha != self.head_sha)


STARTS_WITHOUT = "jobs start without it"
_AFTER_A_FAIL = "an earlier attempt failed, so jobs start after this one alone"
_OF_OUTCOME = {
    CellOutcome.FAIL: JobStatus.FAILED,
    CellOutcome.BLOCKED: JobStatus.BLOCKED,
    CellOutcome.CHANGED: JobStatus.PASSED,
    CellOutcome.EQUAL: JobStatus.PASSED,
}


@dataclass(frozen=True, slots=True)
class RehearsalStanding:
    """The status of a head's rehearsal."""

    job: RehearsalJob
    status: JobStatus
    # Why it has that status, as a clause.
    reason: str
    # Whether jobs may start.
    lets_start: bool
    # Its last run, None where it has none.
    run: Run | None = None
    # When jobs start without its answer, None where they do not wait for one.
    starts_at: datetime | None = None
    # Why it closes the gate, as a sentence; empty where it does not.
    failure: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether it ran every cell on this very head and found nothing that the change moves."""
        rehearsed = self.run.rehearsed if self.run is not None else None
        return self.status is JobStatus.PASSED and rehearsed is not None and rehearsed.equal_everywhere

    @property
    def is_underway(self) -> bool:
        """Whether it is still to be waited for."""
        return self.status in UNDERWAY and not self.lets_start


def rehearsals_of(target_state: TargetState) -> tuple[Run, ...]:
    """The runs of this very rehearsal on this very head, by attempt; those of other pull requests with it too."""
    job = target_state.rehearsal
    return () if job is None else _runs_of(job, (*target_state.elsewhere, *target_state.here))


def rehearsed_before_jobs(job: RehearsalJob, runs: Iterable[Run]) -> Run | None:
    """The last run of a head's rehearsal that said what cells entered before any job of the head began, if one did.

    A verdict that was taken over from another head is not a job that began.
    """
    known = tuple(runs)
    jobs = (run.created for run in known if run.rehearsal is None and not run.carried_from)
    began = min(jobs, default=None)
    telling = [run for run in _runs_of(job, known) if run.rehearsed is not None and run.rehearsed.cells]
    in_time = [run for run in telling if began is None or run.updated <= began]
    return in_time[-1] if in_time else None


def _runs_of(job: RehearsalJob, runs: Iterable[Run]) -> tuple[Run, ...]:
    """The runs of exactly this rehearsal, each once, by attempt."""
    digest = job.digest()
    same = {run.key: run for run in runs if run.job_id == REHEARSAL and run.job_digest == digest}
    return tuple(sorted(same.values(), key=lambda run: run.attempt))


def rehearsal_standing(target_state: TargetState) -> RehearsalStanding | None:
    """The standing of the head's rehearsal, None where it has none."""
    job, runs = target_state.rehearsal, rehearsals_of(target_state)
    if job is None:
        return None
    standing = _of_last(job, runs[-1] if runs else None, target_state)
    # Only what the cells say takes the place of a Fail: not an attempt that is under way, lost, cancelled or blocked.
    answers = [run for run in runs if run.rehearsed is not None and run.rehearsed.outcome is not CellOutcome.BLOCKED]
    if not answers or answers[-1] is standing.run or answers[-1].rehearsed is None:
        return standing
    earlier = _judged(job, answers[-1], answers[-1].rehearsed.outcome, target_state)
    if not earlier.failure:
        return standing
    if standing.status in UNDERWAY:
        return replace(standing, reason=_AFTER_A_FAIL, lets_start=False, starts_at=None)
    reason = f"an earlier attempt failed, and no later one has passed: {earlier.failure}"
    return replace(standing, status=JobStatus.FAILED, reason=reason, lets_start=False, failure=earlier.failure)


def _of_last(job: RehearsalJob, last: Run | None, target_state: TargetState) -> RehearsalStanding:
    """The standing by the last attempt alone."""
    if last is None or (last.state is RunState.CANCELLED and last.may_start_again):
        if missing := target_state.rehearsal_missing:
            return RehearsalStanding(job, JobStatus.BLOCKED, f"{missing}; {STARTS_WITHOUT}", lets_start=True)
        # Jobs are held by the same, so nothing waits for ever.
        why = _hold(target_state)
        status = JobStatus.HELD if why else JobStatus.WAITING
        return RehearsalStanding(job, status, why or "it is about to start", lets_start=False)
    if last.state is RunState.FINISHED and last.rehearsed is not None:
        return _judged(job, last, last.rehearsed.outcome, target_state)
    status = status_of_run(last)
    if last.state.final:
        reason = last.sentence or last.reason or f"the run is {last.state}"
        return RehearsalStanding(job, status, f"{reason}; {STARTS_WITHOUT}", lets_start=True, run=last)
    limit = timedelta(seconds=target_state.policy.rehearsal.limit_s)
    starts_at = last.created + limit
    if target_state.now >= starts_at:
        reason = f"it has no answer after {limit.total_seconds() / 60:.0f} minutes; {STARTS_WITHOUT}"
        return RehearsalStanding(job, status, reason, lets_start=True, run=last)
    return RehearsalStanding(job, status, "jobs start after it", lets_start=False, run=last, starts_at=starts_at)


def spares_level_0(target_state: TargetState, standing: RehearsalStanding | None) -> bool:
    """Whether level 0 would show nothing more: only imports differ, and every cell is equal on this very head."""
    plan = target_state.plan
    return standing is not None and standing.is_equal and plan is not None and plan.differs_at_import_alone


def rehearsal_to_start(target_state: TargetState) -> Run | None:
    """The run of the head's rehearsal that is to start now: its first, or one that someone asked for again."""
    standing = rehearsal_standing(target_state)
    if standing is None or target_state.queue.pause is not None or _hold(target_state):
        return None
    last, source = standing.run, ""
    if last is not None:
        source = asked_again(last, target_state.here, target_state.entries)
        if not source:
            return None
    job, attempts = standing.job, rehearsals_of(target_state)
    limit_s = target_state.policy.rehearsal.limit_s
    run = new_run(target_state, REHEARSAL, job.digest(), attempts, source, limit_s)
    return run.model_copy(update={"required": False, "merge_base": job.base, "rehearsal": job})


def new_run(
    target_state: TargetState, job_id: str, digest: str, before: Iterable[Run], source: str, queue_deadline_s: int
) -> Run:
    """A run of the head that is to start now, after the attempts before; `source` is the entry that asked for it."""
    attempt = 1 + max((run.attempt for run in before), default=0)
    return Run(
        key=run_key(target_state.repository, target_state.head_sha, digest, attempt),
        repository=target_state.repository,
        number=target_state.number,
        head_sha=target_state.head_sha,
        job_id=job_id,
        job_digest=digest,
        attempt=attempt,
        queue_deadline_s=queue_deadline_s,
        asked_by=source,
        created=target_state.now,
        updated=target_state.now,
        from_fork=isinstance(target_state.target, Pull) and target_state.target.from_fork,
    )


def why_not_wanted(run: Run, target_state: TargetState) -> str:
    """Why exactly this rehearsal is not wanted any more, empty while it is or while that is not known."""
    if target_state.plan is None or (target_state.rehearsal and target_state.rehearsal.digest() == run.job_digest):
        return ""
    return "another rehearsal takes its place" if target_state.rehearsal else "no rehearsal is asked for any more"


def _hold(target_state: TargetState) -> str:
    """What keeps a rehearsal of the head from starting, as a clause; empty for nothing."""
    if why := target_state.over or target_state.problem or target_state.rehearsal_missing:
        return why
    if target_state.draft:
        return "drafts are not rehearsed"
    if target_state.policy.rehearsal.approval and isinstance(target_state.trust, NeedsApproval):
        return f"it needs an approval: {target_state.trust.reason}"
    cancelled = cancelled_by(target_state.entries, target_state.head_sha)
    return f"cancelled by {cancelled.actor}" if cancelled is not None else ""


def _judged(job: RehearsalJob, last: Run, outcome: CellOutcome, target_state: TargetState) -> RehearsalStanding:
    status, sentence = _OF_OUTCOME[outcome], last.sentence
    if outcome is CellOutcome.BLOCKED:
        sentence = f"{sentence}; {STARTS_WITHOUT}"
    closes = outcome is CellOutcome.FAIL and target_state.policy.rehearsal.fail is Demand.BLOCK
    # People may take the responsibility for every level of the plan, for level 0 where it has none.
    given = {override.level: override for override in target_state.overrides}
    needed = set(target_state.plan.levels if target_state.plan is not None else ()) or {Level.SMOKE}
    if closes and needed <= given.keys():
        people = " and ".join(dict.fromkeys(given[level].actor for level in sorted(needed)))
        closes, sentence = False, f"{sentence}; set aside, because {people} overrode every level of the plan"
    failure = sentence if closes else ""
    return RehearsalStanding(job, status, sentence, lets_start=not closes, run=last, failure=failure)


BROKEN_CONTRACT = "the change breaks what {} uses of Bridge, so no GPU is spent"
REHEARSAL_FAILED = "the rehearsal failed, so no GPU is spent"
DRAFT = "drafts are planned, not run"


@dataclass(frozen=True, slots=True)
class Hold:
    """Why the jobs of a head do not start, and what someone can do about it."""

    # A few words, the same wherever the state of the head is shown: heading, table, gate.
    in_short: str
    # More about the reason, empty where the few words say everything.
    reason: str = ""
    # What someone can do, with its commands as code; empty where there is nothing to do here.
    action: Prose | str = ""
    # Whether a person ended the work on this head, and nothing is wrong with it.
    cancelled: bool = False

    @property
    def sentence(self) -> str:
        """The few words and the reason, without what to do."""
        return f"{self.in_short}: {self.reason}" if self.reason else self.in_short


def hold(target_state: TargetState) -> Hold | None:
    """Why nothing may start for this head, None when jobs may."""
    if target_state.over or target_state.problem:
        return Hold(target_state.over or target_state.problem)
    if target_state.broken:
        return Hold(BROKEN_CONTRACT.format(VERL.title))
    rehearsal = rehearsal_standing(target_state)
    if rehearsal is not None and rehearsal.failure:
        return Hold(REHEARSAL_FAILED, rehearsal.failure, prose("comment `/verl-e2e rehearse` to run it once more"))
    if target_state.draft:
        return Hold(DRAFT, action="mark the pull request ready for review")
    if isinstance(target_state.trust, NeedsApproval):
        asks = prose(
            "look at the head, then comment `/verl-e2e approve {sha}` to let it run", sha=target_state.head_sha
        )
        return Hold("awaiting approval", target_state.trust.reason, asks)
    cancelled = cancelled_by(target_state.entries, target_state.head_sha)
    if cancelled is not None:
        again = prose("comment `/verl-e2e run` to start again")
        return Hold(f"cancelled by {cancelled.actor}", action=again, cancelled=True)
    return None


def hold_of_plan(target_state: TargetState) -> Hold | None:
    """Why the required jobs may not start: as for all jobs, or because the policy waits for a person to ask."""
    asked = isinstance(target_state.target, MergeGroup) or was_begun(target_state.entries, target_state.head_sha)
    waits = target_state.policy.gate.start is Start.ASKED and not asked
    start = prose("comment `/verl-e2e run` to start them")
    return hold(target_state) or (
        Hold("not requested yet", "the policy starts nothing by itself", start) if waits else None
    )


def hold_in_queue(held: Held) -> Hold:
    """Why a run gets no slot, and what someone can do about it."""
    if isinstance(held, Pause):
        resume = prose("a maintainer can comment `/verl-e2e resume` to let runs start again")
        return Hold(held.in_short, held.reason, resume)
    large = f"the slots `{held.name}` hold {held.limit} GPUs, and the job needs more"
    return Hold("no pool is large enough", large, "the operator has to raise `VERL_E2E_SLOTS`")
