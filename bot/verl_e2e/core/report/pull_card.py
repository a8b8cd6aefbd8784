"""The one comment that a pull request gets: verdict first, a table of jobs, everything else folded.

`render` is deterministic and stays within 60,000 characters at any size of its input. A card that fits is shown whole;
of one that does not, each block keeps to its share and loses rows from its end, and says so. Every foreign text goes
through `verl_e2e.core.text.escape`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from verl_e2e.core.judge.joined_execution import JoinedExecution
from verl_e2e.core.judge.left_open import merged, of_verdict
from verl_e2e.core.judge.verdict_document import Verdict, read_verdict
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.pulls.job_status import JobStatus, status_of_run
from verl_e2e.core.pulls.ledger import Override, Run
from verl_e2e.core.pulls.overrides import Uncounted
from verl_e2e.core.pulls.reuse import origin_text
from verl_e2e.core.report.execution_report import TITLE, execution_line, execution_rows
from verl_e2e.core.report.reasons_text import reason_blocks
from verl_e2e.core.report.verdict_parts import (
    command_rows,
    curves,
    deliverables,
    key_lines,
    links,
    requested,
    verdict_sentence,
)
from verl_e2e.core.text.blocks import Block, fit, folded, folded_text
from verl_e2e.core.text.escape import code, markdown, one_line, sentence, summary

# First in every card; only a comment of our own App that starts with it is taken for ours.
MARKER = "<!-- verl-e2e:card:v1 -->"
MAX_CARD = 60_000
_CUT = "_Cut to fit._"
_ANY = 10**9


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job on the card."""

    # The id of the job.
    job_id: str
    # Its status.
    status: JobStatus
    # Whether it decides the gate.
    required: bool
    # The reason, one sentence.
    detail: str
    # From 1.
    attempt: int = 1
    # GPU minutes that it was estimated to take.
    planned: float = 0.0
    # GPU minutes that all its attempts took together.
    used: float = 0.0
    # Where its log and artifacts are.
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
    # The status of the gate.
    status: JobStatus
    # What the gate says, in one sentence.
    sentence: str
    # The jobs, in the order of the plan.
    jobs: tuple[JobRow, ...] = ()
    # The plan, None where there is none.
    plan: Plan | None = None
    # Sentences that a reader must see at once: an approval is needed, a draft, an incomplete plan.
    notices: tuple[str, ...] = ()
    # Overrides of this head that count.
    overrides: tuple[Override, ...] = ()
    # Overrides of this head that do not count, with the reason.
    uncounted: tuple[Uncounted, ...] = ()
    # Earlier heads, the latest first.
    history: tuple[EarlierHead, ...] = ()
    # A command that a reader can paste.
    reproduce: str = ""
    # Why the head has no plan, where the sentence does not say it.
    problem: str = ""
    # What the required jobs executed of the change.
    executed: JoinedExecution = field(default_factory=JoinedExecution)
    # Minutes until the required jobs have an answer, if none waits for a machine; 0 when they have it.
    minutes_left: int = 0
    # Limitations of the whole, before those of the jobs.
    limitations: tuple[str, ...] = ()
    # What the head's rehearsal found, or that it is waited for; empty where it has none.
    rehearsal: str = ""
    # The section of the rehearsal, folded; empty before there is one.
    rehearsal_blocks: tuple[Block, ...] = ()


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
    whole = "".join(_unbound(block) for block in blocks)
    return f"{MARKER}\n{whole if len(whole) <= room else fit(blocks, room, _CUT)}"


def _unbound(block: Block) -> str:
    return fit((replace(block, share=_ANY),), _ANY, _CUT)


def _head(card: PullCard) -> Block:
    heading = f"### {card.status.icon} verl-e2e: {card.status.word} - {sentence(card.sentence, 600)}\n"
    rows = [f"Head `{card.head_sha[:12]}`{_cost(card)}", *(f"> {sentence(notice, 600)}" for notice in card.notices)]
    if card.problem:
        rows.append(f"> {sentence(card.problem, 1000)}")
    if card.rehearsal:
        rows.append(f"> {sentence(card.rehearsal, 1000)}")
    executed = execution_line(card.executed, done=card.status is not JobStatus.RUNNING)
    if executed:
        rows.append(f"> {TITLE}: {sentence(executed, 1500)}")
    rows += [_overridden(override) for override in card.overrides]
    rows += [_not_overridden(item) for item in card.uncounted]
    return Block(heading, tuple(rows), "", 8_000)


def _cost(card: PullCard) -> str:
    planned = sum(row.planned for row in card.jobs)
    used = sum(row.used for row in card.jobs)
    if not planned and not used:
        return ""
    left = f", about {card.minutes_left} minutes to an answer where no job waits" if card.minutes_left else ""
    return f", GPU minutes: {used:.1f} used, about {planned:.0f} planned{left}"


