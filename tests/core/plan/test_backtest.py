"""Figures of plans against labels."""

import json
from pathlib import Path

from verl_e2e.config import packaged_policy
from verl_e2e.config.maps import load_labels
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.backtest import (
    LabelledPull,
    PlannedPull,
    backtest_json,
    figures,
    render_backtest,
    render_usage,
    usage,
    usage_json,
)
from verl_e2e.core.plan.plan import plan

POLICY = packaged_policy()


def outcome(path: str, required: set[int], optional: set[int]) -> PlannedPull:
    change = Change("a" * 40, "b" * 40, None, (ChangedPath(path, PathStatus.MODIFIED),))
    case = LabelledPull(1, "a" * 40, "b" * 40, frozenset(map(Level, required)), path, frozenset(map(Level, optional)))
    return PlannedPull(case, plan(change, POLICY))


OUTCOMES = (
    outcome("docs/a.md", set(), set()),
    outcome("pyproject.toml", {0}, {1}),
    outcome("pyproject.toml", {0, 1}, set()),
    outcome("pyproject.toml", set(), set()),
)


def test_the_four_measures_and_the_cost() -> None:
    measured = figures(OUTCOMES)
    assert (measured.recall, measured.precision) == (round(2 / 3, 4), round(2 / 3, 4))
    assert (measured.safe, measured.exact) == (0.75, 0.5)
    assert measured.gpu_minutes_per_pr == round(21 / 4, 1)


def test_a_share_of_nothing_is_whole() -> None:
    assert figures(()).recall == figures(()).exact == 1.0


def test_every_miss_and_every_waste_is_listed_with_its_reason() -> None:
    text = render_backtest(OUTCOMES)
    assert "missed level 1" in text
    assert "wasted level 0: pyproject.toml" in text
    document = backtest_json(OUTCOMES)
    assert document["count"] == len(OUTCOMES)
    assert isinstance(document["prs"], list)
    assert [item["missed"] for item in document["prs"]] == [[], [], [1], []]


def test_a_case_that_cannot_be_planned_misses_all_it_requires() -> None:
    lost = PlannedPull(OUTCOMES[1].pull, None, "commit 'x' is not here")
    assert lost.missed == {Level.SMOKE}
    assert "could not be planned: commit 'x' is not here" in render_backtest((lost,))


def test_usage_counts_levels_and_what_else_would_cost() -> None:
    counted = usage([*(outcome.plan for outcome in OUTCOMES), None])
    assert (counted.commits, counted.unplanned, counted.runs[Level.SMOKE], counted.gpu_minutes) == (5, 1, 3, 21)
    assert "level 0 always 35" in render_usage(counted)
    document = usage_json(counted)
    assert (document["schema"], document["commits"], document["unplanned"]) == (2, 5, 1)
    assert (document["gpu_minutes"], document["gpu_minutes_level_0_always"]) == (21, 35)
    assert f"everything always {document['gpu_minutes_everything']}, " in render_usage(counted)


def test_the_held_out_labels_can_be_read_and_are_of_other_pull_requests_than_the_80() -> None:
    folder = Path(__file__).parents[2] / "fixtures" / "plan"
    held_out = load_labels((folder / "held-out.json").read_bytes(), "held-out.json")
    given = {json.loads(line)["pr"] for line in (folder / "labelled.jsonl").read_text().splitlines()}
    assert len({case.head for case in held_out}) == len(held_out) == 105
    assert given.isdisjoint(case.pr for case in held_out)
    assert all(case.required.isdisjoint(case.optional) for case in held_out)
