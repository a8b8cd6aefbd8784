"""What two fingerprints say of each other, by figures made from real values."""

import math
import struct
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.fingerprints import tensor, weights
from verl_e2e.core.compare.steps import (
    TensorDifference,
    adds_up,
    converts,
    count,
    difference,
    difference_but_rounding,
    is_constant,
    rounding,
    same,
)
from verl_e2e.core.model.fingerprints import Tensor

VALUES = st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=40)
WHOLE = weights(24)


def kind(expected: list[float], found: list[float], **given: object) -> TensorDifference | None:
    made = difference(tensor("w", expected), tensor("w", found), **given)  # type: ignore[arg-type]
    return made.kind if made else None


def test_equal_values_are_no_difference() -> None:
    assert difference(tensor("w", WHOLE), tensor("w", WHOLE)) is None
    assert same(tensor("w", WHOLE), tensor("other name", WHOLE))


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=40, unique=True))
def test_another_order_of_the_same_values_is_told_as_one(values: list[float]) -> None:
    assert kind(values, values[::-1]) is TensorDifference.ORDER


def test_a_transposition_is_an_order() -> None:
    rows = [list(WHOLE[start : start + 6]) for start in range(0, 24, 6)]
    turned = [row[column] for column in range(6) for row in rows]
    found = difference(tensor("w", WHOLE, (4, 6)), tensor("w", turned, (6, 4)))
    assert found is not None
    assert found.kind is TensorDifference.ORDER


@pytest.mark.parametrize("factor", [2.0, 0.5, -1.0, 3.0, 1 / 64])
def test_a_scale_names_its_factor(factor: float) -> None:
    found = difference(tensor("w", WHOLE), tensor("w", [value * factor for value in WHOLE]))
    assert found is not None
    assert found.kind is TensorDifference.SCALE
    assert found.factor == pytest.approx(factor)
    assert str(found) == f"a scale by {factor:.4g}"


def test_another_rounding_is_no_scale() -> None:
    assert kind(list(WHOLE), [value * (1 + 2**-9 * (-1) ** place) for place, value in enumerate(WHOLE)]) is (
        TensorDifference.ROUNDED
    )


OLD = weights(24, "old")
EXPECTED = tensor("w", WHOLE)


@pytest.mark.parametrize(
    ("expected", "found", "kind"),
    [
        (EXPECTED, tensor("w", OLD), TensorDifference.OTHER),
        (EXPECTED, tensor("w", [0.0] * 24), TensorDifference.ZERO),
        (tensor("w", [0.0] * 24), EXPECTED, TensorDifference.OTHER),
        (EXPECTED, tensor("w", [math.nan, *WHOLE[1:]]), TensorDifference.NOT_FINITE),
        (tensor("w", [math.inf, *WHOLE[1:]]), EXPECTED, TensorDifference.OTHER),
        (EXPECTED, tensor("w", WHOLE[:12]), TensorDifference.SHAPE),
        (EXPECTED, tensor("w", WHOLE, dtype="float32"), TensorDifference.DTYPE),
        (tensor("w", WHOLE, (4, 6)), tensor("w", WHOLE, (6, 4)), TensorDifference.SHAPE),
        # Minus zero for zero changes no sum: bits alone can differ.
        (EXPECTED, tensor("w", WHOLE, bits="f" * 16), TensorDifference.OTHER),
    ],
)
def test_kinds_of_difference(expected: Tensor, found: Tensor, kind: TensorDifference) -> None:
    made = difference(expected, found)
    assert made is not None
    assert (made.kind, str(made)) == (kind, str(kind))


def test_a_copy_of_an_earlier_state_is_stale() -> None:
    assert kind(list(WHOLE), list(OLD), earlier=[tensor("w", OLD)]) is TensorDifference.STALE


@given(VALUES, st.lists(st.integers(1, 39), max_size=4), st.integers(1, 4))
def test_parts_add_up_however_they_are_cut(values: list[float], cuts: list[int], times: int) -> None:
    ends = sorted({0, len(values), *(min(cut, len(values)) for cut in cuts)})
    parts = [tensor("p", values[start:end]) for start, end in pairwise(ends)] * times
    assert adds_up(parts, [tensor("w", values)], times=times)


