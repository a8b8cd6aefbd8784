"""What the plots show, and that it can be read on light and on dark."""

import json
import math

import pytest

from tests.core.signal.series import noisy, run_of, with_value, without
from verl_e2e.core.report.comparison_text import render_signal, signal_json
from verl_e2e.core.signal.report import THEMES, BaselineRun, Theme, signal_figure, signal_report

STEPS = run_of(noisy(0, 0.3))
BASES = tuple(BaselineRun(f"base-{seed}", run_of(noisy(seed, 0.3), seed=seed)) for seed in (1, 2, 3))
# The browser's white and GitHub's dark background, behind anything that is not painted.
PAGES = {"light": "#ffffff", "dark": "#0d1117"}


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(text: str, other: str) -> float:
    high, low = sorted((luminance(text), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_measured_right() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_everything_can_be_read(theme: Theme) -> None:
    assert theme.background == PAGES[theme.name]
    assert contrast(theme.text, theme.background) >= 7
    assert min(contrast(color, theme.background) for color in (*theme.lines, theme.fault)) >= 4.5


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_two_quantities_differ_to_every_eye(theme: Theme) -> None:
    """Blue against orange: the channels that red-green blindness leaves apart."""
    first, second = (int(color[5:], 16) - int(color[1:3], 16) for color in theme.lines)
    assert first > 60
    assert second < -60


@pytest.mark.parametrize(("critic", "apart"), [(9.0, True), (0.9, False), (-9.0, True), (0.0, False)])
def test_a_quantity_beside_a_far_larger_one_has_its_own_axis(critic: float, apart: bool) -> None:
    steps = run_of(noisy(0, 0.3), actor__grad_norm=0.5, critic__grad_norm=critic)
    (panel,) = [item for item in signal_figure("t", steps).panels if item.title == "Gradient norms"]
    assert panel.apart is apart
    assert not panel.logarithmic


def test_every_asked_curve_has_its_panel() -> None:
    figure = signal_figure("t", STEPS)
    assert [panel.title for panel in figure.panels] == [
        "Reward",
        "Losses",
        "Gradient norms",
        "KL to the reference",
        "Entropy",
        "Response length",
    ]
    assert [[line.title for line in panel.lines] for panel in figure.panels[1:3]] == [
        ["Policy loss", "Value loss"],
        ["Actor gradient norm", "Critic gradient norm"],
    ]
    assert all(line.baseline is None for panel in figure.panels for line in panel.lines)


def test_a_run_without_a_critic_has_no_line_for_it_and_no_empty_panel() -> None:
    figure = signal_figure("t", without(STEPS, "critic/vf_loss", "critic/grad_norm", "actor/entropy"))
    assert "Entropy" not in [panel.title for panel in figure.panels]
    assert [len(panel.lines) for panel in figure.panels] == [1, 1, 1, 1, 1]


def test_the_band_goes_from_the_lowest_to_the_highest_baseline() -> None:
    reward = signal_figure("t", STEPS, BASES).panels[0].lines[0].baseline
    assert reward is not None
    columns = [[run.steps[at].values["critic/score/mean"] for run in BASES] for at in range(20)]
    assert reward.low == tuple(min(column) for column in columns)
    assert reward.high == tuple(max(column) for column in columns)
    assert reward.middle == tuple(sorted(column)[1] for column in columns)


def test_a_value_that_is_no_number_is_a_fault_and_no_point() -> None:
    spoiled = with_value(STEPS, 7, actor__pg_loss=math.nan)
    line = signal_figure("t", spoiled).panels[1].lines[0]
    assert line.faults == (7,)
    assert 7 not in line.candidate.steps
    huge = signal_figure("t", with_value(STEPS, 7, actor__grad_norm=-1e300)).panels[2].lines[0]
    assert (huge.faults, 7 in huge.candidate.steps) == ((7,), False)


@pytest.mark.parametrize(("last", "logarithmic"), [(500.0, False), (5000.0, True)])
def test_values_a_thousandfold_apart_stand_on_a_logarithmic_axis(last: float, logarithmic: bool) -> None:
    steps = with_value(run_of([1.0] * 20, response_length__mean=1.0), 20, response_length__mean=last)
    assert signal_figure("t", steps).panels[-1].logarithmic is logarithmic


def test_the_text_shows_every_curve_beside_the_baseline() -> None:
    report = signal_report(STEPS, baseline=BASES)
    text = render_signal(report, STEPS)
    assert text.startswith("learning-signal passed: critic/score/mean rose from ")
    rows = {row[:28].strip(): row for row in text.splitlines()[2:11]}
    assert "▁▁▁" in rows["Reward"]
    assert rows["Reward"].endswith("critic/score/mean  level with the baseline")
    assert rows["Responses at the length cap"].endswith("response_length/clip_ratio")
    assert text.count("baseline base-") == 3


def test_the_document_holds_numbers_that_json_has() -> None:
    spoiled = with_value(STEPS, 7, actor__pg_loss=math.nan, actor__entropy=math.inf)
    report = signal_report(spoiled, baseline=BASES)
    document = json.loads(signal_json(report, spoiled), parse_constant=pytest.fail)
    assert (document["outcome"], document["failed"], document["step"]) == ("unstable", True, 7)
    assert document["curves"]["policy_loss"]["values"][6] == "nan"
    assert document["curves"]["entropy"]["values"][6] == "inf"
    assert [load["outcome"] for load in document["baselines"]] == ["learning-signal passed"] * 3
    assert {load["state"] for load in document["comparisons"]} <= {"above", "below", "level with"}
    assert signal_json(report, spoiled) == signal_json(report, spoiled)


def test_the_text_leaves_out_what_a_run_does_not_print() -> None:
    steps = without(STEPS, "critic/vf_loss", "response_length/clip_ratio")
    text = render_signal(signal_report(steps), steps)
    assert "Value loss" not in text
    assert "Responses at the length cap" not in text
    assert "baseline" not in text
