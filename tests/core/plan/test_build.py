"""From outline and site to a complete job."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.places import FIXTURES
from verl_e2e.config import load_profile, packaged_policy
from verl_e2e.core.consumer.consumers import PARITY_VARIANTS, VARIANTS, variant_named
from verl_e2e.core.consumer.verl import SHARE_OF_DIGITS, expected_config
from verl_e2e.core.judge.criteria.basic import requested_config
from verl_e2e.core.model.execution import ChangedCode, ChangedFunction
from verl_e2e.core.model.jobs import WRAPPER_SCRIPT, Checkpoint, Job, Patch, Repository, SiteProfile, Substitution
from verl_e2e.core.model.levels import Level, Variant
from verl_e2e.core.model.settings import parsed
from verl_e2e.core.plan.build import BuildError, PatchChoice, Sources, build_job, select_patches
from verl_e2e.core.plan.outline import JobOutline, Missing, Obstacle, as_asked, with_obstacles
from verl_e2e.core.plan.policy import Feature
from verl_e2e.core.signal.report import MIN_STEPS

POLICY = packaged_policy()
RESOLVED = FIXTURES / "build" / "level0-config.json"
SOURCES = Sources(Repository(path="/bridge", commit="a" * 40), Repository(path="/verl", commit="b" * 40))
HOPPER = load_profile("hopper-offline", {"kit": "/opt/kit"})
DEFAULT = load_profile("default", {"home": "/home/someone"})


def build(variant: Variant | None, site: SiteProfile = HOPPER, **given: Any) -> Job:
    assert variant is not None
    outline = JobOutline(variant, (), given.pop("planned", POLICY.checkpoint))
    return build_job(outline, policy=POLICY, site=site, sources=SOURCES, **given)


def looked_up(values: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        values = values[part] if isinstance(values, dict) and part in values else "absent"
    return values


def test_level_zero_on_the_offline_hopper_profile_is_the_recipe_that_passed() -> None:
    job = build(variant_named("0-lora-ddp"))
    assert job.wrapper == {
        "VERL_USE_UV": "0",
        "NUM_GPUS": "1",
        "ENGINE": "vllm",
        "PROFILE_STEPS": "null",
        "MAX_PROMPT_LENGTH": "256",
        "MAX_RESPONSE_LENGTH": "64",
        "USE_MBRIDGE": "True",
        "VANILLA_MBRIDGE": "False",
        "VALUE_VANILLA_MBRIDGE": "False",
        "LORA_RANK": "4",
        "USE_MEGATRON_FSDP": "False",
        "COMMON_PP": "1",
        "COMMON_VPP": "null",
        "COMMON_CP": "1",
        "COMMON_TP": "1",
        "INFER_TP": "1",
        "ALL_OFFLOAD": "False",
        "TOTAL_TRAIN_STEPS": "1",
        "SAVE_FREQ": "-1",
        "VAL_BEFORE_TRAIN": "False",
        "TEST_FREQ": "-1",
    }
    assert job.process["TORCH_CUDA_ARCH_LIST"] == "9.0"
    assert set(job.overrides) == {
        "reward.reward_model.enable=False",
        "reward.num_workers=1",
        "actor_rollout_ref.rollout.agent.num_workers=1",
        "ray_kwargs.ray_init.num_cpus=13",
        "actor_rollout_ref.rollout.enforce_eager=True",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.3",
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.attention_backend=TRITON_ATTN",
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.disable_custom_all_reduce=True",
        *(
            f"++{role}.megatron.override_transformer_config.{setting}"
            for role in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")
            for setting in ("attention_backend=fused", "gradient_accumulation_fusion=False")
        ),
    }
    assert job.checkpoint.model_path == "/opt/kit/model"
    assert job.checkpoint.random_weights
    assert job.data.train_files == "/opt/kit/data/train.parquet"
    assert job.site.python_path == ("/opt/kit/site",)


def test_what_level_zero_expects_is_what_a_real_run_printed() -> None:
    """The recorded run had 16 CPUs and did not set the other key left out; all else is as expected."""
    resolved = json.loads(RESOLVED.read_text())
    expected = dict(build(variant_named("0-lora-ddp")).expected)
    assert expected.pop("ray_kwargs.ray_init.num_cpus") == 13
    assert expected.pop("actor_rollout_ref.rollout.engine_kwargs.vllm.disable_custom_all_reduce") is True
    found = {key: looked_up(resolved, key) for key in expected}
    assert found == expected
    assert {type(value) for value in found.values()} == {type(value) for value in expected.values()}
    assert expected["actor_rollout_ref.actor.megatron.vanilla_mbridge"] is False
    assert expected["critic.megatron.vanilla_mbridge"] is False
    assert expected["algorithm.adv_estimator"] == "gae"
    assert len(expected) > 55


@pytest.mark.parametrize(
    ("job_id", "key", "value"),
    (
        ("2-dense", "critic.megatron.pipeline_model_parallel_size", 2),
        ("2-dense", "actor_rollout_ref.rollout.tensor_model_parallel_size", 2),
        ("2-vpp", "actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size", 2),
        ("2-expert", "actor_rollout_ref.actor.megatron.expert_model_parallel_size", 2),
        ("2-expert", "actor_rollout_ref.actor.megatron.expert_tensor_parallel_size", 1),
        ("3-fsdp", "actor_rollout_ref.ref.megatron.use_megatron_fsdp", True),
        ("1-resume", "trainer.save_freq", 1),
        ("5-signal", "trainer.total_training_steps", 20),
        ("5-signal", "trainer.val_before_train", True),
        ("5-signal", "actor_rollout_ref.actor.optim.lr", 0.0001),
    ),
)
def test_each_variant_expects_what_it_asks_for(job_id: str, key: str, value: object) -> None:
    assert build(variant_named(job_id), planned=Checkpoint(model_id="m")).expected[key] == value


def test_two_phases_leave_what_differs_between_them_to_the_steps() -> None:
    job = build(variant_named("1-resume"))
    assert job.steps == 2
    assert "trainer.total_training_steps" not in job.expected
    assert "trainer.resume_mode" not in job.expected


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.job_id)
def test_every_variant_makes_a_job_that_survives_its_own_json(variant: Variant) -> None:
    job = build(variant)
    assert Job.model_validate_json(job.model_dump_json()) == job
    assert job.time_limit_s == POLICY.time_limit_s.of(variant.level)
    assert len(set(job.overrides)) == len(job.overrides)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.job_id)
def test_only_a_job_that_resumes_knows_what_a_load_leaves_alone(variant: Variant) -> None:
    job = build(variant)
    assert job.not_restored == (POLICY.not_restored if variant.level is Level.SAVE_RESUME else ())


def test_a_variant_wins_over_the_site_and_the_site_over_the_base() -> None:
    site = HOPPER.model_copy(update={"wrapper": {"COMMON_TP": "8", "LORA_RANK": "16"}})
    job = build(variant_named("2-dense"), site)
    assert (job.wrapper["COMMON_TP"], job.wrapper["LORA_RANK"]) == ("2", "16")
    assert job.expected["critic.model.lora.rank"] == 16


@pytest.mark.parametrize(
    ("job_id", "lengths", "tokens"),
    [
        ("2-dense", {}, 1024),
        ("2-vpp", {"MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "64"}, 320),
        ("2-cp", {}, None),
        ("0-lora-ddp", {}, None),
    ],
)
def test_the_micro_batches_of_a_pipeline_are_as_short_as_verl_takes_them(
    job_id: str, lengths: dict[str, str], tokens: int | None
) -> None:
    variant = variant_named(job_id)
    assert variant is not None
    site = DEFAULT.model_copy(update={"wrapper": lengths, "overrides": ("critic.ppo_max_token_len_per_gpu=9000",)})
    job = build(variant, site)
    names = ("actor_rollout_ref.actor.ppo_max", "critic.ppo_max", "critic.ppo_infer_max")
    found = [job.expected.get(f"{name}_token_len_per_gpu") for name in names]
    assert found == ([None, 9000, None] if tokens is None else [tokens] * 3)


def test_an_existing_cluster_is_not_given_a_cpu_count() -> None:
    site = DEFAULT.model_copy(update={"ray_address": "auto"})
    assert not any("num_cpus" in override for override in build(VARIANTS[0], site).overrides)


def test_a_job_larger_than_a_host_is_spread_over_the_nodes_of_a_cluster() -> None:
    large = variant_named("2-dense")
    assert large is not None
    large = replace(large, gpu_count=16)
    outline = JobOutline(large, (), POLICY.checkpoint, most_gpus=16)
    with pytest.raises(BuildError, match="needs 16 GPUs, and a host has 8; for a cluster, add `gpus_per_node:`"):
        build_job(outline, policy=POLICY, site=HOPPER, sources=SOURCES)
    cluster = HOPPER.model_copy(update={"gpus_per_node": 8})
    job = build_job(outline, policy=POLICY, site=cluster, sources=SOURCES)
    assert (job.gpu_count, job.node_count, job.wrapper["NUM_GPUS"]) == (16, 2, "8")
    assert "trainer.nnodes=2" in job.overrides
    assert not any("num_cpus" in override for override in job.overrides)
    assert {"trainer.nnodes": 2, "trainer.n_gpus_per_node": 8}.items() <= job.expected.items()


def test_a_reward_model_is_served_as_the_rollout_is() -> None:
    job = build(variant_named("0-reward-model"))
    assert job.reward_model
    assert job.reward_model.synthetic is not None
    assert job.reward_model.synthetic.architecture == "Qwen2ForSequenceClassification"
    assert job.reward_model.synthetic.sizes is not None
    served = {override for override in job.overrides if "reward.reward_model" in override}
    assert served == {
        "reward.reward_model.enable=True",
        "reward.reward_model.rollout.prompt_length=6144",
        "reward.reward_model.rollout.enforce_eager=True",
        "reward.reward_model.rollout.gpu_memory_utilization=0.3",
        "+reward.reward_model.rollout.engine_kwargs.vllm.attention_backend=TRITON_ATTN",
        "+reward.reward_model.rollout.engine_kwargs.vllm.disable_custom_all_reduce=True",
    }
    assert job.expected["reward.reward_model.enable"] is True


def test_a_hosts_reward_model_wins_over_that_of_the_policy() -> None:
    mine = Checkpoint(model_id="me/scores", model_path="/mine")
    named = HOPPER.model_copy(update={"reward_model": mine})
    assert build(variant_named("0-reward-model"), named).reward_model == mine
    assert build(VARIANTS[0], named).reward_model is False
    nothing = POLICY.model_copy(update={"reward_model": None})
    variant = variant_named("0-reward-model")
    assert variant is not None
    outline = JobOutline(variant, (), POLICY.checkpoint)
    with pytest.raises(BuildError, match=r"has no reward model; add `reward_model:` to the policy or to the site"):
        build_job(outline, policy=nothing, site=HOPPER, sources=SOURCES)


def test_a_reward_model_that_someone_adds_to_a_job_is_left_on() -> None:
    plain = json.loads(build(VARIANTS[0]).model_dump_json(by_alias=True))
    edited = {**plain, "reward_model": {"model_id": "me/scores"}}
    read = Job.model_validate_json(json.dumps(edited))
    assert not any("reward_model" in override for override in read.overrides)
    assert "reward.reward_model.enable" not in read.expected
    # What the job says for itself stays.
    own = Job.model_validate_json(json.dumps({**edited, "overrides": ["reward.reward_model.enable=True"]}))
    assert own.overrides == ("reward.reward_model.enable=True",)


def test_the_default_profile_uses_the_planned_checkpoint_and_the_home_folder() -> None:
    job = build(VARIANTS[0], DEFAULT)
    assert job.checkpoint == POLICY.checkpoint
    assert job.data.val_files == "/home/someone/data/gsm8k/test.parquet"
    assert job.expected["data.max_response_length"] == 512


def test_the_model_and_the_steps_that_a_person_names_take_the_place_of_the_plans() -> None:
    mine = Checkpoint(model_id="me/mine", model_path="/mine")
    planned = with_obstacles(JobOutline(VARIANTS[0], (), POLICY.checkpoint), POLICY)
    job = build_job(as_asked(planned, POLICY, mine, 7), policy=POLICY, site=HOPPER, sources=SOURCES)
    assert (job.checkpoint, job.steps, job.wrapper["TOTAL_TRAIN_STEPS"]) == (mine, 7, "7")
    assert as_asked(planned, POLICY, None, 0) == planned


@pytest.mark.parametrize(("name", "least"), [("0-lora-ddp", 1), ("1-resume", 2), ("5-signal", MIN_STEPS)])
def test_a_job_of_fewer_steps_than_its_level_decides_by_is_not_run(name: str, least: int) -> None:
    variant = variant_named(name)
    assert variant is not None
    planned = JobOutline(variant, (), POLICY.checkpoint)
    assert not as_asked(planned, POLICY, None, least).obstacles
    if least > 1:
        (short,) = as_asked(planned, POLICY, None, least - 1).obstacles
        assert (short.missing, short.fix) == (Missing.EVIDENCE, f"ask for {least} or more")
        assert short.reason.endswith(f" cannot show {variant.level.title.lower()}")


@pytest.mark.parametrize("variant", PARITY_VARIANTS, ids=lambda variant: variant.job_id)
def test_a_parity_job_of_fewer_steps_than_a_median_needs_is_not_run(variant: Variant) -> None:
    planned = JobOutline(variant, (), POLICY.checkpoint)
    assert Missing.EVIDENCE not in {item.missing for item in as_asked(planned, POLICY, None, 3).obstacles}
    assert Missing.EVIDENCE in {item.missing for item in as_asked(planned, POLICY, None, 2).obstacles}


def test_a_job_without_checkpoint_or_data_says_what_to_do() -> None:
    with pytest.raises(BuildError, match=r"4-feature has no checkpoint.*add `checkpoint:`"):
        build(variant_named("4-feature"), planned=None)
    with pytest.raises(BuildError, match="bare names no task data; add `data:`"):
        build(VARIANTS[0], SiteProfile(name="bare"))


@pytest.mark.parametrize(
    ("text", "value"),
    (
        ("null", None),
        ("", ""),
        ("None", "None"),
        ("True", True),
        ("false", False),
        ("-1", -1),
        ("0.3", 0.3),
        ("1e-4", 0.0001),
        ("vllm", "vllm"),
    ),
)
def test_values_are_read_as_hydra_reads_them(text: str, value: object) -> None:
    found = parsed(text)
    assert found == value
    assert type(found) is type(value)


def test_only_plain_overrides_are_expected_back() -> None:
    plain = expected_config({}, ["++a.b=3", "c=[1,2]", "d={e: 1}", "~f", "g='x y'", "h=${i}"])
    assert plain["a.b"] == 3
    assert not {"c", "d", "f", "g", "h"} & plain.keys()


def feature_job(*features: Feature, site: SiteProfile = HOPPER, obstacles: tuple[Obstacle, ...] = ()) -> Job:
    variant = variant_named("4-feature")
    assert variant is not None
    outline = JobOutline(variant, (), POLICY.checkpoint, features=features, obstacles=obstacles)
    return build_job(outline, policy=POLICY, site=site, sources=SOURCES)


def test_features_set_their_variables_and_must_show_in_the_configuration() -> None:
    job = feature_job(*(feature for feature in POLICY.features if feature.name in {"mtp", "packed_seq", "fp8"}))
    assert job.script == WRAPPER_SCRIPT
    assert job.wrapper["USE_REMOVE_PADDING"] == "True"
    assert job.wrapper["COMMON_TP"] == "1"
    assert job.wrapper["MAX_PROMPT_LENGTH"] == "256"
    assert "actor_rollout_ref.model.mtp.enable=True" in job.overrides
    shown = dict(requested_config(job))
    assert shown["actor_rollout_ref.model.mtp.enable"] is True
    assert shown["actor_rollout_ref.model.use_remove_padding"] is True
    assert shown["actor_rollout_ref.rollout.quantization"] == "fp8"
    assert shown["algorithm.adv_estimator"] == "grpo"


def test_another_script_gets_only_what_its_feature_names() -> None:
    other = Feature(
        feature="x",
        reason="an example",
        script="examples/x.sh",
        wrapper={"ACTOR_TP": "2"},
        overrides=("model.x=True",),
        active_when={"model.y": 3},
    )
    job = feature_job(other)
    assert (job.script, job.wrapper, job.site.wrapper) == ("examples/x.sh", {"ACTOR_TP": "2"}, {})
    assert (job.expected["model.x"], job.expected["model.y"]) == (True, 3)
    assert not set(SHARE_OF_DIGITS) & set(job.overrides)
    shown = dict(requested_config(job))
    assert "algorithm.adv_estimator" not in shown
    assert shown["model.y"] == 3


def test_the_card_is_told_what_the_features_leave_open() -> None:
    moe, audio, fp8 = (
        next(feature for feature in POLICY.features if feature.name == name) for name in ("moe", "audio", "fp8")
    )
    variant = variant_named("4-feature")
    assert variant is not None
    outline = JobOutline(variant, (), POLICY.checkpoint, features=(moe, fp8), not_shown=(audio,))
    message = build_job(outline, policy=POLICY, site=HOPPER, sources=SOURCES).site.limitations
    assert message[: len(HOPPER.limitations)] == HOPPER.limitations
    assert message[len(HOPPER.limitations) :] == (
        f"fp8: {fp8.limitation}",
        f"no script of verl shows audio: {audio.reason}",
    )


def test_a_model_with_what_the_site_cannot_run_takes_no_gpu() -> None:
    latent = next(feature for feature in POLICY.features if feature.name == "mla")
    variant = variant_named("4-feature")
    assert variant is not None
    outline = JobOutline(variant, (), POLICY.checkpoint, features=(latent,))
    whole = HOPPER.model_copy(update={"cannot_run": {}})
    why = "job 4-feature-mla is not run: site profile hopper-offline cannot run mla: vLLM's Triton attention"
    with pytest.raises(BuildError, match=why):
        build_job(outline, policy=POLICY, site=HOPPER, sources=SOURCES)
    assert build_job(outline, policy=POLICY, site=whole, sources=SOURCES).id == "4-feature-mla"


def test_what_the_model_has_counts_without_being_asked_for_and_not_for_another_model() -> None:
    family = next(family for family in POLICY.families if family.name == "deepseek_v3")
    outline = with_obstacles(JobOutline(VARIANTS[0], (), family.checkpoint), POLICY)
    with pytest.raises(BuildError, match="cannot run mla"):
        build_job(outline, policy=POLICY, site=HOPPER, sources=SOURCES)
    other = Checkpoint(model_id="local/tiny", model_path="/models/tiny")
    named = as_asked(outline, POLICY, other, 0)
    assert build_job(named, policy=POLICY, site=HOPPER, sources=SOURCES).checkpoint == other


def test_a_blocked_outline_is_no_job() -> None:
    lost = Obstacle(Missing.SCRIPT, "no script of verl shows it", "write one")
    with pytest.raises(BuildError, match=r"job 4-feature is not run.*no script of verl shows it; write one"):
        feature_job(obstacles=(lost,))


def patch(before: str, after: str) -> Patch:
    change = (Substitution(old="x", new="y"),)
    return Patch(
        name="p", repository="verl", file="f.py", substitutions=change, before=before, after=after, reason="because"
    )


@pytest.mark.parametrize(
    ("digest", "chosen", "says"),
    (
        ("1" * 64, 1, ""),
        ("2" * 64, 0, "has the change already"),
        ("3" * 64, 0, "has changed since"),
        (None, 0, "is not there"),
    ),
)
def test_a_patch_is_kept_only_for_the_file_it_was_written_for(digest: str | None, chosen: int, says: str) -> None:
    choice = select_patches([patch("1" * 64, "2" * 64)], lambda _: digest)
    assert len(choice.chosen) == chosen
    assert [says in sentence for sentence in choice.left_out] == [True] * (1 - chosen)


def test_the_packaged_patch_is_for_verl_and_limits_differ_by_level() -> None:
    assert [patch.repository for patch in POLICY.patches] == ["verl"]
    assert POLICY.time_limit_s.of(Level.SMOKE) < POLICY.time_limit_s.of(Level.LEARNING_SIGNAL)


def test_what_hides_the_change_is_left_out_or_named() -> None:
    smoke = variant_named("0-lora-ddp")
    assert smoke is not None
    function = ChangedFunction(path="f.py", symbol="f", first_line=1, last_line=9)
    words = frozenset({"gradient_accumulation_fusion"})
    code = ChangedCode(functions=(function,))
    outline = JobOutline(smoke, (), POLICY.checkpoint, changed=code, changed_words=words)
    own = patch("1" * 64, "2" * 64).model_copy(update={"repository": "bridge"})
    other = patch("1" * 64, "2" * 64)
    patches = PatchChoice((own, other), (), {own: ((3, 3),), other: ((3, 3),)})
    job = build_job(outline, policy=POLICY, site=HOPPER, sources=SOURCES, patches=patches)
    assert (job.patches, job.changed) == ((other,), code)
    assert job.site.limitations[-2:] == (
        "patch p is left out, because it replaces code that the change touches: f.py, f",
        "the change reads gradient_accumulation_fusion, which the site fixes as False: other values are not exercised",
    )
    assert job.overrides == build(smoke).overrides
