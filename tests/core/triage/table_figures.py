"""What the tests of generated tables of whole logs share: the figures by class, and what a table has to reach."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tests.core.triage.silent_cases import PASS
from verl_e2e.core.log.scan import scan
from verl_e2e.core.triage.triage import Triage, triage

FIGURE = 0.95


class Generated(Protocol):
    """A log with its class, and what is to be answered; `unseen` variants were not used to write the rules."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def log(self) -> bytes: ...
    @property
    def verdict(self) -> str: ...
    @property
    def unseen(self) -> bool: ...


Case = TypeVar("Case", bound=Generated)


def figures(answers: Sequence[tuple[Case, Triage]], right: Callable[[Case, Triage], bool]) -> str:
    """The figures by class, and every wrong answer."""
    total = Counter(case.kind for case, _ in answers)
    good = Counter(case.kind for case, answer in answers if right(case, answer))
    rows = [f"{kind}: {good[kind]} of {total[kind]}" for kind in total]
    wrong = [
        f"  {case.kind} / {case.name}: {answer.verdict} in {answer.stage} by {answer.rule} ({answer.cause})"
        for case, answer in answers
        if not right(case, answer)
    ]
    return "\n".join((*rows, *wrong))


def check_table(cases: Sequence[Case], right: Callable[[Case, Triage], bool]) -> None:
    """Each half of the table reaches the figure, and nothing is a pass that must not be one."""
    answers = [(case, triage(scan([case.log]))) for case in cases]
    shown = figures(answers, right)
    assert sum(case.verdict != PASS for case in cases) >= 100
    assert sum(case.verdict == PASS for case in cases) >= 80
    assert not [case.name for case, answer in answers if answer.verdict == PASS and case.verdict != PASS], shown
    for half in (False, True):
        rows = [(case, answer) for case, answer in answers if case.unseen is half]
        assert sum(right(case, answer) for case, answer in rows) >= FIGURE * len(rows), shown
