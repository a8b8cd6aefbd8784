"""Tests of what a change always wants."""

import pytest

from verl_e2e.core.model.settings import Axis
from verl_e2e.core.plan.cell_settings import STANDING, leaves_by_itself, standing_wants

CONVERSION = "src/megatron/bridge/models/conversion/"
VL = "src/megatron/bridge/models/qwen_vl/utils.py"


@pytest.mark.parametrize(
    ("path", "symbol", "words", "rows"),
    [
        ("src/megatron/bridge/peft/lora.py", "LoRA.transform", (), ["adapters"]),
        (f"{CONVERSION}peft_bridge.py", "_gather", (), ["adapters"]),
        (f"{CONVERSION}auto_bridge.py", "AutoBridge.to_megatron_provider", (), []),
        (f"{CONVERSION}auto_bridge.py", "AutoBridge.export_hf_weights", (), ["untied"]),
        (f"{CONVERSION}auto_bridge.py", "AutoBridge.export_adapter_weights", (), ["adapters in conversion", "untied"]),
        (
            f"{CONVERSION}peft_bridge.py",
            "MegatronPeftBridge._collect_packed_expert_adapter_tensors",
            (),
            ["adapters", "adapters in conversion", "own export"],
        ),
        (f"{CONVERSION}param_mapping.py", "QKVMapping.hf_to_megatron", (), ["untied"]),
        ("src/megatron/bridge/models/gpt_provider.py", "GPTModelProvider.provide", (), []),
        (VL, "preprocess_packed_seqs", (), ["packed"]),
        (VL, "Model.forward", ("packed_seq_params",), ["packed"]),
        (VL, "Model.forward", ("packed",), []),
        ("src/megatron/bridge/training/a.py", "pack", ("packed_seq_params",), []),
    ],
)
def test_a_function_gets_what_its_place_always_wants(
    path: str, symbol: str, words: tuple[str, ...], rows: list[str]
) -> None:
    assert [row.name for row in standing_wants(path, symbol, words)] == rows
    assert leaves_by_itself(path, symbol) == ("own export" in rows)


def test_amplified_adapters_differ_from_those_of_the_default_run() -> None:
    (want,) = STANDING[0].wants
    assert want.axes[Axis.ADAPTER_B_START] != Axis.ADAPTER_B_START.default
    assert want.axes[Axis.ADAPTER_ALPHA] == 16
    assert Axis.ADAPTER_RANK.default == 4
