"""The one comment that a pull request gets: verdict first, a table of jobs, everything else folded.

`render` is deterministic and stays within 60,000 characters at any size of its input; what does not fit is dropped
from the end of its block by rule. Every foreign text goes through `bot.core.inert`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bot.core.blocks import Block, fit, folded, folded_text
from bot.core.inert import markdown, one_line
from bot.core.ledger import Override, Run, RunState
from bot.core.outcome import Result
from bot.core.plan import Plan
from bot.core.plan_text import render_plan_text

# First in every card; only a comment of our own App that starts with it is taken for ours.
MARKER = "<!-- verl-e2e:card:v1 -->"
MAX_CARD = 60_000
_CUT = "_Cut to fit._"
_ICON = {
    "Pass": "✅",
    "Fail": "❌",
    "Blocked": "⛔",
    "Running": "🔄",
    "Waiting": "⏳",
    "Skipped": "⏭️",
    "Overridden": "⚠️",
    "Nothing required": "✅",
    "Cancelled": "⏹️",
}


class Standing(StrEnum):
    """The state of the whole or of one job, as the card and the gate name it."""

    PASS = "Pass"
    FAIL = "Fail"
    BLOCKED = "Blocked"
    RUNNING = "Running"
    WAITING = "Waiting"
    SKIPPED = "Skipped"
    OVERRIDDEN = "Overridden"
    CANCELLED = "Cancelled"
    NOTHING_REQUIRED = "Nothing required"


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job on the card.

    `detail` is one sentence. `planned` and `used` are GPU minutes; `planned` is an estimate. `url` is where its log
    and artifacts lie. `verdict` is its `verdict.json` as the bot judged it, parsed; empty before there is one.
    """

    job_id: str
    standing: Standing
    required: bool
    detail: str
    attempt: int = 1
    planned: float = 0.0
    used: float = 0.0
    url: str = ""
    verdict: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EarlierHead:
    """What became of a head that was pushed over."""

    head_sha: str
    standing: Standing
    sentence: str


@dataclass(frozen=True, slots=True)
class PullCard:
    """All that the card of a pull request shows.

    `notices` are sentences that must be seen at once (approval awaited, draft, plan incomplete), `reproduce` a command
    that a reader can paste, `problem` why there is no plan.
    """

    head_sha: str
    standing: Standing
    sentence: str
    jobs: tuple[JobRow, ...] = ()
    plan: Plan | None = None
    notices: tuple[str, ...] = ()
    overrides: tuple[Override, ...] = ()
    history: tuple[EarlierHead, ...] = ()
    reproduce: str = ""
    problem: str = ""


def row_of(run: Run, standing: Standing | None = None, *, planned: float = 0.0) -> JobRow:
    """The row of a run; its standing follows from its state and result unless given."""
    detail = run.sentence or run.reason
    if run.carried_from:
        detail = f"carried forward from {run.carried_from[:12]}: {detail}"
    return JobRow(
        job_id=run.job_id,
        standing=standing or standing_of(run),
        required=run.required,
        detail=detail,
        attempt=run.attempt,
        planned=planned,
        used=run.gpu_minutes,
        url=run.url,
        verdict=_parsed(run.verdict),
    )


def standing_of(run: Run) -> Standing:
    """What a run's state and result amount to; a run that got lost or was refused is Blocked."""
    if run.state is RunState.FINISHED and run.result is not None:
        return {Result.PASS: Standing.PASS, Result.FAIL: Standing.FAIL, Result.BLOCKED: Standing.BLOCKED}[run.result]
    if run.state is RunState.CANCELLED:
        return Standing.CANCELLED
    if run.state.final:
        return Standing.BLOCKED
    return Standing.WAITING if run.state is RunState.QUEUED else Standing.RUNNING


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text) if text else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def render(card: PullCard) -> str:
    """The comment's Markdown, the marker first, at most 60,000 characters."""
    blocks = (
        _head(card),
        _table(card),
        *_folds(card),
    )
    return f"{MARKER}\n{fit(blocks, MAX_CARD - len(MARKER) - 1, _CUT)}"


def _head(card: PullCard) -> Block:
    icon = _ICON[card.standing]
    heading = f"### {icon} verl-e2e: {card.standing} - {markdown(card.sentence, 600)}\n"
    rows = [f"Head `{card.head_sha[:12]}`{_cost(card)}", *(f"> {markdown(one, 600)}" for one in card.notices)]
    if card.problem:
        rows.append(f"> {markdown(card.problem, 1000)}")
    rows += [_overridden(one) for one in card.overrides]
    return Block(heading, tuple(rows), "", 14_000)


