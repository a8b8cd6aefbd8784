"""The plan of a change as the jobs of another consumer: what it runs, and what it refuses in its own words."""

from dataclasses import replace

import pytest

from tests.core.plan.test_build import HOPPER
from tests.core.plan.test_plan import POLICY, change
from verl_e2e.core.consumer.consumers import CONSUMERS, variant_named
from verl_e2e.core.consumer.nemo_rl import NEMO_RL
from verl_e2e.core.consumer.skyrl import SKYRL
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.judge.criteria.basic import requested_config
from verl_e2e.core.model.jobs import Repository
from verl_e2e.core.model.levels import Level, Variant
from verl_e2e.core.model.settings import Axis
from verl_e2e.core.plan.beside_verl import for_consumer
from verl_e2e.core.plan.build import BuildError, Sources, build_job
from verl_e2e.core.plan.outline import JobOutline, Missing
from verl_e2e.core.plan.plan import plan, with_parity
from verl_e2e.core.plan.policy import Feature

SOURCES = Sources(bridge=Repository(path="/bridge", commit="a" * 40), verl=Repository(path="/skyrl", commit=SKYRL.pin))
ALL = plan(change("src/megatron/bridge/peft/lora.py"), POLICY, [*Level])
SKYRLS = for_consumer(with_parity(ALL, POLICY), SKYRL, POLICY)
BY_ID = {job.id.removesuffix("-skyrl"): job for job in SKYRLS.jobs}


def test_every_level_has_a_job_that_runs_or_a_refusal_in_skyrls_words() -> None:
    runs = {job.variant.level for job in SKYRLS.jobs if not job.obstacles}
    assert runs == {*Level} - {Level.MEGATRON_FSDP}
    refused = [job for job in SKYRLS.jobs if job.variant.level is Level.MEGATRON_FSDP]
    assert refused
    for job in refused:
        assert [item.missing for item in job.obstacles] == [Missing.CONSUMER]
        assert job.uncoverable == "SkyRL refuses it: Invalid fields {'use_megatron_fsdp'} for MegatronDDPConfig"


def test_adapters_of_skyrl_have_a_rank_that_vllm_takes() -> None:
    job = build_job(BY_ID["0-adapters"], policy=POLICY, site=HOPPER, sources=SOURCES)
    # vLLM 0.24's LoRAConfig.max_lora_rank.
    assert int(job.wrapper["LORA_RANK"]) in {1, 8, 16, 32, 64, 128, 256, 320, 512}
    assert job.expected["trainer.policy.model.lora.rank"] == int(job.wrapper["LORA_RANK"])


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("0-lora-ddp", 1),
        ("0-adapters", 1),
        ("1-resume", 1),
        ("2-dense", 4),
        ("2-tensor", 2),
        ("2-data", 2),
        ("2-dp2-parity", 2),
        ("2-pp2-tied-parity", 2),
        ("4-feature-recompute", 1),
        ("4-feature-canonical", 1),
        ("5-signal", 1),
    ],
)
def test_a_job_of_skyrl_is_complete(name: str, gpus: int) -> None:
    job = build_job(BY_ID[name], policy=POLICY, site=HOPPER, sources=SOURCES)
    assert (job.consumer, job.script, job.gpu_count) == ("skyrl", SKYRL.script, gpus)
    assert job.wrapper.keys() == SKYRL.base.keys()
    assert "trainer.strategy=megatron" in job.overrides
    assert job.expected["trainer.strategy"] == "megatron"
    assert not any("actor_rollout_ref" in text for text in (*job.overrides, *job.site.overrides, *job.expected))
    assert job.site.wrapper == {}


def test_a_feature_must_show_in_the_configuration() -> None:
    job = build_job(BY_ID["4-feature-recompute"], policy=POLICY, site=HOPPER, sources=SOURCES)
    (feature,) = job.features
    assert feature.active_when == {"trainer.gradient_checkpointing": True}
    canonical = build_job(BY_ID["4-feature-canonical"], policy=POLICY, site=HOPPER, sources=SOURCES)
    assert canonical.features[0].active_when == {
        "trainer.policy.megatron_config.lora_config.lora_type": "canonical_lora"
    }


