"""What is shown of each status of a job, and which job it lets start: tables that everything else asks."""

from collections.abc import Mapping

import pytest

from verl_e2e.core.pulls.forge import CheckStatus
from verl_e2e.core.pulls.ledger import ENDED, SATISFIED, UNDERWAY, JobStatus, Turn, turn_of


@pytest.mark.parametrize("status", list(JobStatus))
def test_a_check_run_has_a_conclusion_exactly_when_it_is_completed(status: JobStatus) -> None:
    assert (status.conclusion is not None) is (status.check is CheckStatus.COMPLETED)
    assert (status in UNDERWAY) is (status.conclusion is None)


@pytest.mark.parametrize("status", list(JobStatus))
def test_a_branch_protection_lets_through_what_is_satisfied_and_nothing_else(status: JobStatus) -> None:
    # The policy may let the gate open past a quarantine; the check of the job itself stays what it is.
    green = status in SATISFIED and status is not JobStatus.TOLERATED
    assert green is (status.conclusion == "success")
    assert not (status in ENDED and status in SATISFIED | UNDERWAY)


def test_each_status_has_its_own_word_and_can_be_told_apart_by_its_icon() -> None:
    assert len({status.word for status in JobStatus}) == len(JobStatus)
    assert {status for status in JobStatus if status.icon == "✅"} == {JobStatus.PASSED, JobStatus.NOT_REQUIRED}
    assert len({status.icon for status in JobStatus}) == len(JobStatus) - 1


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
