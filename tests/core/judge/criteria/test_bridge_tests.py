"""Criterion 1 beyond the plain cases: another commit, tests that were chosen, tests without a result."""

from typing import Any

import pytest

from tests.core.builders import BRIDGE, TESTS, ended, make_case, make_job, make_record, passing_tests
from verl_e2e.core.judge.criteria.basic import bridge_tests, without_result
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.jobs import ChosenTest, WhyChosen
from verl_e2e.core.model.record import Event, TestCase

OTHER = "9" * 40
FAILED = TestCase(name="tests.unit_tests.peft.test_lora.test_a", outcome="failed", message="assert 0")
RAN_HERE = Event(t_s=2.0, kind="phase", data={"name": "bridge tests", "state": "end", "outcome": "passed"})
RAN_NOT = Event(t_s=2.0, kind="phase", data={"name": "bridge tests", "state": "end", "outcome": "skipped"})
LORA = "tests/unit_tests/peft/test_lora.py"


@pytest.mark.parametrize(
    ("given", "state", "text"),
    [
        ({"tests_commit": OTHER}, State.WAIVED, "junit.xml is of 999999999999, and the run of aaaaaaaaaaaa"),
        ({"tests_commit": ""}, State.WAIVED, "junit.xml does not state its commit (property bridge_commit)"),
        ({"tests_commit": "", "events": (RAN_NOT, *ended())}, State.WAIVED, "does not state its commit"),
        ({"tests_commit": "", "events": (*ended(), RAN_HERE)}, State.MET, "4 focused Bridge tests passed"),
        ({"tests_commit": OTHER, "events": (*ended(), RAN_HERE)}, State.WAIVED, "junit.xml is of 999999999999"),
        ({"tests_commit": OTHER, "tests": (FAILED,)}, State.WAIVED, "junit.xml is of 999999999999"),
        (
            {"tests": (FAILED, *passing_tests())},
            State.BROKEN,
            f"1 of 5 focused Bridge tests failed, first {FAILED.name}",
        ),
    ],
)
def test_only_tests_of_the_very_commit_say_anything(given: dict[str, Any], state: State, text: str) -> None:
    item = bridge_tests(make_case(make_record(**given)))
    assert item.state is state
    assert text in item.summary


def test_more_failures_than_are_shown_are_counted() -> None:
    many = tuple(FAILED.model_copy(update={"name": f"t.test_{number}"}) for number in range(5))
    assert bridge_tests(make_case(make_record(tests=many))).summary.endswith("t.test_0, t.test_1, t.test_2 and 2 more")


def _case(name: str, outcome: str, message: str = "") -> TestCase:
    return TestCase.model_validate({"name": name, "outcome": outcome, "message": message})


@pytest.mark.parametrize("why", list(WhyChosen))
@pytest.mark.parametrize(
    ("tests", "missing"),
    [
        ((_case("tests.unit_tests.peft.test_lora.test_a", "passed"),), set()),
        ((_case("tests.unit_tests.peft.test_lora.test_a", "skipped", "no GPU"),), {WhyChosen.POLICY}),
        ((), {WhyChosen.POLICY, WhyChosen.CHANGED}),
        ((_case("tests.unit_tests.peft.test_lora", "unfinished", "no package"),), {WhyChosen.POLICY}),
        (
            (
                _case("tests.unit_tests.peft.test_lora.test_a", "passed"),
                _case("tests.unit_tests.peft.test_lora.test_b", "unfinished", "the limit"),
            ),
            {WhyChosen.POLICY, WhyChosen.CHANGED},
        ),
    ],
)
def test_what_a_pass_needs_depends_on_why_a_test_is_run(
    why: WhyChosen, tests: tuple[TestCase, ...], missing: set[WhyChosen]
) -> None:
    chosen = () if why is WhyChosen.POLICY else (ChosenTest(test=LORA, why=why, reason="near"),)
    job = make_job(bridge_tests=(LORA,), chosen_tests=chosen)
    assert without_result(job, tests, ()) == ((LORA,) if why in missing else ())
    assert without_result(job, tests, (LORA,)) == ()


def test_a_chosen_test_without_a_result_is_told_and_keeps_nothing_from_passing() -> None:
    chosen = (ChosenTest(test=LORA, why=WhyChosen.IMPORTS, reason="near"),)
    job = make_job(bridge_tests=(*TESTS, LORA), chosen_tests=chosen)
    cut = _case("tests.unit_tests.peft.test_lora.test_b", "unfinished", "the limit")
    item = bridge_tests(make_case(make_record(job=job, tests=(*passing_tests(), cut), tests_commit=BRIDGE)))
    assert (item.state, item.summary) == (State.MET, "4 focused Bridge tests passed, 1 without a result")
