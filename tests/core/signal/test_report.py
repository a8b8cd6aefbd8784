"""The four words of the learning signal: every check of the level, and the baselines of a run."""

import math
from collections.abc import Sequence

import pytest

from tests.core.logs import FOLDER
from tests.core.signal.series import SEEDS, noisy, run_of, with_value, without
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.core.log.printed import not_finite
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.signal.curves import sparkline
from verl_e2e.core.signal.report import (
    BaselineRun,
    CurveStanding,
    SignalOptions,
    SignalOutcome,
    SignalReport,
    signal_report,
)

RUNS = FOLDER.parent / "runs"
PASSED, FLAT = SignalOutcome.PASSED, SignalOutcome.FLAT
UNSTABLE, SHORT = SignalOutcome.UNSTABLE, SignalOutcome.NOT_ENOUGH_STEPS
RISING, LEVEL = run_of(noisy(0, 0.3)), run_of(noisy(0))


def report(steps: Sequence[StepMetrics], *baselines: Sequence[StepMetrics], **options: object) -> SignalReport:
    runs = tuple(BaselineRun(f"base-{at}", tuple(rewards)) for at, rewards in enumerate(baselines))
    return signal_report(steps, baseline=runs, options=SignalOptions(**options))  # type: ignore[arg-type]


def test_the_words_are_those_of_the_level() -> None:
    assert [str(item) for item in SignalOutcome] == ["learning-signal passed", "flat", "unstable", "not enough steps"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rising_reward_passes_with_every_seed(seed: int) -> None:
    found = report(run_of(noisy(seed, 0.3), seed=seed))
    assert (found.outcome, found.failed) == (PASSED, False)
    assert found.sentence.startswith("learning-signal passed: critic/score/mean rose from 0.0")


@pytest.mark.parametrize("seed", SEEDS)
def test_learning_rate_zero_is_flat_with_every_seed(seed: int) -> None:
    steps = run_of(noisy(seed), seed=seed, actor__lr=0.0, actor__kl_loss=2e-6)
    found = report(steps)
    assert (found.outcome, found.stuck, found.failed) == (FLAT, True, False)
    assert found.sentence == "flat: the learning rate is 0 at every step (actor/lr)"
    # The reward says it as well, where the rate is not printed.
    unsaid = report(without(steps, "actor/lr"))
    assert (unsaid.outcome, unsaid.stuck) == (FLAT, False)
    assert unsaid.sentence.endswith("; the policy did not move from the reference")


@pytest.mark.parametrize(
    ("divergence", "text"),
    [
        ([2e-6] * 20, "the policy did not move"),
        ([0.04] * 20, "the policy did not move"),
        ([0.01 * at for at in range(1, 21)], "the policy moved"),
    ],
)
def test_a_flat_run_says_whether_its_policy_moved(divergence: list[float], text: str) -> None:
    steps = LEVEL
    for at, value in enumerate(divergence, start=1):
        steps = with_value(steps, at, actor__kl_loss=value)
    assert report(steps).sentence.endswith(f"; {text} from the reference")


def test_a_reward_that_rises_without_a_learning_rate_is_not_learned() -> None:
    assert report(run_of(noisy(0, 0.3), actor__lr=0.0)).outcome is FLAT


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "metric",
    [
        "critic/score/mean",
        "critic/rewards/min",
        "actor/pg_loss",
        "actor/loss",
        "actor/kl_loss",
        "actor/ppo_kl",
        "actor/entropy",
        "actor/grad_norm",
        "critic/vf_loss",
        "critic/grad_norm",
        "critic/values/mean",
        "critic/advantages/max",
        "rollout_corr/training_log_ppl",
        "rollout_corr/kl",
    ],
)
def test_a_number_that_is_none_is_unstable(metric: str, value: float) -> None:
    found = report(with_value(RISING, 7, **{metric: value}))
    assert (found.outcome, found.step, found.failed) == (UNSTABLE, 7, True)
    assert found.sentence == f"unstable: {metric} is {value:g} at step 7"


def test_a_nan_outranks_too_few_steps_and_counts_in_the_first_validation() -> None:
    first = StepMetrics(0, 1200, {"val-core/openai/gsm8k/reward/mean@1": math.nan})
    assert report((first, *RISING[:3])).outcome is UNSTABLE


@pytest.mark.parametrize("name", ["critic/vf_explained_var", "rollout_corr/training_ppl", "perf/mfu/actor"])
def test_a_number_that_may_be_none_disturbs_nothing(name: str) -> None:
    assert not not_finite({name: -math.inf})
    assert report(with_value(RISING, 7, **{name: -math.inf})).outcome is PASSED


def test_many_such_numbers_are_named_shortly() -> None:
    steps = with_value(RISING, 3, actor__pg_loss=math.nan, actor__entropy=math.nan, actor__grad_norm=math.nan)
    found = report(with_value(steps, 3, critic__vf_loss=math.nan))
    assert found.cause.endswith("and 1 more are nan at step 3")


