"""Whose fault an error is, decided by what was raised and where: a generated table of faults, places and shapes."""

from tests.core.triage.blame_cases import cases, faults
from tests.core.triage.tables import check, judged


def test_the_table_is_large_and_holds_both_sides() -> None:
    assert sum(fault.outside for fault in faults()) >= 60
    assert sum(not fault.outside for fault in faults()) >= 40
    assert len({fault.id for fault in faults()}) == len(faults())


def test_verdict_and_stage_are_right_for_either_side_and_out_of_sight() -> None:
    answers = judged(cases())
    assert len(answers) >= 1000
    check(answers, by=lambda case: case.verdicts)
    check(answers, by=lambda case: case.unseen)
