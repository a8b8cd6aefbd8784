"""What comes from one verdict, as rows of Markdown or of plain text, for the card and for check runs."""

import re
import shlex
from collections.abc import Iterator

from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.execution import ChangeExecution, Entered, Side
from verl_e2e.core.model.facts import Frame
from verl_e2e.core.model.outcome import Recurrence, Result, of_preflight
from verl_e2e.core.model.record import Check
from verl_e2e.core.text.addresses import as_code, with_links
from verl_e2e.core.text.escape import TextBlock, code, first_sentence, markdown, one_line, sentence

_MAX_LINK = 500
_MAX_COMMAND = 12_000
_COMMAND_WIDTH = 150
_PLAIN_LINK = re.compile(r"https?://[A-Za-z0-9:/._?=&%#~-]*")
_WORKFLOW_RUN = re.compile(r".*?/actions/runs/[0-9]+(?=[/#]|\Z)")


def verdict_sentence(text: str, limit: int = 1000) -> str:
    """A sentence of a verdict for a reader in another repository, with links to the pages of ours that it names."""
    return with_links(sentence(as_code(text), limit))


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


# Whose failure it is, by what the related runs show.
_WHOSE = {
    Recurrence.REGRESSION: "this change",
    Recurrence.PRE_EXISTING: "not this change, it was there before",
    Recurrence.NOT_REPRODUCED: "not shown, it passed when it ran again",
}
_MOST_SOURCE, _MOST_WHAT, _MOST_SAID = 160, 260, 160
# What a tree under test is called in a path.
_BRIDGE = "src/megatron/bridge/"
# What preflight finds of the host alone, whatever the trees under test hold.
_OF_THE_HOST = frozenset(
    of_preflight(check)
    for check in (
        *(Check.GPUS, Check.GPU_VARIABLES, Check.DATA, Check.DISK, Check.IMAGE, Check.OTHER_RUNS, Check.NEIGHBOURS),
        *(Check.HOST_MEMORY, Check.ISOLATION, Check.KERNEL_CACHES, Check.RAY_CPUS, Check.READABLE),
    )
)
_PREFLIGHT = frozenset(map(of_preflight, Check))
_TREES = re.compile(r"^\$WORK/(bridge|verl)/")


def failure_rows(verdict: Verdict) -> tuple[str, ...]:
    """What failed, where, whose it is and what to do now, as four rows of Markdown; empty for a Pass.

    Where the error has a frame in Megatron-Bridge, Megatron-LM or verl, its line is shown with its source, and beside
    it what the change did in that file.
    """
    if verdict.result is Result.PASS:
        return ()
    stage = f" (in {verdict.stage})" if verdict.stage else ""
    whose = "not shown to be this change: a Blocked is no evidence against it"
    if verdict.recurrence is not None:
        whose = _WHOSE[verdict.recurrence]
    elif verdict.causes and _OF_THE_HOST.issuperset(verdict.causes) and not verdict.undecided:
        whose = "the host or its settings: it was found before this job ran code of the change"
    elif verdict.result is Result.FAIL or verdict.undecided:
        whose = "not decided between this change and its base"
    whose += f"; {verdict.blame}" if verdict.blame else ""
    rows = [
        f"- **What:** {verdict_sentence(verdict.cause or verdict.sentence, _MOST_WHAT)}{stage}",
        f"- **Where:** {_place(verdict)}",
        f"- **Whose:** {verdict_sentence(whose, _MOST_SAID)}",
    ]
    # Its first sentence: what is cut in the middle helps no one.
    return (
        *rows,
        *(f"- **Now:** {verdict_sentence(first_sentence(row), _MOST_SAID)}" for row in verdict.followups[:1]),
    )


def failure_block(job_id: str, verdict: Verdict, most: int = 4) -> TextBlock:
    """The first of these rows below the name of the job."""
    return TextBlock(f"**{markdown(job_id, 80)}**\n", failure_rows(verdict)[:most], "", 2_000)


def frame_path(frame: Frame) -> str:
    """The file of a frame as its repository has it, where it lies in a tree under test."""
    return _TREES.sub("", frame.path)


def _place(verdict: Verdict) -> str:
    """The frame that matters, else what was read of the run where it shows; with what the change did there."""
    frame = verdict.frame
    execution = verdict.execution or ChangeExecution()
    changed = execution.of_side(Side.HEAD)
    if frame is None:
        at = next((item for item in verdict.evidence if item.criterion == verdict.decided_by), None)
        at = at or next((item for item in verdict.key_lines if item.state is State.BROKEN), None)
        # A run that was lost, or whose folder is no record, has no such place.
        found = "preflight" if _PREFLIGHT.issuperset(verdict.causes) and verdict.causes else ""
        found = code(f"{at.file}:{at.line}" if at.line else at.file, 200) if at and at.file else found
        said = f": {code(at.excerpt, _MOST_SOURCE)}" if at and at.line and at.excerpt else ""
        ran = [item for item in changed if item.entered is Entered.IN_VERL]
        # The code first, where a reader begins.
        touched = f"this change ran in {code(f'{ran[0].path}:{ran[0].symbol}', 200)}; " if ran else ""
        return f"{touched}no line of code is known{f', it shows in {found}{said}' if found else ''}"
    path = frame_path(frame)
    source = f": {code(frame.source, _MOST_SOURCE)}" if frame.source else ""
    in_file = [item for item in changed if item.path == path]
    nearest = min(in_file, key=lambda item: abs(item.first_line - frame.line), default=None)
    beside = ""
    if nearest is not None:
        lines = sorted({*nearest.ran, *nearest.missed})
        at_lines = f" at {'line' if len(lines) == 1 else 'lines'} {', '.join(map(str, lines[:3]))}" if lines else ""
        beside = f"; this change touches {code(nearest.symbol or path, 120)}{at_lines}"
    elif gone := next((item for item in execution.of_side(Side.MERGE_BASE) if item.path == path), None):
        beside = f"; this change removes code of {code(gone.symbol or path, 120)}"
    elif changed and not (execution.left_out or execution.unread):
        # Not that it changes nothing there: what a run need not enter, as an error path, is not among them.
        beside = "; nothing of the change that this job must run is in that file"
    if not path.startswith(_BRIDGE):
        ours = [call for call in verdict.calls if _BRIDGE.removeprefix("src/") in call]
        beside += f"; the last of Bridge before it: {code(ours[-1], 200)}" if ours else ""
    return f"{code(f'{path}:{frame.line}', 240)} in {code(frame.function, 80)}{source}{beside}"


def curves(verdict: Verdict) -> Iterator[str]:
    """The curves of a learning signal, one for each row: title, first value, sparkline, last value, aligned."""
    for item in verdict.key_lines:
        if item.criterion != Criterion.LEARNING_SIGNAL:
            continue
        if item.summary:
            yield one_line(item.summary, 400)
        rows = one_line(item.excerpt, 2000).split(", ")
        cells = [row.rsplit(" ", 3) for row in rows]
        if any(len(row) != 4 for row in cells):
            yield from rows
            continue
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