def test_a_gradient_that_explodes_is_unstable() -> None:
    grown = [1.0] * 10 + [10.0**at for at in range(10)]
    steps = RISING
    for at, value in enumerate(grown, start=1):
        steps = with_value(steps, at, actor__grad_norm=value)
    assert report(steps).sentence == "unstable: actor/grad_norm grew from 1 to 1e+07"


def test_a_reward_that_clearly_falls_is_unstable() -> None:
    found = report(run_of(noisy(1, -0.3, start=0.4)))
    assert (found.outcome, found.failed) == (UNSTABLE, True)
    assert found.cause.startswith("critic/score/mean fell from ")


def test_a_reward_that_sinks_a_little_accuses_nobody() -> None:
    found = report(run_of(noisy(1, -0.012)))
    assert (found.outcome, found.failed) == (FLAT, False)


def test_a_rise_that_collapses_is_no_rise() -> None:
    half = noisy(2, 0.3, count=10)
    assert report(run_of([*half, *reversed(half)])).outcome is FLAT


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_few_steps_are_not_enough(count: int) -> None:
    assert report(RISING[:count]).outcome is SHORT


def test_two_points_claim_nothing_however_far_apart() -> None:
    found = report(run_of([0.0, 1.0]), run_of([0.0, 0.0]), run_of([0.0, 0.0]))
    assert (found.outcome, found.trend, found.baseline_moved) == (SHORT, None, None)
    assert {comparison.standing for comparison in found.comparisons} == {CurveStanding.UNKNOWN}


def test_a_run_that_stops_early_is_not_enough() -> None:
    found = report(RISING[:14], requested_steps=20)
    assert found.sentence == "not enough steps: the run stops at step 14 of 20"


def test_a_run_without_rewards_is_not_enough() -> None:
    found = report(without(RISING, "critic/score/mean", "critic/rewards/mean"))
    assert found.sentence == "not enough steps: no step prints critic/score/mean or critic/rewards/mean"


def test_the_reward_after_penalties_serves_where_no_score_is_printed() -> None:
    found = report(without(RISING, "critic/score/mean"))
    assert found.outcome is PASSED
    assert found.cause.startswith("critic/rewards/mean rose from ")


@pytest.mark.parametrize("metric", ["critic/score/mean", "critic/values/mean", "rollout_corr/training_log_ppl"])
def test_what_stands_still_is_flat_even_under_a_rising_reward(metric: str) -> None:
    found = report(run_of(noisy(0, 0.3), **{metric: 0.5}))  # type: ignore[arg-type]
    assert (found.outcome, found.stuck) == (FLAT, True)
    assert found.cause == f"{metric} is 0.5 at every step"


def test_a_repeated_zero_gradient_is_flat() -> None:
    steps = with_value(with_value(RISING, 4, actor__grad_norm=0.0), 9, actor__grad_norm=0.0)
    found = report(steps)
    assert (found.outcome, found.step, found.cause) == (FLAT, 4, "actor/grad_norm is exactly 0 at 2 steps")


def test_steps_count_once_and_in_order() -> None:
    shuffled = (*RISING[10:], *RISING[:10], RISING[3])
    assert report(shuffled).trend == report(RISING).trend


@pytest.mark.parametrize(
    ("share", "stated", "weak"), [(0.5, 0.5, False), (0.51, 0.5, True), (1.0, 1.0, False), (0.2, 0.1, True)]
)
def test_more_responses_at_the_cap_than_stated_void_the_evidence(share: float, stated: float, weak: bool) -> None:
    steps = run_of(noisy(0, 0.3), response_length__clip_ratio=share)
    found = report(steps, run_of(noisy(1, 0.3)), max_cap_share=stated)
    assert bool(found.weak) is weak
    assert found.sentence.startswith("weak evidence: " if weak else "learning-signal passed: ")
    assert not found.failed


def test_a_share_that_is_no_number_is_not_below_the_cap() -> None:
    steps = [
        StepMetrics(item.step, item.line, {**item.values, "response_length/clip_ratio": math.nan}) for item in RISING
    ]
    found = report(steps)
    assert found.weak == ("no number tells how many responses end at the length cap",)
    assert found.headline == "weak evidence"
    assert report(steps, max_cap_share=1.0).weak == ()


def test_a_run_that_ends_at_the_cap_is_weak_however_it_began() -> None:
    steps = RISING
    for at in range(15, 21):
        steps = with_value(steps, at, response_length__clip_ratio=0.9)
    assert report(steps).weak == ("90% of the responses end at the length cap, at most 50% may",)


def test_weak_evidence_accuses_nobody() -> None:
    steps = run_of(noisy(0), response_length__clip_ratio=1.0)
    assert not report(steps, RISING).failed


