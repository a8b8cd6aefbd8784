"""What a green run can hide: gradients, agreement of trainer and rollout, adapter, lost weights."""

import math
from typing import Any

import pytest

from tests.core.builders import (
    config_with,
    make_case,
    make_facts,
    make_job,
    make_record,
    step_line,
)
from verl_e2e.core.judge.case import wants_adapter
from verl_e2e.core.judge.criteria.metrics import (
    AGREEMENT_NOTE_BELOW,
    adapter,
    agreement_note,
    gradients,
    rollout_agreement,
    weights_kept,
)
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.verdict import disagreement
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.facts import AdapterReport, Excerpt, LogFacts, StepMetrics
from verl_e2e.core.model.jobs import SiteProfile
from verl_e2e.core.triage.silent import AGREEMENT_FAIL_BELOW

NO_CRITIC = config_with({"algorithm.adv_estimator": "grpo"})


def test_the_healthy_run_meets_all_of_them() -> None:
    case = make_case()
    judges = (adapter, weights_kept, gradients, rollout_agreement)
    assert [judge(case).state for judge in judges] == [State.MET] * 4


def spoiled(metric: str, value: float | None) -> StepMetrics:
    changes: dict[str, Any] = {metric: value}
    return step_line(**changes)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("metric", ["actor_grad_norm", "critic_grad_norm"])
def test_a_gradient_that_is_not_finite_and_positive_is_broken(metric: str, value: float) -> None:
    item = gradients(make_case(facts=make_facts(steps=(spoiled(metric, value),))))
    assert (item.state, item.line) == (State.BROKEN, 1334)
    assert item.summary == f"{metric.replace('_', '/', 1)} is {value} at step 1"


@pytest.mark.parametrize("metric", ["actor_grad_norm", "critic_grad_norm"])
def test_an_absent_gradient_is_missing(metric: str) -> None:
    item = gradients(make_case(facts=make_facts(steps=(spoiled(metric, None),))))
    assert (item.state, "is absent at step 1" in item.summary) == (State.MISSING, True)


def test_one_bad_step_among_good_ones_is_enough() -> None:
    record = make_record(job=make_job(steps=3))
    steps = (step_line(1), step_line(2, 1400, actor_grad_norm=0.0), step_line(3, 1500))
    item = gradients(make_case(record, make_facts(steps=steps)))
    assert (item.state, item.line) == (State.BROKEN, 1400)


@pytest.mark.parametrize(("steps", "absent"), [((), 1), ((step_line(0),), 1), ((step_line(1), step_line(3)), 2)])
def test_every_requested_step_must_show_its_gradients(steps: Any, absent: int) -> None:
    item = gradients(make_case(make_record(job=make_job(steps=3)), make_facts(steps=steps)))
    assert (item.state, item.summary) == (State.MISSING, f"no gradient norms of step {absent}")


def test_the_validation_before_training_has_no_gradients() -> None:
    first = step_line(0, 1200, actor_grad_norm=None, critic_grad_norm=None)
    assert gradients(make_case(facts=make_facts(steps=(first, step_line())))).state is State.MET


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (make_facts(configs=(NO_CRITIC,), steps=(step_line(critic_grad_norm=None),)), State.MET),
        (make_facts(configs=(NO_CRITIC,), steps=(step_line(critic_grad_norm=0.0),)), State.BROKEN),
        (make_facts(configs=(), steps=(step_line(critic_grad_norm=0.0),)), State.BROKEN),
        (make_facts(steps=(step_line(critic_grad_norm=None),)), State.MISSING),
    ],
)
def test_the_critic_is_judged_where_one_trains(facts: LogFacts, state: State) -> None:
    assert gradients(make_case(facts=facts)).state is state


def agreeing(*values: float | None) -> LogFacts:
    return make_facts(
        steps=tuple(step_line(n, 1300 + n, pearson_corr=value) for n, value in enumerate(values, start=1))
    )


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ((0.99996,), State.MET),
        ((1.0000001,), State.MET),
        ((AGREEMENT_FAIL_BELOW,), State.MET),
        ((math.nextafter(AGREEMENT_FAIL_BELOW, 0),), State.BROKEN),
        ((0.99996, 0.8, 0.99996), State.BROKEN),
        ((-0.2,), State.BROKEN),
        ((None,), State.WAIVED),
        ((0.99996, None), State.MET),
        ((math.nan,), State.MISSING),
        ((0.99996, math.nan), State.MISSING),
        ((math.nan, 0.5), State.MISSING),
        ((math.inf,), State.MISSING),
        ((-math.inf,), State.MISSING),
        ((1.01,), State.MISSING),
    ],
)
def test_agreement_of_trainer_and_rollout(values: tuple[float | None, ...], state: State) -> None:
    assert rollout_agreement(make_case(facts=agreeing(*values))).state is state


