"""Two runs side by side: what counts as the same, what as noise, and what as another training."""

import json
import math
import random
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.logs import recorded
from tests.fakes.places import ROOT
from verl_e2e.core.compare.steps import (
    COMPARED,
    STATED_TOLERANCES,
    Agreement,
    Compared,
    Report,
    RunComparison,
    Tolerance,
    Tolerances,
    compare_steps,
)
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.report.comparison_text import render_report, render_report_markdown, report_json

ACTOR, CRITIC, KL = "actor/grad_norm", "critic/grad_norm", "actor/kl_loss"


@cache
def series(name: str) -> tuple[StepMetrics, ...]:
    """The training steps of a recorded run."""
    return tuple(step for step in scan([recorded(name)]).steps if step.step > 0)


def changed(steps: tuple[StepMetrics, ...], **factors: float) -> tuple[StepMetrics, ...]:
    """The steps with some metrics multiplied, by the metric's name with its slash as two underscores."""
    names = {name.replace("__", "/"): factor for name, factor in factors.items()}
    return tuple(
        with_values(step, {name: step.values[name] * factor for name, factor in names.items()}) for step in steps
    )


def with_values(step: StepMetrics, values: Mapping[str, float]) -> StepMetrics:
    return StepMetrics(step.step, step.line, {**step.values, **values})


def other_samples(steps: tuple[StepMetrics, ...]) -> tuple[StepMetrics, ...]:
    """The steps as if the rollout had drawn other samples of the same kind."""
    return changed(steps, rollout_corr__rollout_log_ppl=1.001)


OF_VERL = [item for item in COMPARED if item.metric in VERL.metrics[item.quantity]]


def test_what_has_no_range_is_not_judged_by_one() -> None:
    (score,) = (item for item in COMPARED if item.metric == "reward/avg_raw_reward")
    assert (score.same, score.sampled) == (None, None)


def one(step: int = 1, **values: float) -> StepMetrics:
    return StepMetrics(step, 1, {name.replace("__", "/"): value for name, value in values.items()})


def agreement(found: RunComparison, metric: str) -> Agreement:
    return next(item.agreement for item in found.metrics if item.compared.metric == metric)


def test_a_run_agrees_with_itself_in_every_metric() -> None:
    steps = series("level5-flat-cut-at-14-of-20")
    found = compare_steps(steps, steps)
    assert found.steps == found.same_samples == tuple(range(1, 15))
    assert {item.compared.metric for item in found.metrics} == {item.metric for item in OF_VERL}
    assert {item.agreement for item in found.metrics} == {Agreement.WITHIN}
    assert (found.beyond, found.comparable) == ((), True)


def test_two_steps_of_other_prompts_cannot_be_compared() -> None:
    first, second = series("level5-flat-cut-at-14-of-20")[:2]
    found = compare_steps([first], [StepMetrics(1, 1, {**second.values, "training/global_step": 1.0})])
    assert not found.comparable
    assert found.data_differs.startswith("prompt_length/mean is 87.8125 in the run and 94.875 in its reference")


def test_without_a_common_step_there_is_nothing_to_judge() -> None:
    steps = series("level5-flat-cut-at-14-of-20")
    found = compare_steps(steps[:3], steps[3:])
    assert (found.steps, found.metrics, found.comparable) == ((), (), False)


@pytest.mark.parametrize("factor", [1.9, 1 / 1.9, math.sqrt(2), 1.3])
def test_a_gradient_of_another_size_is_beyond_tolerance(factor: float) -> None:
    steps = series("level5-flat-cut-at-14-of-20")
    found = compare_steps(changed(other_samples(steps), actor__grad_norm=factor), steps)
    assert [item.compared.metric for item in found.beyond] == [ACTOR]
    assert found.beyond[0].ratio == pytest.approx(factor)
    assert (found.beyond[0].excess > 0) == (factor > 1)


def test_one_unlucky_step_among_several_decides_nothing() -> None:
    steps = series("level5-flat-cut-at-14-of-20")
    spoiled = (*changed(steps[:1], actor__grad_norm=5.0), *steps[1:3])
    found = compare_steps(other_samples(spoiled), steps)
    gradient = next(item for item in found.metrics if item.compared.metric == ACTOR)
    assert [row.agreement for row in gradient.rows] == [Agreement.BEYOND, Agreement.WITHIN, Agreement.WITHIN]
    assert gradient.agreement is Agreement.WITHIN


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_step_that_is_no_number_is_enough(value: float) -> None:
    steps = series("level5-flat-cut-at-14-of-20")
    spoiled = (with_values(steps[0], {ACTOR: value}), *steps[1:])
    assert agreement(compare_steps(spoiled, steps), ACTOR) is Agreement.BEYOND
    assert agreement(compare_steps(steps, spoiled), ACTOR) is Agreement.WITHIN