@pytest.mark.parametrize(
    ("baselines", "moved", "failed", "text"),
    [
        ((), None, False, "reference"),
        ((LEVEL,), False, False, "the baseline did not learn either"),
        ((RISING,), True, True, "on the baseline it rose by 0.2"),
        ((RISING, RISING, LEVEL), True, True, "on the baseline it rose by 0.2"),
        ((RISING, LEVEL), False, False, "the baseline did not learn either"),
        ((RISING[:5],), None, False, "no baseline says whether it should have moved"),
        ((with_value(RISING, 2, actor__loss=math.nan),), None, False, "no baseline says"),
    ],
)
def test_flat_is_a_failure_where_the_baseline_moved(
    baselines: tuple[tuple[StepMetrics, ...], ...], moved: bool | None, failed: bool, text: str
) -> None:
    found = report(run_of(noisy(3)), *baselines)
    assert (found.outcome, found.baseline_moved, found.failed) == (FLAT, moved, failed)
    assert text in found.sentence


def test_a_rise_that_is_just_missed_accuses_nobody() -> None:
    nearly, just = run_of(noisy(7, 0.01)), run_of(noisy(5, 0.012))
    found = report(nearly, just)
    assert (found.outcome, found.baseline_moved, found.failed) == (FLAT, True, False)


def test_a_frozen_critic_is_a_failure_where_the_baseline_learned() -> None:
    assert report(run_of(noisy(0, 0.3), critic__values__mean=0.0), RISING).failed


def test_shared_noise_cancels_between_paired_runs() -> None:
    """A swing from step to step hides a small rise, but not where a run with the same data is compared."""
    swing = noisy(8, noise=0.05)
    with_rise = [reward + 0.05 * at / 19 for at, reward in enumerate(swing)]
    found = report(run_of(with_rise), run_of(swing))
    assert (found.outcome, standings(found)["reward"]) == (FLAT, CurveStanding.ABOVE)


def standings(found: SignalReport) -> dict[str, CurveStanding]:
    return {comparison.quantity.key: comparison.standing for comparison in found.comparisons}


def test_a_run_that_learns_less_than_its_baseline_says_so() -> None:
    found = report(run_of(noisy(9, 0.1)), RISING)
    assert (found.outcome, standings(found)["reward"]) == (PASSED, CurveStanding.BELOW)
    assert found.notes == ("Reward drifts below the baseline, by 0.153",)


def test_equal_runs_are_level_in_everything() -> None:
    found = report(RISING, run_of(noisy(10, 0.3), seed=10), run_of(noisy(11, 0.3), seed=11))
    assert set(standings(found).values()) == {CurveStanding.LEVEL}
    assert len(found.comparisons) == 8


def test_the_chance_of_a_drift_is_shared_by_all_curves_that_are_compared() -> None:
    """Of one curve this order is rare enough; among eight one may well be so ordered by chance."""

    def reward_alone(steps: tuple[StepMetrics, ...]) -> tuple[StepMetrics, ...]:
        name = "critic/score/mean"
        return tuple(StepMetrics(item.step, item.line, {name: item.values[name]}) for item in steps)

    run, baseline = run_of(noisy(5, 0.015)), run_of(noisy(1))
    assert standings(report(reward_alone(run), reward_alone(baseline)))["reward"] is CurveStanding.ABOVE
    assert standings(report(run, baseline))["reward"] is CurveStanding.LEVEL


def test_a_difference_within_the_spread_of_repeated_baselines_is_none() -> None:
    apart = report(run_of(noisy(9, 0.26)), run_of(noisy(12, 0.3)))
    assert standings(apart)["reward"] is CurveStanding.BELOW
    spread = report(run_of(noisy(9, 0.26)), run_of(noisy(12, 0.3)), run_of(noisy(13, 0.36)))
    assert standings(spread)["reward"] is CurveStanding.LEVEL


def test_the_recorded_run_is_flat_and_its_policy_moved() -> None:
    log = scan(open_log(str(FOLDER / "level5-flat-cut-at-14-of-20.log.xz")))
    found = report(log.steps, max_cap_share=1.0)
    assert (found.outcome, found.trend.count if found.trend else 0) == (FLAT, 14)
    assert found.cause.startswith("critic/score/mean stayed at 0.04497 to 0.04738 over 14 steps")
    assert found.cause.endswith("; the policy moved from the reference")
    assert report(log.steps).weak
    assert report(log.steps, requested_steps=20).outcome is SHORT


def test_the_recorded_run_that_was_cut_while_rising_claims_nothing() -> None:
    log = scan(open_log(str(RUNS / "level5-rising-cut-at-11" / "log.txt.zst")))
    found = report(log.steps, requested_steps=16, max_cap_share=1.0)
    assert found.sentence == "not enough steps: the run stops at step 11 of 16"
    alone = report(log.steps, max_cap_share=1.0)
    assert (alone.outcome, alone.trend.shift > 3 if alone.trend else False) == (FLAT, True)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], "▁▂▃▄▅▆▇█"),
        ([1.0, 1.0], "▅▅"),
        ([0.0, math.nan, 2.0], "▁×█"),
        ([math.nan], "×"),
        ([], ""),
        ([-1.7e308, 0.0, 1.7e308], "▁▅█"),
        ([float(at) for at in range(100)], "▁▁▁▂▂▃▃▃▄▄▅▅▆▆▆▇▇███"),
    ],
)
def test_a_sparkline(values: list[float], line: str) -> None:
    assert sparkline(values) == line
