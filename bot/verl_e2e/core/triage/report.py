"""The answer of triage as a person reads it on a terminal: bounded, and free of what a terminal would obey."""

import textwrap
from collections.abc import Iterable

from verl_e2e.core.model.facts import Frame, Noise
from verl_e2e.core.triage.answer import RunOutcome, Triage

MAX_WIDTH = 200
MESSAGE_ROWS = 12
MESSAGE_WIDTH = 110
# The cause quotes so much of a message that its first line is not repeated.
SHOWN_IN_CAUSE = 120
NOISE_ROWS = 10


def triage_text(file: str, answer: Triage) -> str:
    """A few lines about one log; ends without a line feed."""
    return "\n".join(printable(row) for row in _rows(file, answer))


def printable(text: str) -> str:
    """One line of text for a terminal: no control characters, no marks that turn the writing direction, no more than
    `MAX_WIDTH` characters."""
    shown = "".join(char if char.isprintable() else " " if char == "\t" else "?" for char in text[: MAX_WIDTH + 1])
    return shown if len(shown) <= MAX_WIDTH else f"{shown[: MAX_WIDTH - 3]}..."


def _rows(file: str, answer: Triage) -> Iterable[str]:
    yield f"{file}: {answer.verdict} in {answer.stage}"
    yield f"  {answer.cause}"
    if answer.frame is not None:
        yield from _frame(answer.frame)
    if answer.line:
        yield f"  log:    line {answer.line}: {answer.excerpt.strip()}"
    yield from _message(answer.message)
    if answer.fix:
        yield f"  to do:  {answer.fix}"
    yield from map(_noise, answer.residual_noise[:NOISE_ROWS])
    if answer.others:
        count = max(answer.run, answer.others[-1].run)
        yield f"  run:    the answer is about run {answer.run} of the {count} in this log"
    yield from map(_other, answer.others)


def _frame(frame: Frame) -> Iterable[str]:
    yield f"  at:     {frame.path}:{frame.line} {frame.function}"
    if frame.source:
        yield f"          {frame.source}"


def _message(message: str) -> Iterable[str]:
    """The lines of a message that the cause does not show already."""
    first, *more = message.split("\n")
    lines = more if len(first) <= SHOWN_IN_CAUSE else [first, *more]
    rows = [row for line in lines for row in textwrap.wrap(line, MESSAGE_WIDTH, subsequent_indent="    ") or [""]]
    yield from (f"          {row}".rstrip() for row in rows[:MESSAGE_ROWS])
    if len(rows) > MESSAGE_ROWS:
        yield f"          and {len(rows) - MESSAGE_ROWS} lines more"


def _noise(noise: Noise) -> str:
    return f"  noise:  {noise.name}, line {noise.at.line}, {noise.count}x"


def _other(run: RunOutcome) -> str:
    return f"  run {run.run}:  lines {run.begins}-{run.ends}: {outcome_text(run)}"


def outcome_text(run: RunOutcome) -> str:
    """How another run of the log ended, in one line."""
    where = f", line {run.line}" if run.line else ""
    return f"{run.verdict} in {run.stage}{where}: {run.cause}"
