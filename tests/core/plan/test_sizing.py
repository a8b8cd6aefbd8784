"""GPUs by the size of a model, and what runs cost: declared sizes, one table of measured costs."""

import re

import pytest

from tests.fakes.places import ROOT
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.consumer.consumers import VARIANTS, variant_named, variant_of, variants_of
from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.levels import COSTS, CostBasis, Level, Variant
from verl_e2e.core.model.needs import MOST_GPUS
from verl_e2e.core.model.settings import Axis
from verl_e2e.core.model.space import JobPoint
from verl_e2e.core.plan.outline import JobOutline, Missing, fit, with_obstacles
from verl_e2e.core.plan.policy import Model, ModelFacts, Policy

MEASUREMENTS = ROOT / "bench" / "results" / "measurements.md"
POLICY = packaged_policy()
GRPO = {"ADV_ESTIMATOR": "grpo"}


def facts(weights_gib: float | None = None, gpus: int | None = None, *features: str) -> ModelFacts:
    return ModelFacts.model_validate({"features": features, "weights_gib": weights_gib, "gpus": gpus})


@pytest.mark.parametrize(
    ("job_id", "weights_gib", "wrapper", "memory", "gpu_count", "sizes"),
    (
        ("0-lora-ddp", 1.0, {}, 80, 1, {}),
        ("0-lora-ddp", 13.6, {}, 80, 1, {}),
        ("0-lora-ddp", 15.2, {}, 80, 2, {"COMMON_TP": "2", "INFER_TP": "2"}),
        ("4-feature", 15.2, GRPO, 80, 1, {}),
        ("4-feature", 29.8, GRPO, 80, 2, {"COMMON_TP": "2", "INFER_TP": "2"}),
        ("4-feature", 29.8, GRPO, 141, 1, {}),
        ("4-feature", 29.8, {}, 40, 8, {"COMMON_TP": "8", "INFER_TP": "8"}),
        ("1-resume", 29.8, {}, 80, 4, {"COMMON_TP": "4", "INFER_TP": "4"}),
        ("2-dense", 29.8, {}, 80, 4, {"COMMON_TP": "2", "COMMON_PP": "2"}),
        ("2-dense", 60, {}, 80, 8, {"COMMON_TP": "4", "INFER_TP": "8"}),
        ("2-cp", 29.8, {}, 80, 8, {"COMMON_TP": "4", "COMMON_CP": "2"}),
        ("3-fsdp", 29.8, {}, 80, 4, {"INFER_TP": "4"}),
    ),
)
def test_a_model_gets_as_many_gpus_as_its_weights_need(
    job_id: str, weights_gib: float, wrapper: dict[str, str], memory: float, gpu_count: int, sizes: dict[str, str]
) -> None:
    variant = variant_named(job_id)
    assert variant is not None
    made = fit(variant, facts(weights_gib), wrapper=wrapper, gpu_memory_gib=memory)
    assert (made.variant.gpu_count, made.problem) == (gpu_count, "")
    assert sizes.items() <= made.variant.wrapper.items()
    assert bool(made.reason) == (gpu_count != variant.gpu_count)


@pytest.mark.parametrize("declared", (facts(), facts(1.0), facts(None, 1)))
def test_sizes_beyond_a_host_are_refused_whatever_is_declared_of_the_model(declared: ModelFacts) -> None:
    large = variant_of(JobPoint.default().with_axes({Axis.TENSOR: 16}), Level.PARALLELISM, "tp16")
    assert fit(large, declared, wrapper={}).problem == ("its parallel sizes: 16 GPUs, and a job has 8 at most")


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.job_id)
def test_more_weights_never_take_fewer_gpus_and_the_sizes_divide_them(variant: Variant) -> None:
    counts = []
    for weights_gib in (0.5, 5, 13, 15, 25, 31, 60, 100, 400):
        made = fit(variant, facts(weights_gib, None, "moe"), wrapper={})
        if made.problem:
            assert f"has {MOST_GPUS} at most" in made.problem
            counts.append(MOST_GPUS + 1)
            continue
        wrapper = made.variant.wrapper
        counts.append(made.variant.gpu_count)
        sizes = [int(wrapper.get(name, "1")) for name in ("COMMON_TP", "COMMON_PP", "COMMON_CP")]
        assert made.variant.gpu_count % (sizes[0] * sizes[1] * sizes[2]) == 0
        assert made.variant.gpu_count % int(wrapper.get("INFER_TP", "1")) == 0
        assert made.variant.gpu_count % int(wrapper.get("COMMON_EP", "1")) == 0
    assert counts == sorted(counts)


