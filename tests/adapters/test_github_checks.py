"""Check runs over real HTTP: made once, limits looked at before, annotations appended once."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.adapters.github_adapters import REPOSITORY, GithubAdapters, github_adapters
from tests.fakes.github_standin.faults import cut, server_error
from tests.fakes.github_standin.world import APP_ID
from verl_e2e.adapters.github.checks import GithubChecks
from verl_e2e.adapters.github.requester import RetryPolicy
from verl_e2e.adapters.github.session import as_app
from verl_e2e.core.pulls.forge import Annotation, CheckRun
from verl_e2e.ports import ForgeError

BUTTONS = (("Rerun failed", "Run what failed once more", "rerun-failed"), ("Cancel", "End what runs", "cancel"))


@pytest.fixture
def at(tmp_path: Path) -> Iterator[GithubAdapters]:
    with github_adapters(tmp_path, timeout_s=1) as made:
        yield made


def wanted(at: GithubAdapters, **changes: object) -> CheckRun:
    check = CheckRun(
        name="verl-e2e",
        head_sha=at.world.head(1),
        status="in_progress",
        title="Level 0 runs",
        summary="why",
        external_id="gate:1",
        details_url="https://verl-e2e.example/1",
    )
    return replace(check, **changes)  # type: ignore[arg-type]


def test_check_runs_that_are_held_back_come_back_one_by_one(
    at: GithubAdapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("verl_e2e.adapters.github.requester.time.monotonic", lambda: clock[0])
    policy = RetryPolicy(total_s=4.0)
    github = as_app(APP_ID, at.world.private_key, api_url=at.world.url, limiter=((3, 3600.0),), retry_policy=policy)
    checks = GithubChecks(github)

    def back(name: str) -> float:
        with pytest.raises(ForgeError) as held:
            checks.write_check(REPOSITORY, wanted(at, name=name, summary=f"as of {clock[0]}"))
        return clock[0] + held.value.wait_s

    for name in ("one", "two", "three"):
        checks.write_check(REPOSITORY, wanted(at, name=name))
        clock[0] += 10
    # Each has a time of its own, and the same when it comes again with another text.
    assert [back("four"), back("five")] == [4600, 4610]
    clock[0] += 10
    assert back("four") == 4600
    github.close()


def notes(count: int) -> tuple[Annotation, ...]:
    return tuple(Annotation("src/a.py", n, n, "warning", "Reached", f"note {n}") for n in range(1, count + 1))


def test_a_check_run_is_made_and_brought_to_its_end(at: GithubAdapters) -> None:
    checks = GithubChecks(at.github)
    check_id = checks.write_check(REPOSITORY, wanted(at))
    ended = wanted(at, id=check_id, status="completed", conclusion="failure", text="the log", actions=BUTTONS)
    assert checks.write_check(REPOSITORY, ended) == check_id
    (found,) = checks.check_runs(REPOSITORY, at.world.head(1))
    assert found == replace(ended, actions=(), app_id=APP_ID)
    kept = at.world.check(at.world.head(1), "verl-e2e")
    assert kept is not None
    assert [action["identifier"] for action in kept.actions] == ["rerun-failed", "cancel"]
    assert at.github.calls.by_answer()["PATCH", "ok"] == 1


def test_another_apps_check_of_our_name_is_not_ours(at: GithubAdapters) -> None:
    at.world.actions_token("ghs_actions", {"checks": "write"})
    actions = at.world.state.apps[15368]
    other = GithubChecks(at.github)
    other.write_check(REPOSITORY, wanted(at))
    (foreign,) = at.world.state.checks_of(REPOSITORY, at.world.head(1))
    foreign.suite.app = actions
    at.world.faults.add(cut(), "POST", "/check-runs$")
    ours = other.write_check(REPOSITORY, wanted(at))
    assert ours != foreign.id
    assert {check.app_id for check in other.check_runs(REPOSITORY, at.world.head(1))} == {15368, APP_ID}


def test_a_check_run_of_another_job_is_not_taken_for_this_one(at: GithubAdapters) -> None:
    checks = GithubChecks(at.github)
    first = checks.write_check(REPOSITORY, wanted(at, external_id="run:1"))
    at.world.faults.add(server_error(502), "POST", "/check-runs$")
    assert checks.write_check(REPOSITORY, wanted(at, external_id="run:2")) != first
    assert len(at.world.state.checks_of(REPOSITORY, at.world.head(1))) == 2


@pytest.mark.parametrize("count", [1, 50, 51, 120])
def test_annotations_are_sent_in_batches_and_once(at: GithubAdapters, count: int) -> None:
    checks = GithubChecks(at.github)
    check_id = checks.write_check(REPOSITORY, wanted(at, annotations=notes(count)))
    checks.write_check(REPOSITORY, wanted(at, id=check_id, annotations=notes(count)))
    checks.write_check(REPOSITORY, wanted(at, id=check_id, annotations=notes(count + 1)))
    (kept,) = at.world.state.checks_of(REPOSITORY, at.world.head(1))
    assert [note["message"] for note in kept.annotations] == [f"note {n}" for n in range(1, count + 2)]


def test_check_runs_over_all_pages(at: GithubAdapters) -> None:
    checks = GithubChecks(at.github)
    checks.write_check(REPOSITORY, wanted(at))
    (one,) = at.world.state.checks_of(REPOSITORY, at.world.head(1))
    for number in range(130):
        at.world.state.checks[10_000 + number] = replace(one, id=10_000 + number, name=f"other {number}")
    assert len(checks.check_runs(REPOSITORY, at.world.head(1))) == 131


def test_what_is_just_within_the_limits_is_sent(at: GithubAdapters) -> None:
    full = wanted(
        at,
        summary="x" * 65_535,
        text="y" * 65_535,
        actions=(("l" * 20, "d" * 40, "i" * 20),) * 3,
        status="completed",
        conclusion="action_required",
    )
    GithubChecks(at.github).write_check(REPOSITORY, full)
    (found,) = GithubChecks(at.github).check_runs(REPOSITORY, at.world.head(1))
    assert (len(found.summary), len(found.text), found.conclusion) == (65_535, 65_535, "action_required")
