"""The card: the fixed summary of one or several jobs, as plain text and as GitHub Markdown."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from bot.core.evidence import Evidence
from bot.core.verdict import Deliverable, Result, Verdict

# GitHub takes 65,536 characters in a comment; the card stays below by rule.
MAX_MARKDOWN = 60_000
MAX_EXCERPT = 300
_RANK = {Result.PASS: 0, Result.BLOCKED: 1, Result.FAIL: 2}


@dataclass(frozen=True, slots=True)
class NotRun:
    """A planned job that did not run, and why; it keeps the whole from being a Pass."""

    job_id: str
    coverage: str
    reason: str


@dataclass(frozen=True, slots=True)
class Card:
    """What a card shows: verdicts in plan order, planned jobs that did not run, and remarks on the whole.

    `remarks` are extra limitations (a recording, a narrowed run), `plan` the text of the plan or empty.
    """

    verdicts: tuple[Verdict, ...]
    not_run: tuple[NotRun, ...] = ()
    remarks: tuple[str, ...] = ()
    plan: str = ""


def result_of(card: Card) -> Result:
    """Fail outranks Blocked outranks Pass; a planned job that did not run is Blocked."""
    results = [verdict.result for verdict in card.verdicts] + [Result.BLOCKED] * len(card.not_run)
    return max(results, key=_RANK.__getitem__, default=Result.PASS)


def sentence_of(card: Card) -> str:
    """The one sentence after the result: of the job that decides it."""
    result = result_of(card)
    deciding = [verdict for verdict in card.verdicts if verdict.result is result]
    if result is Result.PASS:
        return "; ".join(verdict.sentence for verdict in deciding) or "no verl coverage is required by this change"
    if deciding:
        return deciding[0].sentence
    first = card.not_run[0]
    return f"{first.coverage} did not run: {first.reason}"


def render_text(card: Card) -> str:
    """The card of the guide, word for word in structure, every line at column 0; ends with a newline."""
    return "\n".join(_text_lines(card)) + "\n"


def _text_lines(card: Card) -> Iterable[str]:
    yield f"Result: {result_of(card)} - {_one_line(sentence_of(card))}"
    yield f"Requested coverage: {_coverage(card)}"
    yield f"Checkpoint/config: {_checkpoints(card)}"
    yield from _text_deliverables(card)
    yield "Evidence:"
    yield from _evidence_rows(card)
    yield "Limitations:"
    yield from _bullets(_limitations(card))
    yield "Follow-ups:"
    yield from _bullets(_followups(card))


def _coverage(card: Card) -> str:
    planned = [verdict.coverage for verdict in card.verdicts] + [f"{job.coverage}, not run" for job in card.not_run]
    return "; ".join(planned) or "none"


def _checkpoints(card: Card) -> str:
    return "; ".join(dict.fromkeys(verdict.checkpoint for verdict in card.verdicts)) or "none"


def _text_deliverables(card: Card) -> Iterable[str]:
    several = len(card.verdicts) > 1
    for verdict in card.verdicts:
        yield f"Deliverables ({verdict.job_id}):" if several else "Deliverables:"
        yield from (_deliverable(row) for row in verdict.deliverables)
    if not card.verdicts:
        yield "Deliverables:"
    for job in card.not_run:
        yield f"- {job.coverage}: Skipped - {_one_line(job.reason)}"


def _deliverable(row: Deliverable) -> str:
    return f"- {row.name}: {row.outcome} - {_one_line(row.detail)}"


def _evidence_rows(card: Card) -> Iterable[str]:
    for verdict in card.verdicts:
        if len(card.verdicts) > 1:
            yield f"- Job: {verdict.job_id} - {verdict.result}"
        yield from (f"- {_one_line(row)}" for row in verdict.repositories)
        yield f"- Command: {_one_line(verdict.command) or 'never started'}"
        yield from (f"- Key lines: {_key_line(item)}" for item in verdict.key_lines)
        if not verdict.key_lines:
            yield "- Key lines: none"


def _key_line(item: Evidence) -> str:
    where = f"{item.file}:{item.line}" if item.line else item.file
    return f"{where}: {_one_line(item.excerpt)[:MAX_EXCERPT]}"


def _limitations(card: Card) -> tuple[str, ...]:
    rows = [*card.remarks, *(row for verdict in card.verdicts for row in verdict.limitations)]
    return tuple(dict.fromkeys(rows))


def _followups(card: Card) -> tuple[str, ...]:
    rows = [row for verdict in card.verdicts for row in verdict.followups]
    return tuple(dict.fromkeys(rows))


def _bullets(rows: Iterable[str]) -> Iterable[str]:
    shown = [f"- {_one_line(row)}" for row in rows]
    yield from shown or ["- none"]


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def _one_line(text: str) -> str:
    return _CONTROL.sub(" ", text).strip()


def render_markdown(card: Card) -> str:
    """The card for a GitHub comment: verdict first, details folded, log text fenced and defused.

    At most 60,000 characters; what does not fit is dropped from the end of the details with a note.
    """
    head = "\n".join(_markdown_head(card))
    details = "\n".join(_markdown_details(card))
    room = MAX_MARKDOWN - len(head) - 200
    if len(details) > room:
        details = _cut(details, room)
    return f"{head}\n{details}\n"


_ICON = {Result.PASS: "✅", Result.FAIL: "❌", Result.BLOCKED: "⛔"}


def _markdown_head(card: Card) -> Iterable[str]:
    result = result_of(card)
    yield f"### {_ICON[result]} {result} - {_escape(sentence_of(card))}"
    yield ""
    yield f"**Requested coverage:** {_escape(_coverage(card))}  "
    yield f"**Checkpoint/config:** {_escape(_checkpoints(card))}"
    yield ""
    for verdict in card.verdicts:
        yield from _markdown_table(verdict)
    for job in card.not_run:
        yield f"- {_escape(job.coverage)}: Skipped - {_escape(job.reason)}"


def _markdown_table(verdict: Verdict) -> Iterable[str]:
    yield f"| {_escape(verdict.job_id)} | | |"
    yield "|---|---|---|"
    for row in verdict.deliverables:
        yield f"| {_escape(row.name)} | **{row.outcome}** | {_cell(row.detail)} |"
    yield ""


def _markdown_details(card: Card) -> Iterable[str]:
    yield from _folded("Limitations", _bullets(_escape(row) for row in _limitations(card)))
    yield from _folded("Follow-ups", _bullets(_escape(row) for row in _followups(card)))
    yield from _folded("Evidence", [_fence("\n".join(_evidence_rows(card)))])
    if card.plan:
        yield from _folded("Plan", [_fence(card.plan)])


def _folded(title: str, rows: Iterable[str]) -> Iterable[str]:
    yield f"<details><summary>{title}</summary>"
    yield ""
    yield from rows
    yield ""
    yield "</details>"


def _fence(text: str) -> str:
    """A code fence longer than any run of backticks in the text; mentions and markers stay inert inside it."""
    ticks = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, ticks + 1)
    inert = text.replace("@", f"@{_BREAK}").replace("<!--", f"<!{_BREAK}--")
    return f"{fence}text\n{inert}\n{fence}"


# A zero-width space: breaks a mention, a link or a marker without showing.
_BREAK = "\u200b"
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~>])")


def _escape(text: str) -> str:
    """Text that GitHub shows as it is: no HTML, no mention, no link, no formatting."""
    plain = _one_line(text).replace("&", "&amp;").replace("<", "&lt;")
    return _MARKDOWN.sub(r"\\\1", plain).replace("@", f"@{_BREAK}").replace("://", f":{_BREAK}//")


def _cell(text: str) -> str:
    return _escape(text[:1000])


def _cut(details: str, room: int) -> str:
    """Cut at a line end, close what is open, and say so."""
    kept = details[: max(0, room)].rsplit("\n", 1)[0]
    fences = list(re.findall(r"^(`{3,})", kept, re.MULTILINE))
    close = f"\n{fences[-1]}" if len(fences) % 2 else ""
    folds = kept.count("<details>") - kept.count("</details>")
    return f"{kept}{close}\n\n" + "</details>\n" * max(0, folds) + "\n_Cut to fit; the whole text is in card.txt._"
