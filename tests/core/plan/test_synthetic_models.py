"""Sizes of synthetic models that fit a job's parallel sizes, and the recipes of the packaged policy."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.consumer.consumers import variant_named
from verl_e2e.core.judge import wording
from verl_e2e.core.model.jobs import Checkpoint, Data, Repository, SiteProfile
from verl_e2e.core.model.space import ModelWant
from verl_e2e.core.plan.build import Sources, build_job, sized, sizes_for
from verl_e2e.core.plan.job_models import job_on_model, shows
from verl_e2e.core.plan.outline import JobOutline

POLICY = packaged_policy()
SIZES = st.sampled_from(("1", "2", "4", "8"))
SOURCES = Sources(Repository(path="/bridge", commit="a" * 40), Repository(path="/verl", commit="b" * 40))
SITE = SiteProfile(name="host", data=Data(train_files="a.parquet", val_files="b.parquet"))


@given(SIZES, SIZES, SIZES, st.sampled_from(("null", "2", "3")), SIZES, SIZES, st.integers(1, 12))
def test_every_size_divides_by_the_parallel_sizes(
    tensor: str, rollout: str, stages: str, chunks: str, experts: str, expert_tensor: str, least: int
) -> None:
    wrapper = {"COMMON_TP": tensor, "INFER_TP": rollout, "COMMON_PP": stages, "COMMON_VPP": chunks}
    sizes = sizes_for(wrapper | {"COMMON_EP": experts, "COMMON_ETP": expert_tensor}, least_layers=least)
    split = max(int(tensor), int(rollout))
    pieces = int(stages) * (1 if chunks == "null" else int(chunks))
    assert sizes.layers % pieces == 0
    assert least <= sizes.layers < least + pieces
    assert sizes.kv_heads // split >= 2
    assert sizes.heads >= 2 * sizes.kv_heads
    assert sizes.hidden == sizes.heads * sizes.head_size
    assert sizes.experts % int(experts) == 0
    assert sizes.experts // int(experts) >= 1
    assert sizes.expert_ffn % (16 * split) == 0
    assert sizes.expert_ffn % int(expert_tensor) == 0
    assert sizes.vocabulary % (128 * split) == 0


def test_only_an_open_synthetic_model_is_sized() -> None:
    plain = Checkpoint(model_id="a/b")
    assert sized(plain, {"COMMON_TP": "4"}) is plain
    open_one = checkpoint_of("mistral")
    fitted = sized(open_one, {"COMMON_PP": "3"})
    assert fitted.synthetic is not None
    assert fitted.synthetic.sizes is not None
    assert fitted.synthetic.sizes.layers == 6
    assert sized(fitted, {"COMMON_PP": "8"}) == fitted


@pytest.mark.parametrize(
    ("want", "level", "what"),
    (
        (ModelWant(fields={"tie_word_embeddings": True}), "2-cp", "qwen2: random weights, tie_word_embeddings = True"),
        (
            ModelWant(family="deepseek_v2", fields={"q_lora_rank": 64}),
            "4-feature",
            "deepseek_v2: random weights, q_lora_rank = 64",
        ),
        (
            ModelWant(features=frozenset({"mla"}), fields={"q_lora_rank": None}),
            "4-feature",
            "deepseek_v2: random weights, q_lora_rank = None",
        ),
    ),
)
def test_a_model_is_made_with_the_fields_that_a_condition_wants(want: ModelWant, level: str, what: str) -> None:
    variant = variant_named(level)
    assert variant is not None
    made = job_on_model(variant, want, POLICY, POLICY.checkpoint)
    assert isinstance(made, JobOutline), made
    assert made.checkpoint is not None
    assert made.checkpoint.synthetic is not None
    assert made.checkpoint.synthetic.what == f"synthetic {what}"
    assert shows(made, want, POLICY)
    assert not shows(made, replace(want, fields={"window": 1}), POLICY)
    assert made.gpu_count == variant.gpu_count


@pytest.mark.parametrize("level", ("2-cp", "4-feature"))
def test_a_condition_on_experts_runs_on_the_synthetic_model_where_the_named_one_has_none(level: str) -> None:
    variant = variant_named(level)
    assert variant is not None
    made = job_on_model(variant, ModelWant(family="qwen3_vl", features=frozenset({"moe"})), POLICY, None)
    assert isinstance(made, JobOutline), made
    assert made.checkpoint is not None
    assert made.checkpoint.model_id == "synthetic/qwen3_vl"


def test_fields_of_a_family_without_a_recipe_are_not_to_be_had() -> None:
    variant = variant_named("4-feature")
    assert variant is not None
    answer = job_on_model(variant, ModelWant(family="kimi_k25_vl", fields={"a": 1}), POLICY, None)
    assert isinstance(answer, str)
    assert answer.startswith("no model can be made with a = 1: Bridge takes the classes of its vision model")


@pytest.mark.parametrize("family", POLICY.families, ids=lambda family: family.name)
def test_every_family_has_a_recipe_or_the_reason_why_there_is_none(family: object) -> None:
    known = next(item for item in POLICY.families if item is family)
    assert (known.synthetic is None) is (known.no_synthetic is not None)
    if known.synthetic:
        assert {*known.synthetic.without} <= {*known.features}
        assert known.synthetic.experts is ("moe" in known.features)


def test_a_job_tells_the_rollout_engine_what_a_model_is_by_the_recipe() -> None:
    variant = variant_named("4-feature")
    assert variant is not None
    by_family = {
        family: build_job(JobOutline(variant, (), checkpoint_of(family)), policy=POLICY, site=SITE, sources=SOURCES)
        for family in ("kimi", "qwen3_moe")
    }
    named = {family: [given for given in job.overrides if "hf_overrides" in given] for family, job in by_family.items()}
    start = "+actor_rollout_ref.rollout.engine_kwargs.vllm.hf_overrides"
    assert named == {"kimi": [f"{start}.architectures=[DeepseekV3ForCausalLM]"], "qwen3_moe": []}


def test_a_planned_job_has_the_model_that_fits_its_sizes() -> None:
    variant = variant_named("2-expert")
    assert variant is not None
    outline = JobOutline(variant, (), checkpoint_of("qwen3_moe"))
    job = build_job(outline, policy=POLICY, site=SITE, sources=SOURCES)
    assert wording.checkpoint(job) == "synthetic qwen3_moe: 4 layers, 8 experts, random weights"
    assert wording.requested_work(job).endswith("(expert), synthetic qwen3_moe: 4 layers, 8 experts, random weights")
    deeper = replace(outline, variant=replace(variant, wrapper={**variant.wrapper, "COMMON_PP": "6"}))
    other = build_job(deeper, policy=POLICY, site=SITE, sources=SOURCES)
    assert wording.checkpoint(other) == "synthetic qwen3_moe: 6 layers, 8 experts, random weights"


def test_a_site_may_have_a_checkpoint_in_place_of_the_synthetic_one() -> None:
    mine = Checkpoint(model_id="mine/moe", model_path="/models/moe")
    variant = variant_named("4-feature")
    assert variant is not None
    outline = JobOutline(variant, (), checkpoint_of("qwen3_moe"), family="qwen3_moe")
    site = SITE.model_copy(update={"checkpoints": {"synthetic/qwen3_moe": mine}})
    assert build_job(outline, policy=POLICY, site=site, sources=SOURCES).checkpoint == mine


def checkpoint_of(family: str) -> Checkpoint:
    found = next(item.checkpoint for item in POLICY.families if item.name == family)
    assert found is not None
    return found


def test_a_family_with_a_named_checkpoint_knows_its_synthetic_model_as_well() -> None:
    (family,) = (item for item in POLICY.families if item.name == "qwen3_vl")
    assert family.named is not None
    assert family.made is not None
    facts = POLICY.facts_of(family.made.checkpoint)
    assert facts == family.made.facts
    assert facts.weights_gib is not None
