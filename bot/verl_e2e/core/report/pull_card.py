"""The one comment that a pull request gets: verdict first, a table of jobs, everything else folded.

What comes from one verdict, as rows of Markdown or of plain text, is for check runs too.

`render` is deterministic and stays within 60,000 characters at any size of its input. A card that fits is shown whole;
of one that does not, each block keeps to its share and loses rows from its end, and says so. Every foreign text goes
through `verl_e2e.core.text.escape`.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.execution import JoinedExecution
from verl_e2e.core.judge.verdict_document import Verdict, merged_limitations, read_verdict
from verl_e2e.core.judge.wording import purpose_rows
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.plan import Plan, Reason
from verl_e2e.core.pulls.commands import Uncounted
from verl_e2e.core.pulls.ledger import JobStatus, Override, Run, status_of_run
from verl_e2e.core.pulls.wanted_jobs import origin_text
from verl_e2e.core.report.run_card import TITLE, execution_line, execution_rows
from verl_e2e.core.text.escape import (
    TextBlock,
    code,
    count_of,
    fit_blocks,
    folded,
    folded_text,
    markdown,
    one_line,
    sentence,
    summary_html,
)

_MAX_LINK = 500
_MAX_COMMAND = 12_000
_COMMAND_WIDTH = 150
# A page of our documentation, which is not in the repository that is tested.
_OWN_DOCUMENT = re.compile(r"(?<![\w./`-])docs/[\w-]{1,60}\.md(#[\w-]{1,100})?(?! of verl-e2e)")
_PLAIN_LINK = re.compile(r"https?://[A-Za-z0-9:/._?=&%#~-]*")
_WORKFLOW_RUN = re.compile(r".*?/actions/runs/[0-9]+(?=[/#]|\Z)")


def verdict_sentence(text: str, limit: int = 1000) -> str:
    """A sentence of a verdict for a reader in another repository: it names our documents as documents of verl-e2e."""
    return sentence(_OWN_DOCUMENT.sub(r"`\g<0>` of verl-e2e", text), limit)


def requested_rows(verdict: Verdict) -> tuple[str, ...]:
    """What was asked for and which model was trained, as rows of Markdown."""
    named = (("Requested coverage", verdict.coverage), ("Checkpoint/config", verdict.checkpoint))
    return tuple(f"**{title}:** {markdown(value, 600)}  " for title, value in named if value)


def command_rows(verdict: Verdict) -> tuple[str, ...]:
    """The command in lines that a shell takes as one, for a fence; empty where the verdict has none."""
    if not verdict.command:
        return ()
    shown = one_line(verdict.command, _MAX_COMMAND)
    try:
        words = [shlex.quote(word) for word in shlex.split(shown)]
    except ValueError:
        return (shown,)
    if " ".join(words) != shown:
        return (shown,)
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) >= _COMMAND_WIDTH:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return (*(f"{line} \\" for line in lines[:-1]), lines[-1])


def deliverable_rows(verdict: Verdict) -> tuple[str, ...]:
    """The deliverables as a Markdown table, empty where there are none."""
    rows = [
        f"| {markdown(row.name, 80)} | **{row.outcome}** | {verdict_sentence(row.detail, 500)} |"
        for row in verdict.deliverables
    ]
    return ("| deliverable | outcome | detail |", "|---|---|---|", *rows) if rows else ()


def key_lines(verdict: Verdict) -> tuple[str, ...]:
    """The lines that decided, as `file:line: text`, for a fence; for curves see `curves`."""
    rows = []
    for item in verdict.key_lines:
        if item.criterion != Criterion.LEARNING_SIGNAL:
            where = f"{item.file}:{item.line}" if item.line else item.file
            rows.append(f"{one_line(where, 200)}: {one_line(item.excerpt, 300)}")
    return tuple(rows)


def curves(verdict: Verdict) -> Iterator[str]:
    """The curves of a learning signal, one for each row: title, first value, sparkline, last value, aligned."""
    for item in verdict.key_lines:
        if item.criterion == Criterion.LEARNING_SIGNAL:
            yield from ([one_line(item.summary, 400)] if item.summary else [])
            yield from _aligned(one_line(item.excerpt, 2000).split(", "))


def _aligned(curves: list[str]) -> Iterator[str]:
    """Rows of equal columns where each is `title first sparkline last`, else as they are."""
    cells = [curve.rsplit(" ", 3) for curve in curves]
    if any(len(row) != 4 for row in cells):
        yield from curves
        return
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    for title, first, line, last in cells:
        yield f"  {title:<{widths[0]}}  {first:>{widths[1]}} {line:<{widths[2]}} {last}"


def links(url: str) -> str:
    """Links to the log of a run in Markdown, and to its folder where it is a workflow run of GitHub's.

    Empty where the address, which a back end gave, cannot stand in Markdown as it is.
    """
    if len(url) > _MAX_LINK or not _PLAIN_LINK.fullmatch(url):
        return ""
    run = _WORKFLOW_RUN.match(url)
    return f" [log]({url})" + (f" · [artifacts]({run[0]}#artifacts)" if run else "")


SHOWN_PLACES = 4
SHOWN_STEPS = 8


def reason_blocks(plan: Plan, share: int) -> tuple[TextBlock, ...]:
    """A folded block for each required level and one for the rest; together they take about `share` characters."""
    each = max(600, share // (len(plan.levels) + 1))
    blocks = []
    for level in plan.levels:
        paths = {reason.path for reason in plan.reasons if reason.level is level and reason.path is not None}
        verb = "requires" if len(paths) == 1 else "require"
        asked = f"{count_of(len(paths), 'changed path')} {verb} it" if paths else "requested"
        jobs = count_of(sum(job.variant.level is level for job in plan.jobs), "job")
        title = f"Why level {int(level)}, {level.title}: {asked}, {jobs}"
        blocks.append(folded_text(title, tuple(_required_rows(level, plan)), each))
    rest = tuple(_other_rows(plan))
    title = "Levels that are not required, and why" if plan.levels else "Why no level is required"
    return (*blocks, *([folded_text(title, rest, each)] if rest else []))


def _required_rows(level: Level, plan: Plan) -> Iterator[str]:
    groups: dict[str, list[Reason]] = {}
    for reason in plan.reasons:
        if reason.level is level:
            groups.setdefault(reason.reason, []).append(reason)
    for text, reasons in groups.items():
        yield text
        placed = [reason for reason in reasons if reason.path is not None]
        for reason in placed[:SHOWN_PLACES]:
            yield f"  {reason.path}" + (f": {reason.symbol}" if reason.symbol else "")
            # The chain from verl, outermost first; a long one is shortened in the middle, because its ends say most.
            via, left, head = reason.via, len(reason.via) - SHOWN_STEPS + 1, SHOWN_STEPS // 2
            if left > 1:
                via = (*via[:head], f"... {count_of(left, 'step')} ...", *via[head + left :])
            yield from (f"    {step}" for step in via)
        if len(placed) > SHOWN_PLACES:
            yield f"  and {count_of(len(placed) - SHOWN_PLACES, 'more place')}"
    for job in plan.jobs:
        rows = purpose_rows(job.purposes) if job.variant.level is level else ()
        yield from (f"job {job.id}: {row}" for row in rows)


def _other_rows(plan: Plan) -> Iterator[str]:
    """Why other levels are not required, what the planned jobs do not show or are not known to, and the rest."""
    if len({item.reason for item in plan.not_required}) == 1 and not plan.levels:
        yield plan.not_required[0].reason
    else:
        yield from (f"Level {int(item.level)}, {item.level.title}: {item.reason}" for item in plan.not_required)
    yield from (*plan.switched_off, *plan.incomplete, *plan.notes)
    for open_place in plan.not_covered[:SHOWN_PLACES]:
        yield from (f"No job is planned {row}: {open_place.reason}" for row in purpose_rows([open_place.purpose]))
    if len(plan.not_covered) > SHOWN_PLACES:
        yield f"No job is planned for {count_of(len(plan.not_covered) - SHOWN_PLACES, 'more place')}"
    for place in plan.not_entered[:SHOWN_PLACES]:
        yield f"It is not known whether a planned job enters {place}: {place.problem}"
    if len(plan.not_entered) > SHOWN_PLACES:
        yield f"Nor is it known of {count_of(len(plan.not_entered) - SHOWN_PLACES, 'more place')}"
    for unshown in plan.unshown:
        more = f" and {len(unshown.places) - 1} more" if len(unshown.places) > 1 else ""
        yield f"Level {int(unshown.level)} {unshown.reason}, so it cannot show {unshown.places[0]}{more}"
    if not plan.levels and plan.looked_at is not None:
        yield plan.looked_at.sentence
    yield from (f"Bridge test chosen: {test.test}: {test.reason}" for test in plan.tests.tests)
    for item in plan.exempted if plan.levels else ():
        yield f"Set aside: {count_of(item.count, 'path')} in {item.name} ({item.reason})"


# First in every card; only a comment of our own App that starts with it is taken for ours.
MARKER = "<!-- verl-e2e:card:v1 -->"
MAX_CARD = 60_000
_CUT = "_Cut to fit._"
_ANY = 10**9


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job on the card."""

    job_id: str
    status: JobStatus
    required: bool
    detail: str
    # From 1.
    attempt: int = 1
    # GPU minutes that it was estimated to take.
    planned: float = 0.0
    # GPU minutes that all its attempts took together.
    used: float = 0.0
    url: str = ""
    # Its verdict as the bot judged it, None before there is one.
    verdict: Verdict | None = None
    # The options that someone asked for it with, empty for none.
    options: str = ""
    # What it is for and with which model, for one that has no verdict yet; empty where the job is not complete.
    requested: str = ""
    # A sentence for each attempt, the first one first; empty for a job with a single one.
    attempts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EarlierHead:
    """The result of an earlier head."""

    head_sha: str
    status: JobStatus
    sentence: str


