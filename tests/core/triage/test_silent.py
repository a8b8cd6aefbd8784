"""Metrics are evidence: nothing that a finished run shows of a fault, or does not show at all, is a pass."""

import math
from dataclasses import replace

import pytest

from tests.core.builders import make_facts, make_record
from tests.core.logs import lines
from tests.core.triage.silent_cases import base, cases
from tests.core.triage.tables import check, judged
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.log.printed import not_finite
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.triage.silent import AGREEMENT
from verl_e2e.core.triage.triage import triage


@pytest.mark.slow
def test_silent_faults_reach_the_figure_and_none_is_a_pass() -> None:
    answers = judged(cases())
    check(answers, by=lambda case: case.unseen, least=60)
    check(answers, by=lambda case: "pass" in case.verdicts, least=80)


def test_a_program_that_only_generates_is_not_missed_an_update() -> None:
    bar = "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]"
    step = "step:1 - critic/score/mean:0.5 - response_length/mean:9.0 - timing_s/gen:1.5"
    assert triage(scan(lines(step, bar))).rule == "completed"
    assert triage(scan(lines(f"{step} - timing_s/update_critic:1.0", bar))).rule == "actor-not-updated"
    assert triage(scan(lines("Setting up optimizer with config", step, bar))).rule == "actor-not-updated"


@pytest.mark.no_cover
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_metric_that_is_no_number_makes_a_run_pass_or_stops_the_judge(value: float) -> None:
    healthy = make_facts()
    (step,) = scan([base("one")]).steps
    for name in step.values:
        spoiled = replace(step, values={**step.values, name: value})
        verdict = judge(make_record(), replace(healthy, steps=(spoiled,), last_step=spoiled))
        passed = verdict.result is Result.PASS
        assert not (passed and not_finite(spoiled.values)), name
        assert not (passed and name == AGREEMENT), name


def test_a_colour_hides_no_word_of_an_engine() -> None:
    text = "(vLLMHttpServer pid=7) \x1b[33mSkipping\x1b[0m weight model.layers.0.mlp.up_proj.weight "
    assert len(scan(lines(text.replace("\x1b[33m", "").replace("\x1b[0m", ""))).refused_weights) == 1
    assert len(scan(lines(text)).refused_weights) == 1
