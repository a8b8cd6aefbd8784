"""Whose fault an error is, decided by what was raised and where: a generated table of faults, places and shapes."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache

from tests.core.triage.blame_cases import Case, cases, faults
from verl_e2e.core.log.scan import scan
from verl_e2e.core.triage.triage import Triage, TriageVerdict, triage

RIGHT = 0.95


@cache
def every() -> tuple[tuple[Case, Triage], ...]:
    """Each case with its answer; a minute of work, so it is not done where the tests are only listed."""
    return tuple((case, triage(scan([case.log]))) for case in cases())


def wrong(case: Case, answer: Triage) -> str:
    """What is wrong with an answer, or empty."""
    if answer.verdict != case.verdict:
        return f"{case.id}: {answer.verdict} instead of {case.verdict} ({answer.stage}, rule {answer.rule})"
    if answer.stage not in case.stages:
        return f"{case.id}: {answer.stage} instead of {'/'.join(sorted(case.stages))} (rule {answer.rule})"
    return ""


def figures(key: Callable[[Case], str]) -> str:
    """Right of all, by a key of the case, and what is wrong."""
    counted = Counter(key(case) for case, _ in every())
    right = Counter(key(case) for case, answer in every() if not wrong(case, answer))
    return "\n".join(f"{right[name]:4}/{count:4} {name}" for name, count in sorted(counted.items()))


def of(chosen: Iterable[tuple[Case, Triage]]) -> tuple[int, int, list[str]]:
    rows = list(chosen)
    found = [text for case, answer in rows if (text := wrong(case, answer))]
    return len(rows) - len(found), len(rows), found


def test_the_table_is_large_and_holds_both_sides() -> None:
    assert len(every()) >= 1000
    assert sum(fault.outside for fault in faults()) >= 60
    assert sum(not fault.outside for fault in faults()) >= 40
    assert len({fault.id for fault in faults()}) == len(faults())


def test_verdict_and_stage_are_right() -> None:
    right, count, found = of(every())
    shown = "\n".join([figures(lambda case: case.group), *found])
    assert right >= RIGHT * count, f"{right} of {count}\n{shown}"


def test_no_side_is_wronged_more_than_the_other() -> None:
    for verdict in ("fail", "blocked"):
        right, count, found = of(row for row in every() if row[0].verdict == verdict)
        assert right >= RIGHT * count, f"{verdict}: {right} of {count}\n" + "\n".join(found)


def test_what_was_kept_out_of_sight_is_right_too() -> None:
    right, count, found = of(row for row in every() if not row[0].seen)
    assert right >= RIGHT * count, f"{right} of {count}\n" + "\n".join(found)


def test_none_is_a_pass() -> None:
    assert not [case.id for case, answer in every() if answer.verdict is TriageVerdict.PASS]
