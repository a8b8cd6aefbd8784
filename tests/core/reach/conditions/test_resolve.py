"""Tests of the table: which settings fulfil a condition."""

import ast
from collections.abc import Mapping

import pytest

from verl_e2e.core.model.wants import Axis, Value
from verl_e2e.core.reach.conditions.formula import Literal, all_of, as_healthy, formula
from verl_e2e.core.reach.conditions.resolve import Resolved, as_expert_sizes, resolve
from verl_e2e.core.reach.conditions.settings import ANY_RUN, Settings, all_joined, joined
from verl_e2e.core.reach.conditions.table import AMPLIFIED, ROWS

PEFT = "src/megatron/bridge/peft/lora.py"
LORA = "actor_rollout_ref.model.lora"


def _resolved(test: str, path: str = PEFT, names: Mapping[str, str] | None = None) -> Resolved:
    values = {name: ast.parse(value, mode="eval").body for name, value in (names or {}).items()}
    return resolve(formula(ast.parse(test, mode="eval").body, values), path)


@pytest.mark.parametrize(
    ("test", "axes", "limits"),
    [
        ("tp_size > 1", {Axis.TENSOR: 2}, {}),
        ("self.tp_size >= 2", {Axis.TENSOR: 2}, {}),
        ("1 < config.tensor_model_parallel_size", {Axis.TENSOR: 2}, {}),
        ("parallel_state.get_tensor_model_parallel_world_size() != 1", {Axis.TENSOR: 2}, {}),
        ("tp_size == 1", {}, {Axis.TENSOR: 1}),
        ("not tp_size > 1", {}, {Axis.TENSOR: 1}),
        ("getattr(config, 'pipeline_model_parallel_size', 1) > 2", {Axis.PIPELINE: 4}, {}),
        ("cp_group.size() > 1", {Axis.CONTEXT: 2}, {}),
        ("get_pg_size(self.pg_collection.cp) > 1", {Axis.CONTEXT: 2}, {}),
        ("_process_group_size(self.tp_group, self.config.tensor_model_parallel_size or 1) > 1", {Axis.TENSOR: 2}, {}),
        ("dist.get_rank() == 0", {}, {}),
        ("packed_seq_params.qkv_format == 'thd'", {Axis.PACKING: True}, {}),
        ("packed_seq_params.qkv_format != 'thd'", {Axis.PACKING: False}, {}),
        ("megatron_module is None", {Axis.PIPELINE: 2}, {}),
        ("task.megatron_module is not None", {}, {}),
        ("input_ids is not None and inference_context is None and HAVE_TE", {}, {}),
        ("vision_grid_thw is not None", {Axis.CONTENT: "images"}, {}),
        ("is_checkpointing()", {Axis.RECOMPUTE: "full"}, {}),
        ("torch.distributed.get_world_size(group=tp_group) > 1", {Axis.TENSOR: 2}, {}),
        ("config.get('dp_size') > 1", {Axis.DATA: 2}, {}),
        ("sizes['tp_size'] > 1", {Axis.TENSOR: 2}, {}),
        ("tp_rank == 0", {}, {}),
        ("tp_rank != 0", {Axis.TENSOR: 2}, {}),
        ("dp_rank == 3", {Axis.DATA: 4}, {}),
        ("config.virtual_pipeline_model_parallel_size is not None", {Axis.VIRTUAL_PIPELINE: 2}, {}),
        ("config.virtual_pipeline_model_parallel_size is None", {}, {Axis.VIRTUAL_PIPELINE: 1}),
        ("vp_stage is None", {}, {Axis.VIRTUAL_PIPELINE: 1}),
        ("vp_stage is not None", {Axis.VIRTUAL_PIPELINE: 2}, {}),
        ("vp_stage > 0", {Axis.VIRTUAL_PIPELINE: 2}, {}),
        ("len(model) > 1", {Axis.VIRTUAL_PIPELINE: 2}, {}),
        ("len(megatron_model) == 1", {}, {Axis.VIRTUAL_PIPELINE: 1}),
        ("self.pre_process", {}, {}),
        ("not self.pre_process", {Axis.PIPELINE: 2}, {}),
        ("not self.post_process and self.pre_process", {Axis.PIPELINE: 2}, {}),
        ("not (pre_process or post_process)", {Axis.PIPELINE: 4}, {}),
        ("isinstance(x, DTensor)", {Axis.FSDP: True}, {}),
        ("not isinstance(x, DTensor)", {Axis.FSDP: False}, {}),
        ("isinstance(x, (torch.Tensor, DTensor))", {Axis.FSDP: True}, {}),
        ("config.recompute_granularity == 'full'", {Axis.RECOMPUTE: "full"}, {}),
        ("config.recompute_granularity is not None", {Axis.RECOMPUTE: "full"}, {}),
        ("config.recompute_granularity is None", {Axis.RECOMPUTE: "none"}, {}),
        ("config.recompute_granularity in ('selective',)", {Axis.RECOMPUTE: "selective"}, {}),
        ("config.sequence_parallel", {Axis.TENSOR: 2}, {}),
        ("not self.disable_sequence_parallel_comm and self.input_is_parallel", {Axis.TENSOR: 2}, {}),
        ("self.disable_sequence_parallel_comm", {}, {Axis.TENSOR: 1}),
        ("row_init_method == 'normal'", {Axis.ADAPTER_B_START: "normal"}, {}),
        ("column_init_method != 'xavier'", {Axis.ADAPTER_A_START: "normal"}, {}),
        ("not config.sequence_parallel", {}, {Axis.TENSOR: 1}),
        ("self.dropout > 0", {Axis.ADAPTER_DROPOUT: 0.1}, {}),
        ("_process_group_size(self.cp_group) > 1", {Axis.CONTEXT: 2}, {}),
        ("torch.distributed.is_initialized()", {}, {}),
        ("'_extra_state' not in name", {}, {}),
        ("not name.endswith('.bias')", {}, {}),
        ("config.fp16 or config.bf16", {Axis.PRECISION: "bf16"}, {}),
        ("merge_adapter_weights", {Axis.ADAPTER_MERGE: True, **AMPLIFIED}, {}),
        ("packed_seq_params is not None", {Axis.PACKING: True}, {}),
        ("pixel_values is not None", {Axis.CONTENT: "images"}, {}),
        ("'.adapter.' in name", {Axis.ADAPTER: "lora"}, {}),
        ("'.adapter.' not in name", {}, {}),
        ("not full_name.endswith('linear_fc2')", {}, {}),
        ("full_name.endswith('linear_fc2')", {}, {}),
        ("side == 'x' or tp_size > 1", {Axis.TENSOR: 2}, {}),
        # Of two sizes that differ the one is larger that every model can have.
        ("expert_tp_size != tensor_parallel_size", {Axis.TENSOR: 2}, {Axis.EXPERT_TENSOR: 1}),
        ("tp_size > etp_size", {Axis.TENSOR: 2}, {Axis.EXPERT_TENSOR: 1}),
        ("etp_size > tp_size", {Axis.EXPERT_TENSOR: 2}, {Axis.TENSOR: 1}),
        ("tp_size == cp_size", {}, {Axis.TENSOR: 1, Axis.CONTEXT: 1}),
        ("get_pg_size(self.cp_group) < pp_size", {Axis.PIPELINE: 2}, {Axis.CONTEXT: 1}),
    ],
)
def test_a_test_becomes_settings(test: str, axes: dict[Axis, Value], limits: dict[Axis, int]) -> None:
    found = _resolved(test)
    assert (found.settings.axes, found.settings.limits, found.open) == (axes, limits, ())


