"""The statistics of a short series, and their error rates on simulated ones."""

import math
import random
from itertools import permutations

import pytest

from bench.signal_power import FLAT, RISES, of_flat, of_rise
from verl_e2e.core.signal.curves import (
    MOVES,
    Direction,
    clears,
    direction,
    inflation,
    noise,
    thinned,
    trend,
)
from verl_e2e.core.signal.report import SignalOutcome


def test_a_line_has_no_noise() -> None:
    found = trend([1.0, 3.0, 5.0, 7.0, 9.0, 11.0], autocorrelation=0.0)
    assert (found.noise, found.tau, found.shift) == (0.0, 1.0, math.inf)
    assert (found.start, found.end) == (2.0, 10.0)


def test_a_constant_goes_nowhere() -> None:
    found = trend([0.25] * 20, autocorrelation=0.5)
    assert (found.tau, found.shift, found.p_up, found.p_down) == (0.0, 0.0, 1.0, 1.0)
    assert direction(found) is Direction.NONE


def test_a_falling_series_mirrors_a_rising_one() -> None:
    source = random.Random(3)
    values = [at + source.gauss(0, 1) for at in range(20)]
    up, down = (trend([sign * value for value in values], autocorrelation=0.5) for sign in (1, -1))
    assert (up.tau, up.p_up, up.shift) == (-down.tau, down.p_down, -down.shift)
    assert direction(up) is Direction.UP
    assert direction(down) is Direction.DOWN


def test_the_normal_law_is_near_the_exact_one() -> None:
    orders = list(permutations(range(7)))
    for wanted in (9, 13, 15):
        exact = sum(_score(order) >= wanted for order in orders) / len(orders)
        sample = next(order for order in orders if _score(order) == wanted)
        assert trend([float(item) for item in sample], autocorrelation=0.0).p_up == pytest.approx(exact, abs=0.005)


def _score(order: tuple[int, ...]) -> int:
    pairs = [(order[i], order[j]) for i in range(7) for j in range(i + 1, 7)]
    return sum(1 if later > earlier else -1 for earlier, later in pairs)


def test_ties_narrow_the_variance() -> None:
    tied = trend([0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], autocorrelation=0.0)
    # 16 rising pairs; (8*7*21 - 2*4*3*13) / 18 by the textbook.
    assert tied.p_up == pytest.approx(0.5 * math.erfc(15 / math.sqrt(48) / math.sqrt(2)))


@pytest.mark.parametrize(("count", "strength", "times"), [(20, 0.0, 1.0), (20, 0.5, 2.4), (100, 0.5, 2.8)])
def test_autocorrelation_widens_the_variance(count: int, strength: float, times: float) -> None:
    assert inflation(count, strength) == pytest.approx(times, abs=0.05)


def test_the_widened_variance_is_the_simulated_one() -> None:
    source = random.Random(1)
    scores = [_kendall(FLAT["autocorrelation 0.5"](source, 20)) for _ in range(1500)]
    plain = 20 * 19 * 45 / 18
    assert sum(score**2 for score in scores) / len(scores) / plain == pytest.approx(inflation(20, 0.5), rel=0.1)


def _kendall(values: list[float]) -> int:
    return sum(1 if values[j] > values[i] else -1 for i in range(20) for j in range(i + 1, 20))


def test_noise_is_a_standard_deviation_whatever_the_slope() -> None:
    source = random.Random(5)
    for slope in (0.0, 10.0):
        assert noise([slope * at + source.gauss(0, 2) for at in range(4000)]) == pytest.approx(2, rel=0.05)


def test_a_long_series_is_judged_by_blocks() -> None:
    values = [float(at) for at in range(1000)]
    assert len(thinned(values)) == 200
    assert thinned(values)[:2] == (2.0, 7.0)
    found = trend(values, autocorrelation=0.5)
    assert (found.count, found.start, found.end, found.tau) == (1000, 164.5, 834.5, 1.0)


@pytest.mark.parametrize(
    ("chance", "shift", "count", "moves"),
    [
        (0.01, 2.0, 20, True),
        (0.01, 1.99, 20, False),
        (0.011, 2.0, 20, False),
        (0.011, 3.99, 20, False),
        (0.1, 4.0, 20, True),
        (0.11, 40.0, 20, False),
        (0.01, 3.99, 5, False),
        (0.01, 4.0, 5, True),
        (0.01, 1.6, 200, True),
        (0.01, 1.59, 200, False),
    ],
)
def test_the_better_ordered_a_series_is_the_smaller_it_may_be(
    chance: float, shift: float, count: int, moves: bool
) -> None:
    assert clears(MOVES, chance, shift, count) is moves


@pytest.mark.no_cover
@pytest.mark.parametrize("name", [name for name in FLAT if name not in ("autocorrelation 0.7", "a random walk")])
def test_a_flat_series_is_called_passed_in_less_than_one_case_of_a_hundred(name: str) -> None:
    assert of_flat(name, 20, 1000) < 0.01


@pytest.mark.no_cover
@pytest.mark.parametrize("name", [name for name in FLAT if name != "a random walk"])
def test_a_flat_series_is_hardly_ever_called_unstable(name: str) -> None:
    assert of_flat(name, 20, 500, SignalOutcome.UNSTABLE) < 0.005


@pytest.mark.no_cover
@pytest.mark.parametrize("name", RISES)
def test_a_rise_of_ten_times_the_noise_is_found_in_more_than_95_of_a_hundred(name: str) -> None:
    assert of_rise(name, 20, 10, 300) > 0.95
