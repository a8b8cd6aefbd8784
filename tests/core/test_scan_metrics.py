"""Metric lines: every form of a number that verl prints, and the compact mapping that holds them."""

import math

import pytest

from bot.core.metrics import MAX_KEYS, not_finite, pack, parse_number, parse_step


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
    assert parse_step(text) == (12, {"val-core/openai/gsm8k/acc/mean@1": 0.5, "actor/pg_loss": -1.5, "a:b": 2.0})


@pytest.mark.parametrize("text", ["global_step:1 - a:1", "step:x - a:1", "step:1", "a step:1 - a:1", "step:1 -a:1"])
def test_what_is_no_step(text: str) -> None:
    assert parse_step(text) is None


def test_the_number_of_names_is_bounded() -> None:
    parsed = parse_step("step:1 - " + " - ".join(f"k{i}:1" for i in range(MAX_KEYS + 50)))
    assert parsed is not None
    assert len(parsed[1]) == MAX_KEYS


def test_packed_values_are_a_mapping_that_shares_names() -> None:
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    first, second = pack({"a": 1.0, "b": 2.0}, shared), pack({"a": 3.0, "b": 4.0}, shared)
    assert dict(first) == {"a": 1.0, "b": 2.0}
    assert second["b"] == 4.0
    assert "c" not in second
    assert len(shared) == 1
    assert first == {"a": 1.0, "b": 2.0}
    assert "1.0" in repr(first)


def test_which_metrics_are_not_finite() -> None:
    assert not_finite({"a": math.nan, "b": 1.0, "c": math.inf}, ("a", "b", "c", "d")) == ("a", "c")
