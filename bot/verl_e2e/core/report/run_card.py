"""The card: the fixed summary of one or several jobs, as plain text and as GitHub Markdown."""

from collections.abc import Iterable
from dataclasses import dataclass

from verl_e2e.core.judge import wording
from verl_e2e.core.judge.deliverables import of_job_not_run, of_nothing_required, with_contract
from verl_e2e.core.judge.left_open import merged, of_verdict
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.evidence import Evidence
from verl_e2e.core.model.outcome import Deliverable, Result
from verl_e2e.core.report.comparison_text import markdown_rows, verdict_of
from verl_e2e.core.text.blocks import Block, fit, folded, folded_text
from verl_e2e.core.text.escape import markdown, one_line, sentence, summary

# GitHub takes 65,536 characters in a comment; the card stays below by rule.
MAX_MARKDOWN = 60_000
MAX_EXCERPT = 300
MAX_RELATED = 600
MAX_COMMAND = 40_000
_RANK = {Result.PASS: 0, Result.BLOCKED: 1, Result.FAIL: 2}


@dataclass(frozen=True, slots=True)
class NotRun:
    """A planned job that did not run, and why; it keeps the whole from being a Pass."""

    job_id: str
    coverage: str
    reason: str


@dataclass(frozen=True, slots=True)
class Card:
    """What a card shows."""

    # The verdicts, in the order of the plan.
    verdicts: tuple[Verdict, ...]
    # Planned jobs that did not run.
    not_run: tuple[NotRun, ...] = ()
    # Limitations of the whole: a recording, a narrowed run.
    notes: tuple[str, ...] = ()
    # The text of the plan, or empty.
    plan: str = ""
    # Uses in verl that work at the base and break at the head, found without a GPU: they fail the Bridge-side checks.
    contract: tuple[str, ...] = ()


def result_of(card: Card) -> Result:
    """Fail outranks Blocked outranks Pass; a planned job that did not run is Blocked, a broken contract Fail."""
    if card.contract:
        return Result.FAIL
    results = [verdict.result for verdict in card.verdicts] + [Result.BLOCKED] * len(card.not_run)
    return max(results, key=_RANK.__getitem__, default=Result.PASS)


def sentence_of(card: Card) -> str:
    """The one sentence after the result: of the job that decides it, or of the broken contract."""
    if card.contract:
        return wording.contract_broken(card.contract)
    result = result_of(card)
    deciding = [verdict for verdict in card.verdicts if verdict.result is result]
    if result is Result.PASS:
        return "; ".join(verdict.sentence for verdict in deciding) or wording.NOTHING_REQUIRED
    if deciding:
        return deciding[0].sentence
    first = card.not_run[0]
    return f"{first.coverage} did not run: {first.reason}"


def coverage_of(card: Card) -> str:
    """The levels and variants that were asked for, those that did not run marked."""
    planned = [verdict.coverage for verdict in card.verdicts] + [f"{job.coverage}, not run" for job in card.not_run]
    return "; ".join(planned) or f"none ({wording.NOTHING_REQUIRED})"


def checkpoint_of(card: Card) -> str:
    """The checkpoint of every job, each once."""
    return "; ".join(dict.fromkeys(verdict.checkpoint for verdict in card.verdicts)) or "none"


def render_text(card: Card) -> str:
    """The card of the guide, word for word in structure, every line at column 0; ends with a newline."""
    return "\n".join(_text_lines(card)) + "\n"


def _text_lines(card: Card) -> Iterable[str]:
    yield f"Result: {result_of(card)} - {one_line(sentence_of(card))}"
    yield f"Requested coverage: {one_line(coverage_of(card))}"
    yield f"Checkpoint/config: {one_line(checkpoint_of(card))}"
    groups = _groups(card)
    for job_id, rows in groups:
        yield f"Deliverables ({one_line(job_id)}):" if len(groups) > 1 else "Deliverables:"
        yield from (f"- {row.name}: {row.outcome} - {one_line(row.detail)}" for row in rows)
    yield "Evidence:"
    yield from _evidence_rows(card)
    yield "Limitations:"
    yield from _bullets(limitations_of(card))
    yield "Follow-ups:"
    yield from _bullets(followups_of(card))