@pytest.mark.parametrize(
    ("test", "model"),
    [
        ("self.is_expert", Settings(features=frozenset({"moe"}))),
        ("config.num_moe_experts is not None", Settings(features=frozenset({"moe"}))),
        ("config.num_moe_experts is None", Settings(absent=frozenset({"moe"}))),
        ("not self.is_mla_provider", Settings(absent=frozenset({"mla"}))),
        ("not self.is_expert", ANY_RUN),
        ("config.num_moe_experts > 1", Settings(features=frozenset({"moe"}))),
        ("'mlp.experts' in name", Settings(features=frozenset({"moe"}))),
        ("name == 'router.weight'", Settings(features=frozenset({"moe"}))),
        ("hf_config.tie_word_embeddings", Settings(fields={"tie_word_embeddings": True})),
        ("not model.share_embeddings_and_output_weights", Settings(fields={"tie_word_embeddings": False})),
        ("hf_config.q_lora_rank is None", Settings(fields={"q_lora_rank": None})),
        ("hf_config.q_lora_rank", Settings(fields={"q_lora_rank": 32}, features=frozenset({"mla"}))),
        ("rope_scaling['rope_type'] == 'yarn'", Settings(fields={"rope_scaling.rope_type": "yarn"})),
        ("config.mtp_num_layers", Settings(features=frozenset({"mtp"}))),
        ("self.dropout_position == 'post'", Settings({Axis.ADAPTER: "lora"}, {}, {f"{LORA}.dropout_position": "post"})),
        ("ep_size > 1", Settings({Axis.EXPERT: 2}, features=frozenset({"moe"}))),
        ("ep_rank > 0", Settings({Axis.EXPERT: 2}, features=frozenset({"moe"}))),
    ],
)
def test_a_test_becomes_a_model_or_an_option(test: str, model: Settings) -> None:
    found = _resolved(test)
    assert found.open == ()
    assert (found.settings.fields, found.settings.features) == (model.fields, model.features)
    assert found.settings.absent == model.absent
    assert (found.settings.axes, found.settings.overrides) == (model.axes, model.overrides)