@pytest.mark.parametrize(
    ("run", "reference", "expected"),
    [
        (0.0, 0.15, Agreement.BEYOND),
        (0.001, 0.0113, Agreement.BEYOND),
        (0.14, 0.15, Agreement.WITHIN),
        (0.0, 0.0, Agreement.WITHIN),
        (2.1e-06, 1.2e-07, Agreement.WITHIN),
    ],
)
def test_the_kl_of_an_untrained_adapter(run: float, reference: float, expected: Agreement) -> None:
    found = compare_steps([one(actor__kl_loss=run)], [one(actor__kl_loss=reference)])
    assert agreement(found, KL) is expected


def test_the_same_samples_are_held_to_narrow_tolerances() -> None:
    steps = series("level5-flat-cut-at-14-of-20")
    moved = changed(steps, actor__grad_norm=1.1)
    assert agreement(compare_steps(moved, steps), ACTOR) is Agreement.BEYOND
    assert agreement(compare_steps(other_samples(moved), steps), ACTOR) is Agreement.WITHIN
    assert agreement(compare_steps(other_samples(moved), steps, narrow=True), ACTOR) is Agreement.BEYOND


def test_what_follows_the_samples_alone_is_shown_and_not_judged() -> None:
    steps = series("level5-flat-cut-at-14-of-20")
    moved = changed(steps, critic__score__mean=3.0, actor__pg_loss=-2.0)
    found = compare_steps(other_samples(moved), steps)
    assert {agreement(found, name) for name in ("critic/score/mean", "actor/pg_loss")} == {Agreement.SHOWN}
    assert found.beyond == ()


def test_without_the_rollouts_own_figure_samples_count_as_other_ones() -> None:
    step = one(actor__grad_norm=1.0)
    assert compare_steps([step], [step]).same_samples == ()


def test_the_value_is_held_against_its_own_range() -> None:
    def valued(mean: float) -> list[StepMetrics]:
        return [one(critic__values__mean=mean, critic__values__max=1.0, critic__values__min=-1.0)]

    near = compare_steps(valued(0.1), valued(-0.05))
    far = compare_steps(valued(0.2), valued(-0.05))
    assert agreement(near, "critic/values/mean") is Agreement.WITHIN
    assert agreement(far, "critic/values/mean") is Agreement.BEYOND


def test_a_metric_that_only_one_run_has_is_left_out() -> None:
    found = compare_steps([one(actor__grad_norm=1.0, critic__grad_norm=1.0)], [one(actor__grad_norm=1.0)])
    assert [item.compared.metric for item in found.metrics] == [ACTOR]


def test_a_counter_that_differs_is_named() -> None:
    found = compare_steps([one(actor__lr=1e-3, actor__grad_norm=1.0)], [one(actor__lr=1e-6, actor__grad_norm=1.0)])
    assert found.counters_differ == "actor/lr is 0.001 in the run and 1e-06 in its reference at step 1"


def test_other_tolerances_replace_the_stated_ones() -> None:
    wider = Tolerances("measured", sampled={ACTOR: Tolerance(0.5)})
    found = compare_steps([one(actor__grad_norm=1.9)], [one(actor__grad_norm=1.0)], wider)
    assert (agreement(found, ACTOR), found.source) == (Agreement.WITHIN, "measured")


VALUES = st.floats(1e-6, 1e6)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_lines_is_irrelevant_and_the_roles_mirror_each_other(pairs: Any, shuffle: random.Random) -> None:
    run = [one(step, actor__grad_norm=a, actor__entropy=b) for step, (a, b) in enumerate(pairs, start=1)]
    reference = [one(step, actor__grad_norm=b, actor__entropy=a) for step, (a, b) in enumerate(pairs, start=1)]
    found = compare_steps(run, reference)
    mixed = shuffle.sample(run, len(run))
    assert compare_steps(mixed, reference) == found
    mirrored = compare_steps(reference, run)
    assert [item.agreement for item in mirrored.metrics] == [item.agreement for item in found.metrics]
    assert [item.excess for item in mirrored.metrics] == pytest.approx([-item.excess for item in found.metrics])


# How far the recorded series scatter from step to step: wider than two runs on the same prompts do.
def scatter(metric: str) -> float:
    logs = [math.log(step.values[metric]) for step in series("level5-flat-cut-at-14-of-20")]
    return pstdev(b - a for a, b in pairwise(logs)) / math.sqrt(2)


def simulated(rng: random.Random, steps: int, factor: float) -> RunComparison:
    """A run and its reference that differ by the recorded scatter of the actor's gradient, and by a factor."""
    noise = scatter(ACTOR)
    base = series("level5-flat-cut-at-14-of-20")[:steps]
    run = [with_values(item, {ACTOR: item.values[ACTOR] * factor * math.exp(rng.gauss(0, noise))}) for item in base]
    reference = [with_values(item, {ACTOR: item.values[ACTOR] * math.exp(rng.gauss(0, noise))}) for item in base]
    return compare_steps(other_samples(tuple(run)), reference, STATED_TOLERANCES)


