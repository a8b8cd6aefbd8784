"""The job that a run is compared with: the same training without parallelism, and what else differs."""

from typing import Any

import pytest

from tests.core.builders import make_job
from verl_e2e.core.compare.jobs import begins_equal, is_parity, job_differences, unsharded
from verl_e2e.core.consumer.consumers import PARITY_VARIANTS, VARIANTS
from verl_e2e.core.consumer.verl import DETERMINISTIC, SETTINGS
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import Axis

DENSE = {"COMMON_TP": "2", "COMMON_PP": "2", "INFER_TP": "2", "NUM_GPUS": "4"}
PARITY = SETTINGS[Axis.PARITY].values[True].overrides
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
    assert found.id == "0-unsharded"
    assert (found.required_of_host.gpu_count, job.required_of_host.gpu_count) == (1, 4)


def test_a_site_that_sets_sizes_does_not_keep_them() -> None:
    job = make_job(Level.PARALLELISM, "dense", wrapper=DENSE)
    site = job.site.model_copy(update={"wrapper": {"REF_PP": "2", "COMMON_VPP": "2", "LORA_RANK": "8"}})
    found = unsharded(job.model_copy(update={"site": site}))
    assert (found.wrapper["REF_PP"], found.wrapper["COMMON_VPP"], found.wrapper["LORA_RANK"]) == ("1", "null", "4")


@pytest.mark.parametrize(
    ("wrapper", "equal"),
    [
        ({"LORA_RANK": "4", "NUM_GPUS": "2"}, True),
        ({"LORA_RANK": "0", "NUM_GPUS": "2"}, True),
        ({"LORA_RANK": "0", **DENSE}, True),
        # Each part of a model draws its adapters by itself.
        ({"LORA_RANK": "4", "COMMON_PP": "2"}, False),
        ({"LORA_RANK": "4", "COMMON_EP": "2"}, False),
        ({"LORA_RANK": "4", "INFER_TP": "2"}, False),
    ],
)
def test_a_job_begins_with_the_weights_of_its_reference(wrapper: dict[str, str], equal: bool) -> None:
    # Without distinct samples in one mini-batch, chance says which of them the first step sees.
    assert not begins_equal(make_job(Level.PARALLELISM, "dense", wrapper=wrapper))
    assert begins_equal(make_job(Level.PARALLELISM, "dense", wrapper=wrapper, overrides=PARITY)) is equal


def test_the_jobs_of_parity_have_one_reference_run() -> None:
    made = [
        make_job(Level.PARALLELISM, item.name, wrapper=dict(item.wrapper), overrides=item.overrides, steps=item.steps)
        for item in PARITY_VARIANTS
    ]
    assert len({job.digest() for job in made}) == len(made) == 3
    assert len({unsharded(job).digest() for job in made}) == 1
    assert all(is_parity(job) and is_parity(unsharded(job)) and begins_equal(job) for job in made)


def test_what_else_differs_between_two_jobs_is_listed() -> None:
    job = make_job(Level.PARALLELISM, "dense", wrapper=DENSE)
    other = make_job(wrapper={"LORA_RANK": "8"}, overrides=("data.seed=7",))
    assert job_differences(job, other) == ("wrapper.LORA_RANK: 4 -> 8", "overrides: data.seed: - -> 7")


def test_the_reference_fills_no_pipeline_and_keeps_the_bound_of_a_site() -> None:
    names = ("actor_rollout_ref.actor.ppo_max", "critic.ppo_max", "++critic.ppo_infer_max")
    bounds = tuple(f"{name}_token_len_per_gpu=320" for name in names)
    job = make_job(Level.PARALLELISM, "dense", wrapper=DENSE, overrides=(*bounds, *PARITY))
    assert unsharded(job).overrides == PARITY
    assert job_differences(job, unsharded(job)) == ()
    site = job.site.model_copy(update={"overrides": bounds[:1]})
    assert unsharded(job.model_copy(update={"site": site})).overrides == (*bounds[:1], *PARITY)