@given(VALUES, st.integers(0, 39))
def test_a_changed_element_does_not_add_up(values: list[float], place: int) -> None:
    spoiled = list(values)
    spoiled[place % len(values)] += 1.0
    assert not adds_up([tensor("p", spoiled)], [tensor("w", values)])


def test_sums_that_are_no_numbers_and_other_squares_do_not_add_up() -> None:
    lost = tensor("w", [math.nan, 1.0])
    assert adds_up([lost], [lost])
    assert not adds_up([lost], [tensor("w", [1.0, 1.0])])
    assert not adds_up([tensor("w", [2.0, 0.0])], [tensor("w", [1.0, 1.0])])


def test_the_bound_is_of_the_order_of_double_precision() -> None:
    assert rounding(0, 0.0) == 0
    assert 0 < rounding(1000, 1000.0) < 1e-9


@pytest.mark.parametrize(
    ("values", "constant"), [([1.0] * 9, True), ([0.0] * 3, True), ([0.1] * 7, True), ([1.0, 1.001], False)]
)
def test_a_tensor_of_one_value_is_constant(values: list[float], constant: bool) -> None:
    assert is_constant(tensor("w", values)) is constant


def test_what_is_not_finite_counts_as_constant() -> None:
    assert is_constant(tensor("w", [math.inf, 1.0]))
    assert count(tensor("w", WHOLE, (4, 6))) == 24


def _bfloat16(value: float) -> float:
    """The nearest number of that type: the upper half of single precision, rounded to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", rounded))[0])


LONG = weights(512)
NARROW = [_bfloat16(value) for value in LONG]


def across(wide: Iterable[float], narrow: Iterable[float]) -> tuple[TensorDifference | None, TensorDifference | None]:
    """How the second differs from the first of a wider type, and the first from the second."""
    pair = (tensor("w", wide, dtype="float32"), tensor("w", narrow))
    assert converts(*pair)
    there, back = difference_but_rounding(*pair), difference_but_rounding(*reversed(pair))
    return there.kind if there else None, back.kind if back else None


@given(st.lists(st.floats(-100, 100, width=32).filter(lambda value: abs(value) > 1e-30), min_size=1, max_size=40))
def test_a_conversion_to_a_narrower_type_is_no_difference(values: list[float]) -> None:
    assert across(values, map(_bfloat16, values)) == (None, None)


@pytest.mark.parametrize("value", [0.1, 1.0, 3.3])
def test_equal_values_have_equal_rounding_errors(value: float) -> None:
    assert across([value] * 1000, [_bfloat16(value)] * 1000) == (None, None)


@pytest.mark.parametrize(
    ("narrow", "kind"),
    [
        (NARROW[::-1], TensorDifference.OTHER),
        ([2 * value for value in NARROW], TensorDifference.SCALE),
        ([1.05 * value for value in NARROW], TensorDifference.SCALE),
        ([_bfloat16(1.02 * value) for value in LONG], TensorDifference.OTHER),
        ([0.0] * 512, TensorDifference.ZERO),
        ([math.nan, *NARROW[1:]], TensorDifference.NOT_FINITE),
    ],
)
def test_more_than_rounding_is_told_across_types(narrow: list[float], kind: TensorDifference) -> None:
    assert across(LONG, narrow)[0] is kind
    assert across(LONG, narrow)[1] is not None


def test_an_order_is_told_where_the_conversion_was_exact() -> None:
    assert across(NARROW, NARROW[::-1])[0] is TensorDifference.ORDER
    assert across(NARROW, NARROW) == (None, None)


def test_values_that_are_not_finite_on_both_sides_are_not_compared() -> None:
    assert across([math.inf, 1.0], [math.nan, 2.0]) == (None, None)


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "int8"])
def test_a_type_of_another_range_is_not_converted_by_rounding(dtype: str) -> None:
    assert not converts(tensor("w", WHOLE), tensor("w", WHOLE, dtype=dtype))
