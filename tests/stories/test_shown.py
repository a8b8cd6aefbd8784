"""What `make run` shows in a browser: a pull request on the stand-in, and a form that takes commands."""

import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.fakes.patience import HANG_S
from tests.stories.shown import Shown, showing


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    with showing(tmp_path, 10.0) as found:
        yield found


def asked(shown: Shown, method: str = "GET", **form: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(shown.world.url.removeprefix("http://"), timeout=HANG_S)
    try:
        path, headers = f"/octo/bridge/pull/{shown.number}", {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request(method, path, urlencode(form), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_pull_request_fails_is_fixed_and_passes_and_each_is_on_the_page(shown: Shown) -> None:
    shown.step(0.0)
    assert "<strong>in_progress</strong> <code>verl-e2e</code>" in asked(shown)[1]
    shown.step(1.0)
    assert shown.world.gate(shown.number) == "in_progress"
    failing = shown.world.head(shown.number)
    shown.step(11.0)
    assert shown.world.gate_of(failing) == "failure"
    shown.step(12.0)
    assert shown.fixed == shown.world.head(shown.number) != failing
    shown.step(13.0)
    shown.step(24.0)
    assert "<strong>success</strong> <code>verl-e2e</code>" in asked(shown)[1]
    assert shown.service.failures == []


def test_a_command_that_is_typed_into_the_page_is_answered_there(shown: Shown) -> None:
    shown.step(0.0)
    status, _ = asked(shown, "POST", who="alice", text="/verl-e2e help")
    assert status == 303
    shown.step(1.0)
    page = asked(shown)[1]
    assert page.count("/verl-e2e rerun") >= 1
    assert "<h2>verl-e2e[bot] " in page


@pytest.mark.parametrize("form", [{"who": "nobody", "text": "/verl-e2e help"}, {"who": "alice", "text": " "}, {}])
def test_a_form_that_says_nothing_writes_nothing(shown: Shown, form: dict[str, str]) -> None:
    before = len(shown.world.comments(shown.number))
    assert asked(shown, "POST", **form)[0] == 422
    assert len(shown.world.comments(shown.number)) == before


def test_what_is_written_on_the_page_is_text(shown: Shown) -> None:
    asked(shown, "POST", who="carol", text="<script>ran = true</script>")
    assert "<script>ran" not in asked(shown)[1]
