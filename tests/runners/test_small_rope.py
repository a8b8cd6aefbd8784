"""The settings of rope that a synthetic model gets where a condition asks for a type alone."""

from typing import Any

import pytest

from tests.runners.test_synthetic_models import script

ROPE = script("small_config")
THETA = {"rope_theta": 500000.0}
SIZES = {"hidden_size": 512, "num_attention_heads": 8, "max_position_embeddings": 4096}
OWN: dict[str, Any] = {**SIZES, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
# What transformers 5.12.1 demands of each type.
DEMANDED = {
    "linear": {"factor"},
    "dynamic": {"factor"},
    "yarn": {"factor", "original_max_position_embeddings"},
    "longrope": {"short_factor", "long_factor", "original_max_position_embeddings"},
    "llama3": {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
    "proportional": {"partial_rotary_factor"},
}


def whole(kind: str, own: dict[str, Any] = OWN, **more: Any) -> dict[str, Any]:
    """The configuration of a family in which a condition asks for a type, and for `more` of its settings."""
    asked = {**own, "rope_parameters": {**own["rope_parameters"], **THETA, "rope_type": kind, **more}}
    made: dict[str, Any] = ROPE.with_whole_rope(asked, own)
    return made


@pytest.mark.parametrize("kind", sorted(DEMANDED))
def test_a_type_gets_what_transformers_demands_of_it(kind: str) -> None:
    made = whole(kind)["rope_parameters"]
    assert made.keys() >= DEMANDED[kind] | {"rope_theta", "rope_type"}
    assert (made["rope_type"], made["rope_theta"]) == (kind, 500000.0)


@pytest.mark.parametrize("kind", ["yarn", "longrope", "llama3"])
def test_the_length_before_scaling_and_the_factor_give_the_length_after_it(kind: str) -> None:
    made = whole(kind)
    settings = made["rope_parameters"]
    assert made["max_position_embeddings"] == settings["factor"] * settings["original_max_position_embeddings"]


@pytest.mark.parametrize("kind", ["yarn", "longrope"])
def test_the_positions_of_a_run_lie_beyond_the_length_before_scaling(kind: str) -> None:
    assert whole(kind)["rope_parameters"]["original_max_position_embeddings"] < 320


def test_what_the_condition_states_wins() -> None:
    made = whole("yarn", factor=4.0)
    assert (made["rope_parameters"]["factor"], made["max_position_embeddings"]) == (4.0, 512)


def test_a_factor_for_each_pair_that_rope_turns() -> None:
    assert len(whole("longrope")["rope_parameters"]["long_factor"]) == 32
    assert len(whole("longrope", partial_rotary_factor=0.5)["rope_parameters"]["short_factor"]) == 16
    latent = {**OWN, "kv_lora_rank": 512, "qk_rope_head_dim": 48, "head_dim": 128}
    assert len(whole("longrope", latent)["rope_parameters"]["long_factor"]) == 24
    assert len(whole("longrope", {**OWN, "head_dim": 128})["rope_parameters"]["long_factor"]) == 64


def test_latent_attention_gets_the_scale_of_its_scores() -> None:
    assert whole("yarn", {**OWN, "kv_lora_rank": 512})["rope_parameters"]["mscale_all_dim"] == 0.707
    assert "mscale_all_dim" not in whole("yarn")["rope_parameters"]


def test_settings_of_the_familys_own_type_go_with_it() -> None:
    yarn = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "truncate": False, "partial_rotary_factor": 0.5}
    own = {**SIZES, "rope_parameters": {**yarn, "rope_theta": 150000.0}}
    assert whole("default", own)["rope_parameters"] == {**THETA, "rope_type": "default", "partial_rotary_factor": 0.5}
    assert whole("linear", own)["rope_parameters"]["factor"] == 4.0
    assert whole("yarn", own)["rope_parameters"] == {**yarn, **THETA}
    assert whole("another", own)["rope_parameters"] == {**yarn, **THETA, "rope_type": "another"}


def test_the_older_key_of_the_type_counts_like_the_newer_one() -> None:
    made = ROPE.with_whole_rope({"rope_parameters": {**OWN["rope_parameters"], "type": "linear"}}, OWN)
    assert made["rope_parameters"] == {"rope_theta": 10000.0, "type": "linear", "rope_type": "linear", "factor": 4.0}


def test_settings_by_kind_of_layer_are_completed_where_they_are_asked_for() -> None:
    near, far = {"rope_type": "default", "rope_theta": 1.0}, {"rope_type": "default", "rope_theta": 2.0}
    own = {**SIZES, "rope_parameters": {"sliding_attention": near, "full_attention": far}}
    asked = {"rope_parameters": {"sliding_attention": near, "full_attention": {**far, "rope_type": "yarn"}}}
    made = ROPE.with_whole_rope({"text_config": asked}, {"text_config": own})["text_config"]
    assert made["rope_parameters"]["sliding_attention"] == near
    assert made["rope_parameters"]["full_attention"]["factor"] == 32.0
    assert made["max_position_embeddings"] == 4096


def test_a_model_without_settings_of_rope_stays_as_it_is() -> None:
    assert ROPE.with_whole_rope({"hidden_size": 8}, {"hidden_size": 16}) == {"hidden_size": 8}


@pytest.mark.parametrize(
    ("name", "own", "newer"),
    (
        ("rope_scaling.rope_type", OWN, "rope_parameters.rope_type"),
        ("rope_parameters.factor", OWN, "rope_parameters.factor"),
        ("rope_theta", OWN, "rope_parameters.rope_theta"),
        ("rope_theta", {**OWN, "rope_theta": 1.0}, "rope_theta"),
        ("rope_scaling", OWN, "rope_scaling"),
        ("head_dim", OWN, "head_dim"),
        ("head_dim", {}, "head_dim"),
        ("rope_scaling.factor", {"text_config": OWN}, "rope_parameters.factor"),
        ("text_config.rope_scaling.factor", {"text_config": OWN}, "text_config.rope_parameters.factor"),
        ("rope_scaling.factor", {"rope_parameters": {"full_attention": {}}}, "rope_parameters.full_attention.factor"),
        (
            "rope_parameters.compress.factor",
            {"rope_parameters": {"main": {}, "compress": {}}},
            "rope_parameters.compress.factor",
        ),
    ),
)
def test_settings_are_written_where_the_configuration_has_them(name: str, own: Any, newer: str) -> None:
    assert ROPE.with_newer_names({name: 1}, own) == {newer: 1}


def test_a_family_without_rope_says_so() -> None:
    with pytest.raises(ValueError, match=r"no settings of rope, and rope_scaling\.rope_type is asked for"):
        ROPE.with_newer_names({"rope_scaling.rope_type": "yarn"}, {"hidden_size": 8})
