"""Errors of unit tests as they were printed where something was not there, and errors that are the change's own.

pytest's JUnit file: nothing that failed may be read as passed.
"""

from contextlib import suppress
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_e2e.core.judge.junit import (
    MAX_CASES,
    MAX_MESSAGE,
    MAX_NAME,
    CaseResult,
    JunitError,
    covers,
    junit_document,
    missing_from_environment,
    missing_package,
    read_junit,
    stating_commit,
)
from verl_e2e.core.model.record import TestCase


@pytest.mark.parametrize(
    ("error", "missing"),
    [
        (
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and "
            "installed a driver from http://www.nvidia.com/Download/index.aspx",
            "the GPUs that it asks for",
        ),
        ("RuntimeError: TransformerEngine needs CUDA.", "the GPUs that it asks for"),
        ("AssertionError: Torch not compiled with CUDA enabled", "the GPUs that it asks for"),
        ("AssertionError: assert 'Torch not compiled with CUDA enabled' in ''", ""),
        ("RuntimeError: No CUDA GPUs are available", "the GPUs that it asks for"),
        (
            "RuntimeError: ColumnParallelLinear was called with gradient_accumulation_fusion set to True but the "
            "custom CUDA extension fused_weight_gradient_mlp_cuda module is not found. To use it, install APEX",
            "apex's fused kernels",
        ),
        ("ModuleNotFoundError: No module named 'nemo_run'", "package nemo_run"),
        ("ModuleNotFoundError: No module named 'megatron.energon'", "package megatron.energon"),
        ("ModuleNotFoundError: No module named 'megatron'", ""),
        (
            "RuntimeError: The multistorageclient package is not available. Please install it",
            "package multistorageclient",
        ),
        (
            "ImportError: \nFeatureExtractor requires the librosa library but it was not found in your environment.",
            "package librosa",
        ),
        ("ImportError: \nAnExtractor requires the librosa library. But that was not found.", "package librosa"),
        ("ImportError: No module named 'apex.normalization'", "package apex.normalization"),
        ("ModuleNotFoundError: No module named 'examples.conversion'", ""),
        ("ModuleNotFoundError: No module named 'megatron.bridge.gone'", ""),
        ("ImportError: cannot import name 'LoRA' from 'megatron.bridge.peft'", ""),
        ("RuntimeError: wrapped\nModuleNotFoundError: No module named 'nemo_run'", ""),
        ("OSError: [Errno 98] Address already in use", "a port that no one else on the host uses"),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            "a port that no one else on the host uses",
        ),
        ("AssertionError: assert 'Address already in use' in ''", ""),
        ("OSError: [Errno 28] No space left on device: '/x'", "room on the disk"),
        (
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
            "a way to the network",
        ),
        ("huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files", "a way to the network"),
        ("AssertionError: Regex pattern did not match.\n Input: 'Found no NVIDIA driver on your system.'", ""),
        ("assert 'No CUDA GPUs are available' == ''", ""),
        ("Failed: DID NOT RAISE <class 'ModuleNotFoundError'> No module named 'nemo_run'", ""),
        ("ValueError: 3 heads do not divide 4 ranks", ""),
        ("RuntimeError: CUDA error: device-side assert triggered", ""),
        ("", ""),
    ],
)
def test_what_an_error_says_of_its_environment(error: str, missing: str) -> None:
    assert missing_from_environment(error) == missing


@pytest.mark.parametrize(
    ("text", "package"),
    [
        ("E   ModuleNotFoundError: No module named 'a'\nE   ModuleNotFoundError: No module named 'b'", "b"),
        ("No module named 'tests.unit'", ""),
        ("nothing", ""),
    ],
)
def test_the_last_missing_package_counts(text: str, package: str) -> None:
    assert missing_package(text) == package


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
        ("<other><failure message='deep'/></other>", "failed", "deep"),
        ("<failure xmlns='https://junit.org' message='named'/>", "failed", "named"),
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
    ("raw", "text"),
    [
        (b"", "no element found"),
        (b"not xml", "syntax error"),
        (REAL[:-20], "unclosed token|no element found"),
        (b"<html/>", "no test suite in it"),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><testsuite>&a;</testsuite>', "document type"),
        (b"<testsuite>" + b"<a/>" * 200_000 + b"</testsuite>", "more than 200,000 elements"),
        (b'<?xml version="1.0" encoding="utf-7"?><testsuite/>', "unknown encoding|multi-byte"),
    ],
)
def test_what_is_no_junit_is_refused(raw: bytes, text: str) -> None:
    with pytest.raises(JunitError, match=text):
        read_junit(raw)


def test_sizes_are_bounded() -> None:
    name, text = "n" * 1000, "m" * 1000
    (case,) = read_junit(suite(f'<testcase name="{name}"><failure>{text}</failure></testcase>')).tests
    assert (len(case.name), len(case.message)) == (MAX_NAME, MAX_MESSAGE)
    with pytest.raises(JunitError, match="more than"):
        read_junit(suite('<testcase name="t"/>' * (MAX_CASES + 1)))


@pytest.mark.no_cover
def test_suites_may_nest_without_end() -> None:
    depth = 100_000
    raw = b"<testsuite>" * depth + b'<testcase name="t"/>' + b"</testsuite>" * depth
    assert [test.name for test in read_junit(raw).tests] == ["t"]


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


