"""The printed configuration: cut, interleaved, hostile, and the real one.

Metric lines: every form of a number that verl prints, and the compact mapping that holds them.
"""

import math

import pytest

from tests.core.logs import lines, recorded
from verl_e2e.core.consumer.consumer import MAX_KEYS, parse_number, read_dict
from verl_e2e.core.consumer.verl_log import read_step
from verl_e2e.core.log.fold import MAX_CONFIGS
from verl_e2e.core.log.printed import (
    lookup,
    lora_rank,
    not_finite,
    packed_metrics,
    pairs,
)
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.facts import ResolvedConfig

P = "(TaskRunner pid=5) "


def config(*texts: str) -> ResolvedConfig:
    return scan(lines(*texts)).configs[0]


def test_the_real_dump_of_a_run() -> None:
    (found,) = scan([recorded("level0-pass")]).configs
    assert found.values is not None
    assert lookup(found.values, "actor_rollout_ref.actor.megatron.vanilla_mbridge") is False
    assert lookup(found.values, "actor_rollout_ref.actor.optim.lr") == 1e-06
    assert lookup(found.values, "trainer.total_training_steps") == 1
    assert lookup(found.values, "actor_rollout_ref.actor.checkpoint.save_contents") == [
        "model",
        "hf_model",
        "optimizer",
        "extra",
    ]
    assert lora_rank(found) == 4


def test_a_dump_whose_tokens_were_cut_into_lines() -> None:
    (found,) = scan([recorded("level0-dataset-missing")]).configs
    assert found.values is not None
    assert lookup(found.values, "distillation.distillation_loss.clip_ratio_low") == 0.2


def test_other_streams_between_the_lines() -> None:
    found = config(
        P + "{'actor_rollout_ref': {'a': 1,",
        "driver speaks {",
        P + "/site/x.py:59: RuntimeWarning: something [",
        P + "  warnings.warn(",
        "(Other pid=6)                        'z': 9,",
        P + "                       'b': [1,",
        P + "                             2]}}",
    )
    assert found.values == {"actor_rollout_ref": {"a": 1, "b": [1, 2]}}


def test_names_that_are_no_literals() -> None:
    first = "{'a': torch.bfloat16, 'b': -inf, 'c': [np.float64(2.0)], "
    text = first + "'d': PosixPath('/x'), 'e': <Enum.A: 'x'>, 'f': \"it's\"}"
    assert read_dict(text) == {
        "a": "torch.bfloat16",
        "b": -math.inf,
        "c": [2.0],
        "d": "/x",
        "e": "<Enum.A: 'x'>",
        "f": "it's",
    }
    assert math.isnan(read_dict("{'a': nan}")["a"])


@pytest.mark.parametrize(
    "text", ["{'a': __import__('os').system('true')}", "{'a': (lambda: 1)()}", "{'a' 1}", "[1, 2]", "{" * 5000, "'x'"]
)
def test_hostile_or_broken_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the printed configuration"):
        read_dict(text)


def test_a_cut_dump_says_so() -> None:
    found = config(P + "{'actor_rollout_ref': {'a': 1,", P + "                       'b': 2,")
    assert found.values is None
    assert "cut" in found.problem


def test_a_dump_deeper_than_any_real_one_is_given_up() -> None:
    found = config(P + "{'actor_rollout_ref': " + "[" * 200)
    assert found.values is None
    assert "deeper" in found.problem


def test_a_dump_interrupted_by_another_program_is_given_up() -> None:
    found = config(P + "{'actor_rollout_ref': {'a': 1,", *(P + f"word {i} of a story" for i in range(300)))
    assert found.values is None


def test_only_the_first_few_dumps_are_read() -> None:
    dumps = [P + f"{{'actor_rollout_ref': {{'a': {number}}}}}" for number in range(MAX_CONFIGS + 3)]
    assert [found.line for found in scan(lines(*dumps)).configs] == [1, 2, 3, 4]


@pytest.mark.parametrize("values", [None, {}, {"a": {"b": 1}}, {"a": 1}])
def test_lookup_of_a_missing_key_gives_the_default(values: dict[str, object] | None) -> None:
    assert lookup(values, "a.c", "none") == "none"


def test_lora_rank_of_what_cannot_be_read() -> None:
    assert lora_rank(ResolvedConfig(1, None, "cut")) == 0
    assert lora_rank(ResolvedConfig(1, {"actor_rollout_ref": {"model": {"lora": {"rank": "four"}}}})) == 0


def test_brackets_that_close_around_no_dict() -> None:
    found = config(P + "{'actor_rollout_ref': {'a' 1}}")
    assert found.values is None
    assert "not a readable dict" in found.problem


def test_a_dump_whose_process_fell_silent_does_not_hold_the_scan_up() -> None:
    others = [f"(Other pid=6) line {number}" for number in range(2100)]
    facts = scan(lines(P + "{'actor_rollout_ref': {'a': 1,", *others, P + "    'b': 2}}"))
    assert [found.values for found in facts.configs] == [None]