def _groups(card: Card) -> tuple[tuple[str, tuple[Deliverable, ...]], ...]:
    """One group of deliverables for each job, run or not."""
    groups = [(verdict.job_id, verdict.deliverables) for verdict in card.verdicts]
    groups += [(job.job_id, of_job_not_run(job.reason)) for job in card.not_run]
    shown = groups or [("none", of_nothing_required(wording.NOTHING_REQUIRED))]
    return tuple((job_id, with_contract(rows, card.contract)) for job_id, rows in shown)


def _evidence_rows(card: Card) -> Iterable[str]:
    for verdict in card.verdicts:
        if len(_groups(card)) > 1:
            yield f"- Job: {one_line(verdict.job_id)} - {verdict.result}"
        yield from (f"- {one_line(row)}" for row in verdict.repositories)
        yield f"- Command: {one_line(verdict.command, MAX_COMMAND) or 'unknown'}"
        yield from (f"- Related run: {one_line(row, MAX_RELATED)}" for row in verdict.related)
        yield from (f"- Key lines: {_key_line(item)}" for item in verdict.key_lines)
        if not verdict.key_lines:
            yield "- Key lines: none"
    yield from (f"- Key lines: {one_line(broken, MAX_EXCERPT)}" for broken in card.contract)
    if not card.verdicts and not card.contract:
        yield "- none, nothing was run"


def _key_line(item: Evidence) -> str:
    where = one_line(f"{item.file}:{item.line}" if item.line else item.file, MAX_EXCERPT)
    return f"{where}: {one_line(item.excerpt, MAX_EXCERPT)}"


def limitations_of(card: Card) -> tuple[str, ...]:
    """Limitations of the whole, then those of the jobs: each once, with its jobs where there are several."""
    jobs = tuple(map(of_verdict, card.verdicts))
    named = len(card.verdicts) + len(card.not_run) > 1
    return tuple(dict.fromkeys((*card.notes, *merged(jobs, named=named))))


def followups_of(card: Card) -> tuple[str, ...]:
    """What is to be done next, each once."""
    rows = [row for verdict in card.verdicts for row in verdict.followups]
    rows += [f"Still to run: {job.coverage} ({job.reason})." for job in card.not_run]
    return tuple(dict.fromkeys(rows))


def _bullets(rows: Iterable[str]) -> Iterable[str]:
    yield from [f"- {one_line(row)}" for row in rows] or ["- none"]


_ICON = {Result.PASS: "✅", Result.FAIL: "❌", Result.BLOCKED: "⛔"}
_CUT = "_Cut to fit; the whole is in card.txt._"


def render_markdown(card: Card) -> str:
    """The card for a GitHub comment: verdict first, details folded, foreign text inert.

    At most 60,000 characters; what does not fit is dropped from the end of its block, with a note.
    """
    details = (
        _markdown_head(card),
        *(_markdown_table(job_id, rows) for job_id, rows in _groups(card)),
        folded("Limitations", _markdown_rows(limitations_of(card)), 14_000),
        folded("Follow-ups", _markdown_rows(followups_of(card)), 6_000),
        *_reports(card),
        folded_text("Evidence", tuple(_evidence_rows(card)), 16_000),
        *([folded_text("Plan", tuple(card.plan.splitlines()), 8_000)] if card.plan else []),
    )
    return fit(details, MAX_MARKDOWN, _CUT)


def _reports(card: Card) -> Iterable[Block]:
    """Each comparison with another run, folded."""
    for verdict in card.verdicts:
        for report in verdict.reports:
            title = summary(f"{report.title}: {verdict_of(report.comparison)}")
            yield folded(title, markdown_rows(report), 8_000)


def _markdown_head(card: Card) -> Block:
    result = result_of(card)
    heading = f"### {_ICON[result]} {result} - {sentence(sentence_of(card))}\n"
    rows = (
        f"**Requested coverage:** {markdown(coverage_of(card))}  ",
        f"**Checkpoint/config:** {markdown(checkpoint_of(card))}",
    )
    return Block(heading, rows, "", 16_000)


def _markdown_table(job_id: str, rows: tuple[Deliverable, ...]) -> Block:
    cells = tuple(f"| {markdown(row.name)} | **{row.outcome}** | {sentence(row.detail, 500)} |" for row in rows)
    return Block(f"| {markdown(job_id)} | | |\n|---|---|---|", cells, "", 8_000)


def _markdown_rows(rows: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"- {sentence(row)}" for row in rows) or ("- none",)
