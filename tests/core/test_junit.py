"""pytest's JUnit file: nothing that failed may be read as passed."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.core.junit import MAX_CASES, MAX_MESSAGE, MAX_NAME, JunitError, covers, read_junit
from bot.core.record import TestCase

REAL = b"""<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" errors="0"
 failures="1" skipped="1" tests="4" time="3.2"><testcase classname="tests.unit.test_a.TestA" name="test_x[1-2]"
 time="0.1"/><testcase classname="tests.unit.test_a" name="test_y"><failure message="assert 1 == 2">long
 text</failure></testcase><testcase classname="" name="tests.unit.test_b"><error message="collection failure">
 ImportError</error></testcase><testcase classname="tests.unit.test_a" name="test_z"><skipped type="pytest.skip"
 message="needs a GPU">x</skipped></testcase></testsuite></testsuites>"""


def test_a_real_file() -> None:
    assert [(case.name, case.outcome, case.message) for case in read_junit(REAL).tests] == [
        ("tests.unit.test_a.TestA.test_x[1-2]", "passed", ""),
        ("tests.unit.test_a.test_y", "failed", "assert 1 == 2"),
        ("tests.unit.test_b", "failed", "collection failure"),
        ("tests.unit.test_a.test_z", "skipped", "needs a GPU"),
    ]


def suite(inner: str, **counts: int) -> bytes:
    shown = " ".join(f'{name}="{count}"' for name, count in counts.items())
    return f"<testsuite {shown}>{inner}</testsuite>".encode()


@pytest.mark.parametrize(
    ("inner", "outcome", "message"),
    [
        ("<failure>said <![CDATA[here]]></failure>", "failed", "said here"),
        ("<skipped/>", "skipped", ""),
        ("<skipped message='s'/><error message='teardown'/>", "failed", "teardown"),
        ("<failure message='first'/><error message='second'/>", "failed", "first"),
        ("<failure message='first'/><skipped message='s'/>", "failed", "first"),
        ("<system-out>failure</system-out><properties/>", "passed", ""),
    ],
)
def test_the_worst_outcome_of_a_test_counts(inner: str, outcome: str, message: str) -> None:
    (case,) = read_junit(suite(f'<testcase name="t">{inner}</testcase>')).tests
    assert (case.outcome, case.message) == (outcome, message)


@pytest.mark.parametrize("counts", [{"failures": 2}, {"errors": 2}])
def test_failures_that_are_counted_but_not_named_are_kept(counts: dict[str, int]) -> None:
    cases = read_junit(suite('<testcase name="t"/>', **counts)).tests
    assert [case.outcome for case in cases] == ["passed", "failed"]
    assert cases[1].message == "the suite counts 2 failed, none is named"


def test_odd_counts_are_no_counts() -> None:
    assert len(read_junit(b'<testsuite failures="-1" errors="many"><testcase name="t"/></testsuite>').tests) == 1
    assert read_junit(b'<testsuite failures="99999999999"/>').tests == ()
    assert read_junit(b"<testsuites/>").tests == ()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "no element found"),
        (b"not xml", "syntax error"),
        (REAL[:-20], "unclosed token|no element found"),
        (b"<html/>", "no test suite in it"),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><testsuite>&a;</testsuite>', "document type"),
    ],
)
def test_what_is_no_junit_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(JunitError, match=said):
        read_junit(raw)


def test_sizes_are_bounded() -> None:
    name, text = "n" * 1000, "m" * 1000
    (case,) = read_junit(suite(f'<testcase name="{name}"><failure>{text}</failure></testcase>')).tests
    assert (len(case.name), len(case.message)) == (MAX_NAME, MAX_MESSAGE)
    with pytest.raises(JunitError, match="more than"):
        read_junit(suite('<testcase name="t"/>' * (MAX_CASES + 1)))


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    with suppress(JunitError):
        assert all(case.name for case in read_junit(b"<testsuite>" + raw + b"</testsuite>").tests)


@pytest.mark.parametrize(
    ("listed", "name", "covered"),
    [
        ("tests/unit/test_a.py", "tests.unit.test_a.TestA.test_x[1.5]", True),
        ("tests/unit/test_a.py", "unit.test_a.test_x", True),
        ("tests/unit/test_a.py", "tests.unit.test_ab.test_x", False),
        ("tests/unit", "tests.unit.test_ab.test_x", True),
        ("tests/unit/", "tests.unit.test_ab.test_x", True),
        ("tests/unit/test_a.py::TestA", "tests.unit.test_a.TestA.test_x", True),
        ("tests/unit/test_a.py::TestA::test_x[2]", "tests.unit.test_a.TestA.test_x[3]", True),
        ("tests/unit/test_a.py::TestB", "tests.unit.test_a.TestA.test_x", False),
        ("tests/unit/test_a.py", "tests/unit/test_a.py", True),
        ("tests/unit/test_a.py", "tests.unit.test_a", True),
        ("tests/unit/test_a.py", "bridge.tests.unit.test_a.test_x", True),
        ("tests/unit/models/test_utils.py", "tests.unit.peft.test_utils.test_x", False),
        ("tests/unit/models/test_utils.py", "test_utils.test_x", True),
        ("tests/unit/test_a.py::test_x", "tests.unit.test_a.TestA.test_x", False),
    ],
)
def test_which_case_belongs_to_a_listed_test(listed: str, name: str, covered: bool) -> None:
    assert covers(listed, TestCase(name=name, outcome="passed")) is covered
