"""What the sums of a fingerprint tell apart. NumPy stands in for PyTorch: the same operations, with no GPU."""

import importlib.util
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.fakes.numpy_operations import Array, NumPy
from verl_e2e_runner.launch.launcher import INSTRUMENTATION

Print = tuple[float, float, float, str]


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("verl_e2e_snapshots", INSTRUMENTATION / "verl_e2e_snapshots.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SUMS = _module()
# Integers in floating point, so that each sum is exact and equal sums are equal.
MATRICES = hnp.arrays(np.float32, st.tuples(st.integers(2, 9), st.integers(2, 9)), elements=st.integers(-1000, 1000))


def fingerprints(*tensors: Array, chunk: int = SUMS.CHUNK) -> list[Print]:
    sums = SUMS.Sums(NumPy(SUMS), chunk)
    with np.errstate(invalid="ignore", over="ignore"):
        for tensor in tensors:
            sums.add(tensor)
    taken: list[Print] = sums.take()
    return taken


def fingerprint(tensor: Array) -> Print:
    return fingerprints(tensor)[0]


@given(MATRICES)
def test_equal_tensors_have_equal_fingerprints_however_they_lie_in_memory(matrix: Array) -> None:
    assert fingerprint(matrix) == fingerprint(np.asfortranarray(matrix)) == fingerprint(matrix.T.copy().T)


@given(MATRICES)
def test_a_transposition_keeps_the_plain_sums_and_changes_the_placed_ones(matrix: Array) -> None:
    flipped = matrix.T.copy()
    assume(not np.array_equal(matrix.reshape(-1), flipped.reshape(-1)))
    before, after = fingerprint(matrix), fingerprint(flipped)
    assert before[:2] == after[:2]
    assert before[2] != after[2]
    assert before[3] != after[3]


@given(MATRICES, st.randoms(use_true_random=False))
def test_so_does_any_permutation(matrix: Array, random: Any) -> None:
    order = list(range(matrix.size))
    random.shuffle(order)
    moved = matrix.reshape(-1)[order].reshape(matrix.shape)
    assume(not np.array_equal(matrix, moved))
    before, after = fingerprint(matrix), fingerprint(moved)
    assert before[:2] == after[:2]
    assert before[2] != after[2]
    assert before[3] != after[3]


@given(MATRICES, st.sampled_from([-4.0, -1.0, 0.25, 2.0]))
def test_a_scale_is_one_factor_in_all_sums(matrix: Array, factor: float) -> None:
    assume(matrix.any())
    before, after = fingerprint(matrix), fingerprint(matrix * np.float32(factor))
    assert after[0] == factor * before[0]
    assert after[1] == factor**2 * before[1]
    assert after[2] == pytest.approx(factor * before[2])
    assert before[3] != after[3]


@given(hnp.arrays(np.uint8, st.integers(8, 64)), st.data())
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float16, np.float32, np.float64, np.int64])
def test_one_changed_bit_changes_the_bits(dtype: Any, raw: Array, data: st.DataObject) -> None:
    raw = raw[: raw.size // 8 * 8]
    place = data.draw(st.integers(0, raw.size * 8 - 1))
    changed = raw.copy()
    changed[place // 8] ^= 1 << place % 8
    assert fingerprint(raw.view(dtype))[3] != fingerprint(changed.view(dtype))[3]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_number_and_its_negative_do_not_change_places_unseen(dtype: Any) -> None:
    values = np.array([1.5, -1.5, 0.25, 3.0], dtype)
    swapped = values[[1, 0, 2, 3]]
    assert fingerprint(values)[3] != fingerprint(swapped)[3]


def test_nan_and_infinity_show_and_keep_their_place() -> None:
    values = np.array([1.0, np.nan, 2.0, np.inf], np.float32)
    moved = values[[1, 0, 2, 3]]
    total, _, position, bits = fingerprint(values)
    assert math.isnan(total)
    assert math.isnan(position)
    assert bits != fingerprint(moved)[3]
    assert bits == fingerprint(values.copy())[3]


def test_the_sign_of_zero_shows_in_the_bits_alone() -> None:
    plain, negative = fingerprints(np.zeros(3, np.float32), np.array([0.0, -0.0, 0.0], np.float32))
    assert plain[:3] == negative[:3]
    assert plain[3] != negative[3]


@given(hnp.arrays(np.float32, st.integers(0, 200), elements=st.integers(-1000, 1000)), st.integers(1, 60))
def test_chunks_of_any_size_give_the_same(values: Array, chunk: int) -> None:
    whole, parts = fingerprints(values)[0], fingerprints(values, chunk=chunk)[0]
    assert (whole[0], whole[1], whole[3]) == (parts[0], parts[1], parts[3])
    assert whole[2] == pytest.approx(parts[2])


@given(st.lists(hnp.arrays(np.float32, st.integers(0, 40), elements=st.integers(-9, 9)), max_size=6))
def test_a_tensor_has_the_same_fingerprint_among_others(tensors: list[Array]) -> None:
    assert fingerprints(*tensors) == [fingerprint(tensor) for tensor in tensors]


def test_the_weights_of_places_are_spread_and_differ() -> None:
    weights, factors = SUMS.numbers_of_places(NumPy(SUMS), 0, 100_000, "cpu")
    assert len(np.unique(weights)) > 99_990
    assert -0.5 <= weights.min() < -0.4999 < 0.4999 < weights.max() < 0.5
    # The mean of so many numbers that are spread evenly lies within five standard deviations of zero.
    assert abs(weights.mean()) < 5 / math.sqrt(12 * 100_000)
    assert (factors % 2 == 1).all()
    later, _ = SUMS.numbers_of_places(NumPy(SUMS), 70_000, 70_010, "cpu")
    assert np.array_equal(later, weights[70_000:70_010])
