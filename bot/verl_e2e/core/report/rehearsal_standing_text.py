"""The rehearsal of a head as its check run and its line of the card say it."""

from collections.abc import Iterable

from verl_e2e.core.compare.rehearsal import Outcome
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.check_runs import MAX_OUTPUT
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.ledger import RunState
from verl_e2e.core.pulls.rehearsal_standing import RehearsalStanding
from verl_e2e.core.report.check_text import CheckText, title
from verl_e2e.core.report.verdict_parts import links
from verl_e2e.core.text.blocks import Block, fit, folded
from verl_e2e.core.text.escape import sentence

TITLE = "Rehearsal on a CPU"
_CUT = "_Cut to fit; the run folder has the rest._"
_WAITING = frozenset({RunState.QUEUED, RunState.SUBMITTED})


def rehearsal_waits(standing: RehearsalStanding) -> bool:
    """Whether no machine has begun it."""
    run = standing.run
    ordered = standing.status is JobStatus.RUNNING and run is not None and run.state in _WAITING
    return standing.status is JobStatus.WAITING or ordered


def rehearsal_line(standing: RehearsalStanding, levels: Iterable[Level]) -> str:
    """One sentence for the card: what it found, or what is waited for."""
    if standing.status in (JobStatus.PASSED, JobStatus.FAILED):
        # The sentence of a verdict says that it is a rehearsal.
        return f"{standing.reason}{_who_looks(standing, levels)}"
    return f"{TITLE} {standing.status}: {standing.reason}"


def _who_looks(standing: RehearsalStanding, levels: Iterable[Level]) -> str:
    """Which levels look at what the cells moved or did not enter, as a clause; empty where nothing is left open."""
    rehearsed = standing.run.rehearsed if standing.run is not None else None
    if rehearsed is None or (rehearsed.outcome is not Outcome.CHANGED and not rehearsed.unentered):
        return ""
    left = [f"changed lines of {rehearsed.unentered} functions that no cell entered"] * bool(rehearsed.unentered)
    left = [*["what moved"] * (rehearsed.outcome is Outcome.CHANGED), *left]
    asked = [str(int(level)) for level in levels]
    named = f"level{'s' * (len(asked) > 1)} {', '.join(asked)} of the plan" if asked else "no level is required to"
    return f"; {named} look{'s' * (len(asked) == 1)} at {' and '.join(left)}"


def rehearsal_block(standing: RehearsalStanding, share: int) -> tuple[Block, ...]:
    """The section of the card, folded; nothing before there is one."""
    section = _section(standing)
    return (folded(TITLE, tuple(section.splitlines()), share),) if section else ()


def rehearsal_check(standing: RehearsalStanding, levels: Iterable[Level]) -> CheckText:
    """The text of its check run."""
    line = rehearsal_line(standing, levels)
    rows = [] if standing.run is None else [f"Attempt {standing.run.attempt}.{links(standing.run.url)}"]
    head = Block(f"**{sentence(line[:1].upper() + line[1:], 1200)}**\n", ("  \n".join(rows),), "", 4_000)
    section = tuple(_section(standing).splitlines())
    blocks = (head, Block("", section, "", MAX_OUTPUT)) if section else (head,)
    return CheckText(title=title(line), summary=fit(blocks, MAX_OUTPUT, _CUT))


def _section(standing: RehearsalStanding) -> str:
    rehearsed = standing.run.rehearsed if standing.run is not None else None
    return rehearsed.section if rehearsed is not None else ""
