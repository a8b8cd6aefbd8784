"""What comes from one verdict, as rows of Markdown or of plain text, for the card and for check runs."""

import re
import shlex
from collections.abc import Iterator

from verl_e2e.core.judge.criteria.table import ROWS, Criterion
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.judge.wording import CAUSED_BY, MERGE_BASE_NOT_RUN
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.execution import ChangeExecution, Entered, FunctionRun, Side, line_ranges
from verl_e2e.core.model.facts import Frame
from verl_e2e.core.model.fingerprints import FINGERPRINTS_FILE
from verl_e2e.core.model.outcome import Recurrence, Result, Stage, Whose, of_end, of_log, of_preflight, whose_of
from verl_e2e.core.model.record import Check, EndReason
from verl_e2e.core.text.escape import (
    TextBlock,
    as_code,
    code,
    count_of,
    first_clause,
    markdown,
    one_line,
    sentence,
    with_links,
)

_MAX_LINK = 500
_MAX_COMMAND = 12_000
_COMMAND_WIDTH = 150
# The longest beginning of a text that ends before a clause or a bracket.
_WHOLE = re.compile(r".{60,}(?=[,;] |\. | \()", re.DOTALL)
_PLAIN_LINK = re.compile(r"https?://[A-Za-z0-9:/._?=&%#~-]*")
_WORKFLOW_RUN = re.compile(r".*?/actions/runs/[0-9]+(?=[/#]|\Z)")


def verdict_sentence(text: str, limit: int = 1000) -> str:
    """A sentence of a verdict for a reader in another repository, with links to the pages of ours that it names."""
    cut = _WHOLE.match(text, 0, limit) if len(text) > limit else None
    return with_links(sentence(as_code(f"{cut[0]} ..." if cut else text), limit))


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


_MOST_SOURCE, _MOST_WHAT, _MOST_SAID, _MOST_NOW, _MOST_RANGES = 120, 240, 260, 300, 3
# What a tree under test is called in a path.
_BRIDGE = "src/megatron/bridge/"
# What no code under test can cause: by preflight, and by rules of the log.
_OUTSIDE = frozenset(
    of_preflight(check)
    for check in (
        *(Check.GPUS, Check.GPU_VARIABLES, Check.DATA, Check.DISK, Check.IMAGE, Check.OTHER_RUNS, Check.NEIGHBOURS),
        *(Check.HOST_MEMORY, Check.ISOLATION, Check.KERNEL_CACHES, Check.RAY_CPUS, Check.READABLE),
    )
) | frozenset(
    of_log(rule)
    for rule in (
        *("device-broke", "gpu-occupied", "gpu-sharing", "hub-unreachable", "interrupted", "ray-resources"),
        *("ray-start", "rocr-and-cuda", "tracking", "tracking-late"),
    )
)
_AT_PLACE = re.compile(r" \(at [^()]+:[0-9]+\)\Z")
_PREFLIGHT = frozenset(map(of_preflight, Check))
_NOT_BEGUN = _PREFLIGHT | {of_end(EndReason.NOT_STARTED)}
_TREES = re.compile(r"^\$WORK/(bridge|verl)/")
_WHILE = {
    Stage.ENVIRONMENT: "Before the run began",
    Stage.IMPORT: "Before the run began",
    Stage.DATA: "While the data was read",
    Stage.MODEL_DOWNLOAD: "While the model was downloaded",
    Stage.REWARD_MODEL: "While the reward model started",
    Stage.RAY: "While Ray started",
    Stage.ROLLOUT_ENGINE: "While the rollout engine started",
    Stage.BRIDGE_PROVIDER: "While Bridge built the model",
    Stage.HF_IMPORT: "While the Hugging Face weights were loaded",
    Stage.PEFT: "While LoRA was applied to the model",
    Stage.DDP_WRAP: "While the model was wrapped for DDP",
    Stage.FSDP_WRAP: "While the model was wrapped for FSDP",
    Stage.OPTIMIZER: "While the optimizer was built",
    Stage.EXPORT_WEIGHT_SYNC: "While weights went from the trainer to the rollout engine",
    Stage.TRAIN_STEP: "In a training step",
    Stage.CHECKPOINT_SAVE: "While a checkpoint was saved",
    Stage.CHECKPOINT_LOAD: "While a checkpoint was loaded",
    Stage.SHUTDOWN: "After the last step",
}


