"""Comparisons for people and programs: of two runs step by step, and of a learning signal with its baselines.

As text, as one JSON document, and as Markdown tables: the same bytes for the same values.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from verl_e2e.core.compare.steps import Agreement, MetricComparison, MetricRow, Report, RunComparison
from verl_e2e.core.model.facts import StepValues
from verl_e2e.core.signal.curves import (
    CAP_SHARE,
    SHOWN,
    Trend,
    curve,
    sparkline,
    train_steps,
)
from verl_e2e.core.signal.report import SignalReport
from verl_e2e.core.text.escape import markdown, one_line

PARITY_MARKDOWN_FILE = "parity.md"
PARITY_JSON_FILE = "parity.json"
METRIC_HEAD = ("metric", "steps", "median ratio", "farthest", "verdict")
_ROW_HEAD = ("step", "metric", "run", "reference", "difference", "relative", "allowed", "verdict")


def verdict_of(found: RunComparison) -> str:
    """The comparison in a few words."""
    gap = found.data_differs or found.counters_differ or ("" if found.comparable else "no metric that can be judged")
    gap = gap if found.steps else "no training step in common"
    if gap:
        return f"not comparable: {gap}"
    beyond = ", ".join(item.compared.metric for item in found.beyond)
    return f"beyond tolerance: {beyond}" if beyond else "within tolerance"


def _basis(found: RunComparison) -> str:
    """Which steps were compared, with which samples, by which tolerances."""
    steps = ", ".join(map(str, found.steps)) or "none"
    same = ", ".join(map(str, found.same_samples)) or "none"
    return f"Steps compared: {steps}; of these with the same samples: {same}. Tolerances: {found.source}."


def render_report(report: Report) -> str:
    """The report as text: a line for each metric, then one for each metric of each step."""
    found = report.comparison
    lines = [f"{one_line(report.title)}: {verdict_of(found)}", _basis(found), *map(one_line, report.notes)]
    lines += ["", *_aligned([METRIC_HEAD, *map(metric_cells, found.metrics)])]
    lines += ["", *_aligned([_ROW_HEAD, *map(_row_cells, _rows(found))])]
    return "\n".join(lines) + "\n"


def render_report_markdown(reports: tuple[Report, ...]) -> str:
    """The reports as one Markdown document."""
    rows = []
    for report in reports:
        rows.append(f"### {markdown(report.title)}: {markdown(verdict_of(report.comparison))}\n")
        rows += [*markdown_rows(report), ""]
    return "\n".join(rows)


def markdown_rows(report: Report) -> tuple[str, ...]:
    """The report's sentences and tables as rows of Markdown, for a card that cuts from the end."""
    found = report.comparison
    rows = [markdown(_basis(found)), *map(markdown, report.notes), ""]
    rows += _table(METRIC_HEAD, map(metric_cells, found.metrics))
    return (*rows, "", *_table(_ROW_HEAD, map(_row_cells, _rows(found))))