@pytest.mark.parametrize(
    ("shown", "value"),
    [
        ("1.5", 1.5),
        ("-2e-05", -2e-05),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("np.float64(2.0)", 2.0),
        ("np.int64(2)", 2.0),
        ("numpy.float32(0.5)", 0.5),
        ("tensor(0.25)", 0.25),
        ("tensor(0.25, device='cuda:0')", 0.25),
    ],
)
def test_numbers(shown: str, value: float) -> None:
    assert parse_number(shown) == value


@pytest.mark.parametrize("shown", ["", "x", "np.float64()", "np.float64(x)", "__import__('os')", "[1]"])
def test_what_is_no_number(shown: str) -> None:
    assert parse_number(shown) is None


def test_nan_is_a_number() -> None:
    value = parse_number("np.float64(nan)")
    assert value is not None
    assert math.isnan(value)


def test_a_step_with_slashes_dashes_and_minus_signs() -> None:
    text = "step:12 - val-core/openai/gsm8k/acc/mean@1:np.float64(0.5) - actor/pg_loss:-1.5 - a:b:2 - broken - x:y"
    assert read_step(text) == (12, {"val-core/openai/gsm8k/acc/mean@1": 0.5, "actor/pg_loss": -1.5, "a:b": 2.0})


@pytest.mark.parametrize("text", ["global_step:1 - a:1", "step:x - a:1", "step:1", "a step:1 - a:1", "step:1 -a:1"])
def test_what_is_no_step(text: str) -> None:
    assert read_step(text) is None


def test_the_number_of_names_is_bounded() -> None:
    parsed = read_step("step:1 - " + " - ".join(f"k{i}:1" for i in range(MAX_KEYS + 50)))
    assert parsed is not None
    assert len(parsed[1]) == MAX_KEYS


def test_packed_values_are_a_mapping_that_shares_names() -> None:
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    first, second = packed_metrics({"a": 1.0, "b": 2.0}, shared), packed_metrics({"a": 3.0, "b": 4.0}, shared)
    assert dict(first) == {"a": 1.0, "b": 2.0}
    assert second["b"] == 4.0
    assert "c" not in second
    assert len(shared) == 1
    assert first == {"a": 1.0, "b": 2.0}
    assert "1.0" in repr(first)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "actor/pg_loss",
            "actor/mtp_loss",
            "critic/vf_loss",
            "train/loss",
            "val/loss",
            "critic/grad_norm",
            "actor/lr",
        ),
        *(
            "critic/score/mean",
            "critic/rewards/min",
            "critic/advantages/max",
            "critic/returns/mean",
            "critic/values/max",
        ),
        *("critic/vpred_mean", "actor/entropy", "actor/ppo_kl", "actor/kl_loss", "actor/reward_kl_penalty"),
        *("rollout_corr/k3_kl", "rollout_corr/log_ppl_diff", "rollout_corr/rollout_is_max", "rollout_corr/ppl_ratio"),
        *(
            "critic/values/max",
            "training/rollout_probs_diff_mean",
            "val-core/openai/gsm8k/reward/mean@4",
            "actor/pg_clipfrac",
        ),
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_must_be_a_number(name: str, value: float) -> None:
    assert not_finite({"a": math.nan, name: value, "perf/x": math.inf}) == (name,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("critic/vf_explained_var", math.nan),
        ("critic/vf_explained_var", -math.inf),
        ("perf/mfu/actor", math.nan),
        ("actor/perf/max_memory_allocated_gb", math.nan),
        ("timing_s/reward", math.nan),
        ("timing_per_token_ms/values", math.inf),
        ("response_length_non_aborted/clip_ratio", math.nan),
        ("training/rollout_probs_diff_std", math.nan),
        ("val-aux/x/reward/std@1", math.nan),
        ("val-aux/x/other/mean@1", math.nan),
        ("rollout_corr/rollout_ppl", math.inf),
        ("training/global_step", math.inf),
    ],
)
def test_what_need_not_be_one(name: str, value: float) -> None:
    assert not_finite({name: value}) == ()
    assert not_finite({name: value, "actor/loss": math.nan}) == ("actor/loss",)


def test_a_perplexity_may_overflow_and_is_never_nan() -> None:
    values = {"rollout_corr/training_ppl": math.nan, "rollout_corr/rollout_log_ppl": math.inf}
    assert not_finite(values) == tuple(values)


@pytest.mark.parametrize("shown", ["tensor(nan, device='cuda:0')", "tensor([nan])", "array(nan, dtype=float32)", "NaN"])
def test_a_nan_in_any_spelling_is_read_from_a_step(shown: str) -> None:
    parsed = read_step(f"step:3 - a:b:1 - actor/loss:{shown} - rest(x):2")
    assert parsed is not None
    assert not_finite(parsed[1]) == ("actor/loss",)
    assert parsed[1]["rest(x)"] == 2.0
    assert parsed[1]["a:b"] == 1.0


def test_an_array_of_several_elements_is_no_number() -> None:
    assert parse_number("tensor([1., 2.])") is None


def test_packed_values_give_their_pairs() -> None:
    values = {"actor/loss": 1.0, "perf/x": 2.0}
    assert dict(pairs(packed_metrics(values, {}))) == dict(pairs(values)) == values
