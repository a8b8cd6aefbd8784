"""The check runs of a head: the gate, one for each job and the rehearsal, and an end for those of earlier heads.

A title is one line of plain text; summary and text are Markdown, within GitHub's limits and with foreign text escaped.
GitHub shows the summary under the title and the text below it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from verl_e2e.core.compare.rehearsal import CellOutcome
from verl_e2e.core.judge.execution import EXECUTED_TITLE, execution_line
from verl_e2e.core.judge.verdict_document import Verdict, read_verdict
from verl_e2e.core.judge.wording import purpose_rows
from verl_e2e.core.model.jobs import REHEARSAL
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Recurrence, Whose, whose_of
from verl_e2e.core.pulls.commands import PREFIX
from verl_e2e.core.pulls.decide import Actions
from verl_e2e.core.pulls.forge import (
    CANCEL,
    LEVEL_BUTTON,
    MAX_CHECK_TITLE,
    MAX_OUTPUT,
    RERUN,
    CheckId,
    CheckRun,
    CheckStatus,
    Conclusion,
    MergeGroup,
    OpenCheck,
    check_name,
    read_check_id,
)
from verl_e2e.core.pulls.gate import Gate, JobStanding, NextAttempt, joined_execution, minutes_left
from verl_e2e.core.pulls.ledger import ENDED, SATISFIED, JobStatus, Run, RunState, status_of_run
from verl_e2e.core.pulls.target_state import RehearsalStanding, TargetState
from verl_e2e.core.pulls.wanted_jobs import origin_text
from verl_e2e.core.report.attempts_text import attempt_rows, queue_notices, used_minutes
from verl_e2e.core.report.verdict_rows import (
    command_rows,
    curves,
    deliverable_rows,
    failure_block,
    failure_rows,
    key_lines,
    links,
    requested_rows,
    verdict_sentence,
)
from verl_e2e.core.text.escape import (
    TextBlock,
    code,
    fit_blocks,
    folded,
    folded_text,
    markdown,
    one_line,
    open_text,
    sentence,
)

_NOT_BEGUN = "waiting: the job has not started"
_ORDERED = frozenset({RunState.QUEUED, RunState.SUBMITTED})
_IN_QUEUE = frozenset({JobStatus.WAITING, JobStatus.HELD})
_SHOWN_LINES = 6
_CUT = "_Cut to fit; the card and the run folder have the rest._"


@dataclass(frozen=True, slots=True)
class CheckText:
    """Title, summary and text of a check run; the text may be empty."""

    title: str
    summary: str
    text: str = ""


def title(words: str) -> str:
    """Words as a title: one line of plain text, the first letter large, at most 255 characters."""
    line = one_line(words.replace("`", ""), MAX_CHECK_TITLE)
    return line[:1].upper() + line[1:]


def job_check_text(standing: JobStanding) -> CheckText:
    """The check of a job: the verdict, the deliverables and the lines to look at first; the rest as text."""
    wanted, run = standing.wanted, standing.run
    verdict = read_verdict(run.verdict) if run is not None else None
    waiting = waits(standing)
    # Gate and card say what it waits for; here it would be one more write for each job.
    line = _NOT_BEGUN if waiting and standing.attempt is None else standing.clause
    kind = "Required by the plan."
    if not wanted.required:
        kind = "Shown, as the policy asks" if wanted.shown else "Requested in addition to the plan"
        kind += ": it never satisfies the gate."
    asked = f" Requested with {code(wanted.options, 400)}." if wanted.options else ""
    rows = [f"Level {int(wanted.level)}, {wanted.level.title}. {kind}{asked}"]
    if wanted.job is not None:
        rows.extend(f"Made {sentence(row, 600)}." for row in purpose_rows(wanted.job.purposes))
    if run is not None and not waiting:
        parts = [f"Attempt {run.attempt}"]
        used = used_minutes(standing)
        if used or wanted.gpu_minutes:
            planned = f"about {wanted.gpu_minutes} planned ({wanted.cost_basis})"
            parts.append(f"{used:.1f} GPU minutes used, {planned}")
        if run.carried_from:
            parts.append(markdown(origin_text(run)))
        rows.append(f"{', '.join(parts)}.{links(run.url)}")
    rows.extend(verdict_sentence(row, 600) for row in attempt_rows(standing))
    if standing.override is not None:
        rows.append(f"⚠️ {sentence(standing.reason, 600)}")
    judged = verdict is not None and not isinstance(standing.attempt, NextAttempt)
    text = f"{verdict.result}: {verdict.sentence}" if verdict is not None and judged else line
    head = TextBlock(f"**{sentence(text[:1].upper() + text[1:], 1200)}**\n", ("  \n".join(rows),), "", 8_000)
    return CheckText(
        # The options tell it from the same job with other options.
        title=title(f"with {wanted.options}: {line}" if wanted.options else line),
        summary=fit_blocks((head, *(() if verdict is None else _job_summary(verdict))), MAX_OUTPUT, _CUT),
        text="" if verdict is None else fit_blocks(tuple(_job_details(verdict)), MAX_OUTPUT, _CUT),
    )


def waits(standing: JobStanding) -> bool:
    """Whether the job has not started: it waits for another job, or for a machine."""
    run = standing.run
    ordered = standing.state is JobStatus.RUNNING and run is not None and run.state in _ORDERED
    in_queue = run is not None and run.waits_for_slot and standing.state in _IN_QUEUE
    return ordered or in_queue or (standing.state is JobStatus.WAITING and (run is None or run.state.final))


def _job_summary(verdict: Verdict) -> Iterator[TextBlock]:
    """The deliverables, and the lines that decided, not folded: a reader begins with them."""
    if told := failure_rows(verdict):
        yield TextBlock("", told, "", 4_000)
    for table, share in ((requested_rows(verdict), 2_000), (deliverable_rows(verdict), 20_000)):
        if table:
            yield TextBlock("", table, "", share)
    rows = (*key_lines(verdict)[-_SHOWN_LINES:], *curves(verdict))
    if rows:
        yield open_text("First relevant lines", rows, 12_000)
    if verdict.followups:
        rows = tuple(f"- {verdict_sentence(followup, 600)}" for followup in verdict.followups)
        yield TextBlock("**What to do**\n", rows, "", 8_000)


def _job_details(verdict: Verdict) -> Iterator[TextBlock]:
    if verdict.limitations:
        rows = tuple(f"- {verdict_sentence(limitation, 600)}" for limitation in verdict.limitations)
        yield TextBlock("### What this does not show\n", rows, "", 24_000)
    folds = (
        ("Evidence", (*verdict.repositories, *key_lines(verdict)), 16_000),
        ("Related runs", verdict.related, 8_000),
        ("Command", command_rows(verdict), 14_000),
    )
    yield from (folded_text(heading, rows, share) for heading, rows, share in folds if rows)


def gate_text(found: Iterable[JobStanding], gate: Gate, notices: tuple[str, ...] = ()) -> CheckText:
    """The check of the gate: the required jobs with their status, and how to make it green.

    `notices` are sentences about the queue.
    """
    rows = tuple(found)
    required = tuple(row for row in rows if row.wanted.required)
    extras = tuple(row for row in rows if not row.wanted.required)
    left = minutes_left(required)
    if required:
        done = sum(standing.state in SATISFIED for standing in required)
        time = f" About {left} minutes to an answer where no job waits for a machine." if left else ""
        count = f"**{done} of {len(required)} required jobs satisfied.**{time}"
    else:
        # "No job is required" only where a plan says so.
        count = "**No job is required.**" if gate.is_open else f"**{sentence(gate.title, 600)}**"
    blocks = [TextBlock("", (count,), "", 1_000)]
    blocks += [TextBlock("", (sentence(notice, 600),), "", 1_000) for notice in notices]
    failed = next((row for row in required if row.state is JobStatus.FAILED and row.run is not None), None)
    verdict = read_verdict(failed.run.verdict) if failed and failed.run else None
    if failed and verdict is not None:
        blocks.append(failure_block(failed.wanted.id, verdict, 3))
    executed = execution_line(joined_execution(required), done=gate.status is not JobStatus.RUNNING)
    if executed:
        blocks.append(TextBlock("", (f"{EXECUTED_TITLE}: {sentence(executed, 1500)}",), "", 4_000))
    blocks += _jobs("| required job | status | reason |", required)
    if not gate.is_open:
        unsatisfied = [standing for standing in required if standing.state not in SATISFIED]
        holds = {standing.hold: None for standing in unsatisfied if standing.hold is not None and standing.hold.action}
        steps = [
            *([f"{sentence(gate.action)}."] if gate.action else []),
            *(f"{sentence(hold.action[:1].upper() + hold.action[1:])}." for hold in holds),
            *(f"{markdown(row.wanted.id, 80)}: {next_step(row)}" for row in unsatisfied if row.hold is None),
        ]
        if steps:
            blocks.append(TextBlock("**How to make it green**\n", tuple(f"- {step}" for step in steps), "", 12_000))
    if gate.general:
        reasons = tuple(f"- {verdict_sentence(reason, 800)}" for reason in gate.general)
        blocks.append(folded(f"Reasons ({len(reasons)})", reasons, 16_000))
    in_addition = _jobs("| in addition to the required jobs | status | reason |", extras)
    note = TextBlock("", ("These never satisfy the gate.",), "", 200)
    return CheckText(
        title=title(gate.title),
        summary=fit_blocks(tuple(blocks), MAX_OUTPUT, _CUT),
        text=fit_blocks((*in_addition, note), MAX_OUTPUT, _CUT) if extras else "",
    )


def _jobs(heading: str, standings: tuple[JobStanding, ...]) -> list[TextBlock]:
    rows = []
    for standing in standings:
        # The job's own check shows progress and link, so the gate is not written again for them.
        running = standing.state is JobStatus.RUNNING
        url = standing.run.url if standing.run is not None and standing.run.state.final else ""
        why = "see its own check for progress" if running else verdict_sentence(standing.reason, 500) + links(url)
        options = f" {code(standing.wanted.options, 200)}" if standing.wanted.options else ""
        rows.append(f"| {markdown(standing.wanted.id, 80)}{options} | {standing.state.icon} {standing.state} | {why} |")
    return [TextBlock(f"{heading}\n|---|---|---|", tuple(rows), "", 24_000)] if rows else []


def next_step(standing: JobStanding, verdict: Verdict | None = None) -> str:
    """What must happen for one job that nothing holds, and whom to ask for it, with our commands as code."""
    level = int(standing.wanted.level)
    head = standing.run.head_sha if standing.run is not None else "FULL-SHA"
    override = f"a maintainer to comment `{PREFIX} override {level} {head} REASON`"
    ask = f"ask someone with write access to comment `{PREFIX} rerun"
    match standing.state:
        case JobStatus.FAILED if verdict is not None and verdict.recurrence is Recurrence.REGRESSION:
            return "push a fix; the job starts again as it did for this head."
        case JobStatus.FAILED if verdict is not None:
            return f"{ask} failed`, which runs this job again."
        case JobStatus.FAILED:
            return f"push a fix; if the change did not cause it, {ask} failed` or {override}."
        case JobStatus.BLOCKED if standing.disagrees_with is not None:
            return f"find out why its attempts disagree, then push a fix, or ask {override}."
        case JobStatus.QUARANTINED | JobStatus.TOLERATED if standing.quarantine is not None:
            link = markdown(standing.quarantine.link, 300)
            return f"its cause is worked on at {link}; push a fix, {ask}` or {override}."
        case JobStatus.BLOCKED if standing.run is None:
            return f"fix what is missing ({verdict_sentence(standing.reason, 300)}), or ask {override}."
        case JobStatus.BLOCKED if verdict is not None and not _is_known(verdict):
            return f"{ask} blocked`, which runs this job again."
        case JobStatus.BLOCKED | JobStatus.UNEXECUTED if verdict is not None:
            return ""
        case JobStatus.BLOCKED:
            return f"do what its check says, then {ask} blocked`, or {override}."
        case JobStatus.UNEXECUTED:
            return f"unless another job of this plan runs the changed lines, ask {override}."
        case JobStatus.SKIPPED:
            return f"starts by itself when {markdown(', '.join(standing.wanted.requires), 200)} has passed."
        case _:
            return "wait, there is nothing to do."


def _is_known(verdict: Verdict) -> bool:
    """Whether it fails so without the change, and would again."""
    return bool(verdict.blame) and whose_of(verdict.recurrence, verdict.causes) is Whose.NOT_THIS_CHANGE


REHEARSAL_TITLE = "Rehearsal on a CPU"
_CUT_REHEARSAL = "_Cut to fit; the run folder has the rest._"


def rehearsal_line(standing: RehearsalStanding, levels: Iterable[Level]) -> str:
    """One sentence for the card: what it found and which levels look at what it left open, or what is waited for."""
    if standing.status not in (JobStatus.PASSED, JobStatus.FAILED):
        return f"{REHEARSAL_TITLE} {standing.status}: {standing.reason}"
    # The sentence of a verdict says that it is a rehearsal.
    rehearsed = standing.run.rehearsed if standing.run is not None else None
    left = []
    if rehearsed is not None and rehearsed.outcome is CellOutcome.CHANGED:
        left.append("what moved")
    if rehearsed is not None and rehearsed.unentered:
        left.append(f"changed lines of {rehearsed.unentered} functions that no cell entered")
    if not left:
        return standing.reason
    asked = [str(int(level)) for level in levels]
    named = f"level{'s' * (len(asked) > 1)} {', '.join(asked)} of the plan" if asked else "no level is required to"
    return f"{standing.reason}; {named} look{'s' * (len(asked) == 1)} at {' and '.join(left)}"


def rehearsal_failure(standing: RehearsalStanding) -> TextBlock:
    """What failed in a rehearsal, where, whose it is and what to do now."""
    rehearsed = standing.run.rehearsed if standing.run is not None else None
    failure = rehearsed.failure if rehearsed is not None else None
    place = f"Failed at {code(failure.where, 240)}." if failure and failure.where else "In no line of code."
    beside = f" Your change: {code(failure.edited, 240)}." if failure and failure.edited else ""
    rows = (
        f"- **What:** On a CPU, before any GPU was used: {sentence(failure.what if failure else standing.reason, 260)}",
        f"- **Where:** {place}{beside}",
        "- **Whose:** This change: the merge base passed this part of the rehearsal, or failed otherwise.",
        "- **Now:** You: push a fix; the CPU rehearsal starts again as it did for this head.",
    )
    return TextBlock(f"**{REHEARSAL}**\n", rows, "", 3_000)


def rehearsal_block(standing: RehearsalStanding, share: int) -> tuple[TextBlock, ...]:
    """The section of the card, folded; nothing before there is one."""
    section = _section(standing)
    return (folded(REHEARSAL_TITLE, section, share),) if section else ()


def _section(standing: RehearsalStanding) -> tuple[str, ...]:
    rehearsed = standing.run.rehearsed if standing.run is not None else None
    return tuple(rehearsed.section.splitlines()) if rehearsed is not None else ()


def checks_wanted(target_state: TargetState, steps: Actions) -> tuple[CheckRun, ...]:
    """Every check run to show after the actions, the gate first; the same values for the same state."""
    if not steps.shows_checks:
        return ()
    # Of a group that the queue wants no more, perhaps because it was merged, only what is open is ended.
    target = target_state.target
    own = () if isinstance(target, MergeGroup) and target.destroyed else tuple(_own(target_state, steps))
    known = {(check.name, check.head_sha) for check in own}
    others = (check for check in target_state.opened if (check.name, check.head_sha) not in known)
    return (*own, *(end for check in others if (end := _closing(target_state, check, steps.runs)) is not None))


def _own(target_state: TargetState, steps: Actions) -> Iterator[CheckRun]:
    """The gate, the rehearsal, the jobs, and those jobs of this head that no one asks for any more."""
    found, gate = steps.standings, steps.gate
    text = gate_text(found, gate, tuple(queue_notices(target_state, gate.status)))
    yield CheckRun(
        name=target_state.policy.gate.name,
        head_sha=target_state.head_sha,
        status=gate.status.check,
        conclusion=gate.conclusion or "",
        title=text.title,
        summary=text.summary,
        text=text.text,
        external_id=str(CheckId(target_state.number or 0, target_state.head_sha)),
        actions=_actions(found),
    )
    opened = {check.name for check in target_state.opened if check.head_sha == target_state.head_sha}
    rehearsal, name = steps.rehearsal, check_name(target_state.policy.gate.name, REHEARSAL)
    # The gate alone says why nothing starts, but a check that was shown as waiting must not wait for ever.
    if rehearsal is not None and (rehearsal.status is not JobStatus.HELD or name in opened):
        run, status = rehearsal.run, rehearsal.status
        ordered = status is JobStatus.RUNNING and run is not None and run.state in _ORDERED
        line = rehearsal_line(rehearsal, target_state.plan.levels if target_state.plan is not None else ())
        attempt = "" if run is None else f"Attempt {run.attempt}.{links(run.url)}"
        blocks = [TextBlock(f"**{sentence(line[:1].upper() + line[1:], 1200)}**\n", (attempt,), "", 4_000)]
        if section := _section(rehearsal):
            blocks.append(TextBlock("", section, "", MAX_OUTPUT))
        text = CheckText(title=title(line), summary=fit_blocks(tuple(blocks), MAX_OUTPUT, _CUT_REHEARSAL))
        waiting = ordered or status is JobStatus.WAITING
        yield _job_check(target_state, REHEARSAL, text, status, run, waiting=waiting)
    for standing in found:
        run, name = standing.run, check_name(target_state.policy.gate.name, standing.wanted.id)
        # Nor does each job say that all of them are held.
        if standing.hold is None or run is not None or name in opened:
            text, waiting = job_check_text(standing), waits(standing)
            yield _job_check(target_state, standing.wanted.id, text, standing.state, run, waiting=waiting)
    wanted = {standing.wanted.id for standing in found} | ({REHEARSAL} if rehearsal is not None else set())
    # As after a change of the base.
    here = sorted((run for run in steps.runs if run.head_sha == target_state.head_sha), key=lambda run: run.attempt)
    last = {run.job_id: run for run in here if run.job_id not in wanted and target_state.plan is not None}
    for run in last.values():
        yield _of_earlier(target_state, run, "This job is no longer requested; it does not count.")


def _job_check(
    target_state: TargetState, job_id: str, text: CheckText, status: JobStatus, run: Run | None, *, waiting: bool
) -> CheckRun:
    return CheckRun(
        name=check_name(target_state.policy.gate.name, job_id),
        head_sha=target_state.head_sha,
        status=CheckStatus.QUEUED if waiting else status.check,
        conclusion="" if waiting else status.conclusion or "",
        title=text.title,
        summary=text.summary,
        text=text.text,
        details_url=run.url if run is not None else "",
        external_id=str(CheckId(target_state.number or 0, target_state.head_sha, job_id)),
    )


def _actions(found: tuple[JobStanding, ...]) -> tuple[tuple[str, str, str], ...]:
    actions = []
    if any(standing.state in ENDED and standing.run is not None for standing in found):
        actions.append(("Rerun failed", "Run again what did not pass", RERUN))
    waiting = any(standing.run is not None and standing.run.waits_for_slot for standing in found)
    if waiting or any(standing.state is JobStatus.RUNNING for standing in found):
        actions.append(("Cancel", "Cancel all runs of this head", CANCEL))
    wanted = {standing.wanted.level for standing in found}
    following = next((level for level in Level if level not in wanted), None)
    if following is not None:
        actions.append((f"Run level {int(following)}", f"Extra: {following.title}", f"{LEVEL_BUTTON}{int(following)}"))
    return tuple(actions)


def _closing(target_state: TargetState, check: OpenCheck, runs: tuple[Run, ...]) -> CheckRun | None:
    """How a check ends that no one waits for any more: as its last run did, open only while that run is not over.

    None while that is not known: the run goes on, and no plan says yet whether it is wanted.
    """
    if check.head_sha != target_state.head_sha:
        why = f"The head is now `{target_state.head_sha}`; this check no longer counts."
        in_short = f"Superseded by {target_state.head_sha[:12]}"
    elif target_state.over:
        why, in_short = f"{target_state.over[:1].upper()}{target_state.over[1:]}.", title(target_state.over)
    elif target_state.plan is None:
        why, in_short = "This head has no plan now, so this check is not needed.", "There is no plan"
    else:
        why, in_short = "This check is no longer requested; it does not count.", "No longer requested"
    own = read_check_id(check.external_id)
    of_job = [run for run in runs if own is not None and (run.head_sha, run.job_id) == (check.head_sha, own.job_id)]
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
