"""Healthy bands: which jobs share one, what bounds follow, and who may enter."""

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import ended, make_case, make_facts, make_job, make_record, step_line
from verl_e2e.core.compare.bands import (
    ENOUGH,
    LEAST_MARGIN,
    HealthyRun,
    NotHealthyError,
    band_of,
    healthy_of,
    healthy_run,
    merged_bands,
    only_of,
    pair_of,
    tolerances_of,
    with_healthy,
    with_pair,
)
from verl_e2e.core.compare.jobs import probe_digest, training_digest
from verl_e2e.core.compare.steps import COMPARED, STATED_TOLERANCES
from verl_e2e.core.judge.criteria.metrics import agreement_note, rollout_agreement
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.model.jobs import Checkpoint, Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import Event
from verl_e2e.core.model.related import Bands, Healthy, PairStep, RunPair

CORRELATIONS = (0.99975, 0.99977, 0.99983, 0.99984, 0.99971)
ACTOR = "actor/grad_norm"


def healthy(number: int, correlation: float) -> Healthy:
    return Healthy(run=f"{number:064x}", job="0-lora-ddp", bridge_commit="a" * 40, correlation=correlation)


def bands_with(job: Job, *correlations: float) -> Bands:
    found = Bands()
    for number, correlation in enumerate(correlations):
        found = with_healthy(found, job, healthy(number, correlation))
    return found


@pytest.mark.parametrize(
    "given",
    [
        {"bridge": make_job().bridge.model_copy(update={"commit": "e" * 40, "path": "/elsewhere"})},
        {"wrapper": {"COMMON_TP": "2", "COMMON_VPP": "2", "NUM_GPUS": "4", "SAVE_FREQ": "1", "MODEL_PATH": "/m"}},
        {"overrides": ("trainer.total_epochs=3", "actor_rollout_ref.actor.optim.lr=0.001")},
        {"overrides": ("ray_kwargs.ray_init.num_cpus=40", "actor_rollout_ref.rollout.gpu_memory_utilization=0.3")},
        # What a job gets on a GPU that it shares.
        {"overrides": ("+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=2477551884",)},
        {"checkpoint": Checkpoint(model_id="local/tiny-qwen2", model_path="$HOME/kit/model", random_weights=True)},
        {"steps": 20, "gpu_count": 4},
        {"site": make_job().site.model_copy(update={"name": "other", "wrapper": {"ENGINE": "vllm"}})},
    ],
)
def test_what_decides_no_first_measurement_leaves_the_probe_as_it_is(given: dict[str, Any]) -> None:
    assert probe_digest(make_job(**given)) == probe_digest(make_job())


@pytest.mark.parametrize(
    "given",
    [
        {"wrapper": {"LORA_RANK": "8"}},
        {"wrapper": {"MAX_RESPONSE_LENGTH": "128"}},
        {"wrapper": {"ENGINE": "sglang"}},
        {"overrides": ("actor_rollout_ref.model.lora.lora_B_init_method=xavier",)},
        {"overrides": ("actor_rollout_ref.rollout.full_determinism=True",)},
        {"checkpoint": Checkpoint(model_id="local/tiny-qwen2", model_path="/opt/kit/model")},
        {"checkpoint": Checkpoint(model_id="local/tiny-qwen2", model_path="/opt/kit/probe", random_weights=True)},
        {"checkpoint": Checkpoint(model_id="Qwen/Qwen2.5-0.5B", model_path="/opt/kit/model", random_weights=True)},
    ],
)
def test_what_decides_a_measurement_makes_another_probe(given: dict[str, Any]) -> None:
    assert probe_digest(make_job(**given)) != probe_digest(make_job())


def test_a_training_is_more_than_a_probe() -> None:
    assert training_digest(make_job()) == training_digest(make_job(id="0-lora-ddp-again", steps=20))
    for given in ({"wrapper": {"COMMON_TP": "2"}}, {"overrides": ("actor_rollout_ref.actor.optim.lr=0.001",)}):
        assert training_digest(make_job(**given)) != training_digest(make_job())


def test_too_few_runs_make_no_band() -> None:
    job = make_job()
    assert band_of(bands_with(job, *CORRELATIONS[: ENOUGH - 1]), job) is None
    assert band_of(None, job) is None


