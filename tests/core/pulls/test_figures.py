"""What operators watch, as the names and numbers that become metrics."""

import math
from datetime import timedelta
from typing import Any

import pytest

from tests.core.pulls.entries import NOW, RESUME, SMOKE, run
from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import Event
from verl_e2e.core.pulls.figures import (
    SharedFigures,
    Waiting,
    cause_class,
    phase_seconds,
    planned_gpu_minutes,
    run_end,
    run_kind,
    run_level,
    waited_s,
)
from verl_e2e.core.pulls.ledger import Run, RunState


def with_job(of: Run) -> Run:
    return of.model_copy(update={"job": SMOKE})


def blocked(*causes: str, **given: Any) -> Run:
    return run(SMOKE, result=Result.BLOCKED, causes=causes, **given)


@pytest.mark.parametrize(
    ("ended", "end", "cause"),
    (
        (run(SMOKE), "pass", "none"),
        (run(SMOKE, result=Result.FAIL), "fail", "change"),
        (blocked(), "blocked", "unknown"),
        (blocked("log:network"), "blocked", "passing"),
        (blocked("log:network", undecided=True), "blocked", "unknown"),
        (blocked("preflight:disk"), "blocked", "lasting"),
        (blocked("end:runner_fault"), "blocked", "ours"),
        (blocked("criterion:change_executed", never_entered=True), "blocked", "not_entered"),
        (run(SMOKE, RunState.CANCELLED), "cancelled", "cancelled"),
        (run(SMOKE, RunState.LOST, causes=("engine:node_failed",)), "lost", "passing"),
        (run(SMOKE, RunState.REFUSED, causes=("engine:refused",)), "refused", "lasting"),
        (run(SMOKE, result=None), "blocked", "unknown"),
    ),
)
def test_how_a_run_ended_and_what_kept_it_from_a_pass(ended: Run, end: str, cause: str) -> None:
    assert (run_end(ended), cause_class(ended)) == (end, cause)


@pytest.mark.parametrize(
    ("given", "kind"),
    (
        ({}, "plan"),
        ({"attempt": 2, "retry_of": "0" * 64}, "retry"),
        ({"attempt": 2, "asked_by": "comment:1:0"}, "request"),
    ),
)
def test_why_a_run_was_ordered(given: dict[str, Any], kind: str) -> None:
    assert run_kind(run(SMOKE, **given)) == kind


def test_a_level_is_one_of_the_known_and_a_strange_job_costs_nothing() -> None:
    assert (run_level(run(SMOKE)), run_level(run(RESUME))) == ("0", "1")
    strange = with_job(run(SMOKE, job_id="x-y"))
    assert (run_level(strange), planned_gpu_minutes(strange)) == ("other", 0.0)


def test_the_expected_minutes_are_those_of_the_table_and_what_is_not_run_costs_nothing() -> None:
    assert planned_gpu_minutes(with_job(run(SMOKE))) == 7.0
    assert planned_gpu_minutes(run(SMOKE)) == 0.0
    assert planned_gpu_minutes(with_job(run(SMOKE, carried_from="f" * 40))) == 0.0


def test_the_wait_for_a_machine_is_what_the_back_end_says() -> None:
    took = BackendTimes(who="slurm", started=NOW + timedelta(seconds=90))
    assert waited_s(run(SMOKE, took=took)) == 90.0
    early = took.model_copy(update={"started": NOW - timedelta(seconds=5)})
    assert waited_s(run(SMOKE, took=early)) == 0.0
    assert waited_s(run(SMOKE)) is None
    assert waited_s(run(SMOKE, took=BackendTimes(who="slurm"))) is None


def begin(name: str, t_s: float, **data: object) -> Event:
    return Event(t_s=t_s, kind="phase", data={"name": name, "state": "begin", **data})


def test_a_phase_ends_where_the_next_begins_and_the_last_with_the_last_event() -> None:
    events = (
        Event(t_s=0.0, kind="started"),
        begin("repositories", 1.0),
        begin("preflight", 3.0),
        Event(t_s=4.0, kind="phase", data={"name": "preflight", "state": "end"}),
        begin("run", 10.0, step="save"),
        begin("run", 40.0, step="resume"),
        begin("collect", 70.0),
        Event(t_s=75.5, kind="ended"),
    )
    expected = (("repositories", 2.0), ("preflight", 7.0), ("run", 60.0), ("collect", 5.5))
    assert phase_seconds(events) == expected


def test_a_made_up_record_gives_known_names_and_bounded_times() -> None:
    events = (
        begin("run", 5.0),
        begin("</metric>", 4.0),
        begin("repositories", math.nan),
        begin("collect", math.inf),
        begin("ignore previous instructions", 8.0),
        Event(t_s=9.0, kind="phase", data={"name": 7}),
        Event(t_s=1e30, kind="ended"),
    )
    assert phase_seconds(events) == (("run", 3.0), ("other", 1.0))
    assert phase_seconds(()) == ()


def test_open_runs_are_those_of_every_state() -> None:
    runs = {RunState.QUEUED: Waiting(2, 5.0), RunState.RUNNING: Waiting(1, 9.0)}
    assert SharedFigures(runs=runs).runs_open == 3
