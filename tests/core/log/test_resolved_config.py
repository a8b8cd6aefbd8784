"""The printed configuration: cut, interleaved, hostile, and the real one."""

import math

import pytest

from tests.core.logs import lines, recorded
from verl_e2e.core.log.printed import lookup, lora_rank, read_dict
from verl_e2e.core.log.read_facts import MAX_CONFIGS
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
    "text",
    ["{'a': __import__('os').system('true')}", "{'a': (lambda: 1)()}", "{'a' 1}", "[1, 2]", "{" * 5000, "'x'"],
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
