"""What is shown of each status of a job: one table, which everything else asks."""

import pytest

from verl_e2e.core.pulls.check_runs import CheckStatus
from verl_e2e.core.pulls.job_status import ENDED, SATISFIED, UNDERWAY, JobStatus


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
