"""Triage on labelled logs of others: how often verdict and stage are right, and that nothing else is ever a pass."""

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bot.core.scan import scan
from bot.core.triage import Triage, TriageVerdict, triage

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
LABELLED = FIXTURES / "triage-labelled.jsonl.xz"
UNSEEN = FIXTURES / "triage-unseen"
VERDICT_FIGURE, STAGE_FIGURE = 0.95, 0.85


@dataclass(frozen=True)
class Case:
    """A labelled piece of a log; an answer in either list counts as right."""

    id: str
    excerpt: bytes
    verdicts: tuple[str, ...]
    stages: tuple[str, ...]


def read(text: str) -> Case:
    case = json.loads(text)
    return Case(case["id"], case["excerpt"].encode(), tuple(case["verdict_accept"]), tuple(case["stage_accept"]))


def cases_of(name: str) -> Iterator[Case]:
    if name == "labelled":
        yield from map(read, lzma.decompress(LABELLED.read_bytes()).decode().splitlines())
    else:
        yield from (read(path.read_text()) for path in sorted(UNSEEN.glob("*.json")))


CASES = {name: tuple(cases_of(name)) for name in ("labelled", "unseen")}
EVERY = [case for cases in CASES.values() for case in cases]


def of(excerpt: bytes) -> Triage:
    return triage(scan([excerpt]))


@pytest.mark.parametrize("name", CASES)
def test_verdict_and_stage_reach_their_figures(name: str) -> None:
    answers = [(case, of(case.excerpt)) for case in CASES[name]]
    verdicts = sum(answer.verdict in case.verdicts for case, answer in answers)
    stages = sum(answer.stage in case.stages for case, answer in answers)
    assert len(answers) >= 40
    assert verdicts >= VERDICT_FIGURE * len(answers)
    assert stages >= STAGE_FIGURE * len(answers)


@pytest.mark.parametrize("case", EVERY, ids=[case.id for case in EVERY])
def test_no_labelled_failure_is_a_pass(case: Case) -> None:
    assert of(case.excerpt).verdict is not TriageVerdict.PASS or "pass" in case.verdicts


@pytest.mark.parametrize("case", EVERY, ids=[case.id for case in EVERY])
def test_no_cut_of_a_labelled_failure_is_a_pass(case: Case) -> None:
    if "pass" in case.verdicts:
        return
    size = len(case.excerpt)
    for end in range(0, size, max(1, size // 7)):
        assert of(case.excerpt[:end]).verdict is not TriageVerdict.PASS
        assert of(case.excerpt[end:]).verdict is not TriageVerdict.PASS


@pytest.mark.parametrize("case", EVERY, ids=[case.id for case in EVERY])
def test_the_line_that_is_pointed_at_is_the_one_quoted(case: Case) -> None:
    answer = of(case.excerpt)
    if answer.line and answer.rule != "metrics-not-finite":
        row = case.excerpt.split(b"\n")[answer.line - 1].decode("utf-8", "replace")
        assert answer.excerpt.split()[-1][:40] in row
