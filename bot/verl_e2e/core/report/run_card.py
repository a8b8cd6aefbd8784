"""The card of run folders: the fixed summary of one or several jobs, as plain text, as GitHub Markdown and as JSON."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from textwrap import wrap

from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.judge import wording
from verl_e2e.core.judge.execution import (
    EXECUTED_TITLE,
    JoinedExecution,
    Shortfall,
    accepted,
    execution_line,
    execution_rows,
    in_tests_alone,
    join,
    shortfall,
)
from verl_e2e.core.judge.verdict import of_no_run, with_contract
from verl_e2e.core.judge.verdict_document import VERDICT_SCHEMA, Verdict, document_text, verdict_fields
from verl_e2e.core.judge.wording import merged_limitations
from verl_e2e.core.model.access import Demand, ExecutionRules
from verl_e2e.core.model.evidence import Evidence
from verl_e2e.core.model.outcome import Deliverable, Outcome, Result, Stage
from verl_e2e.core.model.record import ENVIRONMENT_FILE
from verl_e2e.core.report.comparison_text import markdown_rows, verdict_of
from verl_e2e.core.report.verdict_rows import failure_block, failure_title
from verl_e2e.core.text.escape import (
    TextBlock,
    fit_blocks,
    folded,
    folded_text,
    markdown,
    one_line,
    sentence,
    summary_html,
)
from verl_e2e.core.triage.explain import Explained, explain_json
from verl_e2e.core.triage.triage import Triage, triage_json

# GitHub takes 65,536 characters in a comment; the card stays below by rule.
MAX_MARKDOWN = 60_000
MAX_EXCERPT = 300
MAX_RELATED = 600
_MAX_COMMAND = 40_000
_MAX_EXECUTED = 2_000
_RANK = {Result.PASS: 0, Result.BLOCKED: 1, Result.FAIL: 2}


@dataclass(frozen=True, slots=True)
class NotRun:
    """A planned job that did not run, and why; it keeps the whole from being a Pass unless the policy allows it."""

    job_id: str
    # What it covers.
    coverage: str
    reason: str
    # Whether no host can run it, so that the policy decides what it is to the whole.
    uncoverable: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """What a card shows."""

    # The verdicts, in the order of the plan.
    verdicts: tuple[Verdict, ...]
    not_run: tuple[NotRun, ...] = ()
    # Limitations of the whole: a recording, a narrowed run.
    notes: tuple[str, ...] = ()
    # The text of the plan, or empty.
    plan: str = ""
    # Uses in the trainer that work at the base and break at the head: they fail the Bridge-side checks without a GPU.
    contract: tuple[str, ...] = ()
    # What the policy asks of the execution of the change by all jobs together; None for a job that is judged by itself.
    execution: ExecutionRules | None = None
    # The title of the trainer of its jobs.
    trainer: str = VERL.title


def result_of(card: Card) -> Result:
    """Fail outranks Blocked outranks Pass; a planned job that did not run is Blocked, a broken contract Fail."""
    if card.contract:
        return Result.FAIL
    short = bool(shortfall_of(card).closing)
    results = [_result_in(card, verdict) for verdict in card.verdicts]
    results += [Result.BLOCKED] * (len(_closing(card)) + short)
    return max(results, key=_RANK.__getitem__, default=Result.PASS)


def _closing(card: Card) -> tuple[NotRun, ...]:
    """The jobs that did not run and that the policy does not allow to be left out."""
    allows = card.execution is not None and card.execution.uncoverable is Demand.ALLOW
    return tuple(job for job in card.not_run if not (allows and job.uncoverable))


def execution_of_card(card: Card) -> JoinedExecution:
    """What the jobs executed of the change together."""
    return join({verdict.job_id: verdict.execution for verdict in card.verdicts if verdict.execution is not None})


def shortfall_of(card: Card) -> Shortfall:
    """What no job executed of the change; nothing where each job is judged by itself."""
    return Shortfall() if card.execution is None else shortfall(execution_of_card(card), card.execution)


def accepted_in(card: Card, verdict: Verdict) -> str:
    """Why a job that never entered its part of the change is enough for the whole, empty where it is not."""
    if card.execution is None or not verdict.never_entered or verdict.execution is None:
        return ""
    passed = {
        other.job_id: other.execution
        for other in card.verdicts
        if other.result is Result.PASS and other.execution is not None
    }
    return accepted(verdict.execution, passed, card.execution)


def _result_in(card: Card, verdict: Verdict) -> Result:
    return Result.PASS if accepted_in(card, verdict) else verdict.result


def sentence_of(card: Card) -> str:
    """The one sentence after the result: of the job that decides it, of the change, or of the broken contract."""
    if card.contract:
        return wording.contract_broken(card.contract, card.trainer)
    result, short = result_of(card), shortfall_of(card)
    deciding = [verdict for verdict in card.verdicts if _result_in(card, verdict) is result]
    if result is Result.PASS:
        rows = [f"{job.job_id} is not covered, {job.reason}" for job in card.not_run]
        for verdict in deciding:
            reason = accepted_in(card, verdict)
            never = f"{verdict.job_id} ran well and never entered its part of the change; {reason}"
            rows.append(never if reason else verdict.sentence)
        rows.append(in_tests_alone(execution_of_card(card)))
        rows.append(f"{short.allowed}, which the policy allows" if short.allowed else "")
        return "; ".join(filter(None, rows)) or wording.NOTHING_REQUIRED.format(card.trainer)
    if deciding:
        return deciding[0].sentence
    closing = _closing(card)
    if closing:
        first = closing[0]
        return f"{first.coverage} did not run: {first.reason}"
    return f"{short.closing}; {wording.NOT_EVIDENCE}"


def coverage_of(card: Card) -> str:
    """The levels and variants that were asked for, those that did not run marked."""
    planned = [verdict.coverage for verdict in card.verdicts] + [f"{job.coverage}, not run" for job in card.not_run]
    return "; ".join(planned) or f"none ({wording.NOTHING_REQUIRED.format(card.trainer)})"


def checkpoint_of(card: Card) -> str:
    """The checkpoint of every job, each once."""
    return "; ".join(dict.fromkeys(verdict.checkpoint for verdict in card.verdicts)) or "none"


def render_text(card: Card) -> str:
    """The card of the guide, word for word in structure, every line at column 0; ends with a newline."""
    rows = [
        f"Result: {result_of(card)} - {one_line(sentence_of(card))}",
        f"Requested coverage: {one_line(coverage_of(card))}",
        f"Checkpoint/config: {one_line(checkpoint_of(card))}",
    ]
    groups = _groups(card)
    for job_id, deliverables in groups:
        rows.append(f"Deliverables ({one_line(job_id)}):" if len(groups) > 1 else "Deliverables:")
        rows += [f"- {row.name}: {row.outcome} - {one_line(row.detail)}" for row in deliverables]
    rows += ["Evidence:", *_evidence_rows(card)]
    for title, found in (("Limitations:", limitations_of(card)), ("Follow-ups:", followups_of(card))):
        rows += [title, *([f"- {one_line(row)}" for row in found] or ["- none"])]
    return "\n".join(rows) + "\n"


# With the rows that `check` prints before, 15.
_MOST_ROWS, _WIDTH = 10, 100


def render_unfit_host(card: Card, out: str) -> str:
    """What to fix first where no job could begin on this machine, in 10 rows of 100 columns; empty for another card.

    `out` is the folder that has the whole card.
    """
    unfit = [verdict.stage is Stage.ENVIRONMENT and verdict.result is Result.BLOCKED for verdict in card.verdicts]
    lines = [item.file for verdict in card.verdicts for item in verdict.key_lines]
    if not unfit or not all(unfit) or set(lines) != {ENVIRONMENT_FILE}:
        return ""
    end = [
        one_line(f"Planned: {coverage_of(card)}", _WIDTH),
        one_line(f"`verl-e2e card {out}` prints the whole card, and {out}/plan.json is the plan.", _WIDTH),
    ]
    rows = wrap(f"Result: {result_of(card)} - {one_line(sentence_of(card))}", _WIDTH, max_lines=3)
    fixes = dict.fromkeys(row for verdict in card.verdicts for row in verdict.followups)
    for number, fix in enumerate(fixes, 1):
        shown = wrap(f"{number}. {one_line(fix)}", _WIDTH, subsequent_indent="   ", break_on_hyphens=False)
        # A fix is shown whole or not at all, and one row says how many are not.
        if len(rows) + len(shown) + (number < len(fixes)) + len(end) > _MOST_ROWS:
            rows.append(f"and {len(fixes) - number + 1} more to fix")
            break
        rows += shown
    return "\n".join([*rows, *end]) + "\n"


def _groups(card: Card) -> tuple[tuple[str, tuple[Deliverable, ...]], ...]:
    """One group of deliverables for each job, run or not."""
    groups = [(verdict.job_id, verdict.deliverables) for verdict in card.verdicts]
    skipped = partial(of_no_run, card.trainer, Outcome.SKIPPED)
    groups += [(job.job_id, skipped(f"not run: {job.reason}")) for job in card.not_run]
    nothing = wording.NOTHING_REQUIRED.format(card.trainer)
    shown = groups or [("none", of_no_run(card.trainer, Outcome.NOT_REQUESTED, nothing))]
    return tuple((job_id, with_contract(rows, card.contract, card.trainer)) for job_id, rows in shown)


def _evidence_rows(card: Card) -> Iterable[str]:
    executed = execution_line(execution_of_card(card))
    if executed:
        yield f"- {EXECUTED_TITLE}: {one_line(executed, _MAX_EXECUTED)}"
    for verdict in card.verdicts:
        if len(_groups(card)) > 1:
            reason = accepted_in(card, verdict)
            accepted_as = f", accepted: {one_line(reason, MAX_RELATED)}" if reason else ""
            yield f"- Job: {one_line(verdict.job_id)} - {verdict.result}{accepted_as}"
        yield from (f"- {one_line(row)}" for row in verdict.repositories)
        yield f"- Command: {one_line(verdict.command, _MAX_COMMAND) or 'unknown'}"
        yield from (f"- Related run: {one_line(row, MAX_RELATED)}" for row in verdict.related)
        for item in verdict.key_lines:
            where = one_line(f"{item.file}:{item.line}" if item.line else item.file, MAX_EXCERPT)
            yield f"- Key lines: {where}: {one_line(item.excerpt, MAX_EXCERPT)}"
        if not verdict.key_lines:
            yield "- Key lines: none"
    yield from (f"- Key lines: {one_line(broken, MAX_EXCERPT)}" for broken in card.contract)
    if not card.verdicts and not card.contract:
        yield "- none, nothing was run"


def limitations_of(card: Card) -> tuple[str, ...]:
    """Limitations of the whole, then those of the jobs: each once, with its jobs where there are several."""
    jobs = [(verdict.job_id, verdict) for verdict in card.verdicts]
    named = len(card.verdicts) + len(card.not_run) > 1
    left = (f"{job.coverage}: not covered, {job.reason}." for job in card.not_run if job.uncoverable)
    return tuple(dict.fromkeys((*left, *card.notes, *merged_limitations(jobs, named=named))))


def followups_of(card: Card) -> tuple[str, ...]:
    """What is to be done next, each once."""
    rows = [row for verdict in card.verdicts for row in verdict.followups]
    # What a run that did not pass never reached is for its own fix to change.
    good = all(_result_in(card, verdict) is Result.PASS for verdict in card.verdicts)
    rows += [wording.FIX_UNEXECUTED] * (good and bool(shortfall_of(card).closing))
    rows += [f"Still to run: {job.coverage} ({job.reason})." for job in card.not_run if not job.uncoverable]
    return tuple(dict.fromkeys(rows))


# How many failures stand before the folds.
_MOST_TOLD = 8
_ICON = {Result.PASS: "✅", Result.FAIL: "❌", Result.BLOCKED: "⛔"}
_CUT = "_Cut to fit; the whole is in card.txt._"


def render_markdown(card: Card) -> str:
    """The card for a GitHub comment: verdict first, details folded, foreign text inert.

    At most 60,000 characters; what does not fit is dropped from the end of its block, with a note.
    """
    result, joined = result_of(card), execution_of_card(card)
    executed = execution_line(joined)
    head = (
        f"**Requested coverage:** {markdown(coverage_of(card))}  ",
        f"**Checkpoint/config:** {markdown(checkpoint_of(card))}{'  ' if executed else ''}",
        *([f"**{EXECUTED_TITLE}:** {markdown(executed, _MAX_EXECUTED)}"] if executed else []),
    )
    bad = [verdict for verdict in card.verdicts if _result_in(card, verdict) is not Result.PASS]
    tables = [(job_id, _table(group)) for job_id, group in _groups(card)]
    if bad:
        named = not card.contract and bad[0].coverage != wording.UNKNOWN_JOB
        title = " and ".join(failure_title(row.job_id, row) for row in bad[:2]) if named else sentence_of(card)
        blocks = [TextBlock(f"### {_ICON[result]} {result} - {sentence(title)}\n", (), "", 4_000)]
        blocks += [failure_block(verdict.job_id, verdict) for verdict in bad[:_MOST_TOLD]]
        blocks.append(folded("What was asked for", head, 16_000))
        blocks += [folded(f"Deliverables of {summary_html(name)}", ("| | | |", *rows), 8_000) for name, rows in tables]
    else:
        blocks = [TextBlock(f"### {_ICON[result]} {result} - {sentence(sentence_of(card))}\n", head, "", 16_000)]
        blocks += [TextBlock(f"| {markdown(name)} | | |", rows, "", 8_000) for name, rows in tables]
    functions = tuple(one_line(row, _MAX_EXECUTED) for row in execution_rows(joined))
    if functions:
        blocks.append(folded_text(f"Changed functions ({len(functions)})", functions, 6_000))
    for title, found, share in (
        ("Limitations", limitations_of(card), 14_000),
        ("Follow-ups", followups_of(card), 6_000),
    ):
        blocks.append(folded(title, tuple(f"- {sentence(row)}" for row in found) or ("- none",), share))
    for report in (report for verdict in card.verdicts for report in verdict.reports):
        title = summary_html(f"{report.title}: {verdict_of(report.comparison)}")
        blocks.append(folded(title, markdown_rows(report), 8_000))
    blocks.append(folded_text("Evidence", tuple(_evidence_rows(card)), 16_000))
    if card.plan:
        blocks.append(folded_text("Plan", tuple(card.plan.splitlines()), 8_000))
    return fit_blocks(tuple(blocks), MAX_MARKDOWN, _CUT)


def _table(group: Iterable[Deliverable]) -> tuple[str, ...]:
    """The rows of a table of deliverables below its head."""
    rows = (f"| {markdown(row.name)} | **{row.outcome}** | {sentence(row.detail, 500)} |" for row in group)
    return ("|---|---|---|", *rows)


def evidence_json(evidence: tuple[Evidence, ...]) -> str:
    """The text of `evidence.json`: every criterion with its state, file, line and excerpt."""
    return document_text({"schema": 1, "evidence": [asdict(item) for item in evidence]})


def card_json(card: Card) -> str:
    """The whole card as one document: per job all of `verdict.json` and its evidence."""
    document = {
        "schema": VERDICT_SCHEMA,
        "result": result_of(card),
        "sentence": sentence_of(card),
        "coverage": coverage_of(card),
        "checkpoint": checkpoint_of(card),
        "jobs": [
            {**verdict_fields(verdict), "evidence": [asdict(item) for item in verdict.evidence]}
            for verdict in card.verdicts
        ],
        "not_run": [asdict(job) for job in card.not_run],
        "notes": list(card.notes),
        "contract": list(card.contract),
        "execution": {
            "sentence": execution_line(execution_of_card(card)),
            "functions": list(execution_rows(execution_of_card(card))),
            "closing": shortfall_of(card).closing,
            "allowed": shortfall_of(card).allowed,
            "accepted": {verdict.job_id: reason for verdict in card.verdicts if (reason := accepted_in(card, verdict))},
        },
        "limitations": list(limitations_of(card)),
        "followups": list(followups_of(card)),
        "plan": card.plan,
    }
    return document_text(document)


def triage_line(file: str, answer: Triage) -> str:
    """One JSON line for one triaged log."""
    return _json_line(triage_json(file, answer))


def explained_line(file: str, message: Explained) -> str:
    """One JSON line for one triaged log with how the answer came about."""
    return _json_line(explain_json(file, message))


def _json_line(document: dict[str, object]) -> str:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace").decode()
