"""The report of a run folder as one HTML file without a network, and its log as another that the report links into."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from jinja2 import Environment, PackageLoader, StrictUndefined

from verl_e2e.core.judge.execution import execution_rows, join
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import Event, PhaseEvent, Record, StageEvent, StepEvent, read_data
from verl_e2e.core.report.comparison_text import METRIC_HEAD, metric_cells, verdict_of
from verl_e2e.core.report.run_text import log_row
from verl_e2e.core.report.verdict_rows import command_rows
from verl_e2e.core.signal.curves import SHOWN, curve, train_steps

REPORT_FILE, LOG_PAGE_FILE = "report.html", "log.html"
# Of a longer log the page has the first and the last lines, and those around every line that the report links to.
_FIRST_LINES, _LAST_LINES, _AROUND = 5_000, 15_000, 40
_MOST_OF_LINE = 3_900
# The size of a curve in pixels.
_WIDTH, _HEIGHT = 220, 48

# Every page is made with these; all that they are given is escaped.
templates = Environment(
    loader=PackageLoader("verl_e2e.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """A part of the run on its timeline."""

    title: str
    # In seconds since the folder was opened.
    began_s: float
    seconds: float
    # `phase` of the runner, or `stage` as the log shows it.
    kind: str


@dataclass(frozen=True, slots=True)
class DrawnCurve:
    """A metric by training step, as the points of a polyline."""

    title: str
    name: str
    first: float
    last: float
    points: str


def render_run_report(verdict: Verdict, record: Record) -> str:
    """The report: result, where it broke, timeline, evidence, executed code, curves, comparison, environment, command.

    Every link leads into the page of the log, beside it in the run folder.
    """
    return templates.get_template("report.html").render(verdict_parts(verdict, record))


def verdict_parts(verdict: Verdict, record: Record | None = None) -> dict[str, object]:
    """What `verdict.html` shows; without the record of its folder nothing leads into a log."""
    executed = execution_rows(join({verdict.job_id: verdict.execution})) if verdict.execution else ()
    events = record.events if record else ()
    spans, whole = _timeline(events)

    def linked(items: Iterable[Evidence]) -> list[tuple[Evidence, str]]:
        return [(item, link_of(item, record.log) if record else "") for item in items]

    return {
        "verdict": verdict,
        "where": linked(item for item in verdict.key_lines if item.state in (State.BROKEN, State.MISSING)),
        "evidence": linked(verdict.evidence),
        "spans": spans,
        "whole_s": whole,
        "steps": [
            (event.t_s, found.step)
            for event in events
            if event.kind == "step" and (found := read_data(event, StepEvent))
        ],
        "executed": executed,
        "curves": list(_curves(verdict.steps)),
        "comparisons": [
            (
                report,
                verdict_of(report.comparison),
                METRIC_HEAD,
                [metric_cells(row) for row in report.comparison.metrics],
            )
            for report in verdict.reports
        ],
        "environment": record.environment if record else None,
        "command": command_rows(verdict),
        "passed": verdict.result is Result.PASS,
    }


def link_of(item: Evidence, log: str) -> str:
    """Where a reader sees evidence from the log of this name, as an address beside the report; else empty."""
    if item.file != log:
        return ""
    return f"{LOG_PAGE_FILE}#L{item.line}" if item.line else LOG_PAGE_FILE


def linked_lines(verdict: Verdict, log: str) -> dict[int, str]:
    """What stands beside each line of the log that a report links to, by its number: lines that decided first."""
    found = {item.line: item.criterion for item in verdict.evidence if item.file == log and item.line}
    return found | {item.line: "decided" for item in verdict.key_lines if item.file == log and item.line}


def render_log_page(title: str, lines: Iterable[str], marked: Mapping[int, str]) -> Iterator[str]:
    """The page of a log in pieces: each line with its number as an anchor, the marked ones visible from afar."""
    template = templates.get_template("log.html")
    shown = ((number, log_row(text)) for number, text in _shown(lines, marked))
    yield from template.generate(title=title, lines=shown, marked=marked)


def _shown(lines: Iterable[str], marked: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    """The numbered lines that are shown; number 0 with how many were left out."""
    wanted = {number for mark in marked for number in range(mark - _AROUND, mark + _AROUND + 1)}
    waiting: deque[tuple[int, str]] = deque()
    left_out = 0
    for number, line in enumerate(lines, 1):
        text = line if len(line) <= _MOST_OF_LINE else f"{line[:_MOST_OF_LINE]} ... ({len(line)} characters)"
        if number <= _FIRST_LINES:
            yield number, text
            continue
        waiting.append((number, text))
        if len(waiting) > _LAST_LINES:
            oldest = waiting.popleft()
            if oldest[0] not in wanted:
                left_out += 1
                continue
            if left_out:
                yield 0, f"{left_out} lines"
                left_out = 0
            yield oldest
    if left_out:
        yield 0, f"{left_out} lines"
    yield from waiting


def _timeline(events: tuple[Event, ...]) -> tuple[list[TimelineSpan], float]:
    """The phases of the runner and, within the wrapper's, the stages that the log showed; and the end of all."""
    end = max((event.t_s for event in events), default=0.0) or 1.0
    spans: list[TimelineSpan] = []
    open_phases: dict[str, float] = {}
    stages: list[tuple[str, float]] = []

    def close_stages(until: float) -> None:
        for (name, began), (_, after) in pairwise([*stages, ("", until)]):
            spans.append(TimelineSpan(name, began, after - began, "stage"))
        stages.clear()

    for event in events:
        phase = read_data(event, PhaseEvent) if event.kind == "phase" else None
        stage = read_data(event, StageEvent) if event.kind == "stage" else None
        if phase is not None:
            name = f"{phase.name}: {phase.step}" if phase.step else phase.name
            if phase.state == "begin":
                # A phase that no event ends is over when the next one begins.
                spans += [
                    TimelineSpan(other, began, event.t_s - began, "phase") for other, began in open_phases.items()
                ]
                open_phases = {name: event.t_s}
            elif name in open_phases:
                began = open_phases.pop(name)
                spans.append(TimelineSpan(name, began, event.t_s - began, "phase"))
                close_stages(event.t_s)
        elif stage is not None and (not stages or stages[-1][0] != stage.stage):
            stages.append((stage.stage, event.t_s))
    spans += [TimelineSpan(f"{name} (not ended)", began, end - began, "phase") for name, began in open_phases.items()]
    close_stages(end)
    return sorted(spans, key=lambda span: (span.began_s, span.kind)), end


def _curves(steps: tuple[StepMetrics, ...]) -> Iterator[DrawnCurve]:
    trained = train_steps(steps)
    for quantity in SHOWN:
        found = curve(trained, quantity)
        found = found.finite() if found else None
        if not found or len(found.values) < 2:
            continue
        low, high = min(found.values), max(found.values)
        across, up = _WIDTH / (len(found.values) - 1), _HEIGHT / ((high - low) or 1.0)
        points = " ".join(
            f"{index * across:.1f},{_HEIGHT - (value - low) * up:.1f}" for index, value in enumerate(found.values)
        )
        yield DrawnCurve(quantity.title, found.name, found.values[0], found.values[-1], points)