def test_experts_are_spread_by_their_own_size() -> None:
    variant = variant_named("4-feature")
    assert variant is not None
    made = fit(variant, facts(29.8, None, "mla", "moe"), wrapper=GRPO)
    assert (made.variant.wrapper["COMMON_EP"], made.variant.wrapper["COMMON_TP"]) == ("2", "2")
    assert "COMMON_EP" not in fit(variant, facts(29.8, None, "vlm"), wrapper=GRPO).variant.wrapper


def test_an_explicit_number_wins_and_an_unknown_size_is_reported() -> None:
    variant = variant_named("4-feature")
    assert variant is not None
    assert fit(variant, facts(1, 8), wrapper=GRPO).variant.gpu_count == 8
    unknown = fit(variant, facts(), wrapper=GRPO)
    assert (unknown.variant.gpu_count, unknown.reason) == (1, "the policy declares no size of this model")
    other = fit(variant, facts(29.8), wrapper=GRPO, script="tests/other.sh")
    assert (other.variant.gpu_count, dict(other.variant.wrapper)) == (2, GRPO)


def test_a_model_that_no_host_holds_blocks_its_job_when_it_is_planned() -> None:
    variant = variant_named("0-lora-ddp")
    assert variant is not None
    huge = Checkpoint(model_id="huge/model")
    job = with_obstacles(JobOutline(variant, (), huge), _declaring(huge))
    assert [obstacle.missing for obstacle in job.obstacles] == [Missing.GPUS]
    assert (job.gpu_minutes, "400 GiB of weights" in job.blocked) == (0, True)


def test_the_policy_says_how_many_gpus_a_job_may_have() -> None:
    variant = variant_named("0-lora-ddp")
    assert variant is not None
    huge = Checkpoint(model_id="huge/model")
    policy = _declaring(huge).model_copy(update={"most_gpus": 32})
    job = with_obstacles(JobOutline(variant, (), huge), policy)
    assert (job.gpu_count, job.obstacles) == (32, ())


def _declaring(checkpoint: Checkpoint) -> Policy:
    model = Model(model_id=checkpoint.model_id, features=(), weights_gib=400)
    return POLICY.model_copy(update={"model": model})


def test_every_checkpoint_of_the_packaged_policy_declares_size_and_features() -> None:
    named = [POLICY.checkpoint, *(family.checkpoint for family in POLICY.families if family.checkpoint)]
    named += [feature.checkpoint for feature in POLICY.features if feature.checkpoint]
    declared = {item.model_id: POLICY.facts_of(item) for item in named}
    assert [name for name, model in declared.items() if model.weights_gib is None or model.features is None] == []


def test_measured_costs_stand_in_the_page_of_measurements_and_count_the_runs_that_follow() -> None:
    numbers = set(re.findall(r"(?<=\| )\d+(?= \|)", MEASUREMENTS.read_text()))
    for cost in COSTS.values():
        if cost.basis is CostBasis.MEASURED:
            assert {str(cost.run_s)} | ({str(cost.reference_s)} if cost.reference_s else set()) <= numbers
    # The default job of each level comes first, for others of the level are estimated from it.
    assert list(dict.fromkeys(job_id[0] for job_id in COSTS)) == [str(int(level)) for level in Level]
    assert {variants_of(level)[0].job_id for level in Level} <= COSTS.keys()
    smoke, resume = variant_named("0-lora-ddp"), variant_named("1-resume")
    assert smoke is not None
    assert resume is not None
    assert (smoke.gpu_minutes, resume.gpu_minutes, resume.cost.run_gpu_minutes(1)) == (7, 18, 12)
