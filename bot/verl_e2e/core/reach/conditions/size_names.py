"""What code calls sizes, ranks, groups and stages, and which axis of a job each is."""

from collections.abc import Mapping
from types import MappingProxyType

from verl_e2e.core.model.wants import Axis

# Names of sizes, and of the groups whose size or rank code asks for.
SIZE_NAMES: Mapping[str, Axis] = MappingProxyType(
    {
        name: axis
        for axis, names in {
            Axis.TENSOR: "tp_size tp_world_size tensor_parallel_size tensor_model_parallel_size "
            "get_tensor_model_parallel_world_size",
            Axis.PIPELINE: "pp_size pipeline_model_parallel_size get_pipeline_model_parallel_world_size",
            Axis.CONTEXT: "cp_size context_parallel_size get_context_parallel_world_size",
            Axis.EXPERT: "ep_size expert_model_parallel_size get_expert_model_parallel_world_size",
            Axis.EXPERT_TENSOR: "etp_size expert_tp_size expert_tensor_parallel_size "
            "get_expert_tensor_parallel_world_size",
            Axis.DATA: "dp_size data_parallel_size get_data_parallel_world_size",
            Axis.VIRTUAL_PIPELINE: "vp_size vpp_size virtual_pipeline_model_parallel_size "
            "get_virtual_pipeline_model_parallel_world_size",
        }.items()
        for name in names.split()
    }
)
# Sizes of the group that a layer belongs to: that of an expert's layers is the expert tensor size.
LAYER_SIZES = frozenset({"tp_size", "tp_world_size"})
RANK_NAMES: Mapping[str, Axis] = MappingProxyType(
    {
        name: axis
        for axis, names in {
            Axis.TENSOR: "tp_rank get_tensor_model_parallel_rank",
            Axis.PIPELINE: "pp_rank get_pipeline_model_parallel_rank",
            Axis.CONTEXT: "cp_rank get_context_parallel_rank",
            Axis.EXPERT: "ep_rank get_expert_model_parallel_rank",
            Axis.EXPERT_TENSOR: "etp_rank get_expert_tensor_parallel_rank",
            Axis.DATA: "dp_rank get_data_parallel_rank",
            Axis.VIRTUAL_PIPELINE: "vp_stage vp_rank get_virtual_pipeline_model_parallel_rank",
        }.items()
        for name in names.split()
    }
)
GROUP_NAMES: Mapping[str, Axis] = MappingProxyType(
    {
        "tp": Axis.TENSOR,
        "tp_group": Axis.TENSOR,
        "tensor_parallel_group": Axis.TENSOR,
        "pp": Axis.PIPELINE,
        "pp_group": Axis.PIPELINE,
        "cp": Axis.CONTEXT,
        "cp_group": Axis.CONTEXT,
        "ep": Axis.EXPERT,
        "ep_group": Axis.EXPERT,
        "expt_tp": Axis.EXPERT_TENSOR,
        "expert_tp_group": Axis.EXPERT_TENSOR,
        "dp": Axis.DATA,
        "dp_group": Axis.DATA,
    }
)
# What a list of model chunks is called.
CHUNK_LISTS = frozenset(
    {"model", "models", "megatron_model", "megatron_models", "model_chunks", "unwrapped_model_list"}
)

# Whether a rank holds the first or the last pipeline stage.
FIRST_STAGE = frozenset({"pre_process", "is_first_pp_stage", "is_pp_first_stage", "is_pipeline_first_stage"})
LAST_STAGE = frozenset({"post_process", "is_last_pp_stage", "is_pp_last_stage", "is_pipeline_last_stage"})
