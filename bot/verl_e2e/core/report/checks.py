"""The check runs to show: the gate, one for each job, and an end for those of heads that were superseded."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.rehearsal_job import REHEARSAL
from verl_e2e.core.pulls.check_runs import (
    CANCEL,
    LEVEL_BUTTON,
    RERUN,
    CheckId,
    CheckRun,
    CheckStatus,
    Conclusion,
    OpenCheck,
    check_name,
    read_check_id,
)
from verl_e2e.core.pulls.decide import Actions
from verl_e2e.core.pulls.gate import Gate, Standing
from verl_e2e.core.pulls.job_status import ENDED, JobStatus, status_of_run
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.pull import MergeGroup
from verl_e2e.core.pulls.rehearsal_standing import RehearsalStanding
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.report.check_text import gate_text, job_text, title, waits
from verl_e2e.core.report.queue_text import queue_notices
from verl_e2e.core.report.rehearsal_standing_text import rehearsal_check, rehearsal_waits


def checks_wanted(target_state: TargetState, steps: Actions) -> tuple[CheckRun, ...]:
    """Every check run to show after the actions, the gate first; the same values for the same state."""
    if not steps.shows_checks:
        return ()
    # Of a group that the queue wants no more, perhaps because it was merged, only what is open is ended.
    own = () if _is_given_up(target_state) else tuple(_own(target_state, steps))
    known = {(check.name, check.head_sha) for check in own}
    others = (check for check in target_state.opened if (check.name, check.head_sha) not in known)
    return (*own, *(end for check in others if (end := _closing(target_state, check, steps.runs)) is not None))


def _is_given_up(target_state: TargetState) -> bool:
    return isinstance(target_state.target, MergeGroup) and target_state.target.destroyed


def _own(target_state: TargetState, steps: Actions) -> Iterator[CheckRun]:
    yield _gate_check(target_state, steps.standings, steps.gate)
    yield from _rehearsal_check(target_state, steps.rehearsal)
    yield from _job_checks(target_state, steps.standings)
    yield from _left_over(target_state, steps)


def _gate_check(target_state: TargetState, found: tuple[Standing, ...], message: Gate) -> CheckRun:
    words = gate_text(found, message, tuple(queue_notices(target_state, message.status)))
    return CheckRun(
        name=target_state.policy.gate.name,
        head_sha=target_state.head_sha,
        status=message.status.check,
        conclusion=message.conclusion or "",
        title=words.title,
        summary=words.summary,
        text=words.text,
        external_id=str(CheckId(target_state.number or 0, target_state.head_sha)),
        actions=_actions(found),
    )


def _actions(found: tuple[Standing, ...]) -> tuple[tuple[str, str, str], ...]:
    actions = []
    if any(standing.state in ENDED and standing.run is not None for standing in found):
        actions.append(("Rerun failed", "Run again what did not pass", RERUN))
    waiting = any(standing.run is not None and standing.run.waits_for_slot for standing in found)
    if waiting or any(standing.state is JobStatus.RUNNING for standing in found):
        actions.append(("Cancel", "Cancel all runs of this head", CANCEL))
    wanted = {standing.wanted.level for standing in found}
    following = next((level for level in Level if level not in wanted), None)
    if following is not None:
        actions.append((f"Run level {int(following)}", f"Extra: {following.title}", _button(following)))
    return tuple(actions)


def _button(level: Level) -> str:
    return f"{LEVEL_BUTTON}{int(level)}"


def _job_checks(target_state: TargetState, found: Iterable[Standing]) -> Iterator[CheckRun]:
    opened = {check.name for check in target_state.opened if check.head_sha == target_state.head_sha}
    for standing in found:
        # The gate alone says that all jobs are held, but a check that was shown as waiting must not wait for ever.
        if (
            standing.hold is not None
            and standing.run is None
            and check_name(target_state.policy.gate.name, standing.wanted.id) not in opened
        ):
            continue
        waiting = waits(standing)
        status = CheckStatus.QUEUED if waiting else standing.state.check
        run, words = standing.run, job_text(standing)
        yield CheckRun(
            name=check_name(target_state.policy.gate.name, standing.wanted.id),
            head_sha=target_state.head_sha,
            status=status,
            conclusion="" if waiting else standing.state.conclusion or "",
            title=words.title,
            summary=words.summary,
            text=words.text,
            details_url=run.url if run is not None else "",
            external_id=str(CheckId(target_state.number or 0, target_state.head_sha, standing.wanted.id)),
        )


def _rehearsal_check(target_state: TargetState, standing: RehearsalStanding | None) -> Iterator[CheckRun]:
    name = check_name(target_state.policy.gate.name, REHEARSAL)
    opened = {check.name for check in target_state.opened if check.head_sha == target_state.head_sha}
    # The gate alone says why nothing starts, but a check that was shown as waiting must not wait for ever.
    if standing is None or (standing.status is JobStatus.HELD and name not in opened):
        return
    waits, run = rehearsal_waits(standing), standing.run
    levels = target_state.plan.levels if target_state.plan is not None else ()
    words = rehearsal_check(standing, levels)
    yield CheckRun(
        name=name,
        head_sha=target_state.head_sha,
        status=CheckStatus.QUEUED if waits else standing.status.check,
        conclusion="" if waits else standing.status.conclusion or "",
        title=words.title,
        summary=words.summary,
        details_url=run.url if run is not None else "",
        external_id=str(CheckId(target_state.number or 0, target_state.head_sha, REHEARSAL)),
    )


def _left_over(target_state: TargetState, steps: Actions) -> Iterator[CheckRun]:
    """The checks of jobs that ran on this head and that no one asks for any more, as after a change of the base."""
    wanted = {standing.wanted.id for standing in steps.standings} | (
        {REHEARSAL} if steps.rehearsal is not None else set()
    )
    here = sorted((run for run in steps.runs if run.head_sha == target_state.head_sha), key=lambda run: run.attempt)
    last = {run.job_id: run for run in here if run.job_id not in wanted and target_state.plan is not None}
    why = "This job is no longer requested; it does not count."
    return (_of_earlier(target_state, item, why) for item in last.values())


def _closing(target_state: TargetState, check: OpenCheck, runs: tuple[Run, ...]) -> CheckRun | None:
    """How a check ends that no one waits for any more: as its last run did, open only while that run is not over.

    None while that is not known: the run goes on, and no plan says yet whether it is wanted.
    """
    own = read_check_id(check.external_id)
    of_job = [run for run in runs if own is not None and (run.head_sha, run.job_id) == (check.head_sha, own.job_id)]
    why, in_short = _why_closed(target_state, check)
    if of_job:
        last = max(of_job, key=lambda run: run.attempt)
        of_head = check.head_sha == target_state.head_sha and not target_state.over
        if of_head and target_state.plan is None and not last.state.final:
            return None
        return replace(_of_earlier(target_state, last, why), name=check.name, external_id=check.external_id)
    return CheckRun(
        name=check.name,
        head_sha=check.head_sha,
        status=CheckStatus.COMPLETED,
        conclusion=Conclusion.CANCELLED,
        title=in_short,
        summary=why,
        external_id=check.external_id,
    )


def _why_closed(target_state: TargetState, check: OpenCheck) -> tuple[str, str]:
    """Why no one waits for a check any more: a sentence, and a title."""
    if check.head_sha != target_state.head_sha:
        why = f"The head is now `{target_state.head_sha}`; this check no longer counts."
        return why, f"Superseded by {target_state.head_sha[:12]}"
    if target_state.over:
        return f"{target_state.over[:1].upper()}{target_state.over[1:]}.", title(target_state.over)
    if target_state.plan is None:
        return "This head has no plan now, so this check is not needed.", "There is no plan"
    return "This check is no longer requested; it does not count.", "No longer requested"


def _of_earlier(target_state: TargetState, run: Run, why: str) -> CheckRun:
    # A run without a verdict that no one waits for any more has no fault to show.
    finished = run.state is RunState.FINISHED
    conclusion = status_of_run(run).conclusion or "" if finished else Conclusion.CANCELLED
    return CheckRun(
        name=check_name(target_state.policy.gate.name, run.job_id),
        head_sha=run.head_sha,
        status=CheckStatus.COMPLETED if run.state.final else CheckStatus.IN_PROGRESS,
        conclusion=conclusion if run.state.final else "",
        title=title((run.sentence or run.reason or f"The run is {run.state}")[:200]),
        summary=why,
        details_url=run.url,
        external_id=str(CheckId(target_state.number or 0, run.head_sha, run.job_id)),
    )