def test_the_band_reaches_three_spreads_below_the_lowest_run() -> None:
    job = make_job()
    band = band_of(bands_with(job, *CORRELATIONS), job)
    assert band is not None
    spread = math.sqrt(sum((correlation - 0.99978) ** 2 for correlation in CORRELATIONS) / 4)
    assert (band.lowest, band.count) == (0.99971, 5)
    assert band.bound == pytest.approx(0.99971 - 3 * spread)
    assert band_of(bands_with(job, *CORRELATIONS), make_job(wrapper={"LORA_RANK": "8"})) is None


def test_runs_that_agree_to_the_last_digit_leave_room_for_rounding() -> None:
    job = make_job()
    band = band_of(bands_with(job, *[0.9998] * 5), job)
    assert band is not None
    assert band.bound == pytest.approx(0.9998 - LEAST_MARGIN)


@pytest.mark.parametrize(
    ("correlations", "state", "remarked"),
    [
        ((0.99960,), State.MET, True),
        ((0.99975,), State.MET, False),
        ((0.99900,), State.BROKEN, False),
        ((0.99975, 0.9970), State.MET, True),
        ((0.99975, 0.9940), State.BROKEN, False),
        ((0.99900, 0.9970), State.BROKEN, False),
        ((math.nan,), State.MISSING, False),
    ],
)
def test_the_band_judges_the_first_step_and_the_fixed_bounds_the_others(
    correlations: tuple[float, ...], state: State, remarked: bool
) -> None:
    steps = tuple(step_line(n, 1300 + n, pearson_corr=value) for n, value in enumerate(correlations, start=1))
    record = make_record(job=make_job(steps=len(steps)), bands=bands_with(make_job(), *CORRELATIONS))
    case = make_case(record, make_facts(steps=steps))
    assert rollout_agreement(case).state is state
    assert bool(agreement_note(case)) is remarked


def test_the_verdict_names_the_band() -> None:
    record = make_record(bands=bands_with(make_job(), *CORRELATIONS))
    item = rollout_agreement(make_case(record, make_facts(steps=(step_line(pearson_corr=0.999),))))
    assert "the band of 5 healthy runs of this probe" in item.summary


def test_the_same_run_and_the_same_pair_count_once() -> None:
    job = make_job()
    paired = with_pair(Bands(), job, pair(0.01))
    turned = pair(0.01).model_copy(update={"runs": ("2" * 64, "1" * 64)})
    assert with_pair(paired, job, turned) == paired
    once = bands_with(job, 0.9998)
    assert with_healthy(once, job, healthy(0, 0.9998)) == once
    assert merged_bands(once, once) == once
    more = merged_bands(once, with_healthy(Bands(), job, healthy(7, 0.9997)))
    assert [item.correlation for item in more.probes[probe_digest(job)].healthy] == [0.9998, 0.9997]


def test_only_the_jobs_own_probe_is_kept_beside_it() -> None:
    job, other = make_job(), make_job(wrapper={"LORA_RANK": "8"})
    both = merged_bands(bands_with(job, 0.9998), bands_with(other, 0.9997))
    assert list(only_of(both, job).probes) == [probe_digest(job)]
    assert only_of(both, make_job(wrapper={"LORA_RANK": "16"})) == Bands()


def pair(apart: float, *, steps: int = ENOUGH, same: bool = False, rate: float = 1e-6) -> RunPair:
    """Two runs whose actor gradients are that far apart, as a share of the larger."""
    shift = 0.0 if same else 0.01
    values = {ACTOR: 1.0, "rollout_corr/rollout_log_ppl": 7.36, "actor/lr": rate}
    other = {ACTOR: 1.0 - apart, "rollout_corr/rollout_log_ppl": 7.36 + shift, "actor/lr": rate}
    rows = tuple(PairStep(step=n, first=values, second=other) for n in range(1, steps + 1))
    return RunPair(runs=("1" * 64, "2" * 64), job="0-lora-ddp", steps=rows)


def actor_tolerance(bands: Bands, *, same_samples: bool = False, steps: tuple[StepMetrics, ...] = ()) -> float:
    compared = next(item for item in COMPARED if item.metric == ACTOR)
    found = tolerances_of(bands, make_job(), steps).of(compared, same_samples=same_samples)
    assert found is not None
    return found.relative


