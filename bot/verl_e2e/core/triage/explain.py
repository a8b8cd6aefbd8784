"""How triage came to its answer, and the answer as a person reads it: bounded, and free of what a terminal obeys.

The phases of a run are timed by its own events, else by the times that its log lines carry.
"""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from verl_e2e.core.model.facts import Excerpt, LogFacts
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.triage.rules import Fault
from verl_e2e.core.triage.table import RULES
from verl_e2e.core.triage.triage import (
    COMPLETED,
    FORMAT,
    INCOMPLETE,
    OTHER_BACKEND,
    OTHER_TRAINER,
    UNEXPLAINED,
    RunOutcome,
    Triage,
    judged_facts,
    rule_of,
    shown_error,
    stage_of,
    triage,
    triage_json,
    weigh,
)

MAX_WIDTH = 200
MESSAGE_ROWS = 12
MESSAGE_WIDTH = 110
# The cause quotes so much of a message that its first line is not repeated.
SHOWN_IN_CAUSE = 120
NOISE_ROWS = 10
SHOWN_CANDIDATES = 20
TEXT_CAP = 100


def triage_text(file: str, answer: Triage) -> str:
    """A few lines about one log; ends without a line feed."""
    rows = [f"{file}: {answer.verdict} in {answer.stage}", f"  {answer.cause}"]
    if answer.frame is not None:
        rows.append(f"  at:     {answer.frame.path}:{answer.frame.line} {answer.frame.function}")
        if answer.frame.source:
            rows.append(f"          {answer.frame.source}")
    if answer.line:
        rows.append(f"  log:    line {answer.line}: {answer.excerpt.strip()}")
    # The lines of the message that the cause does not show already.
    first, *more = answer.message.split("\n")
    lines = more if len(first) <= SHOWN_IN_CAUSE else [first, *more]
    said = [row for line in lines for row in textwrap.wrap(line, MESSAGE_WIDTH, subsequent_indent="    ") or [""]]
    rows += (f"          {row}".rstrip() for row in said[:MESSAGE_ROWS])
    if len(said) > MESSAGE_ROWS:
        rows.append(f"          and {len(said) - MESSAGE_ROWS} lines more")
    if answer.fix:
        rows.append(f"  to do:  {answer.fix}")
    for noise in answer.residual_noise[:NOISE_ROWS]:
        rows.append(f"  noise:  {noise.name}, line {noise.at.line}, {noise.count}x")
    if answer.others:
        count = max(answer.run, answer.others[-1].run)
        rows.append(f"  run:    the answer is about run {answer.run} of the {count} in this log")
    for run in answer.others:
        rows.append(f"  run {run.run}:  lines {run.begins}-{run.ends}: {outcome_text(run)}")
    return "\n".join(map(printable, rows))


def printable(text: str) -> str:
    """One line of text for a terminal: no control characters, no marks that turn the writing direction, no more than
    `MAX_WIDTH` characters."""
    kept = "".join(char if char.isprintable() else " " if char == "\t" else "?" for char in text[: MAX_WIDTH + 1])
    return _cut(kept, MAX_WIDTH)


def _cut(text: str, width: int = TEXT_CAP) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def outcome_text(run: RunOutcome) -> str:
    """How another run of the log ended, in one line."""
    where = f", line {run.line}" if run.line else ""
    return f"{run.verdict} in {run.stage}{where}: {run.cause}"


DAY_S = 86_400.0
_TIME = r"(?P<h>[01]\d|2[0-3]):(?P<m>[0-5]\d):(?P<s>[0-5]\d(?:[.,]\d{1,6})?)"
# A recorder or a CI system writes before every line; programs write a date too. Their clocks may differ.
_AT_START = re.compile(rf"(?:\d{{4}}-\d\d-\d\d[T ])?{_TIME}(?:Z|[+-]\d\d:?\d\d)?\s")
_IN_TEXT = re.compile(rf"\b(?:\d{{4}}-)?\d\d-\d\d[T ]{_TIME}")


@dataclass(frozen=True, slots=True)
class Phase:
    """One stage of the latest run: the line that proves it, and seconds since the start where they are known."""

    stage: Stage
    at: Excerpt
    seconds: float | None


def timeline(facts: LogFacts, events: Mapping[Stage, float] | None = None) -> tuple[Phase, ...]:
    """The stages of the latest run in the order of entry; `events` are seconds by stage from `events.jsonl`."""
    known = events or {}
    marks = [mark.at for mark in facts.timeline]
    rows = [*([facts.first] if facts.first and facts.runs < 2 else []), *marks]
    # Seconds since the first line that carries a time, for every line that carries one of the same clock.
    clock: dict[Excerpt, float] = {}
    for find in (_AT_START.match, _IN_TEXT.search):
        timed = [(line, found) for line in rows if (found := find(line.text)) is not None]
        start, before, days = 0.0, 0.0, 0
        for line, found in timed:
            second = int(found["h"]) * 3600 + int(found["m"]) * 60 + float(found["s"].replace(",", "."))
            start = start if clock else second
            # Workers report a little out of order; half a day back is the next day.
            days += second < before - DAY_S / 2
            before = second
            clock[line] = max(0.0, second + days * DAY_S - start)
        if clock:
            break
    return tuple(Phase(mark.stage, mark.at, known.get(mark.stage, clock.get(mark.at))) for mark in facts.timeline)