def failure_rows(verdict: Verdict, step: str = "") -> tuple[str, ...]:
    """What failed, where, whose it is and what to do now, as four rows of Markdown; empty for a Pass.

    Where the error has a frame in Megatron-Bridge, Megatron-LM or verl, its line is shown with its source, and beside
    it what the change did in that file. `step` is what the readers of a pull request may do, as Markdown.
    """
    if verdict.result is Result.PASS:
        return ()
    whose, how = _whose(verdict)
    now = _now(verdict, step)
    return (
        f"- **What:** {verdict_sentence(_what(verdict), _MOST_WHAT)}",
        f"- **Where:** {_place(verdict)}",
        f"- **Whose:** {sentence(f'{_capital(whose)}: {how}', _MOST_SAID)}.",
        *([f"- **Now:** {now}"] if now else []),
    )


def failure_block(job_id: str, verdict: Verdict, most: int = 4, step: str = "", address: str = "") -> TextBlock:
    """The first of these rows below the name of the job, with links to its log."""
    return TextBlock(f"**{markdown(job_id, 80)}**{address}\n", failure_rows(verdict, step)[:most], "", 3_000)


def failure_title(job_id: str, verdict: Verdict) -> str:
    """A job that did not pass and whose it is, for a heading."""
    if verdict.never_entered:
        return f"{job_id} ran none of the changed lines"
    if (whose := _whose(verdict)[0]) is Whose.NOT_THIS_CHANGE:
        return f"{job_id}: host problem" if _is_outside(verdict) else f"{job_id} fails without this change too"
    if verdict.recurrence is Recurrence.NOT_REPRODUCED:
        return f"{job_id} is not decided: it did not pass at first, and then passed once"
    stopped = "hung" if of_end(EndReason.STALLED) in verdict.causes else "has no result"
    failed = Result.FAIL in (verdict.result, verdict.own_result)
    return f"{job_id} {'failed' if failed else stopped}, {CAUSED_BY[whose]}"


def frame_path(frame: Frame) -> str:
    """The file of a frame as its repository has it, where it lies in a tree under test."""
    return _TREES.sub("", frame.path)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _means(verdict: Verdict) -> str:
    """What the criterion that decided means where it is broken; empty where it is not, or none decided."""
    row = ROWS.get(verdict.decided_by or "")
    broken = (item for item in (*verdict.evidence, *verdict.key_lines) if item.state is State.BROKEN)
    return row.broken_means if row is not None and any(item.criterion == row.criterion for item in broken) else ""


def _what(verdict: Verdict) -> str:
    """What it means, and what was found; when it was where no criterion decided."""
    if verdict.never_entered:
        return f"{ROWS[Criterion.CHANGE_EXECUTED].broken_means}."
    if means := _means(verdict):
        # Of tensors the first by its name; of comparisons the first that differs.
        decided = (item for item in (*verdict.evidence, *verdict.key_lines) if item.criterion == verdict.decided_by)
        tensors = next((item.excerpt for item in decided if item.file == FINGERPRINTS_FILE), "")
        found = tensors.splitlines()[0] if tensors else first_clause(verdict.cause)
        return f"{means}: {found}"
    lead = _WHILE.get(verdict.stage, "") if verdict.stage is not None and verdict.decided_by is None else ""
    if verdict.stage in (Stage.ENVIRONMENT, Stage.IMPORT) and not _NOT_BEGUN.issuperset(verdict.causes):
        lead = ""
    return _capital(f"{lead}{': ' if lead else ''}{_AT_PLACE.sub('', verdict.cause or verdict.sentence)}")


def _whose(verdict: Verdict) -> tuple[Whose, str]:
    """Whose it is, and how that is known, as a clause."""
    if verdict.blame:
        return whose_of(verdict.recurrence, verdict.causes), verdict.blame
    if verdict.never_entered:
        return Whose.NOBODYS, "the run was good otherwise"
    if _is_outside(verdict):
        before = ", found before any changed code ran" if _PREFLIGHT.issuperset(verdict.causes) else ""
        return Whose.NOT_THIS_CHANGE, f"the fault is in the host, its image, settings or data{before}"
    alone = "" if verdict.related else f", and {MERGE_BASE_NOT_RUN}"
    return Whose.NOT_KNOWN, f"nothing in this run shows it{alone}"


def _is_outside(verdict: Verdict) -> bool:
    """Whether all that ended the run lies outside of the code."""
    known = not verdict.blame and verdict.frame is None and bool(verdict.causes)
    return known and _OUTSIDE.issuperset(verdict.causes)


