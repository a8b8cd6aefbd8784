"""What the generated tables of whole logs share: a log with what is right about it, and what a table has to reach."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from verl_e2e.adapters.files.logs import fastest_prefilter
from verl_e2e.core.log.scan import literal_bytes, scan
from verl_e2e.core.triage.triage import Triage, triage

PASS, FAIL, BLOCKED = ("pass",), ("fail",), ("blocked",)
FIGURE = 0.95
PREFILTER = fastest_prefilter(literal_bytes())


@dataclass(frozen=True)
class Case:
    """A log of a class, and what is right about it, written before triage read it."""

    group: str
    id: str
    log: bytes
    verdicts: tuple[str, ...] = BLOCKED
    stages: tuple[str, ...] = ()
    """Any stage where none is given."""
    says: tuple[str, ...] = ()
    """Words that the cause must hold."""
    unseen: bool = False
    """Not looked at while the rules were written."""
    never: str = ""
    """Words that neither cause nor fix may hold."""
    line: int = 0
    """Any line for 0."""
    run: int = 0
    """Which run of the log answers; any for 0."""


Judged = tuple[Case, Triage]


def answer_of(case: Case) -> Triage:
    return triage(scan([case.log], PREFILTER))


def judged(cases: Iterable[Case]) -> list[Judged]:
    """Each case with its answer; none is a pass that must not be one."""
    answers = [(case, answer_of(case)) for case in cases]
    assert not [case.id for case, answer in answers if answer.verdict == "pass" and "pass" not in case.verdicts]
    return answers


def wrong(case: Case, answer: Triage) -> str:
    """What is wrong with an answer, or empty."""
    placed = not case.stages or answer.stage in case.stages
    pointed = case.line in (0, answer.line) and case.run in (0, answer.run)
    said = all(word in answer.cause for word in case.says)
    never = bool(case.never) and case.never in f"{answer.cause} {answer.fix}"
    if answer.verdict in case.verdicts and placed and pointed and said and not never:
        return ""
    where = f"line {answer.line}, not {case.line}, rule {answer.rule}"
    return f"{case.group}: {case.id}: {answer.verdict} in {answer.stage}, {where}: {answer.cause[:160]}"


def check(answers: Iterable[Judged], by: Callable[[Case], object] = lambda case: case.group, least: int = 7) -> None:
    """Each part of the table reaches the figure; a part is of the cases with one key, and not too small."""
    rows = [(by(case), wrong(case, answer)) for case, answer in answers]
    every, bad = Counter(key for key, _ in rows), Counter(key for key, text in rows if text)
    figures = [f"{key}: {count - bad[key]} of {count}" for key, count in every.items()]
    shown = "\n".join([*figures, *(text for _, text in rows if text)])
    assert all(count >= least and count - bad[key] >= FIGURE * count for key, count in every.items()), shown