@dataclass(frozen=True, slots=True)
class PullCard:
    """Everything that the card of a pull request shows."""

    # The head that the card is about, in full.
    head_sha: str
    status: JobStatus
    # What the gate says, in one sentence.
    sentence: str
    # The jobs, in the order of the plan.
    jobs: tuple[JobRow, ...] = ()
    plan: Plan | None = None
    # Sentences that a reader must see at once: an approval is needed, a draft, an incomplete plan.
    notices: tuple[str, ...] = ()
    # Overrides of this head that count.
    overrides: tuple[Override, ...] = ()
    # Overrides of this head that do not count, with the reason.
    uncounted: tuple[Uncounted, ...] = ()
    # Earlier heads, the latest first.
    history: tuple[EarlierHead, ...] = ()
    reproduce: str = ""
    # Why the head has no plan, where the sentence does not say it.
    problem: str = ""
    executed: JoinedExecution = field(default_factory=JoinedExecution)
    # Minutes until the required jobs have an answer, if none waits for a machine; 0 when they have it.
    minutes_left: int = 0
    # Limitations of the whole, before those of the jobs.
    limitations: tuple[str, ...] = ()
    # What the head's rehearsal found, or that it is waited for; empty where it has none.
    rehearsal: str = ""
    # The section of the rehearsal, folded; empty before there is one.
    rehearsal_blocks: tuple[TextBlock, ...] = ()