def smoke_as(**changes: object) -> JobOutline:
    """Level 0's job of verl with something else in it, as SkyRL's."""
    (smoke,) = (job for job in ALL.jobs if job.id == "0-lora-ddp")
    planned = replace(ALL, jobs=(replace(smoke, reason="asked for", **changes),))  # type: ignore[arg-type]
    return for_consumer(planned, SKYRL, POLICY).jobs[0]


def test_a_feature_that_the_policy_describes_for_verl_alone_is_not_guessed() -> None:
    job = smoke_as(features=(Feature(feature="fp8", reason="of verl", overrides=("++a.b=1",)),))
    assert job.uncoverable == "the policy says how verl switches fp8 on, and not how SkyRL does"


def test_a_virtual_pipeline_is_skipped_with_skyrls_reason() -> None:
    assert "virtual_pipeline_model_parallel_size" in smoke_as(variant=variant_named("2-vpp")).uncoverable
    assert (
        "share_expert_adapters"
        in smoke_as(variant=Variant(Level.SMOKE, "derived", 1), settings={Axis.ADAPTER_SHARING: "outer"}).uncoverable
    )


def test_the_plan_of_verl_is_its_own() -> None:
    assert [*CONSUMERS] == [VERL.name, SKYRL.name, NEMO_RL.name]
    assert all(job.consumer == "verl" for job in ALL.jobs)


def test_no_job_of_a_consumer_that_never_ran_is_started() -> None:
    planned = for_consumer(with_parity(ALL, POLICY), NEMO_RL, POLICY)
    assert {job.variant.level for job in planned.jobs} == {*Level}
    for job in planned.jobs:
        assert [item.missing for item in job.obstacles] == [Missing.CONSUMER]
        assert job.obstacles[0].reason.startswith("NeMo-RL ")
    (smoke,) = (job for job in planned.jobs if job.id == "0-lora-ddp-nemo-rl")
    assert smoke.uncoverable == "NeMo-RL was never run here"
    with pytest.raises(BuildError, match="NeMo-RL was never run here"):
        build_job(smoke, policy=POLICY, site=HOPPER, sources=SOURCES)


def test_the_jobs_of_a_consumer_that_never_ran_are_composed_all_the_same() -> None:
    planned = for_consumer(with_parity(ALL, POLICY), replace(NEMO_RL, never_run=False), POLICY)
    runs = [job for job in planned.jobs if not job.obstacles]
    assert {job.variant.level for job in runs} == {*Level} - {Level.MEGATRON_FSDP}
    for outline in runs:
        job = build_job(outline, policy=POLICY, site=HOPPER, sources=SOURCES)
        assert job.wrapper.keys() == NEMO_RL.base.keys()
        assert job.script == "examples/run_grpo.py"
        assert NEMO_RL.expected(job.wrapper, job.overrides)["cluster.gpus_per_node"] == job.gpu_count
        assert not any("actor_rollout_ref" in text or text.startswith("trainer.") for text in job.overrides)


@pytest.mark.parametrize("name", [job.id for job in SKYRLS.jobs if not job.obstacles])
def test_what_a_run_must_print_is_in_the_words_of_its_own_trainer(name: str) -> None:
    job = build_job(BY_ID[name.removesuffix("-skyrl")], policy=POLICY, site=HOPPER, sources=SOURCES)
    asked = dict(requested_config(job))
    assert asked.keys() >= job.expected.keys()
    assert {key.partition(".")[0] for key in asked} <= {"trainer", "generator", "environment", "data"}


def test_what_a_site_sets_of_verl_is_no_limit_of_skyrls_run() -> None:
    words, said = frozenset({"gradient_accumulation_fusion"}), "which the site fixes as False"
    limits = {
        job.consumer: build_job(replace(job, changed_words=words), policy=POLICY, site=HOPPER, sources=SOURCES)
        for job in (ALL.jobs[0], BY_ID["0-lora-ddp"])
    }
    told = {name: [said in text for text in job.site.limitations].count(True) for name, job in limits.items()}
    assert told == {"verl": 1, "skyrl": 0}
    # What the site says of itself stays.
    assert {*HOPPER.limitations} <= {*limits["skyrl"].site.limitations}