@pytest.mark.parametrize(("steps", "factor", "least", "most"), [(3, 1.0, 0, 1), (3, 1.9, 100, 100), (3, 1.45, 95, 100)])
def test_recorded_scatter_hides_no_doubled_gradient_and_cries_no_wolf(
    steps: int, factor: float, least: int, most: int
) -> None:
    rng = random.Random(20240)
    caught = sum(bool(simulated(rng, steps, factor).beyond) for _ in range(100))
    assert least <= caught <= most


SAME_JOB = (ROOT / "bot/verl_e2e/demo/recording", ROOT / "tests/fixtures/runs/level0-image-tree-first")


def kept_metrics(folder: Path) -> tuple[StepMetrics, ...]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return tuple(StepMetrics(row["step"], row["line"], row["metrics"]) for row in rows)


@pytest.mark.parametrize("folder", SAME_JOB, ids=lambda folder: folder.name)
def test_real_runs_of_one_job_agree_although_their_samples_differ(folder: Path) -> None:
    found = compare_steps(series("level0-pass"), kept_metrics(folder))
    assert (found.steps, found.same_samples, found.comparable, found.beyond) == ((1,), (), True, ())


def in_words(tolerance: Tolerance | None) -> str:
    if tolerance is None:
        return "shown"
    share = f"{tolerance.relative * 100:g} %" if tolerance.relative else ""
    absolute = f"{tolerance.absolute:.5f}".rstrip("0") if tolerance.absolute else ""
    spread = f"{tolerance.spread * 100:g} % of the range" if tolerance.spread else ""
    return " + ".join(part for part in (share, absolute, spread) if part)


@pytest.mark.parametrize("compared", OF_VERL, ids=lambda item: item.metric)
def test_every_stated_tolerance_is_documented(compared: Compared) -> None:
    text = (ROOT / "docs/parity.md").read_text()
    assert f"| `{compared.metric}` | {in_words(compared.same)} | {in_words(compared.sampled)} |" in text


ANY = st.dictionaries(
    st.sampled_from([*(item.metric for item in COMPARED), "critic/values/max", "critic/values/min", "actor/lr"]),
    st.floats(),
    max_size=8,
)


@given(st.lists(st.tuples(ANY, ANY), max_size=4))
def test_no_number_in_a_log_ends_a_comparison_or_its_report(pairs: Any) -> None:
    run = [StepMetrics(n, n, ours) for n, (ours, _) in enumerate(pairs, start=1)]
    reference = [StepMetrics(n, n, theirs) for n, (_, theirs) in enumerate(pairs, start=1)]
    report = Report("run against reference", compare_steps(run, reference))
    assert render_report(report).startswith("run against reference: ")
    document = json.loads(report_json((report,)), parse_constant=pytest.fail)
    assert len(document["reports"][0]["metrics"]) == len(report.comparison.metrics)
    assert render_report_markdown((report,)).count("\n|---|") == 2


def folder_series(name: str) -> tuple[StepMetrics, ...]:
    """The training steps of a recorded run folder."""
    rows = map(json.loads, (ROOT / "tests/fixtures/runs" / name / "metrics.jsonl").read_text().splitlines())
    return tuple(StepMetrics(row["step"], 0, row["metrics"]) for row in rows)


def test_gradients_that_are_never_averaged_show_at_the_first_step_of_equal_weights() -> None:
    reference = folder_series("level2-unsharded")
    assert not compare_steps(folder_series("level2-dp2"), reference, equal_start=True).beyond
    found = compare_steps(folder_series("level2-dp2-unaveraged"), reference, equal_start=True)
    assert {metric.compared.metric for metric in found.beyond} == {ACTOR, CRITIC}
    # By the median over three steps the critic's is within the tolerance of any training.
    later = compare_steps(folder_series("level2-dp2-unaveraged"), reference)
    assert {metric.compared.metric for metric in later.beyond} == {ACTOR}


@pytest.mark.parametrize(("factor", "ppl", "beyond"), [(1.009, 1.0, False), (1.02, 1.0, True), (1.02, 1.00001, False)])
def test_the_first_step_decides_alone_where_its_samples_are_the_same(factor: float, ppl: float, beyond: bool) -> None:
    steps = folder_series("level2-unsharded")
    first = changed(steps[:1], actor__grad_norm=factor, rollout_corr__rollout_log_ppl=ppl)
    found = compare_steps((*first, *steps[1:]), steps, equal_start=True)
    assert [metric.compared.metric for metric in found.beyond] == ([ACTOR] if beyond else [])
    assert not compare_steps((*first, *steps[1:]), steps).beyond
