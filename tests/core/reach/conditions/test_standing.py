"""Tests of what a change always wants."""

import pytest

from verl_e2e.core.model.settings import DEFAULTS
from verl_e2e.core.model.wants import Axis
from verl_e2e.core.reach.conditions.standing import STANDING, standing_wants

CONVERSION = "src/megatron/bridge/models/conversion/"


@pytest.mark.parametrize(
    ("path", "symbol", "rows"),
    [
        ("src/megatron/bridge/peft/lora.py", "LoRA.transform", ["adapters"]),
        (f"{CONVERSION}peft_bridge.py", "_gather", ["adapter conversion"]),
        (f"{CONVERSION}auto_bridge.py", "AutoBridge.to_megatron_provider", []),
        (f"{CONVERSION}auto_bridge.py", "AutoBridge.export_hf_weights", ["untied", "second export"]),
        (
            f"{CONVERSION}auto_bridge.py",
            "AutoBridge.export_adapter_weights",
            ["adapters in conversion", "untied", "second export"],
        ),
        (
            f"{CONVERSION}peft_bridge.py",
            "MegatronPeftBridge._collect_packed_expert_adapter_tensors",
            ["adapter conversion", "adapters in conversion", "own export"],
        ),
        (f"{CONVERSION}param_mapping.py", "QKVMapping.hf_to_megatron", ["untied"]),
        ("src/megatron/bridge/models/gpt_provider.py", "GPTModelProvider.provide", []),
    ],
)
def test_a_function_gets_what_its_place_always_wants(path: str, symbol: str, rows: list[str]) -> None:
    assert [row.name for row in standing_wants(path, symbol)] == rows


def test_amplified_adapters_differ_from_those_of_the_default_run() -> None:
    axes = STANDING[0].settings.axes
    assert axes[Axis.ADAPTER_B_START] != DEFAULTS[Axis.ADAPTER_B_START]
    assert axes[Axis.ADAPTER_ALPHA] == 16
    assert DEFAULTS[Axis.ADAPTER_RANK] == 4
