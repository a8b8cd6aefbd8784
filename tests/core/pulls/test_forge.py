"""What GitHub's words for a job and its steps come to."""

import pytest

from verl_e2e.core.pulls.forge import WorkflowJob, WorkflowRun, WorkflowStep


@pytest.mark.parametrize(
    ("status", "conclusion", "begun"),
    [
        ("queued", "", False),
        ("pending", "", False),
        ("in_progress", "", True),
        ("completed", "skipped", False),
        ("completed", "success", True),
        ("completed", "failure", True),
    ],
)
def test_a_step_was_begun_unless_it_was_passed_over_or_never_reached(status: str, conclusion: str, begun: bool) -> None:
    assert WorkflowStep("run", status, conclusion).begun is begun


@pytest.mark.parametrize(
    ("steps", "conclusion", "early"),
    [
        (
            (WorkflowStep("set up", "completed", "failure"), WorkflowStep("run", "completed", "skipped")),
            "failure",
            True,
        ),
        ((WorkflowStep("take", "completed", "failure"), WorkflowStep("run", "completed", "skipped")), "failure", False),
        ((WorkflowStep("take", "completed", "success"), WorkflowStep("run", "completed", "failure")), "failure", False),
        ((WorkflowStep("run", "completed", "skipped"),), "success", False),
        ((WorkflowStep("set up", "completed", "failure"),), "failure", False),
        ((), "failure", False),
    ],
)
def test_a_job_never_reached_a_step_that_github_lists_as_not_begun(
    steps: tuple[WorkflowStep, ...], conclusion: str, early: bool
) -> None:
    job = WorkflowJob(1, "0-lora-ddp", "completed", conclusion, steps=steps)
    assert job.never_reached("run", "take") is early


def test_only_what_is_completed_has_ended() -> None:
    assert WorkflowRun(1, "completed").ended
    assert not WorkflowRun(1, "in_progress").ended
    assert not WorkflowJob(1, "x", "in_progress", steps=(WorkflowStep("run", "queued"),)).never_reached("run", "")