def test_the_worst_step_is_the_one_that_is_quoted() -> None:
    item = rollout_agreement(make_case(facts=agreeing(0.99996, 0.9, 0.95)))
    assert (item.line, item.excerpt) == (1302, "step:2 training/rollout_actor_probs_pearson_corr:0.9")


@pytest.mark.parametrize(
    ("value", "remarked"),
    [
        (0.9989, True),
        (AGREEMENT_FAIL_BELOW, True),
        (AGREEMENT_NOTE_BELOW, False),
        (0.99996, False),
        (0.9, False),
        (math.nan, False),
        (None, False),
    ],
)
def test_a_weak_agreement_is_a_limitation(value: float | None, remarked: bool) -> None:
    assert bool(agreement_note(make_case(facts=agreeing(value)))) is remarked


FULL, EMPTY = AdapterReport(1191, 7470, 1000, 10), AdapterReport(1210, 7470, 1000, 0)


@pytest.mark.parametrize(
    ("reports", "state", "line"),
    [
        ((FULL,), State.MET, 1191),
        ((EMPTY,), State.BROKEN, 1210),
        ((FULL, EMPTY), State.BROKEN, 1210),
        ((), State.MISSING, 0),
    ],
)
def test_every_adapter_has_parameters(reports: tuple[AdapterReport, ...], state: State, line: int) -> None:
    item = adapter(make_case(facts=make_facts(adapters=reports)))
    assert (item.state, item.line) == (state, line)


OFF = config_with({"actor_rollout_ref.model.lora.rank": 0})
NO_LORA = make_record(job=make_job(wrapper={"LORA_RANK": "0"}))
BY_SITE = SiteProfile(name="s", wrapper={"LORA_RANK": "8"})
FROM_SITE = make_job(site=BY_SITE).model_copy(update={"wrapper": {}})


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        (make_case(), True),
        (make_case(NO_LORA), True),
        (make_case(NO_LORA, make_facts(configs=(OFF,))), True),
        (make_case(NO_LORA, make_facts(configs=(OFF,), lora_at=None)), False),
        (make_case(NO_LORA, make_facts(configs=(), lora_at=None)), False),
        (make_case(make_record(job=FROM_SITE), make_facts(configs=(), lora_at=None)), True),
    ],
)
def test_whether_an_adapter_was_asked_for(case: Any, wanted: bool) -> None:
    assert wants_adapter(case) is wanted


def test_without_lora_no_adapter_is_needed() -> None:
    item = adapter(make_case(NO_LORA, make_facts(configs=(OFF,), lora_at=None, adapters=())))
    assert (item.state, item.summary) == (State.MET, "no adapter was asked for")


def test_a_warning_of_lost_weights_is_broken() -> None:
    lost = (Excerpt(1195, "Can't find the following HF parameters in hf_keys: ['a']"), Excerpt(1196, "more"))
    item = weights_kept(make_case(facts=make_facts(lost_weights=lost)))
    assert (item.state, item.line) == (State.BROKEN, 1195)
    assert item.summary == "2 warning(s) of lost weights"


@pytest.mark.parametrize(
    ("first", "more", "text"),
    [
        ("WARNING: No mapping found for megatron_param: a.b", 0, "Bridge has no mapping for a.b"),
        ("WARNING: No mapping found for global_name: a.b", 2, "Bridge has no mapping for a.b (and 2 more)"),
        ("WARNING: Can't find x.weight in hf_keys", 0, "the checkpoint does not hold what Bridge maps to x.weight"),
    ],
)
def test_a_lost_weight_is_named(first: str, more: int, text: str) -> None:
    lost = (Excerpt(1195, first), *(Excerpt(1196 + line, "more") for line in range(more)))
    assert weights_kept(make_case(facts=make_facts(lost_weights=lost))).summary == text


SAME, LOADED = Criterion.IMPORTED_WEIGHTS, Criterion.ROLLOUT_WEIGHTS


@pytest.mark.parametrize(
    ("met", "text"),
    [
        ((), "they do not hold the same weights, or compute something else with them"),
        ((SAME,), "they do not hold the same weights, or compute something else with them"),
        ((LOADED,), "what was compared arrived as it was exported, so the export or what the two compute is wrong"),
        (
            (LOADED, SAME),
            "the weights that were compared are the same in both, so the rest or what is computed with them differs",
        ),
    ],
)
def test_a_disagreement_says_what_is_known_of_the_weights(met: tuple[Criterion, ...], text: str) -> None:
    state = [
        Evidence(State.MET if entry in met else State.WAIVED, "x", "y", criterion=entry) for entry in (LOADED, SAME)
    ]
    broken = Evidence(State.BROKEN, "0.4, below 0.995", "log", criterion=Criterion.ROLLOUT_AGREEMENT)
    assert disagreement(broken, state).summary == f"0.4, below 0.995: {text}"
    healthy = Evidence(State.MET, "0.999", "log", criterion=Criterion.ROLLOUT_AGREEMENT)
    assert disagreement(healthy, state) == healthy
