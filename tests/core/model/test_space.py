"""Points in the space of settings: the named jobs, what wants join to, GPUs, cost and the job that comes out."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_e2e.core.consumer.consumers import VARIANTS, variant_named, variant_of
from verl_e2e.core.consumer.verl import BASE_WRAPPER, SHARE_OF_DIGITS, VERL
from verl_e2e.core.model.levels import COSTS, CostBasis, Level
from verl_e2e.core.model.settings import Axis, Value
from verl_e2e.core.model.space import POINTS, JobPoint, ModelWant, Want

RECOMPUTE = tuple(
    f"++{role}.megatron.override_transformer_config.{key}"
    for role in ("actor_rollout_ref.actor", "critic")
    for key in ("recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1")
)
FUSION = tuple(
    f"++{role}.megatron.override_transformer_config.gradient_accumulation_fusion=False"
    for role in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")
)
REWARD = ("reward.reward_model.enable=True", "reward.reward_model.rollout.prompt_length=6144")
FSDP = {"USE_MEGATRON_FSDP": "True", "ALL_OFFLOAD": "False"}
SIGNAL = {"TOTAL_TRAIN_STEPS": "20", "SAVE_FREQ": "-1", "VAL_BEFORE_TRAIN": "True", "TEST_FREQ": "10"}
RESUME = (
    "actor_rollout_ref.rollout.full_determinism=True",
    "actor_rollout_ref.actor.optim.lr=0.001",
)
EXPERT = {
    "COMMON_TP": "2",
    "INFER_TP": "2",
    "COMMON_EP": "2",
    "COMMON_ETP": "1",
    "LORA_MERGE": "True",
    "ROUTING_REPLAY_MODE": "disabled",
}

PARITY = (
    "actor_rollout_ref.rollout.full_determinism=True",
    "actor_rollout_ref.rollout.n=1",
    "data.train_batch_size=64",
    "actor_rollout_ref.actor.ppo_mini_batch_size=64",
    "actor_rollout_ref.actor.optim.lr=0.001",
)

# The named jobs as they were written before they became points: GPUs, variables, overrides, steps, feature.
NAMED: dict[str, tuple[int, dict[str, str], tuple[str, ...], int, str]] = {
    "0-lora-ddp": (1, {}, (), 1, ""),
    "0-amplified-lora": (1, {}, ("actor_rollout_ref.model.lora.lora_B_init_method=xavier",), 1, ""),
    "0-recompute": (1, {}, RECOMPUTE, 1, ""),
    "0-reward-model": (1, {}, REWARD, 1, ""),
    "1-resume": (1, {"SAVE_FREQ": "1"}, RESUME, 2, ""),
    "1-fsdp": (2, {**FSDP, "SAVE_FREQ": "1"}, (*FUSION, *RESUME), 2, ""),
    "2-dense": (
        4,
        {"COMMON_TP": "2", "COMMON_PP": "2", "COMMON_VPP": "null", "COMMON_CP": "1", "INFER_TP": "2"},
        (),
        1,
        "",
    ),
    "2-vpp": (2, {"COMMON_PP": "2", "COMMON_VPP": "2"}, (), 1, ""),
    "2-cp": (2, {"COMMON_CP": "2"}, (), 1, ""),
    "2-expert": (2, EXPERT, (), 1, "moe"),
    "2-dp2-parity": (2, {"LORA_RANK": "0"}, PARITY, 3, ""),
    "2-tp2-parity": (2, {"COMMON_TP": "2", "INFER_TP": "2", "LORA_RANK": "0"}, PARITY, 3, ""),
    "2-pp2-tied-parity": (2, {"COMMON_PP": "2", "LORA_RANK": "0"}, PARITY, 3, ""),
    "3-fsdp": (2, FSDP, FUSION, 1, ""),
    "4-feature": (1, {"ADV_ESTIMATOR": "grpo"}, SHARE_OF_DIGITS, 1, ""),
    "5-signal": (1, SIGNAL, ("actor_rollout_ref.actor.optim.lr=0.0001",), 20, ""),
}


def want(axes: dict[Axis, Value] | None = None, model: ModelWant | None = None) -> Want:
    return Want("", axes or {}, model or ModelWant())


def joined(point: JobPoint, axes: dict[Axis, Value]) -> JobPoint:
    made = point.joined(want(axes))
    assert isinstance(made, JobPoint)
    return made


def conflict(point: JobPoint, axes: dict[Axis, Value] | None = None, model: ModelWant | None = None) -> str:
    made = point.joined(want(axes, model))
    assert isinstance(made, str)
    return made


@pytest.mark.parametrize("job_id", NAMED)
def test_the_named_jobs_are_what_they_were_before_they_were_points(job_id: str) -> None:
    gpu_count, wrapper, overrides, steps, feature = NAMED[job_id]
    made = variant_named(job_id)
    assert made is not None
    assert made.wrapper == wrapper
    assert list({**BASE_WRAPPER, **made.wrapper}.items()) == list({**BASE_WRAPPER, **wrapper}.items())
    assert (made.gpu_count, made.overrides, made.steps, made.feature) == (gpu_count, overrides, steps, feature)


def test_each_named_job_is_a_point_and_nothing_else_is_one() -> None:
    assert list(POINTS) == [variant.job_id for variant in VARIANTS] == list(NAMED)
    for variant in VARIANTS:
        assert variant.level in POINTS[variant.job_id].levels


def test_sizes_join_by_the_larger_one_and_bring_what_they_need() -> None:
    point = joined(joined(JobPoint.default(), {Axis.PIPELINE: 2, Axis.TENSOR: 2}), {Axis.PIPELINE: 3})
    assert (point[Axis.PIPELINE], point[Axis.TENSOR], point.gpu_count) == (4, 2, 8)
    assert joined(JobPoint.default(), {Axis.VIRTUAL_PIPELINE: 2}).settings == {
        Axis.PIPELINE: 2,
        Axis.VIRTUAL_PIPELINE: 2,
    }
    assert joined(JobPoint.default(), {Axis.EXPERT: 2}).model.features == {"moe"}


@pytest.mark.parametrize(
    ("axes", "words"),
    (
        ({Axis.RECOMPUTE: "selective"}, "recompute is 'full' and 'selective' is wanted"),
        ({Axis.FSDP: True, Axis.PIPELINE: 2}, "megatron fsdp with pipeline of 2 or more: Megatron"),
        ({Axis.TENSOR: 0}, "tensor is a whole number of 1 or more, not 0"),
        ({Axis.TENSOR: True}, "tensor is a whole number of 1 or more, not True"),
        ({Axis.FSDP: "yes"}, "megatron fsdp is a switch, not 'yes'"),
        ({Axis.ADAPTER: "qlora"}, "adapter is one of lora, canonical_lora, dora, vlm_lora, none"),
        ({Axis.ADAPTER_TARGETS: "linear_qkv, x"}, "adapter targets are names of modules"),
        ({Axis.ADAPTER_TARGETS: "$(id)"}, "adapter targets are names of modules"),
        ({Axis.ADAPTER_TARGETS: None}, "adapter targets are names of modules, not None"),
    ),
)
def test_what_does_not_fit_is_a_conflict_with_its_reason(axes: dict[Axis, Value], words: str) -> None:
    found = conflict(JobPoint.default().with_axes({Axis.RECOMPUTE: "full"}), axes)
    assert words in found


@pytest.mark.parametrize(
    ("adapter", "targets", "words"),
    (
        ("canonical_lora", "linear_q,linear_proj", ""),
        ("canonical_lora", "linear_q,*.layers.0.*.linear_qkv", "it adapts the parts of a fused module, by their names"),
        ("canonical_lora", "linear_fc1", "it adapts the parts of a fused module, by their names"),
        ("lora", "linear_qkv,linear_fc1", ""),
        ("lora", "linear_kv_down_proj,linear_q_proj", ""),
        ("lora", "linear_proj,linear_fc1_up", "only canonical_lora knows the parts of a fused module"),
        ("dora", "linear_v", "only canonical_lora knows the parts of a fused module"),
        ("none", "linear_v", ""),
    ),
)
def test_targets_are_names_that_the_type_of_adapter_has(adapter: str, targets: str, words: str) -> None:
    point = JobPoint.default().with_axes({Axis.ADAPTER: adapter, Axis.ADAPTER_TARGETS: targets})
    assert bool(point.conflict) == bool(words)
    assert words in point.conflict


def test_a_want_may_have_another_value_than_the_one_that_a_setting_brought() -> None:
    canonical: dict[Axis, Value] = {Axis.ADAPTER: "canonical_lora"}
    some: dict[Axis, Value] = {Axis.ADAPTER_TARGETS: "linear_q"}
    first = joined(joined(JobPoint.default(), canonical), some)
    assert first == joined(joined(JobPoint.default(), some), canonical)
    assert first.settings == {**canonical, **some}
    assert joined(JobPoint.default(), canonical).implied == {Axis.ADAPTER_TARGETS}


MOE = ModelWant(features=frozenset({"moe"}))


@pytest.mark.parametrize(
    ("axes", "model"),
    (
        ({Axis.EXPERT: 2}, None),
        ({Axis.EXPERT_TENSOR: 2}, None),
        ({Axis.ADAPTER_SHARING: "per expert"}, None),
        ({Axis.ADAPTER_SHARING: "outer"}, None),
        ({}, MOE),
        ({Axis.ADAPTER: "canonical_lora"}, MOE),
        ({Axis.RESUME: True, Axis.ADAPTER_B_START: "xavier"}, MOE),
    ),
)
def test_adapters_of_experts_leave_merged(axes: dict[Axis, Value], model: ModelWant | None) -> None:
    point = JobPoint.default().joined(want(axes, model))
    assert isinstance(point, JobPoint)
    assert point[Axis.ADAPTER_MERGE] is True
    assert Axis.ADAPTER_MERGE in point.implied
    assert variant_of(point, point.levels[0], "any").wrapper["LORA_MERGE"] == "True"
    found = conflict(point, {Axis.ADAPTER_MERGE: False})
    assert found.startswith("adapter merge False: with adapters of their own on experts vLLM 0.24.0")


def test_without_experts_or_without_adapters_nothing_is_merged() -> None:
    dense = joined(JobPoint.default(), {Axis.ADAPTER_MERGE: False, Axis.TENSOR: 2})
    assert dense[Axis.ADAPTER_MERGE] is False
    whole = joined(JobPoint.default().with_model(MOE), {Axis.ADAPTER: "none"})
    assert whole[Axis.ADAPTER_MERGE] is False


@pytest.mark.parametrize(
    ("axes", "rank", "alpha"),
    (
        ({Axis.ADAPTER_SHARING: "outer"}, 8, 8),
        ({Axis.ADAPTER_SHARING: "outer", Axis.ADAPTER_RANK: 16, Axis.ADAPTER_ALPHA: 32}, 16, 32),
        ({Axis.ADAPTER_SHARING: "per expert"}, 4, 4),
    ),
)
def test_adapters_shared_on_the_outside_have_a_rank_that_their_kernel_takes(
    axes: dict[Axis, Value], rank: int, alpha: int
) -> None:
    point = joined(JobPoint.default(), axes)
    assert (point[Axis.ADAPTER_RANK], point[Axis.ADAPTER_ALPHA]) == (rank, alpha)


@pytest.mark.parametrize("rank", (4, 12))
def test_another_rank_of_them_is_refused(rank: int) -> None:
    found = conflict(JobPoint.default(), {Axis.ADAPTER_SHARING: "outer", Axis.ADAPTER_RANK: rank})
    assert found.startswith(f"adapter sharing outer with adapter rank {rank}: ")
    assert "of a multiple of 8 alone" in found


def test_models_join_unless_family_or_a_field_differs() -> None:
    tied = ModelWant("qwen", {"tie_word_embeddings": True}, frozenset({"moe"}))
    both = JobPoint.default().joined(want({}, tied))
    assert isinstance(both, JobPoint)
    more = both.joined(want({}, ModelWant(fields={"num_hidden_layers": 4}, features=frozenset({"mla"}))))
    assert isinstance(more, JobPoint)
    assert more.model == ModelWant(
        "qwen", {"tie_word_embeddings": True, "num_hidden_layers": 4}, frozenset({"moe", "mla"})
    )
    assert conflict(both, model=ModelWant("llama")) == "a model of qwen cannot be one of llama"
    found = conflict(both, model=ModelWant(fields={"tie_word_embeddings": False}))
    assert found == "the model's tie_word_embeddings cannot be True and False"
    assert JobPoint.default().with_axes({Axis.EXPERT: 2}).with_model(ModelWant("qwen")).model.features == {"moe"}


@pytest.mark.parametrize(
    ("axes", "gpu_count"),
    (
        ({}, 1),
        ({Axis.TENSOR: 2, Axis.PIPELINE: 2, Axis.CONTEXT: 2}, 8),
        ({Axis.EXPERT: 2}, 2),
        ({Axis.EXPERT: 2, Axis.EXPERT_TENSOR: 2}, 4),
        ({Axis.EXPERT: 4, Axis.TENSOR: 2}, 4),
        ({Axis.EXPERT: 2, Axis.PIPELINE: 2}, 4),
        ({Axis.EXPERT: 2, Axis.TENSOR: 4}, 4),
        ({Axis.DATA: 3}, 4),
        ({Axis.FSDP: True, Axis.TENSOR: 2, Axis.DATA: 2}, 4),
    ),
)
def test_the_gpus_are_those_that_the_sizes_need(axes: dict[Axis, Value], gpu_count: int) -> None:
    point = joined(JobPoint.default(), axes)
    assert point.gpu_count == gpu_count


def test_a_derived_job_costs_as_much_as_the_default_of_its_level() -> None:
    found = variant_of(
        joined(JobPoint.of_level(Level.SAVE_RESUME), {Axis.EXPERT: 2}), Level.SAVE_RESUME, "resume-ep2"
    ).cost
    assert found == replace(COSTS["1-resume"], basis=CostBasis.ESTIMATE)


def test_a_derived_job_has_the_variables_and_overrides_of_its_settings() -> None:
    point = joined(
        JobPoint.of_level(Level.SAVE_RESUME),
        {Axis.EXPERT: 2, Axis.EXPERT_TENSOR: 2, Axis.ADAPTER_SHARING: "per expert", Axis.ADAPTER_ALPHA: 16},
    )
    made = variant_of(point, Level.SAVE_RESUME, "resume-ep2")
    assert (made.job_id, made.gpu_count, made.steps) == ("1-resume-ep2", 4, 2)
    assert made.wrapper == {
        "COMMON_EP": "2",
        "COMMON_ETP": "2",
        "LORA_ALPHA": "16",
        "LORA_MERGE": "True",
        "SAVE_FREQ": "1",
        "ROUTING_REPLAY_MODE": "disabled",
    }
    assert made.overrides == (
        "++actor_rollout_ref.model.lora.share_expert_adapters=False",
        "++critic.model.lora.share_expert_adapters=False",
        *RESUME,
    )


@pytest.mark.parametrize(
    ("axis", "value", "wrapper", "overrides"),
    (
        (Axis.ADAPTER, "none", {"LORA_RANK": "0"}, ()),
        (
            Axis.ADAPTER,
            "dora",
            {},
            ("actor_rollout_ref.model.lora.type=dora", "critic.model.lora.type=dora"),
        ),
        (Axis.ADAPTER_TARGETS, "a,*.0.b", {"LORA_TARGET_MODULES": "['a','*.0.b']"}, ()),
        (Axis.ADAPTER_SHARING, "shared", {}, ()),
        (Axis.RECOMPUTE, "none", {}, ()),
        (
            Axis.RECOMPUTE,
            "selective",
            {},
            tuple(
                f"++{role}.megatron.override_transformer_config.recompute_granularity=selective"
                for role in ("actor_rollout_ref.actor", "critic")
            ),
        ),
        (Axis.RESUME, False, {}, ()),
        (Axis.PACKING, True, {"USE_REMOVE_PADDING": "True"}, ()),
        (Axis.ADAPTER_MERGE, True, {"LORA_MERGE": "True"}, ()),
        (Axis.STEPS, 3, {}, ()),
    ),
)
def test_what_a_setting_is_in_verl(
    axis: Axis, value: Value, wrapper: dict[str, str], overrides: tuple[str, ...]
) -> None:
    made = VERL.setting(axis, value)
    assert (dict(made.wrapper), made.overrides) == (wrapper, overrides)


@pytest.mark.parametrize(
    ("axes", "level"),
    (
        ({Axis.RESUME: True}, Level.PARALLELISM),
        ({Axis.FSDP: True}, Level.SMOKE),
        ({Axis.ADAPTER: "none"}, Level.SMOKE),
        ({}, Level.PARALLELISM),
        ({}, Level.SAVE_RESUME),
        ({Axis.STEPS: 3}, Level.LEARNING_SIGNAL),
        ({Axis.FSDP: True, Axis.PIPELINE: 2}, Level.FEATURE),
    ),
)
def test_a_level_that_cannot_have_the_settings_is_refused(axes: dict[Axis, Value], level: Level) -> None:
    with pytest.raises(ValueError, match=r"^odd: "):
        variant_of(JobPoint.default().with_axes(axes), level, "odd")


def test_a_value_that_no_job_has_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="recompute is one of none, full, selective, not 'some'"):
        JobPoint.default().with_axes({Axis.RECOMPUTE: "some"})


def values_of(axis: Axis) -> st.SearchStrategy[Any]:
    if axis.is_size:
        return st.integers(1, 4)
    if axis.row.choices:
        return st.sampled_from(axis.row.choices)
    if isinstance(axis.default, bool):
        return st.booleans()
    if axis is Axis.ADAPTER_TARGETS:
        return st.sampled_from(("linear_qkv", "linear_q", "linear_proj"))
    return st.sampled_from((4, 16))


AXES = st.fixed_dictionaries({}, optional={axis: values_of(axis) for axis in Axis})


@pytest.mark.parametrize(
    ("hidden", "hiding", "word"),
    (
        ({Axis.ADAPTER_B_START: "xavier"}, {Axis.ADAPTER_MERGE: True}, "its own export is not entered"),
        ({Axis.ADAPTER: "dora"}, {Axis.EXPERT: 2}, "its own export is not entered"),
        ({Axis.OVERLAP: True}, {Axis.RESUME: True}, "one seed for all samples"),
        ({Axis.DATA: 2}, {Axis.RESUME: True}, "one seed for all samples"),
        ({Axis.EXPERT_TENSOR: 2}, {Axis.TENSOR: 2}, "could be swapped unseen"),
    ),
)
def test_wants_of_which_one_hides_the_other_are_not_joined_but_one_that_asks_for_both_is_met(
    hidden: dict[Axis, Value], hiding: dict[Axis, Value], word: str
) -> None:
    for first, second in ((hidden, hiding), (hiding, hidden)):
        found = conflict(joined(JobPoint.default(), first), second)
        assert word in found
    # Experts bring merged adapters: what they hide is wanted there by a want that asks for experts too.
    whole = joined(JobPoint.default(), {**hidden, **hiding})
    assert joined(whole, hiding) == whole


@settings(max_examples=400)
@given(first=AXES, second=AXES)
def test_the_order_of_wants_does_not_matter_and_a_job_has_all_that_it_took(
    first: dict[Axis, Value], second: dict[Axis, Value]
) -> None:
    def both(one: dict[Axis, Value], other: dict[Axis, Value]) -> JobPoint | str:
        point = JobPoint.default().joined(want(one))
        return point.joined(want(other)) if isinstance(point, JobPoint) else point

    made, reverse = both(first, second), both(second, first)
    if isinstance(made, str) or isinstance(reverse, str):
        assert isinstance(made, str) == isinstance(reverse, str)
        return
    assert made == reverse
    assert made.levels
    assert made.holds(want(first))
    assert made.holds(want(second))
    for level in made.levels:
        assert variant_of(made, level, "any").gpu_count == made.gpu_count


@pytest.mark.parametrize(
    ("axes", "wanted", "expected"),
    (
        ({}, {Axis.TENSOR: 1}, True),
        ({}, {Axis.TENSOR: 2}, False),
        ({Axis.TENSOR: 4}, {Axis.TENSOR: 2}, True),
        ({}, {Axis.FSDP: False, Axis.ADAPTER: "lora"}, True),
        ({}, {Axis.FSDP: True}, False),
    ),
)
def test_settings_give_what_is_wanted(axes: dict[Axis, Value], wanted: dict[Axis, Value], *, expected: bool) -> None:
    assert JobPoint.default().with_axes(axes).holds(want(wanted)) is expected


@pytest.mark.parametrize(
    ("axes", "model", "expected"),
    (
        ({}, None, Level.SMOKE),
        ({Axis.TENSOR: 2}, None, Level.PARALLELISM),
        ({Axis.DATA: 2}, None, Level.PARALLELISM),
        ({Axis.RESUME: True, Axis.EXPERT: 2}, None, Level.SAVE_RESUME),
        ({Axis.RESUME: False}, None, Level.SMOKE),
        ({Axis.FSDP: True, Axis.TENSOR: 2}, None, Level.MEGATRON_FSDP),
        ({Axis.STEPS: 2}, None, Level.SMOKE),
        ({Axis.STEPS: 20}, None, Level.LEARNING_SIGNAL),
        ({Axis.ADAPTER: "dora"}, None, Level.SMOKE),
        ({Axis.ADAPTER: "none"}, None, None),
        ({}, ModelWant("glm"), Level.FEATURE),
        ({}, MOE, Level.FEATURE),
        ({Axis.EXPERT: 2}, MOE, Level.PARALLELISM),
        ({}, ModelWant(fields={"tie_word_embeddings": False}), Level.SMOKE),
    ),
)
def test_the_level_of_a_job_that_is_there_for_its_settings(
    axes: dict[Axis, Value], model: ModelWant | None, expected: Level | None
) -> None:
    point = JobPoint.default().joined(want(axes, model))
    assert isinstance(point, JobPoint)
    assert point.own_level is expected


def test_a_job_of_parity_costs_its_unsharded_run_too_whatever_its_name() -> None:
    axes: dict[Axis, Value] = {Axis.CONTEXT: 2, Axis.PARITY: True}
    named = variant_named("2-dp2-parity")
    made = variant_of(JobPoint.default().with_axes(axes), Level.PARALLELISM, "mine")
    assert named is not None
    assert (made.steps, made.gpu_minutes) == (3, named.gpu_minutes)
    assert made.cost.reference_s > 0
