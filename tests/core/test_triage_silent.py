"""Metrics are evidence: nothing that a finished run shows of a fault, or does not show at all, is a pass."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from bot.core.judging.outcome import Result
from bot.core.judging.verdict import judge
from bot.core.metrics import not_finite
from bot.core.scan.scan import scan
from bot.core.triage.answer import Triage
from bot.core.triage.hollow import AGREEMENT
from bot.core.triage.triage import triage
from tests.core.builders import make_facts, make_record
from tests.core.logs import lines
from tests.core.silent_cases import PASS, Silent, base, cases

CASES = cases()
FIGURE = 0.95


def right(case: Silent, answer: Triage) -> bool:
    return answer.verdict == case.verdict and (not case.stages or answer.stage in case.stages)


def figures(answers: list[tuple[Silent, Triage]]) -> str:
    """The figures by class, and every wrong answer."""
    total = Counter(case.kind for case, _ in answers)
    good = Counter(case.kind for case, answer in answers if right(case, answer))
    rows = [f"{kind}: {good[kind]} of {total[kind]}" for kind in total]
    wrong = [
        f"  {case.kind} / {case.name}: {answer.verdict} in {answer.stage} by {answer.rule} ({answer.cause})"
        for case, answer in answers
        if not right(case, answer)
    ]
    return "\n".join((*rows, *wrong))


def test_silent_faults_reach_the_figure_and_none_is_a_pass() -> None:
    answers = [(case, triage(scan([case.log]))) for case in CASES]
    shown = figures(answers)
    assert sum(case.verdict != PASS for case in CASES) >= 100
    assert sum(case.verdict == PASS for case in CASES) >= 80
    assert not [case.name for case, answer in answers if answer.verdict == PASS and case.verdict != PASS], shown
    for half in (False, True):
        rows = [(case, answer) for case, answer in answers if case.unseen is half]
        assert sum(right(case, answer) for case, answer in rows) >= FIGURE * len(rows), shown


def test_a_program_that_only_generates_is_not_missed_an_update() -> None:
    bar = "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]"
    step = "step:1 - critic/score/mean:0.5 - response_length/mean:9.0 - timing_s/gen:1.5"
    assert triage(scan(lines(step, bar))).rule == "completed"
    assert triage(scan(lines(f"{step} - timing_s/update_critic:1.0", bar))).rule == "actor-not-updated"
    assert triage(scan(lines("Setting up optimizer with config", step, bar))).rule == "actor-not-updated"


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
