"""Triage on labelled logs of others: how often verdict and stage are right, and that nothing else is ever a pass."""

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest

from tests.fakes.places import FIXTURES
from verl_e2e.core.log.scan import scan
from verl_e2e.core.triage.triage import Triage, TriageVerdict, triage

PACKED = {
    "labelled": FIXTURES / "triage-labelled.jsonl.xz",
    "driven": FIXTURES / "triage-driven.jsonl.xz",
    "planted": FIXTURES / "triage-planted.jsonl.xz",
}
UNSEEN = FIXTURES / "triage-unseen"
VERDICT_FIGURE, STAGE_FIGURE = 0.95, 0.85


@dataclass(frozen=True)
class Case:
    """A labelled log or a piece of one; an answer in either list counts as right, any stage where none is given."""

    id: str
    excerpt: bytes
    verdicts: tuple[str, ...]
    stages: tuple[str, ...]


def read(text: str) -> Case:
    case = json.loads(text)
    return Case(case["id"], case["excerpt"].encode(), tuple(case["verdict_accept"]), tuple(case["stage_accept"]))


def cases_of(name: str) -> Iterator[Case]:
    if name in PACKED:
        yield from map(read, lzma.decompress(PACKED[name].read_bytes()).decode().splitlines())
    else:
        yield from (read(path.read_text()) for path in sorted(UNSEEN.glob("*.json")))


CASES = {name: tuple(cases_of(name)) for name in (*PACKED, "unseen")}
# The planted runs are whole logs: a cut of one may well have lost what was planted.
EVERY = [case for name, cases in CASES.items() if name != "planted" for case in cases]


@cache
def of(excerpt: bytes) -> Triage:
    """The answer, for all tests once."""
    return triage(scan([excerpt]))


@pytest.mark.parametrize("name", CASES)
def test_verdict_and_stage_reach_their_figures(name: str) -> None:
    answers = [(case, of(case.excerpt)) for case in CASES[name]]
    verdicts = sum(answer.verdict in case.verdicts for case, answer in answers)
    stages = sum(not case.stages or answer.stage in case.stages for case, answer in answers)
    assert len(answers) >= 20
    assert verdicts >= VERDICT_FIGURE * len(answers)
    assert stages >= STAGE_FIGURE * len(answers)


@pytest.mark.slow
def test_no_labelled_failure_nor_any_cut_of_it_is_a_pass() -> None:
    failures = [case for case in EVERY if "pass" not in case.verdicts]
    for case in failures:
        size = len(case.excerpt)
        for end in (size, size // 3, 2 * size // 3):
            assert of(case.excerpt[:end]).verdict is not TriageVerdict.PASS, case.id
            assert of(case.excerpt[size - end :]).verdict is not TriageVerdict.PASS, case.id


def test_no_planted_failure_is_a_pass() -> None:
    passed = [case.id for case in CASES["planted"] if of(case.excerpt).verdict is TriageVerdict.PASS]
    assert passed == [case.id for case in CASES["planted"] if "pass" in case.verdicts]


@pytest.mark.parametrize("name", CASES)
def test_the_line_that_is_pointed_at_is_the_one_quoted(name: str) -> None:
    for case in CASES[name]:
        answer = of(case.excerpt)
        if answer.line and answer.rule != "metrics-not-finite":
            row = case.excerpt.split(b"\n")[answer.line - 1].decode("utf-8", "replace")
            assert answer.excerpt.split()[-1][:40] in row, case.id
