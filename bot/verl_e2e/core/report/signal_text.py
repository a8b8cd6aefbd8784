"""The report of a learning signal as text and as JSON: deterministic, the same bytes for the same values."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from verl_e2e.core.signal.curves import CAP_SHARE, SHOWN, Curve, Quantity, Step, curve, sparkline, train_steps
from verl_e2e.core.signal.report import BaselineSignal, Comparison, SignalReport
from verl_e2e.core.signal.statistics import Trend


def render_signal(report: SignalReport, steps: Sequence[Step]) -> str:
    """The sentence, every curve with its first and last value, the baselines, and what else is to be known."""
    trained = train_steps(steps)
    by_key = {comparison.quantity.key: comparison for comparison in report.comparisons}
    rows = [report.sentence, ""]
    rows += [row for text in (*SHOWN, CAP_SHARE) for row in _curve_row(text, trained, by_key.get(text.key))]
    rows += [f"baseline {baseline.name}: {baseline.outcome}: {baseline.cause}" for baseline in report.baselines]
    rows += [f"note: {note}" for note in report.notes]
    return "\n".join(rows).rstrip() + "\n"


def _curve_row(quantity: Quantity, trained: Sequence[Step], comparison: Comparison | None) -> Iterable[str]:
    found = curve(trained, quantity)
    if found is None:
        return
    against = f"  {comparison.standing} the baseline{_over(comparison, found)}" if comparison else ""
    drawn = f"{found.values[0]:>10.4g} {sparkline(found.values):<20} {found.values[-1]:<10.4g}"
    yield f"{quantity.title:<28} {drawn} {found.name}{against}"


def _over(comparison: Comparison, found: Curve) -> str:
    """How much of the curve was compared, where it is not the whole."""
    return "" if comparison.shared == len(found.values) else f" over {comparison.shared} of {len(found.values)} steps"


def signal_json(report: SignalReport, steps: Sequence[Step]) -> str:
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
        "baselines": [_baseline(baseline) for baseline in report.baselines],
        "comparisons": [_comparison(comparison) for comparison in report.comparisons],
        "curves": {one.key: asdict(found) for one, found in curves if found is not None},
    }
    return json.dumps(_to_json(document), indent=2, ensure_ascii=False) + "\n"


def _trend(found: Trend | None) -> dict[str, object] | None:
    return None if found is None else {**asdict(found), "shift": found.shift}


def _baseline(baseline_signal: BaselineSignal) -> dict[str, object]:
    return {
        "name": baseline_signal.name,
        "outcome": baseline_signal.outcome,
        "cause": baseline_signal.cause,
        "trend": _trend(baseline_signal.trend),
    }


def _comparison(comparison: Comparison) -> dict[str, object]:
    return {
        "quantity": comparison.quantity.key,
        "state": comparison.standing,
        "shared_steps": comparison.shared,
        "gap": _trend(comparison.gap),
        "inside_band": comparison.inside,
    }


def _to_json(value: object) -> object:
    """The value with text in place of numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return value
