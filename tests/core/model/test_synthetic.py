"""The document of a synthetic model: what it may name, and what a card says of it."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.synthetic import ModelSizes, SizeName, Synthetic
from verl_e2e.core.plan.build import sizes_for

BASE: dict[str, Any] = {"family": "qwen3_moe", "model_type": "qwen3_moe", "architecture": "Qwen3MoeForCausalLM"}


@pytest.mark.parametrize(
    "more",
    (
        {"model_type": "../models"},
        {"architecture": "os.system"},
        {"fields": {"a..b": 1}},
        {"fields": {"__class__ ": 1}},
        {"tokens": {"image_token_id": ""}},
        {"seed": -1},
        {"sized_fields": {"expert_hidden_dim": "width"}},
        {"least_layers": 0},
        {"overrides": ("trainer.total_training_steps=1",)},
        {"overrides": ("+actor_rollout_ref.rollout.engine_kwargs.vllm.hf_overrides.model_type=a b",)},
        {"overrides": ("++actor_rollout_ref.actor.megatron.override_transformer_config.a=1 b",)},
        {"overrides": ("++actor_rollout_ref.actor.megatron.override_ddp_config.a=1",)},
        {"published": {"architecture": "A", "written": [{"names": ["a/b"], "shape": [1]}]}},
        {"published": {"architecture": "A", "written": [{"names": ["a.*"], "shape": [1]}]}},
        {"published": {"architecture": "A", "written": [{"names": ["a"], "shape": ["hidden+1"]}]}},
        {"published": {"architecture": "A", "written": [{"names": ["a"], "shape": [0]}]}},
        {"published": {"architecture": "A", "outer": {"architecture": "A", "model_type": "../b"}}},
        {"unknown": 1},
    ),
)
def test_a_recipe_names_a_class_and_fields_and_nothing_else(more: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Synthetic.model_validate({**BASE, **more})


def test_a_recipe_may_say_what_bridge_should_have_set_of_megatron() -> None:
    asked = "++actor_rollout_ref.ref.megatron.override_transformer_config.attention_output_gate=True"
    assert Synthetic.model_validate({**BASE, "overrides": [asked]}).overrides == (asked,)


def test_a_recipe_may_name_each_size_of_a_model() -> None:
    assert set(get_args(SizeName)) == set(ModelSizes.model_fields) - {"schema_version"}


@pytest.mark.parametrize(
    ("more", "what"),
    (
        ({}, "synthetic qwen3_moe: random weights"),
        ({"sizes": sizes_for({})}, "synthetic qwen3_moe: 4 layers, random weights"),
        ({"sizes": sizes_for({}), "experts": True}, "synthetic qwen3_moe: 4 layers, 8 experts, random weights"),
    ),
)
def test_a_card_says_what_the_model_is(more: dict[str, Any], what: str) -> None:
    assert Synthetic.model_validate({**BASE, **more}).what == what


@pytest.mark.parametrize("other", ({"model_path": "/models/one"}, {"dummy_config": "one.json"}))
def test_a_synthetic_model_has_no_other_source(other: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="neither a model_path nor a dummy_config"):
        Checkpoint.model_validate({"model_id": "synthetic/a", "synthetic": BASE, **other})


@pytest.mark.parametrize(
    ("given", "is_random"),
    (
        ({}, False),
        ({"random_weights": True}, True),
        ({"dummy_config": "one.json"}, True),
        ({"synthetic": BASE}, True),
    ),
)
def test_weights_are_random_wherever_they_come_from(given: dict[str, Any], *, is_random: bool) -> None:
    assert Checkpoint.model_validate({"model_id": "a/b", **given}).is_random is is_random
