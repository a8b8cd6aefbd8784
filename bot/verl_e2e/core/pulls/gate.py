"""The gate: the one check that a branch protection may require, from the required jobs of a head.

It is always reported. Success needs, for every required job, a pass of exactly that job on exactly that head, or a
level that someone took the responsibility for. What is not known is never a success.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from verl_e2e.core.judge.execution import Shortfall
from verl_e2e.core.model.known_defects import QuarantinedCause
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.forge import Conclusion
from verl_e2e.core.pulls.job_status import SATISFIED, UNDERWAY, JobStatus, status_of_run, turn_of
from verl_e2e.core.pulls.ledger import Override, Run, RunState
from verl_e2e.core.pulls.retry import Attempt
from verl_e2e.core.pulls.target_state import Hold
from verl_e2e.core.pulls.wanted_jobs import WantedJob, changed_since, origin_text, replaced_run, runs_of

MAX_TITLE = 200


@dataclass(frozen=True, slots=True)
class Standing:
    """The status of a wanted job, with the reason."""

    wanted: WantedJob
    state: JobStatus
    # Why it has that status, as a clause.
    reason: str
    # Its last run, None where it has none.
    run: Run | None = None
    # The override of its level that counts, None where the job needs none.
    override: Override | None = None
    # Why nothing starts for the head, where that keeps this job from starting.
    hold: Hold | None = None
    # The attempt that follows by itself, or why none does; None where the infrastructure did not block it.
    attempt: Attempt | None = None
    # The attempts before `run`, oldest first.
    earlier: tuple[Run, ...] = ()
    # The entry of the policy that sets its end aside, None where none does.
    quarantine: QuarantinedCause | None = None
    # The attempt that failed where the last one passed, None where none did.
    disagrees_with: Run | None = None
    # The last run of the head that ended and was of another job with this name, so that it does not count; else None.
    replaces: Run | None = None

    @property
    def clause(self) -> str:
        """Status and reason in one clause; the reason of a quarantine says both."""
        return self.reason if self.quarantine is not None else f"{self.state}: {self.reason}"

    @property
    def repetition(self) -> str:
        """Why the job runs though a run of its name ended on this head; empty where none did, or it passed since."""
        if self.replaces is None or self.state in SATISFIED:
            return ""
        ended = f"a run of {self.wanted.id} that ended on {self.replaces.updated:%Y-%m-%d}"
        word = status_of_run(self.replaces).word
        return f"{ended} ({word}) does not count any more: {changed_since(self.replaces, self.wanted)}"

    @property
    def disagreement(self) -> str:
        """That the last attempt disagrees with one that failed, as a clause; empty where it does not."""
        if self.disagrees_with is None or self.run is None:
            return ""
        good = "was good" if self.run.never_entered else "passed"
        return (
            f"attempt {self.run.attempt} {good} and disagrees with attempt {self.disagrees_with.attempt}, which failed"
        )


Settle = Callable[[Standing], Standing]


@dataclass(frozen=True, slots=True)
class Gate:
    """The status of the gate, its one sentence, and the reasons for it."""

    # The status of the required jobs together; a closed gate has the status of a held or cancelled job.
    status: JobStatus
    # One sentence of plain text, at most `MAX_TITLE` characters.
    title: str
    # Reasons that do not belong to a single job: an obstacle, what the change breaks, why nothing is required.
    general: tuple[str, ...] = ()
    # A reason for every required job.
    of_jobs: tuple[str, ...] = ()
    # The obstacle with the command that removes it, empty where no command does.
    action: str = ""
    # Whether the title holds the whole obstacle.
    says_obstacle: bool = False

    @property
    def conclusion(self) -> Conclusion | None:
        """The conclusion of the gate's check run, None while jobs are running."""
        # A person stopped the work and a person must start it again: GitHub calls that "action required".
        return Conclusion.ACTION_REQUIRED if self.status is JobStatus.CANCELLED else self.status.conclusion

    @property
    def is_open(self) -> bool:
        """Whether a branch protection may let the change through."""
        return self.status in SATISFIED

    @property
    def reasons(self) -> tuple[str, ...]:
        """All reasons, the general ones first."""
        return (*self.general, *self.of_jobs)


def standings(
    wanted: Iterable[WantedJob],
    runs: tuple[Run, ...],
    overrides: Iterable[Override],
    head_sha: str,
    hold: Hold | None = None,
    settle: Settle | None = None,
) -> tuple[Standing, ...]:
    """The status of each job, in the order given, prerequisites first.

    `hold` says why no job is started, None when jobs may start. `settle` says what policy and earlier attempts make of
    a job whose status its last run gives; jobs that need it see that.
    """
    taken: dict[Level, tuple[Override, ...]] = {}
    for override in overrides:
        if override.head_sha == head_sha:
            taken[override.level] = (*taken.get(override.level, ()), override)
    found: dict[str, Standing] = {}
    for wanted_job in wanted:
        of_job = runs_of(wanted_job, head_sha, runs)
        replaced = replaced_run(wanted_job, head_sha, runs)
        standing = replace(_standing(wanted_job, of_job, taken, found, hold), earlier=of_job[:-1], replaces=replaced)
        found[wanted_job.id] = settle(standing) if settle is not None else standing
    return tuple(found.values())