def row_of(run: Run, status: JobStatus | None = None, *, planned: float = 0.0) -> JobRow:
    """The row of a run; its status follows from its state and result unless given."""
    detail = run.sentence or run.reason
    if run.carried_from:
        detail = f"{origin_text(run)}: {detail}"
    return JobRow(
        job_id=run.job_id,
        status=status or status_of_run(run),
        required=run.required,
        detail=detail,
        attempt=run.attempt,
        planned=planned,
        used=run.gpu_minutes,
        url=run.url,
        verdict=read_verdict(run.verdict),
    )


def render(card: PullCard) -> str:
    """The comment's Markdown, the marker first, at most 60,000 characters."""
    blocks = (_head(card), _table(card), *_folds(card))
    room = MAX_CARD - len(MARKER) - 1
    whole = fit_blocks(tuple(replace(block, share=_ANY) for block in blocks), _ANY, _CUT)
    return f"{MARKER}\n{whole if len(whole) <= room else fit_blocks(blocks, room, _CUT)}"


def _head(card: PullCard) -> TextBlock:
    heading = f"### {card.status.icon} verl-e2e: {card.status.word} - {sentence(card.sentence, 600)}\n"
    planned, used = sum(row.planned for row in card.jobs), sum(row.used for row in card.jobs)
    left = f", about {card.minutes_left} minutes to an answer where no job waits" if card.minutes_left else ""
    cost = f", GPU minutes: {used:.1f} used, about {planned:.0f} planned{left}" if planned or used else ""
    rows = [f"Head `{card.head_sha[:12]}`{cost}", *(f"> {sentence(notice, 600)}" for notice in card.notices)]
    rows += [f"> {sentence(text, 1000)}" for text in (card.problem, card.rehearsal) if text]
    executed = execution_line(card.executed, done=card.status is not JobStatus.RUNNING)
    if executed:
        rows.append(f"> {TITLE}: {sentence(executed, 1500)}")
    for override in card.overrides:
        who, why = markdown(override.actor, 60), sentence(override.reason, 300)
        rows.append(f"> ⚠️ Level {int(override.level)} overridden by {who} on `{override.head_sha[:12]}`: {why}")
    for item in card.uncounted:
        who, why = markdown(item.override.actor, 60), sentence(item.why, 300)
        rows.append(f"> ⚠️ The override of level {int(item.override.level)} by {who} does not count: {why}")
    return TextBlock(heading, tuple(rows), "", 8_000)