def _now(verdict: Verdict, step: str) -> str:
    """Who does what, in order; what helps in general where neither a line nor another run tells more."""
    # The first clause of what fixes it: what is cut in the middle helps no one.
    fix = first_clause(next(iter(verdict.followups), ""))
    begun = verdict_sentence(fix[:1].lower() + fix[1:] if fix[1:2].islower() else fix, _MOST_NOW)
    if not fix:
        return _capital(step)
    if _is_outside(verdict):
        return f"1. You: tell the owner of the host: {begun}" + (f" 2. After that: {step}" if step else "")
    if not step:
        return f"You: {begun}"
    if verdict.result is Result.FAIL or verdict.recurrence is not None:
        helps = _whose(verdict)[0] is Whose.THIS_CHANGE and verdict.frame is None
        return f"You: {step}" + (f" What usually helps: {begun}" if helps else "")
    return f"1. You: {step} 2. If it fails again: {begun}"


def _place(verdict: Verdict) -> str:
    """The frame that matters, or that none is known; with what the change did, and what that has to do with it."""
    frame = verdict.frame
    execution = verdict.execution or ChangeExecution()
    changed = execution.of_side(Side.HEAD)
    if verdict.never_entered:
        changed = tuple(item for item in changed if item.entered is not Entered.IN_VERL)
    ran = next((item for item in changed if item.entered is Entered.IN_VERL), None)
    edited = _edited(ran or changed[0], verdict) if changed else ""
    edited += f"; {count_of(len(changed) - 1, 'more function')} changed" if len(changed) > 1 else ""
    if frame is None:
        return _without_frame(verdict, edited)
    path, line = frame_path(frame), frame.line
    source = f": {code(frame.source, _MOST_SOURCE)}" if frame.source else ""

    def distance(item: FunctionRun) -> tuple[int, bool]:
        return min(abs(number - line) for number in _lines(item)), item.entered is not Entered.IN_VERL

    nearest = min((item for item in changed if item.path == path), key=distance, default=None)
    gone = next((item for item in execution.of_side(Side.MERGE_BASE) if item.path == path), None)
    beside = f". Your change: {edited}" if edited else ""
    if nearest is not None:
        beside = f". Your change: {_edited(nearest, verdict)}"
    elif gone is not None:
        beside = f". Your change removes code of {code(gone.symbol or path, 120)} there"
    if _BRIDGE.removeprefix("src/") not in path:
        ours = [call for call in verdict.calls if _BRIDGE.removeprefix("src/") in call]
        beside += f". The last of Bridge before it: {code(ours[-1], 200)}" if ours else ""
    function = f" in {code(frame.function, 80)}" if frame.function else ""
    return f"Failed at {code(f'{path}:{line}', 240)}{function}{source}{beside}."


def _lines(item: FunctionRun) -> tuple[int, ...]:
    """The changed lines of a function that ran, else those that did not; without any its first one."""
    ran = item.ran if item.entered is Entered.IN_VERL else ()
    return ran or item.missed or item.ran or (item.first_line,)


def _without_frame(verdict: Verdict, edited: str) -> str:
    """Where it is if no frame says it; `edited` is the changed code, the first that ran if any did."""
    beside = f" Your change: {edited}." if edited else ""
    if verdict.never_entered:
        return beside.strip() or "In no code that ran."
    if verdict.causes and _PREFLIGHT.issuperset(verdict.causes):
        return "On the host, in no line of code." if _is_outside(verdict) else f"In the check before the run.{beside}"
    why = ""
    if verdict.decided_by == Criterion.NO_EXCEPTION:
        why = ": the log names none"
    elif verdict.decided_by == Criterion.BRIDGE_TESTS:
        why = ": a test of Bridge failed"
    elif _means(verdict):
        why = ": no error was raised"
    return f"Line not known{why}.{beside}"


def _edited(item: FunctionRun, verdict: Verdict) -> str:
    """A changed function with its changed lines, and whether they ran: `a.py:12-14` in `f`, run by this job."""
    lines, frame, in_verl = _lines(item), verdict.frame, item.entered is Entered.IN_VERL
    may_be = in_verl or item.entered is Entered.UNKNOWN
    if frame is not None and may_be and frame_path(frame) == item.path and frame.line in {*item.ran, *item.missed}:
        return "the same line"
    shown = line_ranges(lines)
    numbers = ",".join(shown[:_MOST_RANGES]) + (",..." if shown[_MOST_RANGES:] else "")
    place = code(f"{item.path}:{numbers}", 240) + (f" in {code(item.symbol, 120)}" if item.symbol else "")
    called = f"{item.path.removeprefix('src/')}:{item.symbol.rpartition('.')[2]}"
    if in_verl and any(call.endswith(called) for call in verdict.calls):
        return f"{place}, on the way to it"
    ran = {Entered.IN_VERL: ", run by this job", Entered.UNKNOWN: "", Entered.BY_TESTS: ", run by Bridge tests alone"}
    return place + ran.get(item.entered, ", not run by this job")


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