@pytest.mark.parametrize(
    "test",
    [
        "x is None",
        "tensor.size(0) > 1",
        "x.ndim == 2",
        "tp_size > 100",
        "tp_rank > 9",
        "config.fp8",
        "config.bf16 == other",
        "rope_type == kinds[0]",
        "rope_type in (None,)",
        "recompute_method == 'block'",
        "isinstance(x, Unknown)",
        "isinstance(x, a + b)",
        "'.weight' in name",
        "'.bias' in name",
        "not name.endswith('.weight')",
        "not torch.distributed.is_initialized()",
        "dist.get_rank() != 0",
        "not self._adapter_enabled",
        "'experts' in cache",
        "tp_size > 'a'",
        "f()() == 1",
        "'a' < name",
        "not (a + b)",
        "1 < a + b",
        "x != tp_size",
    ],
)
def test_what_the_table_does_not_know_stays_open(test: str) -> None:
    found = _resolved(test)
    assert (found.settings, len(found.open)) == (ANY_RUN, 1)


def test_a_row_counts_only_in_its_files() -> None:
    assert _resolved("self.dropout > 0", "src/megatron/bridge/models/x.py").open == ("self.dropout > 0",)


def test_conversion_counts_model_chunks_from_zero() -> None:
    conversion = "src/megatron/bridge/models/conversion/model_bridge.py"
    assert _resolved("task.vp_stage >= 0", conversion).settings == Settings(rules=("virtual pipeline rank",))
    assert _resolved("task.vp_stage > 0", conversion).settings.axes == {Axis.VIRTUAL_PIPELINE: 2}
    assert _resolved("task.vp_stage is None", conversion).open == ("task.vp_stage is None",)


def test_a_router_gets_adapters_only_where_it_is_named() -> None:
    targets = _resolved("isinstance(m, TopKRouter)").settings.axes[Axis.ADAPTER_TARGETS]
    assert str(targets).endswith(",router")


def test_a_local_name_is_looked_through() -> None:
    names = {"many": "tp_size > 1", "size": "get_tensor_model_parallel_world_size()", "loop": "loop"}
    assert _resolved("many", names=names).settings.axes == {Axis.TENSOR: 2}
    assert _resolved("not many", names=names).settings.limits == {Axis.TENSOR: 1}
    assert _resolved("size > 1", names=names).settings.axes == {Axis.TENSOR: 2}
    assert _resolved("loop", names=names).open == ("loop",)
    assert _resolved("f() > 1", names=names).open == ("f() > 1",)


def test_parts_that_no_run_has_together_leave_the_second_open() -> None:
    assert _resolved("tp_size > 1 and self.tp_size == 1").open == ("self.tp_size == 1",)
    assert _resolved("(tp_size > 1 and tp_size == 1) or x").open == ("(tp_size > 1 and tp_size == 1) or x",)


def test_a_part_that_every_healthy_run_passes_is_not_open() -> None:
    unknown = as_healthy(formula(ast.parse("x or y", mode="eval").body, {}))
    assert resolve(all_of((unknown, Literal("except E"))), PEFT).open == ("except E",)
    assert resolve(formula(ast.parse("False", mode="eval").body, {}), PEFT).open == ("False",)


def test_the_way_with_the_fewest_settings_is_taken() -> None:
    assert _resolved("tp_size > 1 or (pp_size > 1 and cp_size > 1)").settings.axes == {Axis.TENSOR: 2}