def _standing(
    wanted: WantedJob,
    runs: tuple[Run, ...],
    overrides: Mapping[Level, tuple[Override, ...]],
    before: Mapping[str, Standing],
    hold: Hold | None,
) -> Standing:
    last = runs[-1] if runs else None
    given = overrides.get(wanted.level, ()) if wanted.required else ()
    if last is not None and status_of_run(last) is JobStatus.PASSED:
        return Standing(wanted, JobStatus.PASSED, _passed_reason(last), last)
    if given:
        return Standing(wanted, JobStatus.OVERRIDDEN, overridden_reason(given), last, given[0])
    if last is not None:
        if last.state is RunState.CANCELLED and hold is not None:
            return _held(wanted, hold, last)
        return Standing(wanted, _status(last), _run_reason(last), last)
    return _not_begun(wanted, before, hold)


def overridden_reason(given: tuple[Override, ...]) -> str:
    """Who took the responsibility for a level, and why; `given` has at least one override."""
    people = " and ".join(dict.fromkeys(override.actor for override in given))
    return f"level {int(given[0].level)} is overridden by {people}: {given[0].reason}"


def _passed_reason(run: Run) -> str:
    text = run.sentence or "passed"
    return f"{text}; {origin_text(run)}" if run.carried_from else text


def _status(run: Run) -> JobStatus:
    """The status of a job whose last run did not pass; a cancelled run keeps the gate closed like a blocked one."""
    if not run.state.final:
        return JobStatus.RUNNING
    status = status_of_run(run)
    return JobStatus.BLOCKED if status is JobStatus.CANCELLED else status


def _run_reason(run: Run) -> str:
    return run.sentence or run.reason or f"the run is {run.state}"


def _not_begun(wanted: WantedJob, before: Mapping[str, Standing], hold: Hold | None) -> Standing:
    if wanted.job is None:
        return Standing(wanted, JobStatus.BLOCKED, wanted.missing or "it cannot be completed")
    turn = turn_of(wanted.requires, {job_id: standing.state for job_id, standing in before.items()})
    if turn.skipped:
        return Standing(wanted, JobStatus.SKIPPED, turn.skipped)
    if hold is not None:
        return _held(wanted, hold)
    reason = f"it waits for {turn.waits_for}" if turn.waits_for else "it is about to start"
    return Standing(wanted, JobStatus.WAITING, reason)


def _held(wanted: WantedJob, hold: Hold, run: Run | None = None) -> Standing:
    return Standing(wanted, JobStatus.CANCELLED if hold.cancelled else JobStatus.HELD, hold.in_short, run, hold=hold)


def gate(
    found: Iterable[Standing],
    *,
    nothing_reason: tuple[str, ...] = (),
    obstacle: str = "",
    command: str = "",
    broken: tuple[str, ...] = (),
    failed_rehearsal: str = "",
    waits_for: str = "",
    unexecuted: Shortfall = Shortfall(),
    acceptance: str = "",
    in_tests_alone: str = "",
) -> Gate:
    """The gate of a head from the status of its wanted jobs; extra jobs do not count.

    - `nothing_reason`: why the plan requires no level.
    - `obstacle`: what keeps the gate from success whatever the jobs say, as a plan that cannot be relied on.
    - `command`: the command that removes the obstacle; only in the text, because a title is plain and may be cut.
    - `broken`: uses in verl that the change breaks; a failure unless every required level is overridden.
    - `failed_rehearsal`: what the head's rehearsal found that it must not do; a failure.
    - `waits_for`: what else the gate waits for once the jobs are satisfied.
    - `unexecuted`: what no job executed of the change, once the jobs are satisfied.
    - `acceptance`: the command that accepts it; only in the text.
    - `in_tests_alone`: what Bridge tests alone executed of the change.
    """
    required = tuple(standing for standing in found if standing.wanted.required)
    of_jobs = tuple(_reason(standing) for standing in required)
    unsatisfied = [standing for standing in required if standing.state not in SATISFIED]
    if any(standing.state is JobStatus.FAILED for standing in unsatisfied):
        return Gate(JobStatus.FAILED, _first(unsatisfied, JobStatus.FAILED), broken, of_jobs)
    if broken and (unsatisfied or not _all_overridden(required)):
        return Gate(JobStatus.FAILED, "The change breaks what verl uses of Bridge", broken, of_jobs)
    if failed_rehearsal:
        return Gate(JobStatus.FAILED, _sentence(failed_rehearsal), (failed_rehearsal, *broken), of_jobs)
    if obstacle:
        whole = f"{obstacle}; {command}" if command else obstacle
        title, action = _sentence(obstacle), whole if command else ""
        fits_title = len(obstacle) <= MAX_TITLE
        return Gate(JobStatus.BLOCKED, title, (whole, *broken), of_jobs, action=action, says_obstacle=fits_title)
    if any(standing.state in UNDERWAY for standing in unsatisfied):
        return Gate(JobStatus.RUNNING, _progress(required), broken, of_jobs)
    if unsatisfied:
        first = unsatisfied[0]
        status = first.state if first.state in (JobStatus.HELD, JobStatus.CANCELLED) else JobStatus.BLOCKED
        return Gate(status, _unsatisfied_title(first), broken, of_jobs)
    if unexecuted.closing:
        whole = f"{unexecuted.closing}; {acceptance}" if acceptance else unexecuted.closing
        return Gate(JobStatus.BLOCKED, _sentence(unexecuted.closing), (whole, *broken), of_jobs, action=whole)
    if waits_for:
        waiting = f"waits for {waits_for}"
        return Gate(JobStatus.RUNNING, _sentence(waiting), (waiting, *broken), of_jobs)
    if not required:
        return Gate(JobStatus.NOT_REQUIRED, "No verl coverage is required by this change", nothing_reason)
    allowed = f"{unexecuted.allowed}, which the policy allows" if unexecuted.allowed else ""
    title = "; ".join(text for text in (_passed_title(required), in_tests_alone, allowed) if text)
    return Gate(JobStatus.PASSED, _sentence(title), (*([allowed] if allowed else []), *broken), of_jobs)


