"""The check runs to show: the gate, one for each job, and an end for those of heads that were superseded."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from verl_e2e.core.model.levels import Level
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
from verl_e2e.core.pulls.decide import Steps
from verl_e2e.core.pulls.gate import Gate, Standing
from verl_e2e.core.pulls.job_status import ENDED, JobStatus, status_of_run
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.pull import MergeGroup
from verl_e2e.core.pulls.target_state import Situation
from verl_e2e.core.report.check_text import gate_text, job_text, title, waits


def checks_wanted(situation: Situation, steps: Steps) -> tuple[CheckRun, ...]:
    """Every check run to show once the steps are taken, the gate first; the same values for the same situation."""
    if not steps.shows_checks:
        return ()
    # Of a group that the queue wants no more, perhaps because it was merged, only what is open is ended.
    own = () if _is_given_up(situation) else tuple(_own(situation, steps))
    known = {(check.name, check.head_sha) for check in own}
    others = (check for check in situation.opened if (check.name, check.head_sha) not in known)
    return (*own, *(end for check in others if (end := _closing(situation, check, steps.runs)) is not None))


def _is_given_up(situation: Situation) -> bool:
    return isinstance(situation.target, MergeGroup) and situation.target.destroyed


def _own(situation: Situation, steps: Steps) -> Iterator[CheckRun]:
    yield _gate_check(situation, steps.standings, steps.gate)
    yield from _job_checks(situation, steps.standings)
    yield from _left_over(situation, steps.standings, steps.runs)


def _gate_check(situation: Situation, found: tuple[Standing, ...], told: Gate) -> CheckRun:
    words = gate_text(found, told)
    return CheckRun(
        name=situation.policy.gate.name,
        head_sha=situation.head_sha,
        status=told.status.check,
        conclusion=told.conclusion or "",
        title=words.title,
        summary=words.summary,
        text=words.text,
        external_id=str(CheckId(situation.number or 0, situation.head_sha)),
        actions=_actions(found),
    )


def _actions(found: tuple[Standing, ...]) -> tuple[tuple[str, str, str], ...]:
    actions = []
    if any(one.state in ENDED and one.run is not None for one in found):
        actions.append(("Rerun failed", "Run again what did not pass", RERUN))
    if any(one.state is JobStatus.RUNNING for one in found):
        actions.append(("Cancel", "Cancel all runs of this head", CANCEL))
    wanted = {one.wanted.level for one in found}
    following = next((level for level in Level if level not in wanted), None)
    if following is not None:
        actions.append((f"Run level {int(following)}", f"Extra: {following.title}", _button(following)))
    return tuple(actions)


def _button(level: Level) -> str:
    return f"{LEVEL_BUTTON}{int(level)}"


def _job_checks(situation: Situation, found: Iterable[Standing]) -> Iterator[CheckRun]:
    opened = {check.name for check in situation.opened if check.head_sha == situation.head_sha}
    for one in found:
        # What is held as a whole is told by the gate alone, but what was shown as waiting must not wait for ever.
        if (
            one.hold is not None
            and one.run is None
            and check_name(situation.policy.gate.name, one.wanted.id) not in opened
        ):
            continue
        status = CheckStatus.QUEUED if waits(one) else one.state.check
        run, words = one.run, job_text(one)
        yield CheckRun(
            name=check_name(situation.policy.gate.name, one.wanted.id),
            head_sha=situation.head_sha,
            status=status,
            conclusion=one.state.conclusion or "",
            title=words.title,
            summary=words.summary,
            text=words.text,
            details_url=run.url if run is not None else "",
            external_id=str(CheckId(situation.number or 0, situation.head_sha, one.wanted.id)),
        )


def _left_over(situation: Situation, found: Iterable[Standing], runs: tuple[Run, ...]) -> Iterator[CheckRun]:
    """The checks of jobs that ran on this head and that nobody asks for any more, as after a change of the base."""
    wanted = {one.wanted.id for one in found}
    here = sorted((one for one in runs if one.head_sha == situation.head_sha), key=lambda one: one.attempt)
    last = {one.job_id: one for one in here if one.job_id not in wanted and situation.plan is not None}
    why = "This job is no longer requested; it does not count."
    return (_of_earlier(situation, one, why) for one in last.values())


def _closing(situation: Situation, check: OpenCheck, runs: tuple[Run, ...]) -> CheckRun | None:
    """How a check ends that nobody waits for any more: as its last run did, open only while that run is not over.

    None while nobody can say: the run goes on, and there is no plan that would ask for it or not.
    """
    own = read_check_id(check.external_id)
    of_job = [run for run in runs if own is not None and (run.head_sha, run.job_id) == (check.head_sha, own.job_id)]
    why, in_short = _why_closed(situation, check)
    if of_job:
        last = max(of_job, key=lambda run: run.attempt)
        of_head = check.head_sha == situation.head_sha and not situation.over
        if of_head and situation.plan is None and not last.state.final:
            return None
        return replace(_of_earlier(situation, last, why), name=check.name, external_id=check.external_id)
    return CheckRun(
        name=check.name,
        head_sha=check.head_sha,
        status=CheckStatus.COMPLETED,
        conclusion=Conclusion.CANCELLED,
        title=in_short,
        summary=why,
        external_id=check.external_id,
    )


def _why_closed(situation: Situation, check: OpenCheck) -> tuple[str, str]:
    """Why nobody waits for a check any more: a sentence, and a title."""
    if check.head_sha != situation.head_sha:
        why = f"The head is now `{situation.head_sha}`; this check no longer counts."
        return why, f"Superseded by {situation.head_sha[:12]}"
    if situation.over:
        return f"{situation.over[:1].upper()}{situation.over[1:]}.", title(situation.over)
    if situation.plan is None:
        return "There is no plan for this head now, so this check is not needed.", "There is no plan"
    return "This check is no longer requested; it does not count.", "No longer requested"


def _of_earlier(situation: Situation, run: Run, why: str) -> CheckRun:
    # A run without a verdict that no one waits for any more has no fault to show.
    finished = run.state is RunState.FINISHED
    conclusion = status_of_run(run).conclusion or "" if finished else Conclusion.CANCELLED
    return CheckRun(
        name=check_name(situation.policy.gate.name, run.job_id),
        head_sha=run.head_sha,
        status=CheckStatus.COMPLETED if run.state.final else CheckStatus.IN_PROGRESS,
        conclusion=conclusion if run.state.final else "",
        title=title((run.sentence or run.reason or f"The run is {run.state}")[:200]),
        summary=why,
        details_url=run.url,
        external_id=str(CheckId(situation.number or 0, run.head_sha, run.job_id)),
    )
