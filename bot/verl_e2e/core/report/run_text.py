"""What a run folder says at a terminal: its events while it runs, its log around an error, how to repeat it."""

import re
import shlex
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.log.lines import without_colours
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import EndedEvent, Event, PhaseEvent, StageEvent, StepEvent, read_data
from verl_e2e.core.text.escape import one_line

_BEFORE, _AFTER, _LAST = 12, 3, 20
_MOST_COMMAND = 100_000
# What the recorder writes in the place of a repository of its host, and the clone that the reader has.
_CLONES = {"$BRIDGE": "Megatron-Bridge", "$VERL": "verl", "$MEGATRON_LM": "Megatron-Bridge/3rdparty/Megatron-LM"}
_CUT = " ..."


def event_row(event: Event) -> str:
    """A phase, a stage, a step, a failed check or the end as a row; empty for what says nothing by itself."""
    said = ""
    if (phase := read_data(event, PhaseEvent) if event.kind == "phase" else None) and phase.state == "begin":
        said = f"{phase.name} {phase.step}".strip()
    elif event.kind == "stage" and (stage := read_data(event, StageEvent)):
        said = f"  stage {stage.stage}"
    elif event.kind == "step" and (step := read_data(event, StepEvent)):
        said = f"  step {step.step}"
    elif event.kind == "started":
        said = f"{event.data.get('job', '')} started"
    elif event.kind == "finding" and event.data.get("ok") is False:
        said = f"  {event.data.get('check', '')}: {event.data.get('summary', '')}"
    elif event.kind == "fatal":
        said = f"  error: {event.data.get('excerpt', '')}"
    elif event.kind == "ended" and (ended := read_data(event, EndedEvent)):
        code = "" if ended.exit_code is None else f", exit code {ended.exit_code}"
        said = f"ended: {ended.end_reason or 'for a reason that this version does not know'}{code}"
    indent = " " * (len(said) - len(said.lstrip(" ")))
    return f"{event.t_s:9.1f} s  {indent}{one_line(said, 200)}" if said else ""


def log_row(line: str) -> str:
    """A line of a log with its indentation, and nothing in it that moves a terminal's cursor, colours or hides text."""
    line = without_colours(line)
    return " " * (len(line) - len(line.lstrip(" "))) + one_line(line)


def rows_around(lines: Iterable[str], number: int | None) -> Iterator[str]:
    """The lines of a log around the one with this number, which is marked; the last lines where there is none."""
    if number is None:
        yield from map(log_row, deque(lines, _LAST))
        return
    for at, line in islice(enumerate(lines, 1), max(0, number - 1 - _BEFORE), number + _AFTER):
        yield f"{'>' if at == number else ' '} {at:6}  {log_row(line)}"


def repeating_commands(job: Job, file: str, command: str) -> tuple[str, ...]:
    """The commands that run a recorded job again, in a folder with clones of its repositories; `file` is its job.json.

    `command` is the recorded command of the trainer, which the last one starts; empty where none was recorded.
    """
    trees = {"Megatron-Bridge": job.bridge, "verl": job.verl}
    core = job.megatron_lm
    title = consumer_of(job).title
    named = [f"Megatron-Bridge {job.bridge.commit}", f"{title} {job.verl.commit}"]
    named += [f"Megatron-LM {core.commit}"] if core is not None else []
    rows = [f"# {job.id} on {', '.join(named)}"]
    redacted = [name for name in _CLONES if name in {tree.path for tree in (job.bridge, job.verl, core) if tree}]
    if redacted:
        clone = title if consumer_of(job) is VERL else f"{title}, which is called verl there"
        rows.append(f"# In a folder that holds clones of Megatron-Bridge and {clone}:")
        rows += [f"git -C {name} fetch --quiet origin {tree.commit}" for name, tree in trees.items()]
        if core is not None:
            place = _CLONES["$MEGATRON_LM"]
            rows.append("(cd Megatron-Bridge && git submodule update --quiet --init 3rdparty/Megatron-LM)")
            rows.append(f"git -C {place} fetch --quiet origin {core.commit}")
        edits = "".join(f""" -e 's|"[$]{name[1:]}"|"'"$PWD"'/{_CLONES[name]}"|g'""" for name in redacted)
        rows.append(f"sed{edits} {shlex.quote(file)} > job.json")
        file = "job.json"
    rows.append(f"verl-e2e run --job {shlex.quote(file)} --out repeated")
    if command:
        rows += [f"# which starts {title} as it was started then:", f"# {one_line(command, _MOST_COMMAND)}"]
    return tuple(rows)


def commands_of_card(card: str) -> tuple[str, ...]:
    """The commands of a card, of a run or of a pull request, each on a line; empty where it has none."""
    rows = list(re.findall(r"(?m)^- Command: (.+)$", card))
    for block in re.findall(r"<summary>(?:Reproduce|Command[^<]*)</summary>\n+(`{3,})[^\n]*\n(.*?)\n\1", card, re.S):
        rows += re.sub(r" \\\n\s*", " ", block[1]).splitlines()
    harmless = (one_line(row, _MOST_COMMAND) for row in rows)
    kept = dict.fromkeys(row for row in harmless if row not in ("", "unknown"))
    folders = ("# $WORK is a folder with worktrees of the card's commits, as `verl-e2e run` makes them.",)
    cut = "# The card cut the next command; `verl-e2e reproduce` with the run folder has all of it:"
    shown = tuple(line for row in kept for line in ((cut, f"# {row}") if row.endswith(_CUT) else (row,)))
    return (*(folders if "$WORK" in card and shown else ()), *shown)
