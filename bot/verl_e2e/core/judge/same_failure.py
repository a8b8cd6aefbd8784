"""Whether two runs failed, or were blocked, the same way: at the same stage, with the same marks.

The marks of a failure leave out what differs between two runs of one job: numbers, addresses, commits, folders. They
err on the side of difference, because a failure that is wrongly taken for an old one would excuse a new fault.
"""

import re
from collections.abc import Iterator

from verl_e2e.core.judge.case import Case
from verl_e2e.core.model.evidence import Criterion, Evidence
from verl_e2e.core.model.facts import LoggedError
from verl_e2e.core.model.outcome import Decision, Result
from verl_e2e.core.model.related import RelatedRun
from verl_e2e.core.model.stages import Stage

_MAX_MARKS = 200
_MAX_MARK = 300
_OF_THE_STACK = ("megatron/", "verl/")

_VARYING = (
    (re.compile(r"\x1b\[[0-9;]*[A-Za-z]"), ""),
    (re.compile(r"0x[0-9a-fA-F]+"), "#"),
    # Where a folder lies differs; a metric's name or a path within a tree has no root.
    (re.compile(r"(?<![\w./-])(?:~|\$\w+)?/(?:[\w.@+-]+/)*(?=[\w.@])"), ""),
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{7,}\b"), "#"),
    (re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"), "#"),
    (re.compile(r"\s+"), " "),
)


def fingerprint_of(case: Case, decision: Decision) -> tuple[str, ...]:
    """The marks of a Fail, and of what blocked a run and may be the change's, sorted; empty where nothing shows it."""
    if decision.result is not Result.FAIL and not decision.undecided:
        return ()
    found = {f"preflight: {normal(mark)}"[:_MAX_MARK] for mark in decision.marks}
    if decision.at is not None:
        found |= {f"{decision.at.criterion}: {mark}"[:_MAX_MARK] for mark in _marks(case, decision.at)}
    return tuple(sorted(found)[:_MAX_MARKS])


def same_failure(marks: tuple[str, ...], stage: Stage | None, other: RelatedRun) -> bool:
    """Whether the other run ended at that stage and shows every one of the marks; it may show more."""
    ended_there = other.result is not Result.PASS and other.stage is stage
    return bool(marks) and ended_there and set(marks) <= set(other.fingerprint)


def normal(text: str) -> str:
    """A message without what differs from run to run."""
    for pattern, stand_in in _VARYING:
        text = pattern.sub(stand_in, text)
    return text.strip()


def _marks(case: Case, at: Evidence) -> Iterator[str]:
    if at.criterion is Criterion.BRIDGE_TESTS:
        yield from (test.name for test in case.record.tests or () if test.outcome == "failed")
    elif at.criterion is Criterion.WEIGHTS_KEPT:
        yield from (normal(lost.text) for lost in case.facts.lost_weights)
    else:
        error = next((error for error in case.facts.errors if error.at.line == at.line), None)
        yield normal(at.summary) if error is None else _of_error(error)


def _of_error(error: LoggedError) -> str:
    """Kind and message, where it was raised, and where the code of the stack went there."""
    ours = [call for call in error.calls if any(part in call for part in _OF_THE_STACK)]
    places = dict.fromkeys(normal(calls[-1]) for calls in (ours, error.calls) if calls)
    return f"{error.kind}: {normal(error.message)} @ {' < '.join(places)}"
