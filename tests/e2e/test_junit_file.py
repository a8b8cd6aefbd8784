"""A JUnit file that a user brings: which is taken, and the one sentence for every other."""

from pathlib import Path

import pytest

from tests.core.builders import BRIDGE, make_job
from verl_e2e.adapters.files.folders import read_junit_file
from verl_e2e.core.judge.junit import read_junit
from verl_e2e.core.model.errors import UserError

OTHER = "9" * 40
PLAIN = '<testsuites><testsuite><testcase name="t"/></testsuite></testsuites>'
PROPERTY = f'<properties><property name="bridge_commit" value="{BRIDGE}"/></properties>'
STATED = f'<testsuite>{PROPERTY}<testcase name="t"/></testsuite>'


@pytest.mark.parametrize(("text", "commit"), [(STATED, None), (PLAIN, BRIDGE), (PLAIN, BRIDGE.upper())])
def test_a_file_of_the_job_s_commit_is_taken_and_states_it(text: str, commit: str | None, tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_text(text)
    assert read_junit(read_junit_file(file, make_job(), commit)).commit == BRIDGE


@pytest.mark.parametrize(
    ("text", "commit", "words"),
    [
        (PLAIN, None, "no property bridge_commit; name the commit of the tests with --junit-commit SHA"),
        (PLAIN, OTHER, f"bridge_commit: {OTHER}, and the job tests {BRIDGE}; run the tests on the job's commit"),
        (STATED.replace(BRIDGE, OTHER), BRIDGE, f"bridge_commit: {OTHER}, and the job tests {BRIDGE}"),
        (PLAIN[:-5], BRIDGE, "not readable as JUnit (unclosed token"),
        (None, BRIDGE, "No such file or directory; give a readable JUnit file"),
    ],
)
def test_any_other_file_is_refused_in_one_sentence(
    text: str | None, commit: str | None, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "junit.xml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError) as raised:
        read_junit_file(file, make_job(), commit)
    assert str(raised.value).startswith(f"{file}: ")
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
