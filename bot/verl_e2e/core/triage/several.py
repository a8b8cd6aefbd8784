"""A log that holds several runs: which of them is the answer, and how each of the others ended.

The last whole run is the answer: one that came to its end, or that an error ended. Errors of another run never decide.
A log whose last run is cut is not a pass, however the run before it ended: then the cut run is the answer.
"""

from collections.abc import Callable
from dataclasses import replace

from verl_e2e.core.model.facts import LogFacts, RunFacts
from verl_e2e.core.triage.answer import INCOMPLETE, RunOutcome, Triage, TriageVerdict

Judge = Callable[[LogFacts], Triage]


def judge_runs(facts: LogFacts, judge: Judge) -> Triage:
    """The answer for a log with any number of runs; `judge` answers for the facts of one."""
    if not facts.parts:
        return judge(facts)
    *before, last = facts.parts
    parts = (*before, replace(last, facts=replace(last.facts, stopped=facts.stopped)))
    answers = [(part, judge(part.facts)) for part in parts]
    chosen, answer = _answer(answers)
    others = tuple(_outcome(part, other) for part, other in answers if part is not chosen)
    return replace(answer, run=chosen.number, others=others)


def judged_facts(facts: LogFacts, answer: Triage) -> LogFacts:
    """The facts of the run that the answer is about."""
    return next((part.facts for part in facts.parts if part.number == answer.run), facts)


def _answer(answers: list[tuple[RunFacts, Triage]]) -> tuple[RunFacts, Triage]:
    last = answers[-1]
    whole = next((answer for answer in reversed(answers) if answer[1].rule != INCOMPLETE), last)
    return last if whole[1].verdict is TriageVerdict.PASS else whole


def _outcome(part: RunFacts, answer: Triage) -> RunOutcome:
    return RunOutcome(part.number, part.begins, part.ends, answer.verdict, answer.stage, answer.cause, answer.line)
