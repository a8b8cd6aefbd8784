"""The text of check runs, for a job and for the gate, within GitHub's limits and with foreign text escaped.

A title is one line of plain text; summary and text are Markdown. GitHub shows the summary under the title and the
text below it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from verl_e2e.core.judge.purposes_text import purpose_rows
from verl_e2e.core.judge.verdict_document import Verdict, read_verdict
from verl_e2e.core.pulls.check_runs import MAX_OUTPUT
from verl_e2e.core.pulls.commands import PREFIX
from verl_e2e.core.pulls.executed_change import joined_execution
from verl_e2e.core.pulls.gate import Gate, Standing
from verl_e2e.core.pulls.job_status import SATISFIED, JobStatus
from verl_e2e.core.pulls.ledger import RunState
from verl_e2e.core.pulls.retry import NextAttempt
from verl_e2e.core.pulls.reuse import origin_text
from verl_e2e.core.pulls.time_left import minutes_left
from verl_e2e.core.report.attempts_text import attempt_rows, used_minutes
from verl_e2e.core.report.execution_report import TITLE, execution_line
from verl_e2e.core.report.verdict_parts import (
    command_rows,
    curves,
    deliverables,
    key_lines,
    links,
    requested,
    verdict_sentence,
)
from verl_e2e.core.text.blocks import Block, fit, folded, folded_text, open_text
from verl_e2e.core.text.escape import code, markdown, one_line, sentence

MAX_TITLE = 255
NOT_BEGUN = "waiting: the job has not started"
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
    line = one_line(words.replace("`", ""), MAX_TITLE)
    return line[:1].upper() + line[1:]


def job_text(standing: Standing) -> CheckText:
    """The check of a job: the verdict, the deliverables and the lines to look at first; the rest as text."""
    run = standing.run
    verdict = read_verdict(run.verdict) if run is not None else None
    blocks = (_job_head(standing, verdict), *(() if verdict is None else (*_table(verdict), *_first_lines(verdict))))
    return CheckText(
        title=title(_with_options(standing, _status_line(standing))),
        summary=fit(blocks, MAX_OUTPUT, _CUT),
        text="" if verdict is None else fit(tuple(_job_details(verdict)), MAX_OUTPUT, _CUT),
    )


def waits(standing: Standing) -> bool:
    """Whether the job has not started: it waits for another job, or for a machine."""
    run = standing.run
    ordered = standing.state is JobStatus.RUNNING and run is not None and run.state in _ORDERED
    in_queue = run is not None and run.waits_for_slot and standing.state in _IN_QUEUE
    return ordered or in_queue or (standing.state is JobStatus.WAITING and (run is None or run.state.final))


def _status_line(standing: Standing) -> str:
    # Gate and card say what it waits for; here it would be one more write for each job.
    quiet = waits(standing) and standing.attempt is None
    return NOT_BEGUN if quiet else standing.clause


def _with_options(standing: Standing, text: str) -> str:
    """The text with the options of the job, which tell it from the same job with other options."""
    options = standing.wanted.options
    return f"with {options}: {text}" if options else text


def _job_head(standing: Standing, verdict: Verdict | None) -> Block:
    wanted, run = standing.wanted, standing.run
    kind = (
        "Required by the plan."
        if wanted.required
        else "Requested in addition to the plan: it never satisfies the gate."
    )
    asked = f" Requested with {code(wanted.options, 400)}." if wanted.options else ""
    rows = [f"Level {int(wanted.level)}, {wanted.level.title}. {kind}{asked}"]
    if wanted.job is not None:
        rows.extend(f"Made {sentence(row, 600)}." for row in purpose_rows(wanted.job.purposes))
    if run is not None and not waits(standing):
        rows.append(_how_it_ran(standing))
    rows.extend(f"{verdict_sentence(row, 600)}" for row in attempt_rows(standing))
    if standing.override is not None:
        rows.append(f"⚠️ {sentence(standing.reason, 600)}")
    judged = verdict is not None and not isinstance(standing.attempt, NextAttempt)
    text = f"{verdict.result}: {verdict.sentence}" if verdict is not None and judged else _status_line(standing)
    return Block(f"**{sentence(text[:1].upper() + text[1:], 1200)}**\n", ("  \n".join(rows),), "", 8_000)


def _how_it_ran(standing: Standing) -> str:
    run = standing.run
    assert run is not None
    parts = [f"Attempt {run.attempt}"]
    used = used_minutes(standing)
    if used or standing.wanted.gpu_minutes:
        planned = f"about {standing.wanted.gpu_minutes} planned ({standing.wanted.cost_basis})"
        parts.append(f"{used:.1f} GPU minutes used, {planned}")
    if run.carried_from:
        parts.append(markdown(origin_text(run)))
    return f"{', '.join(parts)}.{links(run.url)}"


def _table(verdict: Verdict) -> Iterator[Block]:
    asked_for, rows = requested(verdict), deliverables(verdict)
    if asked_for:
        yield Block("", asked_for, "", 2_000)
    if rows:
        yield Block("", rows, "", 20_000)


def _first_lines(verdict: Verdict) -> Iterator[Block]:
    """The lines that decided, not folded: a reader begins with them."""
    rows = (*key_lines(verdict)[-_SHOWN_LINES:], *curves(verdict))
    if rows:
        yield open_text("First relevant lines", rows, 12_000)
    if verdict.followups:
        rows = tuple(f"- {verdict_sentence(followup, 600)}" for followup in verdict.followups)
        yield Block("**What to do**\n", rows, "", 8_000)


def _job_details(verdict: Verdict) -> Iterator[Block]:
    if verdict.limitations:
        rows = tuple(f"- {verdict_sentence(limitation, 600)}" for limitation in verdict.limitations)
        yield Block("### What this does not show\n", rows, "", 24_000)
    evidence = (*verdict.repositories, *key_lines(verdict))
    if evidence:
        yield folded_text("Evidence", evidence, 16_000)
    if verdict.related:
        yield folded_text("Related runs", verdict.related, 8_000)
    command = command_rows(verdict)
    if command:
        yield folded_text("Command", command, 14_000)


def gate_text(found: Iterable[Standing], message: Gate, notices: tuple[str, ...] = ()) -> CheckText:
    """The check of the gate: the required jobs with their status, and how to make it green.

    `notices` are sentences about the queue.
    """
    rows = tuple(found)
    required = tuple(row for row in rows if row.wanted.required)
    extras = tuple(row for row in rows if not row.wanted.required)
    blocks = (
        *_count_of(required, message),
        *(Block("", (sentence(notice, 600),), "", 1_000) for notice in notices),
        *_executed(required, message),
        *_jobs("| required job | status | reason |", required),
        *_to_green(required, message),
        *_reason(message),
    )
    in_addition = _jobs("| requested in addition to the plan | status | reason |", extras)
    note = Block("", ("These never satisfy the gate.",), "", 200)
    return CheckText(
        title=title(message.title),
        summary=fit(blocks, MAX_OUTPUT, _CUT),
        text=fit((*in_addition, note), MAX_OUTPUT, _CUT) if extras else "",
    )


def _count_of(required: tuple[Standing, ...], message: Gate) -> Iterator[Block]:
    """How many required jobs are satisfied; "no job is required" only where a plan says so."""
    if required:
        done, left = sum(standing.state in SATISFIED for standing in required), minutes_left(required)
        time = f" About {left} minutes to an answer where no job waits for a machine." if left else ""
        yield Block("", (f"**{done} of {len(required)} required jobs satisfied.**{time}",), "", 300)
    elif message.is_open:
        yield Block("", ("**No job is required.**",), "", 200)
    else:
        yield Block("", (f"**{sentence(message.title, 600)}**",), "", 1_000)


def _executed(required: tuple[Standing, ...], message: Gate) -> Iterator[Block]:
    """What the required jobs executed of the change, where they are planned for changed functions."""
    line = execution_line(joined_execution(required), done=message.status is not JobStatus.RUNNING)
    if line:
        yield Block("", (f"{TITLE}: {sentence(line, 1500)}",), "", 4_000)


def _jobs(heading: str, standings: tuple[Standing, ...]) -> Iterator[Block]:
    if standings:
        yield Block(f"{heading}\n|---|---|---|", tuple(_job_row(standing) for standing in standings), "", 24_000)


def _job_row(standing: Standing) -> str:
    # The job's own check shows progress and link, so the gate is not written again for them.
    running = standing.state is JobStatus.RUNNING
    url = standing.run.url if standing.run is not None and standing.run.state.final else ""
    why = "see its own check for progress" if running else verdict_sentence(standing.reason, 500) + links(url)
    options = f" {code(standing.wanted.options, 200)}" if standing.wanted.options else ""
    return f"| {markdown(standing.wanted.id, 80)}{options} | {standing.state.icon} {standing.state} | {why} |"


def _reason(message: Gate) -> Iterator[Block]:
    """The reasons that are in no row of the table."""
    if message.general:
        rows = tuple(f"- {verdict_sentence(reason, 800)}" for reason in message.general)
        yield folded(f"Reasons ({len(rows)})", rows, 16_000)


def _to_green(required: tuple[Standing, ...], message: Gate) -> Iterator[Block]:
    if message.is_open:
        return
    unsatisfied = tuple(standing for standing in required if standing.state not in SATISFIED)
    holds = {standing.hold: None for standing in unsatisfied if standing.hold is not None and standing.hold.action}
    steps = (
        *([f"{sentence(message.action)}."] if message.action else []),
        *(f"{sentence(hold.action[:1].upper() + hold.action[1:])}." for hold in holds),
        *(_step(standing) for standing in unsatisfied if standing.hold is None),
    )
    if steps:
        yield Block("**How to make it green**\n", tuple(f"- {step}" for step in steps), "", 12_000)


def _step(standing: Standing) -> str:
    """What must happen for one job that nothing holds, with our commands as code."""
    name, level = markdown(standing.wanted.id, 80), int(standing.wanted.level)
    head = standing.run.head_sha if standing.run is not None else "FULL-SHA"
    override = f"`{PREFIX} override {level} {head} REASON`"
    match standing.state:
        case JobStatus.FAILED:
            return f"{name}: push a fix; if the change did not cause it, comment `{PREFIX} rerun failed` or {override}."
        case JobStatus.BLOCKED if standing.disagrees_with is not None:
            return f"{name}: find out why its attempts disagree, then push a fix, or comment {override}."
        case JobStatus.QUARANTINED | JobStatus.TOLERATED if standing.quarantine is not None:
            link = markdown(standing.quarantine.link, 300)
            return f"{name}: its cause is worked on at {link}; push a fix, comment `{PREFIX} rerun` or {override}."
        case JobStatus.BLOCKED if standing.run is None:
            return f"{name}: fix what is missing ({verdict_sentence(standing.reason, 300)}), or comment {override}."
        case JobStatus.BLOCKED:
            return f"{name}: do what its check says, then comment `{PREFIX} rerun blocked`, or comment {override}."
        case JobStatus.UNEXECUTED:
            what = "let a job of the policy enter the changed code"
            return f"{name}: {what}, wait for a job that runs it, or comment {override}."
        case JobStatus.SKIPPED:
            return f"{name}: starts by itself when {markdown(', '.join(standing.wanted.requires), 200)} has passed."
        case _:
            return f"{name}: wait, there is nothing to do."