COMMIT, OTHER = "a" * 40, "b" * 40
MISSING_PACKAGE = """<testcase classname="" name="tests.unit.test_b"><error message="collection failure">
tests/unit/test_b.py:1: in &lt;module&gt;
E   ModuleNotFoundError: No module named 'nemo_run'</error></testcase>"""


def stated(commit: str, inner: str = '<testcase name="t"/>') -> str:
    properties = f'<properties><property name="bridge_commit" value="{commit}"/></properties>' if commit else ""
    return f"<testsuite>{properties}{inner}</testsuite>"


@pytest.mark.parametrize(
    ("text", "commit"),
    [
        (stated(COMMIT), COMMIT),
        (stated(f" {COMMIT.upper()} "), COMMIT),
        (stated(""), ""),
        (f"<testsuites>{stated(COMMIT)}{stated(COMMIT)}</testsuites>", COMMIT),
        (f"<testsuites>{stated(COMMIT)}{stated('', '')}</testsuites>", COMMIT),
        (f"<testsuites>{stated(COMMIT)}{stated(OTHER, '')}</testsuites>", COMMIT),
        (stated(COMMIT, stated("")), COMMIT),
        (
            stated(
                "", '<testcase name="t"><properties><property name="bridge_commit" value="x"/></properties></testcase>'
            ),
            "",
        ),
    ],
)
def test_the_commit_that_a_file_states(text: str, commit: str) -> None:
    assert read_junit(text.encode()).commit == commit


@pytest.mark.parametrize(
    "text",
    [
        f"<testsuites>{stated(COMMIT)}{stated(OTHER)}</testsuites>",
        f"<testsuites>{stated(COMMIT)}{stated('')}</testsuites>",
        stated(
            COMMIT, f'<properties><property name="bridge_commit" value="{OTHER}"/></properties><testcase name="t"/>'
        ),
    ],
)
def test_suites_of_different_commits_are_refused(text: str) -> None:
    with pytest.raises(JunitError, match="commits"):
        read_junit(text.encode())


def test_a_package_that_is_missing_elsewhere_is_no_failure_of_the_change() -> None:
    raw = f'<testsuite errors="1" failures="0">{MISSING_PACKAGE}<testcase name="t"/></testsuite>'
    assert [(test.outcome, test.message) for test in read_junit(raw.encode()).tests] == [
        ("unfinished", "it cannot be collected there: package nemo_run is missing"),
        ("passed", ""),
    ]
    ours = raw.replace("nemo_run", "megatron.bridge.gone")
    assert [test.outcome for test in read_junit(ours.encode()).tests] == ["failed", "passed"]
    more = raw.replace('errors="1"', 'errors="2"')
    assert [test.outcome for test in read_junit(more.encode()).tests] == ["unfinished", "passed", "failed"]


def test_a_file_can_be_made_to_state_its_commit() -> None:
    made = read_junit(stating_commit(REAL, COMMIT))
    assert (made.commit, made.tests) == (COMMIT, read_junit(REAL).tests)
    assert stating_commit(stated(COMMIT).encode(), COMMIT) == stated(COMMIT).encode()
    with pytest.raises(JunitError, match=f"its tests were run on {COMMIT}"):
        stating_commit(stated(COMMIT).encode(), OTHER)


def test_results_are_counted_in_the_file_that_is_written() -> None:
    results = (
        CaseResult("tests/test_a.py::TestB::test_x", "failed", "\nassert 1 == 2\nmore", 1.5),
        CaseResult("tests/test_a.py", "skipped", "no GPU", 0.0),
        CaseResult("tests/test_a.py::test_y", "unfinished", "", 2.0),
        CaseResult("tests/test_a.py::test_z", "passed", "", 0.25),
    )
    text = junit_document(results, COMMIT)
    for count in (b'tests="4"', b'failures="1"', b'skipped="2"', b'time="3.750"'):
        assert count in text
    found = {test.name: (test.outcome, test.message) for test in read_junit(text).tests}
    assert found == {
        "tests.test_a.TestB.test_x": ("failed", "assert 1 == 2"),
        "tests.test_a": ("skipped", "no GPU"),
        "tests.test_a.test_y": ("unfinished", ""),
        "tests.test_a.test_z": ("passed", ""),
    }


@given(st.text(max_size=80), st.text(max_size=80), st.sampled_from(["passed", "failed", "skipped", "unfinished"]))
def test_what_is_written_is_read_again(
    node: str, text: str, outcome: Literal["passed", "failed", "skipped", "unfinished"]
) -> None:
    results = (CaseResult(f"tests/test_a.py::test_x[{node}]", outcome, text, 1.5),)
    made = read_junit(junit_document(results, COMMIT))
    assert (made.commit, [test.outcome for test in made.tests]) == (COMMIT, [outcome])
    assert made.tests[0].name.startswith("tests.test_a.test_x[")


def test_an_error_of_the_environment_is_no_failure_of_the_change() -> None:
    driver = "RuntimeError: Found no NVIDIA driver on your system."
    inside = f'<testcase name="a"><failure message="{driver}">E  {driver}</failure></testcase><testcase name="b"/>'
    first, second = read_junit(suite(inside, failures=1)).tests
    assert (first.outcome, first.message) == ("skipped", "its environment does not have the GPUs that it asks for")
    assert second.outcome == "passed"