def _overridden(override: Override) -> str:
    who, why = markdown(override.actor, 60), sentence(override.reason, 300)
    return f"> ⚠️ Level {int(override.level)} overridden by {who} on `{override.head_sha[:12]}`: {why}"


def _not_overridden(uncounted: Uncounted) -> str:
    who, why = markdown(uncounted.override.actor, 60), sentence(uncounted.why, 300)
    return f"> ⚠️ The override of level {int(uncounted.override.level)} by {who} does not count: {why}"


def _table(card: PullCard) -> Block:
    if not card.jobs:
        return Block("", (), "", 100)
    rows = tuple(_job_row(row) for row in card.jobs)
    return Block("| job | result | required | GPU minutes | reason |\n|---|---|---|---|---|", rows, "", 9_000)


def _job_row(row: JobRow) -> str:
    again = f" (attempt {row.attempt})" if row.attempt > 1 else ""
    required = "yes" if row.required else "extra"
    cells = (
        markdown(row.job_id, 80) + (f" {code(row.options, 200)}" if row.options else "") + again,
        f"{row.status.icon} {row.status.word}",
        required,
        _minutes(row),
        verdict_sentence(row.detail, 400) + links(row.url),
    )
    return f"| {' | '.join(cells)} |"


def _minutes(row: JobRow) -> str:
    if not row.used and not row.planned:
        return ""
    used = f"{row.used:.1f}" if row.used else "0"
    return f"{used} of about {row.planned:.0f}" if row.planned else used


def _folds(card: PullCard) -> Iterable[Block]:
    """The folded blocks. Their shares, with those of head and table, add up to at most the size of the card."""
    yield from card.rehearsal_blocks
    yield from _of_jobs(card)
    requested = tuple(f"{row.job_id}: {row.requested}" for row in card.jobs if row.requested and row.verdict is None)
    yield from _bullets("Requested, without a verdict yet", requested, 1_500)
    attempts = tuple(f"{row.job_id}, {attempt}" for row in card.jobs for attempt in row.attempts)
    yield from _bullets("Attempts", attempts, 1_200)
    functions = execution_rows(card.executed)
    if functions:
        yield folded_text(
            f"Changed functions ({len(functions)})", tuple(one_line(row, 400) for row in functions), 2_500
        )
    yield from _bullets("Limitations", _limitations(card), 5_000)
    yield from _bullets("Follow-ups", _followups(card), 3_000)
    evidence = tuple(_evidence(card))
    if evidence:
        yield folded_text("Evidence", evidence, 4_000)
    if card.plan is not None:
        yield from reason_blocks(card.plan, 6_000)
    if card.history:
        yield folded(f"Earlier heads ({len(card.history)})", tuple(_earlier(item) for item in card.history), 2_000)
    if card.reproduce:
        yield folded_text("Reproduce", (card.reproduce,), 2_000)


def _of_jobs(card: PullCard) -> Iterable[Block]:
    judged = [(row.job_id, row.verdict) for row in card.jobs if row.verdict is not None]
    count = max(1, len(judged))
    share, of_command = max(700, 6_000 // count), max(500, 3_000 // count)
    for job_id, verdict in judged:
        title = summary(job_id, 80)
        table = deliverables(verdict)
        if table:
            yield folded(f"Deliverables of {title}", (*requested(verdict), "", *table), share)
        rows = tuple(curves(verdict))
        if rows:
            yield folded_text(f"Curves of {title}", rows, min(share, 2_500))
        command = command_rows(verdict)
        if command:
            yield folded_text(f"Command of {title}", command, of_command)


def _bullets(title: str, rows: tuple[str, ...], share: int) -> Iterable[Block]:
    if rows:
        yield folded(f"{title} ({len(rows)})", tuple(f"- {verdict_sentence(row, 500)}" for row in rows), share)


def _limitations(card: PullCard) -> tuple[str, ...]:
    """What the jobs leave open, each once and with its jobs, but for what a job that passed shows."""
    jobs = [replace(of_verdict(row.verdict), job_id=row.job_id) for row in card.jobs if row.verdict is not None]
    return (*card.limitations, *merged(jobs, named=len(card.jobs) > 1))


def _followups(card: PullCard) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for row in card.jobs if row.verdict is not None for text in row.verdict.followups))


def _evidence(card: PullCard) -> Iterable[str]:
    for row in card.jobs:
        if row.verdict is not None:
            yield f"{row.job_id}: {row.status.word}"
            yield from (f"  {one_line(line, 300)}" for line in row.verdict.repositories)
            yield from (f"  {line}" for line in key_lines(row.verdict))


def _earlier(earlier_head: EarlierHead) -> str:
    status = earlier_head.status
    return f"- `{earlier_head.head_sha[:12]}` {status.icon} {status.word}: {sentence(earlier_head.sentence, 300)}"
