"""In whatever way a call goes wrong: nothing is created twice, and what is reported as done is done."""

from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.adapters.github_adapters import ONE, REPOSITORY, GithubAdapters, github_adapters
from tests.fakes.github_standin.faults import Fault, When, cut, server_error, slow_down
from verl_e2e.adapters.github.checks import GithubChecks
from verl_e2e.adapters.github.pulls import GithubConversation
from verl_e2e.adapters.github.workflows import GithubWorkflows
from verl_e2e.core.pulls.forge import Annotation, CheckRun
from verl_e2e.ports import ForgeError

FILE = "verl-e2e.yml"
WORKFLOW = b"""
name: verl-e2e
run-name: job ${{ inputs.run_key }}
on: {workflow_dispatch: {inputs: {run_key: {required: true}}}}
jobs: {run: {runs-on: [self-hosted]}}
"""
# None: the request goes well. A read has no effect, so that it breaks before or after is one.
FAULTS: tuple[Fault | None, ...] = (
    None,
    server_error(500),
    server_error(502, When.AFTER),
    server_error(503, When.AFTER),
    cut(),
    cut(When.AFTER),
    slow_down(403),
    slow_down(429),
)
Numbered = Callable[[GithubAdapters, int], int]
Count = Callable[[GithubAdapters, int], int]


def comment(at: GithubAdapters, number: int) -> int:
    return GithubConversation(at.github).comment(ONE, f"word {number}")


def comments(at: GithubAdapters, number: int) -> int:
    return sum(comment.body == f"word {number}" for comment in at.world.comments())


def check(at: GithubAdapters, number: int) -> int:
    notes = tuple(Annotation("src/a.py", n, n, "notice", "", f"note {n}") for n in range(1, 62))
    wanted = CheckRun("job", at.world.head(1), "queued", external_id=f"run:{number}", annotations=notes)
    return GithubChecks(at.github).write_check(REPOSITORY, wanted)


def checks(at: GithubAdapters, number: int) -> int:
    """One is whole with all its notes, each once; a call that failed may have left some out."""
    found = [check for check in at.world.state.checks.values() if check.external_id == f"run:{number}"]
    assert len(found) <= 1
    assert all(len({str(annotation) for annotation in kept.annotations}) == len(kept.annotations) for kept in found)
    return sum(len(kept.annotations) == 61 for kept in found)


def dispatch(at: GithubAdapters, number: int) -> int:
    key = f"<{number}>"
    return GithubWorkflows(at.github).dispatch(REPOSITORY, FILE, "main", {"run_key": key}, key).id


def dispatches(at: GithubAdapters, number: int) -> int:
    return sum(f"<{number}>" in run.title for run in at.world.runs())


def error_of(create: Numbered, at: GithubAdapters, number: int) -> ForgeError | None:
    try:
        create(at, number)
    except ForgeError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("create", "count", "examples"), [(comment, comments, 60), (check, checks, 40), (dispatch, dispatches, 20)]
)
def test_nothing_is_made_twice(tmp_path: Path, create: Numbered, count: Count, examples: int) -> None:
    numbers = iter(range(1, 10_000))
    with github_adapters(tmp_path) as at:
        at.world.commit({f".github/workflows/{FILE}": WORKFLOW})

        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(st.sampled_from(FAULTS), max_size=14))
        def try_with(faults: list[Fault | None]) -> None:
            left = deque(faults)
            at.world.faults.choose = lambda _method, _path: left.popleft() if left else None
            number = next(numbers)
            message = error_of(create, at, number)
            assert message is None or message.passing
            assert count(at, number) == 1 if message is None else count(at, number) <= 1

        try_with()