def _reason(standing: Standing) -> str:
    # The run's own check shows its progress; here it would be a write for each of its steps.
    reason = "" if standing.state is JobStatus.RUNNING else f", {standing.reason}"
    return f"{standing.wanted.id}: {standing.state}{reason}"


def _all_overridden(required: tuple[Standing, ...]) -> bool:
    return bool(required) and all(standing.state is JobStatus.OVERRIDDEN for standing in required)


def _first(rows: list[Standing], state: JobStatus) -> str:
    first = next(row for row in rows if row.state is state)
    return _sentence(f"{first.wanted.id} {state}: {first.reason}")


def _sentence(text: str) -> str:
    shown = text[:1].upper() + text[1:]
    return shown if len(shown) <= MAX_TITLE else f"{shown[: MAX_TITLE - 4]} ..."


def _unsatisfied_title(first: Standing) -> str:
    """What keeps the gate closed; a command is in the summary, because a title is plain text and may be cut."""
    if first.hold is not None:
        return _sentence(first.hold.sentence)
    return _sentence(f"{first.wanted.id} {first.clause}")


def _progress(required: tuple[Standing, ...]) -> str:
    done = sum(standing.state in SATISFIED for standing in required)
    running = ", ".join(standing.wanted.id for standing in required if standing.state is JobStatus.RUNNING)
    return f"{done} of {len(required)} required jobs satisfied" + (f", running {running}" if running else "")


def _passed_title(required: tuple[Standing, ...]) -> str:
    taken = [standing for standing in required if standing.override is not None]
    made_up = sum(standing.state is JobStatus.ACCEPTED for standing in required)
    uncovered = [standing for standing in required if standing.state is JobStatus.UNCOVERABLE]
    aside = [standing for standing in required if standing.state is JobStatus.TOLERATED]
    disputed = [standing for standing in required if standing.disagrees_with is not None]
    named = f", {_disputed(disputed)}" if disputed else ""
    if not taken and not made_up and not uncovered and not aside and not disputed:
        return f"All {len(required)} required jobs passed" if len(required) > 1 else "The required job passed"
    people = ", ".join(dict.fromkeys(standing.override.actor for standing in taken if standing.override is not None))
    count = len(required) - len(taken) - made_up - len(uncovered) - len(aside)
    passed = f"{count} of {len(required)} required jobs passed{named}"
    left_aside = f", {len(aside)} {aside[0].reason}" if aside else ""
    left = f", {len(uncovered)} not covered: {uncovered[0].reason}" if uncovered else ""
    accepted = f", {made_up} accepted that never entered the change" if made_up else ""
    return f"{passed}{left_aside}{accepted}{f', {len(taken)} overridden by {people}' if taken else ''}{left}"


def _disputed(disputed: list[Standing]) -> str:
    """Which passes disagree with an attempt that failed, the first in full."""
    first = disputed[0]
    assert first.disagrees_with is not None
    more = f" (and {len(disputed) - 1} more)" if len(disputed) > 1 else ""
    return f"{first.wanted.id} disagrees with attempt {first.disagrees_with.attempt}, which failed{more}"
