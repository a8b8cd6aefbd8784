"""The job that a run is compared with: the same training without parallelism, and what else differs."""

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import make_job
from verl_e2e.core.compare.jobs import begins_equal, for_parity, job_differences, unsharded
from verl_e2e.core.model.levels import DISTINCT_SAMPLES, PARITY_STEPS, Level
from verl_e2e.core.model.settings import DETERMINISTIC, TELLING_LEARNING_RATE
from verl_e2e.core.model.space import VARIANTS
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.plan.plan import Plan, with_data_parallel

DENSE = {"COMMON_TP": "2", "COMMON_PP": "2", "INFER_TP": "2", "NUM_GPUS": "4"}
OF_LEVEL_2 = [entry for entry in VARIANTS if entry.level is Level.PARALLELISM]


@pytest.mark.parametrize("variant", OF_LEVEL_2, ids=lambda item: item.name)
def test_the_reference_of_every_variant_has_only_sizes_of_one(variant: Any) -> None:
    wrapper = {**variant.wrapper, "NUM_GPUS": str(variant.gpu_count)}
    job = make_job(Level.PARALLELISM, variant.name, gpu_count=variant.gpu_count, wrapper=wrapper)
    found = unsharded(job)
    sizes = {key: value for key, value in found.expected.items() if key.endswith("_parallel_size")}
    assert len(sizes) >= 10
    assert set(sizes.values()) <= {1, None}
    assert (found.gpu_count, found.expected["trainer.n_gpus_per_node"], found.level) == (1, 1, Level.SMOKE)
    assert job_differences(job, found) == ()
    assert unsharded(found).wrapper == found.wrapper


def test_the_reference_keeps_all_but_the_sizes() -> None:
    overrides = ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2", "data.seed=7", *DETERMINISTIC)
    job = make_job(Level.PARALLELISM, "dense", gpu_count=4, wrapper=DENSE, overrides=overrides, steps=3)
    found = unsharded(job)
    assert found.overrides == ("data.seed=7", *DETERMINISTIC)
    assert found.expected["actor_rollout_ref.actor.megatron.tensor_model_parallel_size"] == 1
    assert (found.steps, found.data, found.checkpoint, found.bridge) == (3, job.data, job.checkpoint, job.bridge)
    assert found.id == "0-dense-unsharded"
    assert (found.required_of_host.gpu_count, job.required_of_host.gpu_count) == (1, 4)


def test_a_site_that_sets_sizes_does_not_keep_them() -> None:
    job = make_job(Level.PARALLELISM, "dense", wrapper=DENSE)
    site = job.site.model_copy(update={"wrapper": {"REF_PP": "2", "COMMON_VPP": "2", "LORA_RANK": "8"}})
    found = unsharded(job.model_copy(update={"site": site}))
    assert (found.wrapper["REF_PP"], found.wrapper["COMMON_VPP"], found.wrapper["LORA_RANK"]) == ("1", "null", "4")


def test_a_job_for_parity_draws_the_same_distinct_samples_over_several_steps() -> None:
    found = for_parity(make_job(Level.PARALLELISM, "dense", wrapper=DENSE))
    assert found.overrides == (*DETERMINISTIC, *DISTINCT_SAMPLES, *TELLING_LEARNING_RATE)
    assert (found.steps, found.wrapper["TOTAL_TRAIN_STEPS"]) == (PARITY_STEPS, str(PARITY_STEPS))
    assert found.expected["actor_rollout_ref.rollout.full_determinism"] is True
    assert (found.expected["actor_rollout_ref.rollout.n"], found.expected["data.train_batch_size"]) == (1, 64)
    assert found.expected["trainer.total_training_steps"] == PARITY_STEPS
    assert for_parity(found) == found


@pytest.mark.parametrize(
    ("wrapper", "equal"),
    [
        ({"LORA_RANK": "4", "NUM_GPUS": "2"}, True),
        ({"LORA_RANK": "0", "NUM_GPUS": "2"}, True),
        # Each part of a model draws its adapters by itself, and another size of the rollout draws other samples.
        ({"LORA_RANK": "4", "COMMON_PP": "2"}, False),
        ({"LORA_RANK": "0", **DENSE}, False),
        ({"LORA_RANK": "4", "COMMON_EP": "2"}, False),
        ({"LORA_RANK": "0", "INFER_TP": "2"}, False),
    ],
)
def test_a_job_begins_with_the_weights_of_its_reference(wrapper: dict[str, str], equal: bool) -> None:
    job = make_job(Level.PARALLELISM, "dense", wrapper=wrapper)
    # Without distinct samples in one mini-batch, chance says which of them the first step sees.
    assert not begins_equal(job)
    assert begins_equal(for_parity(job)) is equal


def test_a_learning_rate_of_the_jobs_own_stays() -> None:
    own = "actor_rollout_ref.actor.optim.lr=0.0001"
    found = for_parity(make_job(Level.PARALLELISM, "dense", steps=20, overrides=(own,)))
    assert (found.overrides, found.steps) == ((own, *DETERMINISTIC, *DISTINCT_SAMPLES), 20)


def test_what_else_differs_between_two_jobs_is_listed() -> None:
    job = make_job(Level.PARALLELISM, "dense", wrapper=DENSE)
    other = make_job(wrapper={"LORA_RANK": "8"}, overrides=("data.seed=7",))
    assert job_differences(job, other) == ("overrides differs: none and data.seed=7.", "LORA_RANK differs: 4 and 8.")


def test_parity_adds_data_parallel_ranks_to_level_2_and_only_there() -> None:
    dense, smoke = JobOutline(OF_LEVEL_2[0], ("0-lora-ddp",), None), JobOutline(VARIANTS[0], (), None)
    planned = Plan("a", "b", (Level.SMOKE, Level.PARALLELISM), (smoke, dense), (), (), (), ())
    found = with_data_parallel(planned)
    assert [job.id for job in found.jobs] == ["0-lora-ddp", "2-dense", "2-dp"]
    assert found.jobs[2].requires == ("0-lora-ddp",)
    assert with_data_parallel(found) == found
    assert with_data_parallel(replace(planned, jobs=(smoke,))).jobs == (smoke,)
