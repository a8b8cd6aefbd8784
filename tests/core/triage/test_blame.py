"""Whose fault an error is, decided by what was raised and where: a generated table of faults, places and shapes."""

import pytest

from tests.core.triage.blame_cases import cases, faults
from tests.core.triage.tables import check, judged


def test_the_table_is_large_and_holds_both_sides() -> None:
    assert sum(fault.outside for fault in faults()) >= 60
    assert sum(not fault.outside for fault in faults()) >= 40
    assert len({fault.id for fault in faults()}) == len(faults())


def test_each_fault_is_judged_right_in_its_first_place() -> None:
    """What is measured of the next test, which takes long where it is measured."""
    first = {case.id.partition("/")[0]: case for case in reversed(list(cases()))}
    check(judged(first.values()), by=lambda case: case.verdicts)


@pytest.mark.slow
def test_verdict_and_stage_are_right_for_either_side_and_out_of_sight() -> None:
    answers = judged(cases())
    assert len(answers) >= 1000
    check(answers, by=lambda case: case.verdicts)
    check(answers, by=lambda case: case.unseen)