@pytest.mark.parametrize(
    ("measured", "tolerance"),
    [
        (pair(0.01), 0.05),
        (pair(0.04), 0.12),
        (pair(0.3), 0.4),
        (pair(0.04, steps=ENOUGH - 1), 0.2),
        (pair(0.04, same=True), 0.2),
    ],
)
def test_measured_noise_sets_the_tolerance_within_limits(measured: RunPair, tolerance: float) -> None:
    assert actor_tolerance(with_pair(Bands(), make_job(), measured)) == pytest.approx(tolerance)


def test_pairs_with_the_same_samples_measure_the_narrow_tolerance() -> None:
    bands = with_pair(Bands(), make_job(), pair(0.01, same=True))
    assert actor_tolerance(bands, same_samples=True) == pytest.approx(0.03)


def test_noise_at_another_learning_rate_says_nothing() -> None:
    bands = with_pair(Bands(), make_job(), pair(0.01, rate=1e-6))
    steps = (StepMetrics(1, 1, {"actor/lr": 1e-3}),)
    assert actor_tolerance(bands, steps=steps) == 0.2
    assert tolerances_of(bands, make_job(), steps) == STATED_TOLERANCES
    assert tolerances_of(bands, make_job()).source == "tolerances measured on 1 pair(s) of identical runs"


def on(prompts: float, step: int = 1, **more: float) -> StepMetrics:
    """A healthy step on prompts of that mean length."""
    values: dict[str, Any] = {
        "prompt_length/mean": prompts,
        **{name.replace("__", "/"): value for name, value in more.items()},
    }
    return step_line(step, **values)


LOG = make_facts(steps=(on(88.0, critic__values__mean=-0.2, timing_s__gen=math.inf),))


def taken(name: str = "out", *, late: float = 0.0, **given: Any) -> Any:
    record = make_record(**given)
    moved = tuple(Event(t_s=event.t_s + late, kind=event.kind, data=event.data) for event in record.events)
    record = record.model_copy(update={"events": moved})
    facts = given.get("facts", LOG)
    verdict = judge(record, facts)
    return healthy_run(name, record, facts, verdict.result, verdict.cause)


def test_a_healthy_run_enters_with_its_first_correlation() -> None:
    found = healthy_of(taken())
    assert (found.correlation, found.bridge_commit, found.job) == (0.99996, "a" * 40, "0-lora-ddp")
    assert found.run != healthy_of(taken(late=1.0)).run


def test_only_a_pass_enters() -> None:
    record = make_record(events=ended(exit_code=1))
    verdict = judge(record, LOG)
    with pytest.raises(NotHealthyError, match=r"out: judged Blocked: .*a band takes only"):
        healthy_run("out", record, LOG, verdict.result, verdict.cause)


def test_a_run_without_that_number_is_refused() -> None:
    run = replace(taken(), steps=(step_line(pearson_corr=None),))
    with pytest.raises(NotHealthyError, match="no training/rollout_actor_probs_pearson_corr at step 1"):
        healthy_of(run)


def test_two_runs_of_one_training_make_a_pair_of_what_is_compared() -> None:
    found = pair_of(taken("a"), taken("b", late=1.0))
    assert [item.step for item in found.steps] == [1]
    assert set(found.steps[0].first) == {
        "actor/grad_norm",
        "critic/grad_norm",
        "critic/values/mean",
        "prompt_length/mean",
        "training/rollout_actor_probs_pearson_corr",
    }


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (taken("a"), "a and a: one and the same run"),
        (replace(taken("b", late=1.0), job=make_job(wrapper={"COMMON_TP": "2"})), "a and b: not the same training"),
        (replace(taken("b", late=1.0), steps=(on(90.0),)), "prompt_length/mean is 88 in the run and 90"),
    ],
    ids=("itself", "another training", "other data"),
)
def test_what_is_not_two_runs_of_one_training_makes_no_pair(other: HealthyRun, words: str) -> None:
    with pytest.raises(NotHealthyError, match=words):
        pair_of(taken("a"), other)


def test_what_a_resume_did_is_no_noise() -> None:
    job = make_job(Level.SAVE_RESUME, "resume", steps=2)
    steps = tuple(on(88.0, n) for n in (1, 2))
    one = replace(taken("a"), job=job, steps=steps)
    assert [item.step for item in pair_of(one, replace(one, name="b", run="f" * 64)).steps] == [1]