def _table(card: PullCard) -> TextBlock:
    if not card.jobs:
        return TextBlock("", (), "", 100)
    rows = []
    for row in card.jobs:
        again = f" (attempt {row.attempt})" if row.attempt > 1 else ""
        used = f"{row.used:.1f}" if row.used else "0" if row.planned else ""
        cells = (
            markdown(row.job_id, 80) + (f" {code(row.options, 200)}" if row.options else "") + again,
            f"{row.status.icon} {row.status.word}",
            "yes" if row.required else "extra",
            f"{used} of about {row.planned:.0f}" if row.planned else used,
            verdict_sentence(row.detail, 400) + links(row.url),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return TextBlock(
        "| job | result | required | GPU minutes | reason |\n|---|---|---|---|---|", tuple(rows), "", 9_000
    )


def _folds(card: PullCard) -> Iterator[TextBlock]:
    """The folded blocks. Their shares, with those of head and table, add up to at most the size of the card."""
    yield from card.rehearsal_blocks
    judged = [(row, row.verdict) for row in card.jobs if row.verdict is not None]
    share, of_command = (
        max(least, all_jobs // max(1, len(judged))) for least, all_jobs in ((700, 6_000), (500, 3_000))
    )
    evidence = []
    for row, verdict in judged:
        title = summary_html(row.job_id, 80)
        table = deliverable_rows(verdict)
        if table:
            yield folded(f"Deliverables of {title}", (*requested_rows(verdict), "", *table), share)
        drawn, command = tuple(curves(verdict)), command_rows(verdict)
        if drawn:
            yield folded_text(f"Curves of {title}", drawn, min(share, 2_500))
        if command:
            yield folded_text(f"Command of {title}", command, of_command)
        evidence.append(f"{row.job_id}: {row.status.word}")
        evidence += [f"  {one_line(line, 300)}" for line in verdict.repositories]
        evidence += [f"  {line}" for line in key_lines(verdict)]
    requested = [f"{row.job_id}: {row.requested}" for row in card.jobs if row.requested and row.verdict is None]
    yield from _bullets("Requested, without a verdict yet", requested, 1_500)
    attempts = [f"{row.job_id}, {attempt}" for row in card.jobs for attempt in row.attempts]
    yield from _bullets("Attempts", attempts, 1_200)
    functions = tuple(one_line(line, 400) for line in execution_rows(card.executed))
    if functions:
        yield folded_text(f"Changed functions ({len(functions)})", functions, 2_500)
    # What the jobs leave open, each once and with its jobs, but for what a job that passed shows.
    left = merged_limitations([(row.job_id, verdict) for row, verdict in judged], named=len(card.jobs) > 1)
    yield from _bullets("Limitations", (*card.limitations, *left), 5_000)
    followups = dict.fromkeys(text for _, verdict in judged for text in verdict.followups)
    yield from _bullets("Follow-ups", tuple(followups), 3_000)
    if evidence:
        yield folded_text("Evidence", tuple(evidence), 4_000)
    if card.plan is not None:
        yield from reason_blocks(card.plan, 6_000)
    if card.history:
        rows = tuple(
            f"- `{item.head_sha[:12]}` {item.status.icon} {item.status.word}: {sentence(item.sentence, 300)}"
            for item in card.history
        )
        yield folded(f"Earlier heads ({len(rows)})", rows, 2_000)
    if card.reproduce:
        yield folded_text("Reproduce", (card.reproduce,), 2_000)


def _bullets(title: str, rows: Sequence[str], share: int) -> Iterator[TextBlock]:
    if rows:
        yield folded(f"{title} ({len(rows)})", tuple(f"- {verdict_sentence(row, 500)}" for row in rows), share)