def report_json(reports: tuple[Report, ...]) -> str:
    """The reports as one document, deterministic; NaN and infinity are the strings nan, inf and -inf."""
    document = {"schema": 2, "reports": [_report(report) for report in reports]}
    return json.dumps(_to_json(document), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _report(report: Report) -> dict[str, object]:
    found = report.comparison
    return {
        "title": report.title,
        "verdict": verdict_of(found),
        "within": found.comparable and not found.beyond and not found.counters_differ,
        "steps": found.steps,
        "same_samples": found.same_samples,
        "tolerances": found.source,
        "notes": report.notes,
        "metrics": [
            {
                "metric": metric.compared.metric,
                "title": metric.compared.title,
                "verdict": metric.agreement.value,
                "median_ratio": metric.ratio,
                "excess": metric.excess,
                "steps": [
                    {
                        "step": row.step,
                        "run": row.run,
                        "reference": row.reference,
                        "difference": row.difference,
                        "relative": row.relative,
                        "tolerance": row.tolerance.shown() if row.tolerance else None,
                        "allowed": row.allowed,
                        "verdict": row.agreement.value,
                    }
                    for row in metric.rows
                ],
            }
            for metric in found.metrics
        ],
    }


def _rows(found: RunComparison) -> Iterator[MetricRow]:
    """All rows, step by step and in the order of the metrics."""
    for step in found.steps:
        yield from (row for metric in found.metrics for row in metric.rows if row.step == step)


def metric_cells(metric: MetricComparison) -> tuple[str, ...]:
    """A metric over all steps as the cells below `METRIC_HEAD`."""
    ratio = "" if math.isnan(metric.ratio) else f"{metric.ratio:.3g}"
    farthest = max(metric.rows, key=lambda row: abs(row.excess))
    shown = f"{farthest.run:.4g} / {farthest.reference:.4g} at {farthest.step}"
    return metric.compared.metric, str(len(metric.rows)), ratio, shown, metric.agreement.value


def _row_cells(row: MetricRow) -> tuple[str, ...]:
    allowed = "" if row.allowed is None else f"{row.allowed:.3g}"
    judged = "" if row.agreement is Agreement.SHOWN else row.agreement.value
    figures = (f"{row.run:.5g}", f"{row.reference:.5g}", f"{row.difference:+.3g}", f"{row.relative:+.2%}")
    return (str(row.step), row.metric, *figures, allowed, judged)


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Numbers and names of our own, so nothing in a cell needs to be made inert."""
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]


def render_signal(report: SignalReport, steps: Sequence[StepValues]) -> str:
    """The sentence, every curve with its first and last value, the baselines, and what else is to be known."""
    trained = train_steps(steps)
    by_key = {comparison.quantity.key: comparison for comparison in report.comparisons}
    rows = [report.sentence, ""]
    for quantity in (*SHOWN, CAP_SHARE):
        found, comparison = curve(trained, quantity), by_key.get(quantity.key)
        if found is None:
            continue
        against = f"  {comparison.standing} the baseline" if comparison else ""
        # Where not the whole curve was compared.
        if comparison and comparison.shared != len(found.values):
            against += f" over {comparison.shared} of {len(found.values)} steps"
        drawn = f"{found.values[0]:>10.4g} {sparkline(found.values):<20} {found.values[-1]:<10.4g}"
        rows.append(f"{quantity.title:<28} {drawn} {found.name}{against}")
    rows += [f"baseline {baseline.name}: {baseline.outcome}: {baseline.cause}" for baseline in report.baselines]
    rows += [f"note: {note}" for note in report.notes]
    return "\n".join(rows).rstrip() + "\n"


def signal_json(report: SignalReport, steps: Sequence[StepValues]) -> str:
    """The whole report as one document; NaN and infinity are the strings nan, inf and -inf."""
    trained = train_steps(steps)
    curves = ((text, curve(trained, text)) for text in (*SHOWN, CAP_SHARE))
    document = {
        "schema": 2,
        "outcome": report.outcome,
        "sentence": report.sentence,
        "cause": report.cause,
        "step": report.step,
        "failed": report.failed,
        "stuck": report.stuck,
        "weak": list(report.weak),
        "notes": list(report.notes),
        "trend": _trend(report.trend),
        "baseline_moved": report.baseline_moved,
        "baselines": [
            {"name": item.name, "outcome": item.outcome, "cause": item.cause, "trend": _trend(item.trend)}
            for item in report.baselines
        ],
        "comparisons": [
            {
                "quantity": item.quantity.key,
                "state": item.standing,
                "shared_steps": item.shared,
                "gap": _trend(item.gap),
                "inside_band": item.inside,
            }
            for item in report.comparisons
        ],
        "curves": {one.key: asdict(found) for one, found in curves if found is not None},
    }
    return json.dumps(_to_json(document), indent=2, ensure_ascii=False) + "\n"


def _trend(found: Trend | None) -> dict[str, object] | None:
    return None if found is None else {**asdict(found), "shift": found.shift}


def _to_json(value: object) -> object:
    """The value with text in place of numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return value
