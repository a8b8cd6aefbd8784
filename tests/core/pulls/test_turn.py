"""Which job may start: a table that the service and `verl-e2e check` decide by."""

from collections.abc import Mapping

import pytest

from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.turn import Turn, turn_of

NOW = Turn()
TABLE: tuple[tuple[tuple[str, ...], Mapping[str, JobStatus], Turn], ...] = (
    ((), {}, NOW),
    ((), {"0": JobStatus.FAILED}, NOW),
    (("0",), {}, Turn(skipped="it needs 0, which did not pass")),
    (("0", "1"), {"0": JobStatus.PASSED, "1": JobStatus.OVERRIDDEN}, NOW),
    (("0", "1"), {"0": JobStatus.RUNNING, "1": JobStatus.WAITING}, Turn(waits_for="0")),
    (("0", "1"), {"0": JobStatus.PASSED, "1": JobStatus.WAITING}, Turn(waits_for="1")),
    (("0", "1"), {"0": JobStatus.RUNNING, "1": JobStatus.FAILED}, Turn(skipped="it needs 1, which did not pass")),
)


@pytest.mark.parametrize(("requires", "statuses", "turn"), TABLE)
def test_the_turn_of_a_job(requires: tuple[str, ...], statuses: Mapping[str, JobStatus], turn: Turn) -> None:
    assert turn_of(requires, statuses) == turn


OF_ONE = {
    JobStatus.PASSED: "starts",
    JobStatus.OVERRIDDEN: "starts",
    JobStatus.NOT_REQUIRED: "starts",
    JobStatus.ACCEPTED: "starts",
    JobStatus.UNCOVERABLE: "starts",
    JobStatus.TOLERATED: "starts",
    JobStatus.UNEXECUTED: "starts",
    JobStatus.RUNNING: "waits",
    JobStatus.WAITING: "waits",
    JobStatus.HELD: "waits",
    JobStatus.CANCELLED: "waits",
    JobStatus.FAILED: "skipped",
    JobStatus.BLOCKED: "skipped",
    JobStatus.QUARANTINED: "skipped",
    JobStatus.SKIPPED: "skipped",
}


@pytest.mark.parametrize("status", list(JobStatus))
def test_each_status_of_a_required_job_lets_start_wait_or_skip(status: JobStatus) -> None:
    turn = turn_of(("0-lora-ddp",), {"0-lora-ddp": status})
    found = "skipped" if turn.skipped else "waits" if turn.waits_for else "starts"
    assert (found, turn.has_come) == (OF_ONE[status], found == "starts")