def _cost(card: PullCard) -> str:
    planned = sum(row.planned for row in card.jobs)
    used = sum(row.used for row in card.jobs)
    if not planned and not used:
        return ""
    return f", GPU minutes: {used:.1f} used, about {planned:.0f} planned"


def _overridden(one: Override) -> str:
    who, why = markdown(one.actor, 60), markdown(one.reason, 300)
    return f"> ⚠️ Level {int(one.level)} overridden by {who} on `{one.head_sha[:12]}`: {why}"


def _table(card: PullCard) -> Block:
    if not card.jobs:
        return Block("", (), "", 100)
    rows = tuple(_job_row(row) for row in card.jobs)
    return Block("| job | result | required | |\n|---|---|---|---|", rows, "", 16_000)


def _job_row(row: JobRow) -> str:
    again = f" (attempt {row.attempt})" if row.attempt > 1 else ""
    link = f" [log]({row.url})" if _is_plain_link(row.url) else ""
    required = "yes" if row.required else "extra"
    detail = markdown(row.detail, 400)
    return f"| {markdown(row.job_id, 80)}{again} | {_ICON[row.standing]} {row.standing} | {required} | {detail}{link} |"


def _is_plain_link(url: str) -> bool:
    """Whether a link can stand in Markdown as it is; it comes from a back end, which is not trusted."""
    safe = url.startswith(("https://", "http://")) and len(url) <= 500
    return safe and all(sign.isalnum() or sign in ":/._-?=&%#~" for sign in url)


def _folds(card: PullCard) -> Iterable[Block]:
    for row in card.jobs:
        if row.verdict:
            yield folded(f"Deliverables of {markdown(row.job_id, 80)}", _deliverables(row), 5_000)
    limitations = _each_once(card, "limitations")
    if limitations:
        yield folded("Limitations", tuple(f"- {markdown(one, 500)}" for one in limitations), 8_000)
    followups = _each_once(card, "followups")
    if followups:
        yield folded("Follow-ups", tuple(f"- {markdown(one, 500)}" for one in followups), 4_000)
    evidence = tuple(_evidence(card))
    if evidence:
        yield folded_text("Evidence", evidence, 12_000)
    if card.plan is not None:
        yield folded_text("Plan: which path asks for which level, and why", _plan_rows(card.plan), 10_000)
    if card.history:
        yield folded(f"Earlier heads ({len(card.history)})", tuple(_earlier(one) for one in card.history), 4_000)
    if card.reproduce:
        yield folded_text("Reproduce", (card.reproduce,), 3_000)


def _deliverables(row: JobRow) -> tuple[str, ...]:
    lines = ["| | | |", "|---|---|---|"]
    for one in _rows_of(row.verdict.get("deliverables")):
        name, outcome = markdown(str(one.get("name", "")), 80), markdown(str(one.get("outcome", "")), 40)
        lines.append(f"| {name} | **{outcome}** | {markdown(str(one.get('detail', '')), 500)} |")
    return tuple(lines)


def _rows_of(value: object) -> tuple[Mapping[str, Any], ...]:
    return tuple(one for one in value if isinstance(one, dict)) if isinstance(value, list) else ()


def _each_once(card: PullCard, key: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for row in card.jobs:
        value = row.verdict.get(key)
        found.update(dict.fromkeys(str(one) for one in value) if isinstance(value, list) else {})
    return tuple(found)


def _evidence(card: PullCard) -> Iterable[str]:
    for row in card.jobs:
        if not row.verdict:
            continue
        yield f"{row.job_id}: {row.standing}"
        repositories = row.verdict.get("repositories")
        yield from (f"  {one_line(str(one), 300)}" for one in (repositories if isinstance(repositories, list) else ()))
        for one in _rows_of(row.verdict.get("key_lines")):
            where = f"{one.get('file', '')}:{one.get('line', 0)}"
            yield f"  {one_line(where, 200)}: {one_line(str(one.get('excerpt', '')), 300)}"


def _plan_rows(plan: Plan) -> tuple[str, ...]:
    return tuple(render_plan_text(plan).splitlines())


def _earlier(one: EarlierHead) -> str:
    return f"- `{one.head_sha[:12]}` {_ICON[one.standing]} {one.standing}: {markdown(one.sentence, 300)}"
