"""What a job is expected to cost: its past runs in the repository, else the measured table, else an estimate."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.core.builders import make_job
from verl_e2e.core.consumer.consumers import variant_named
from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.levels import CostBasis, Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.wanted_jobs import expected_cost, past_costs

NOW = datetime(2026, 11, 22, tzinfo=UTC)
JOB = make_job(Level.SAVE_RESUME, "resume")
MODEL = JOB.checkpoint


def run(minutes: float, **changes: Any) -> Run:
    fields: dict[str, Any] = {
        "key": "0" * 64,
        "repository": "a/b",
        "number": 1,
        "head_sha": "c" * 40,
        "job_id": JOB.id,
        "job_digest": "d" * 64,
        "state": RunState.FINISHED,
        "result": Result.PASS,
        "gpu_minutes": minutes,
        "created": NOW,
        "updated": NOW,
        "job": JOB,
    }
    return Run(**(fields | changes))


def outline(job_id: str = "1-resume") -> JobOutline:
    variant = variant_named(job_id)
    assert variant is not None
    return JobOutline(variant, (), MODEL)


def expected(*runs: Run) -> tuple[int, CostBasis]:
    return expected_cost(outline(), JOB, past_costs(runs))


def test_past_runs_count_with_the_runs_that_follow_them() -> None:
    assert expected() == (18, CostBasis.MEASURED)
    assert expected(run(20.0)) == (32, CostBasis.PAST_RUNS)
    latest = [run(minutes) for minutes in (99.0, 99.0, 99.0, 8.0, 8.0, 10.0, 12.0, 12.0)]
    assert expected(*latest) == (16, CostBasis.PAST_RUNS)


@pytest.mark.parametrize(
    "changes",
    (
        {"result": Result.FAIL},
        {"result": Result.BLOCKED},
        {"state": RunState.CANCELLED, "result": None},
        {"gpu_minutes": 0.0},
        {"carried_from": "e" * 40},
        {"job": None},
        {"job_id": "1-resume-xabcdef"},
        {"job": JOB.model_copy(update={"gpu_count": 2})},
        {"job": JOB.model_copy(update={"checkpoint": Checkpoint(model_id="other/model")})},
    ),
)
def test_other_runs_say_nothing_of_the_job(changes: dict[str, Any]) -> None:
    assert expected(run(20.0, **changes)) == (18, CostBasis.MEASURED)


def test_more_gpus_than_were_measured_are_an_estimate_and_what_is_not_run_costs_nothing() -> None:
    larger = JOB.model_copy(update={"gpu_count": 4})
    assert expected_cost(outline(), larger, ()) == (71, CostBasis.ESTIMATE)
    assert expected_cost(outline(), None, past_costs((run(20.0),)))[0] == 0
    assert expected_cost(replace(outline("2-cp")), make_job(Level.PARALLELISM, "cp", gpu_count=2), ()) == (
        13,
        CostBasis.ESTIMATE,
    )