@dataclass(frozen=True, slots=True)
class Weighed:
    """A candidate as it is shown: what it is, why it stands there, what would explain it; `chosen` is the root."""

    line: int
    error: str
    state: str
    stage: Stage
    rule: str
    count: int
    chosen: bool


@dataclass(frozen=True, slots=True)
class Explained:
    """An answer with how it came about; `decided` is one sentence, `runs` how many runs the log holds."""

    answer: Triage
    phases: tuple[Phase, ...]
    candidates: tuple[Weighed, ...]
    decided: str
    runs: int


def explain_log(facts: LogFacts, events: Mapping[Stage, float] | None = None) -> Explained:
    """Triage a log and tell why; `events` are seconds by stage, where the run recorded them."""
    answer = triage(facts)
    run = judged_facts(facts, answer)
    ranked, _ = weigh(run)
    weighed = []
    for candidate in ranked:
        error, rule = candidate.error, rule_of(candidate.error)
        stage = rule.stage if rule is not None and rule.stage is not None else stage_of(error, facts=run)
        name, at = UNEXPLAINED if rule is None else rule.id, error.at.line
        chosen = (at, name) == (answer.line, answer.rule)
        weighed.append(Weighed(at, shown_error(error), candidate.standing, stage, name, error.count, chosen))
    verdict = answer.verdict.capitalize()
    by = next((rule for rule in RULES if rule.id == answer.rule), None)
    if by is None:
        decided = f"{_OTHERWISE[answer.rule]}: {verdict}"
    elif by.fact is not None:
        decided = f"rule {by.id}: nothing was raised, but a fact of the log shows the fault: {verdict}"
    elif by.fault is Fault.CODE:
        begun = "had begun" if answer.stage.order >= Stage.BRIDGE_PROVIDER.order else "had not begun"
        where = f"construction of the model {begun} at {answer.stage}"
        decided = f"rule {by.id}: the stage decides; {where}: {verdict}"
    else:
        decided = f"rule {by.id}: {_WHOSE[by.fault]}, {by.outcome}"
    return Explained(answer, timeline(run, events), tuple(weighed), decided, facts.runs)


_WHOSE = {Fault.OUTSIDE: "a fault outside of the change", Fault.TREES: "a fault in the source under test"}
_OTHERWISE = {
    COMPLETED: "the last requested step and its metrics are there, and every error is explained",
    INCOMPLETE: "no error ended the run, and the requested steps are not there",
    UNEXPLAINED: "no rule explains the error",
    FORMAT: "what stands around the lines is not understood",
    OTHER_TRAINER: "another trainer finished, so what is tested here did not run",
    OTHER_BACKEND: "the run trained without what is tested here",
}


def explain_text(file: str, message: Explained) -> str:
    """What a person reads; ends without a newline."""
    answer = message.answer
    rows = [f"{file}: {answer.verdict} in {answer.stage}", f"  {answer.cause}"]
    rows.append(f"  line {answer.line}: {_cut(answer.excerpt)}")
    more = f" of run {answer.run} of {message.runs}" if message.runs > 1 else ""
    rows.append(f"Phases{more} (line, seconds, stage, what proves it):" if message.phases else "Phases: none is proven")
    for phase in message.phases:
        clock = " " * 8 + "-" if phase.seconds is None else f"{phase.seconds:9.1f}"
        rows.append(f"  {phase.at.line:>7} {clock} {phase.stage:<19} {_cut(phase.at.text)}")
    rows.append(
        "Candidates for the root cause, as they were weighed:" if message.candidates else "Candidates: no error"
    )
    for weighed in message.candidates[:SHOWN_CANDIDATES]:
        times = f", {weighed.count}x" if weighed.count > 1 else ""
        mark, where = ">" if weighed.chosen else " ", f"{weighed.stage}, rule {weighed.rule}"
        rows.append(f"{mark} {weighed.line:>7}  {_cut(weighed.error)} [{weighed.state}{times}; {where}]")
    left = len(message.candidates) - SHOWN_CANDIDATES
    rows += [f"    and {left} more"] if left > 0 else []
    for noise in answer.residual_noise:
        rows.append(f"Residual noise: {noise.name}, line {noise.at.line}, {noise.count}x")
    for run in answer.others:
        rows.append(f"Run {run.run}, lines {run.begins}-{run.ends}: {outcome_text(run)}")
    rows.append(f"Decided by {message.decided}")
    rows += [f"What to do: {answer.fix}"] if answer.fix else []
    return "\n".join(map(printable, rows))


def explain_json(file: str, message: Explained) -> dict[str, object]:
    """The line of `triage --explain --json`: the keys of `triage`, and how the answer came about."""
    answer = message.answer
    return {
        **triage_json(file, answer),
        "schema": 2,
        "rule": answer.rule,
        "decided": message.decided,
        "fix": answer.fix,
        "runs": message.runs,
        "phases": [
            {"stage": phase.stage, "line": phase.at.line, "seconds": phase.seconds, "proof": phase.at.text}
            for phase in message.phases
        ],
        "candidates": [asdict(candidate) for candidate in message.candidates],
    }
