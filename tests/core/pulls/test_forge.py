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


@pytest.mark.parametrize(
    ("steps", "conclusion", "lost"),
    [
        ((WorkflowStep("run", "in_progress"), WorkflowStep("upload", "queued")), "failure", True),
        ((WorkflowStep("run", "completed", "success"), WorkflowStep("upload", "in_progress")), "failure", True),
        (
            (WorkflowStep("run", "completed", "failure"), WorkflowStep("upload", "completed", "skipped")),
            "failure",
            False,
        ),
        # GitHub's list of steps may lag behind the end of a job.
        ((WorkflowStep("run", "in_progress"),), "success", False),
        ((), "failure", False),
    ],
)
def test_a_job_lost_its_machine_in_the_middle_of_a_step(
    steps: tuple[WorkflowStep, ...], conclusion: str, lost: bool
) -> None:
    assert WorkflowJob(1, "0-lora-ddp", "completed", conclusion, "a-host", steps=steps).lost_its_machine is lost
    assert not WorkflowJob(1, "0-lora-ddp", "in_progress", "", "a-host", steps=steps).lost_its_machine
