"""The criterion on time and memory: when it is asked, and what each word of the policy makes of a slow-down."""

from typing import Any

import pytest

from tests.core.builders import bar, ended, make_facts, make_job, make_record, step_line
from verl_e2e.core.compare.bands import with_healthy
from verl_e2e.core.compare.jobs import unsharded
from verl_e2e.core.compare.performance import performance_of
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.related_runs import MergeBase, on_merge_base, without_change, without_saving
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.access import Slowdown
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.facts import LogFacts, StepMetrics
from verl_e2e.core.model.outcome import Result, Stage
from verl_e2e.core.model.record import Event, Record
from verl_e2e.core.model.related import Bands, Healthy, Performance, RelatedRun, Role
from verl_e2e.core.report.run_card import Card, render_text

SLOWER = "Slower: step 8.05 s -> 12 s (+49 %), beyond the noise of 3 runs (±5 %)"


def steps_of(seconds: float) -> tuple[StepMetrics, ...]:
    took = [{"timing_s/step": value, "perf/throughput": 9000 / value} for value in (90.0, seconds)]
    return tuple(step_line(number, 1330 + number, **values) for number, values in enumerate(took, 1))


def run_of(**given: Any) -> Record:
    peak = {"held_mib": 32_000, "available_mib": 9, "other_runs": 0}
    return make_record(
        job=make_job(steps=2, **given), events=(*ended(), Event(t_s=9.0, kind="memory", data={"peak": peak}))
    )


def took(seconds: float) -> Performance:
    found = performance_of(run_of(), steps_of(seconds))
    assert found is not None
    return found


def healthy(*seconds: float) -> Bands:
    found = Bands()
    for number, value in enumerate(seconds):
        run = Healthy(
            run=f"{number:064x}", job="0-lora-ddp", bridge_commit="a" * 40, correlation=1.0, performance=took(value)
        )
        found = with_healthy(found, make_job(), run)
    return found


def facts_of(seconds: float) -> LogFacts:
    return make_facts(steps=steps_of(seconds), progress=bar(2, 2))


def merge_base(seconds: float, result: Result = Result.PASS) -> RelatedRun:
    return RelatedRun(
        role=Role.MERGE_BASE,
        job_id="0-lora-ddp",
        job_digest="a" * 64,
        bridge_commit="b" * 40,
        folder="related/merge_base",
        result=result,
        performance=took(seconds),
    )


BANDS = healthy(8.0, 8.1, 8.05)


def verdict_of(
    seconds: float, *, bands: Bands | None = BANDS, related: tuple[RelatedRun, ...] = (), **given: Any
) -> Verdict:
    record = run_of(**given).model_copy(update={"bands": bands, "related": related})
    return judge(record, facts_of(seconds))


def found_in(verdict: Verdict) -> tuple[State, str]:
    (item,) = [item for item in verdict.evidence if item.criterion == Criterion.PERFORMANCE]
    return item.state, item.summary


@pytest.mark.parametrize(
    ("word", "state", "result", "limits"),
    [
        (Slowdown.SHOW, State.MET, Result.PASS, False),
        (Slowdown.WARN, State.WAIVED, Result.PASS, True),
        (Slowdown.FAIL, State.BROKEN, Result.FAIL, False),
    ],
)
def test_the_policy_says_what_a_slow_down_is(word: Slowdown, state: State, result: Result, limits: bool) -> None:
    verdict = verdict_of(12.0, performance=word)
    assert (*found_in(verdict), verdict.result) == (state, SLOWER, result)
    assert (f"{SLOWER}." in verdict.limitations) is limits
    assert SLOWER in render_text(Card((verdict,)))


def test_a_slow_down_is_a_finding_and_no_fail_by_default() -> None:
    verdict = verdict_of(12.0)
    assert (verdict.result, found_in(verdict)) == (Result.PASS, (State.WAIVED, SLOWER))


def test_a_fail_names_the_step_and_what_to_do() -> None:
    verdict = verdict_of(12.0, performance=Slowdown.FAIL)
    assert (verdict.stage, verdict.cause, verdict.decided_by) == (Stage.TRAIN_STEP, SLOWER, Criterion.PERFORMANCE)
    assert any("timing_s" in row for row in verdict.followups)


@pytest.mark.parametrize("word", Slowdown)
def test_a_run_within_the_noise_shows_its_figures(word: Slowdown) -> None:
    verdict = verdict_of(8.1, performance=word)
    assert found_in(verdict) == (State.MET, "time and memory are within the noise of healthy runs")
    assert "step 8.05 s -> 8.1 s (+1 %)" in render_text(Card((verdict,)))


@pytest.mark.parametrize("bands", [None, Bands(), healthy()])
def test_without_measured_runs_nothing_is_asked(bands: Bands | None) -> None:
    verdict = verdict_of(12.0, bands=bands)
    assert Criterion.PERFORMANCE not in {item.criterion for item in verdict.evidence}


@pytest.mark.parametrize("word", Slowdown)
def test_with_too_few_runs_it_says_that_nothing_can_be_said(word: Slowdown) -> None:
    verdict = verdict_of(100.0, bands=healthy(8.0, 8.1), performance=word)
    assert (verdict.result, found_in(verdict)[0]) == (Result.PASS, State.WAIVED)
    assert any("2 comparable runs of these settings" in text for text in verdict.limitations)


def test_a_run_that_was_cut_is_not_compared() -> None:
    record = run_of(performance=Slowdown.FAIL).model_copy(update={"bands": BANDS})
    verdict = judge(record, make_facts(steps=steps_of(12.0)[:1]))
    assert found_in(verdict)[0] is State.WAIVED
    assert verdict.decided_by != Criterion.PERFORMANCE


def test_a_merge_base_that_is_as_slow_clears_the_change() -> None:
    assert verdict_of(12.0, related=(merge_base(8.0),), performance=Slowdown.FAIL).result is Result.FAIL
    cleared = verdict_of(12.0, related=(merge_base(11.9),), performance=Slowdown.FAIL)
    assert (cleared.result, found_in(cleared)[0]) == (Result.PASS, State.MET)
    # One that did not pass says nothing of time.
    failed = verdict_of(12.0, related=(merge_base(11.9, Result.FAIL),), performance=Slowdown.FAIL)
    assert found_in(failed)[0] is State.BROKEN


def test_a_run_that_another_is_compared_with_is_not_judged_by_its_own_time() -> None:
    job = make_job(performance=Slowdown.FAIL, wrapper={"SAVE_FREQ": "1"})
    whole = without_saving(job, "uninterrupted")
    assert whole is not None
    made = (unsharded(job), whole, on_merge_base(job, MergeBase("d" * 40)))
    assert [other.performance for other in made] == [Slowdown.SHOW] * 3
    assert without_change(job).performance is Slowdown.FAIL
