"""What a check-up makes of what GitHub tells."""

from datetime import UTC, datetime, timedelta

import pytest

from verl_e2e.core.pulls.checkup import (
    Finding,
    State,
    failed_deliveries,
    of_branch,
    of_deliveries,
    of_hook,
    of_installation,
    of_runners,
    of_workflow,
)
from verl_e2e.core.pulls.forge import BranchRules, DeliveryAttempt, Installation, Machine, RequiredCheck

NEEDED = {"checks": "write", "contents": "read"}
EVENTS = ("merge_group", "pull_request")
READ = {"checks": "read", "contents": "read"}
ALL = frozenset(EVENTS)
WHOLE = Installation(1, 42, "verl-e2e", {"checks": "write", "contents": "write"}, ALL)
OURS = RequiredCheck("verl-e2e", 42, "branch protection")
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def states(found: "list[Finding]") -> list[tuple[str, State]]:
    return [(one.about, one.state) for one in found]


def test_an_app_with_all_that_it_needs_is_well() -> None:
    found = list(of_installation(WHOLE, "o/r", NEEDED, EVENTS))
    assert states(found) == [("permissions", State.WELL), ("events", State.WELL)]


@pytest.mark.parametrize(
    ("installation", "told", "mend"),
    [
        (None, "not installed in o/r", "install it"),
        (Installation(1, 42, "a", READ, ALL), "lacks checks: write", "accept"),
        (Installation(1, 42, "a", {"contents": "read"}, ALL), "lacks checks: write", "accept"),
        (Installation(1, 42, "a", {"checks": "x", "contents": "read"}, ALL), "lacks checks: write", "accept"),
        (Installation(1, 42, "a", NEEDED, frozenset({"push"})), "not told of merge_group", "merge_queues: read"),
        (Installation(1, 42, "a", NEEDED, ALL, suspended=True), "suspended", "unsuspend"),
    ],
)  # fmt: skip
def test_what_an_app_lacks_is_told_with_the_mend(installation: Installation | None, told: str, mend: str) -> None:
    sick = [one for one in of_installation(installation, "o/r", NEEDED, EVENTS) if one.state is State.ILL]
    assert len(sick) == 1
    assert told in sick[0].sentence
    assert mend in sick[0].mend


@pytest.mark.parametrize(
    ("required", "state", "told"),
    [
        ((OURS,), State.WELL, "from our App alone"),
        ((OURS, RequiredCheck("lint", None, "ruleset 1")), State.WELL, "from our App alone"),
        ((), State.ILL, "nothing requires 'verl-e2e' on main"),
        ((RequiredCheck("Verl-E2E", 42, "ruleset 1"),), State.ILL, "nothing requires"),
        ((RequiredCheck("verl-e2e", None, "ruleset 1"),), State.ILL, "ruleset 1 takes 'verl-e2e' on main from anybody"),
        ((RequiredCheck("verl-e2e", 7, "branch protection"),), State.ILL, "from App 7, not ours"),
        ((OURS, RequiredCheck("verl-e2e", 7, "ruleset 1")), State.ILL, "from App 7, not ours"),
        ((OURS, RequiredCheck("verl-e2e", None, "ruleset 1")), State.WELL, "from our App alone"),
    ],
)
def test_the_gate_is_required_and_bound_to_our_app(
    required: tuple[RequiredCheck, ...], state: State, told: str
) -> None:
    (found,) = of_branch(BranchRules(required), "main", "verl-e2e", 42, 3300)
    assert (found.state, bool(found.mend)) == (state, state is State.ILL)
    assert told in found.sentence


@pytest.mark.parametrize(("minutes", "state"), [(60, State.WELL), (55, State.ILL), (5, State.ILL)])
def test_a_merge_queue_waits_longer_than_the_gate_takes(minutes: int, state: State) -> None:
    _, queue = of_branch(BranchRules((OURS,), minutes), "main", "verl-e2e", 42, 3300)
    assert queue.state is state


@pytest.mark.parametrize(
    ("state", "text", "found", "told"),
    [
        ("active", b"on: push\r\njobs: 1\n", State.WELL, "this version's"),
        ("active", b"on: push\njobs: 2\n", State.ILL, "differs"),
        ("disabled_manually", b"on: push\njobs: 1\n", State.ILL, "is disabled manually"),
        ("", None, State.ILL, "has no .github/workflows/a.yml"),
        ("active", None, State.ILL, "has no .github/workflows/a.yml"),
    ],
)
def test_the_workflow_is_there_active_and_current(state: str, text: bytes | None, found: State, told: str) -> None:
    finding = of_workflow(state, text, b"on: push\njobs: 1\n", ".github/workflows/a.yml", "main")
    assert finding.state is found
    assert told in finding.sentence


def machine(name: str, *labels: str, online: bool = True, busy: bool = False) -> Machine:
    return Machine(name, online, busy, labels)


@pytest.mark.parametrize(
    ("machines", "state", "told"),
    [
        ([machine("a", "Self-Hosted", "gpu", "more")], State.WELL, "a with self-hosted, gpu: idle"),
        ([machine("a", "self-hosted", "gpu", busy=True)], State.NOTE, "is busy: a"),
        ([machine("a", "self-hosted", "gpu", online=False)], State.ILL, "is online: a"),
        ([machine("a", "self-hosted")], State.ILL, "no runner has the labels"),
        ([], State.ILL, "no runner has the labels"),
    ],
)
def test_runners_answer_by_their_labels(machines: list[Machine], state: State, told: str) -> None:
    (found,) = of_runners(machines, {8: ("self-hosted", "gpu")})
    assert found.state is state
    assert told in found.sentence


def test_a_size_without_labels_is_told() -> None:
    found = list(of_runners([machine("a", "x")], {1: ("x",)}))
    assert states(found)[0] == ("runners for 1 GPU", State.WELL)
    assert "no labels are named for a runner with" in found[-1].sentence


def attempt(number: int, guid: str, code: int, minutes: int) -> DeliveryAttempt:
    return DeliveryAttempt(number, guid, "pull_request", "opened", code, NOON + timedelta(minutes=minutes))


def test_a_delivery_failed_when_no_attempt_was_taken() -> None:
    attempts = [
        attempt(1, "later-taken", 502, 0), attempt(2, "later-taken", 200, 5),
        attempt(3, "failed-twice", 502, 1), attempt(4, "failed-twice", 500, 6),
        attempt(5, "taken", 202, 2), attempt(6, "taken-then-failed", 200, 3), attempt(7, "taken-then-failed", 500, 4),
        attempt(8, "failed", 0, 7),
    ]  # fmt: skip
    failed = failed_deliveries(attempts)
    assert [one.id for one in failed] == [8, 4]
    told = of_deliveries(failed, 3, again=False)
    assert (told.state, "--redeliver" in told.mend) == (State.ILL, True)
    assert (
        "2 webhook(s) of the last 3 days were not taken, last pull_request.opened at 2026-11-20 12:07" in told.sentence
    )
    assert of_deliveries(failed, 3, again=True).state is State.NOTE
    assert of_deliveries((), 3, again=True).state is State.WELL


@pytest.mark.parametrize(
    ("configured", "state"),
    [("https://a.example/webhook", State.WELL), ("https://a.example/webhook/", State.WELL),
     ("https://b.example/webhook", State.ILL), ("", State.ILL)],
)  # fmt: skip
def test_webhooks_go_to_us(configured: str, state: State) -> None:
    assert of_hook(configured, "https://a.example/webhook").state is state