def test_settings_are_joined_by_their_maximum_or_not_at_all() -> None:
    first, second = Settings({Axis.TENSOR: 2}), Settings({Axis.TENSOR: 4, Axis.FSDP: True})
    assert joined(first, second) == second
    assert joined(first, Settings(limits={Axis.TENSOR: 1})) is None
    assert joined(Settings({Axis.FSDP: False}), second) is None
    assert joined(Settings(fields={"a": 1}), Settings(fields={"a": 2})) is None
    assert joined(Settings(overrides={"a": 1}), Settings(overrides={"a": 2})) is None
    assert joined(Settings(family="a"), Settings(family="b")) is None
    assert joined(Settings(family="a"), ANY_RUN) == Settings(family="a")
    with_mla, without = Settings(features=frozenset({"mla"})), Settings(absent=frozenset({"mla"}))
    assert joined(with_mla, without) is None
    assert joined(without, first) == Settings({Axis.TENSOR: 2}, absent=frozenset({"mla"}))
    assert (without.count, with_mla.count) == (0, 1)
    assert all_joined((first, second)) == second
    assert all_joined((first, Settings(limits={Axis.TENSOR: 1}), second)) is None
    assert Settings(family="a", axes={Axis.FSDP: True}).count == 2


def test_adapters_of_the_default_type_give_way_to_those_of_another() -> None:
    lora, dora, without = (Settings({Axis.ADAPTER: name}) for name in ("lora", "dora", "none"))
    assert joined(lora, dora) == joined(dora, lora) == dora
    assert joined(lora, without) is None
    assert joined(dora, Settings({Axis.ADAPTER: "canonical_lora"})) is None


@pytest.mark.parametrize(
    ("test", "axes", "limits"),
    [
        ("self.is_expert and self.tp_size > 1", {Axis.EXPERT_TENSOR: 2}, {}),
        ("self.is_expert and self.tp_size == 1", {}, {Axis.EXPERT_TENSOR: 1}),
        ("not self.is_expert and self.tp_size > 1", {Axis.TENSOR: 2}, {}),
        ("self.is_expert and config.tensor_model_parallel_size > 1", {Axis.TENSOR: 2}, {}),
        ("self.is_expert and self.ep_size > 1", {Axis.EXPERT: 2}, {}),
    ],
)
def test_the_tensor_size_of_an_expert_s_layer_is_its_own(
    test: str, axes: dict[Axis, Value], limits: dict[Axis, int]
) -> None:
    found = as_expert_sizes(_resolved(test).settings)
    assert (found.axes, found.limits) == (axes, limits)


def test_each_name_belongs_to_one_row() -> None:
    names = [name for row in ROWS for name in row.names]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("value", "test", "axes", "unknown"),
    [
        ("tp_size > 1 and self.odd", "flag", {Axis.TENSOR: 2}, ("self.odd",)),
        ("not (tp_size == 1 or self.odd)", "flag", {Axis.TENSOR: 2}, ("not self.odd",)),
        ("inner and cp_size > 1", "flag", {Axis.TENSOR: 2, Axis.CONTEXT: 2}, ("self.odd",)),
        # Nothing is known of it, or not of what is needed.
        ("self.odd and self.even", "flag", {}, ("flag",)),
        ("self.odd and self.even", "not flag", {}, ("not flag",)),
        ("tp_size > 1 and tp_size == 1 and self.odd", "flag", {Axis.TENSOR: 2}, ("tp_size == 1", "self.odd")),
        ("get() if tp_size > 1 else None", "flag is not None", {Axis.TENSOR: 2}, ("get() is not None",)),
        ("None if tp_size > 1 else get()", "flag is None", {Axis.TENSOR: 2}, ()),
        ("2 if tp_size > 1 else 1", "flag > 1", {Axis.TENSOR: 2}, ()),
        ("2 if tp_size > 1 else 1", "flag > 2", {}, ("flag > 2",)),
    ],
)
def test_of_a_name_for_several_tests_counts_what_is_known(
    value: str, test: str, axes: dict[Axis, Value], unknown: tuple[str, ...]
) -> None:
    found = _resolved(test, names={"flag": value, "inner": "tp_size > 1 and self.odd"})
    assert (found.settings.axes, found.open) == (axes, unknown)
