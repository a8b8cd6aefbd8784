"""Comparisons of two runs, as text, as Markdown and as a document."""

import json
import math

import pytest

from verl_e2e.core.compare.steps import Report, compare_steps
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.report.comparison_text import render_report, render_report_markdown, report_json, verdict_of

SAMPLES = {"rollout_corr/rollout_log_ppl": 9.25, "prompt_length/mean": 100.0, "response_length/mean": 64.0}


def steps(*norms: float, first: int = 1, **others: float) -> list[StepMetrics]:
    """Training steps of the same samples, each with its gradient norm."""
    values = {**SAMPLES, **{name.replace("__", "/"): value for name, value in others.items()}}
    return [StepMetrics(n, n, {**values, "actor/grad_norm": norm}) for n, norm in enumerate(norms, start=first)]


@pytest.mark.parametrize(
    ("run", "reference", "verdict"),
    [
        (steps(1.0, 2.0), steps(1.0, 2.0), "within tolerance"),
        (steps(1.0, 2.0), steps(2.0, 4.0), "beyond tolerance: actor/grad_norm"),
        (steps(1.0), steps(1.0, first=7), "not comparable: no training step in common"),
        (steps(1.0, prompt_length__mean=90.0), steps(1.0), "not comparable: prompt_length/mean"),
        ([StepMetrics(1, 1, {"actor/lr": 1.0})], [StepMetrics(1, 1, {"actor/lr": 1.0})], "not comparable: no metric"),
    ],
)
def test_the_verdict_of_a_comparison(run: list[StepMetrics], reference: list[StepMetrics], verdict: str) -> None:
    assert verdict_of(compare_steps(run, reference)).startswith(verdict)


def test_a_comparison_is_told_in_three_forms() -> None:
    report = Report(
        "tp2 against one GPU", compare_steps(steps(1.0, 2.0), steps(1.0, 4.0)), ("wrapper.LORA_RANK: 4 -> 8",)
    )
    text = render_report(report)
    assert text.startswith("tp2 against one GPU: ")
    assert "Steps compared: 1, 2; of these with the same samples: 1, 2." in text
    assert "wrapper.LORA_RANK: 4 -> 8" in text
    row = next(line for line in text.splitlines() if line.startswith("2") and "actor/grad_norm" in line)
    assert row.split()[2:6] == ["2", "4", "-2", "-50.00%"]
    markdown = render_report_markdown((report,))
    assert markdown.count("\n|---|") == 2
    assert "| 2 | actor/grad_norm | 2 | 4 | -2 | -50.00% |" in markdown
    document = json.loads(report_json((report,)))["reports"][0]
    norm = next(metric for metric in document["metrics"] if metric["metric"] == "actor/grad_norm")
    assert [(step["step"], step["run"], step["reference"]) for step in norm["steps"]] == [(1, 1.0, 1.0), (2, 2.0, 4.0)]
    assert document["notes"] == ["wrapper.LORA_RANK: 4 -> 8"]


def test_a_document_holds_no_number_that_json_does_not_have() -> None:
    report = Report("run against reference", compare_steps(steps(math.inf), steps(1.0)))
    document = json.loads(report_json((report,)), parse_constant=pytest.fail)
    norm = next(metric for metric in document["reports"][0]["metrics"] if metric["metric"] == "actor/grad_norm")
    assert norm["steps"][0]["run"] == "inf"
