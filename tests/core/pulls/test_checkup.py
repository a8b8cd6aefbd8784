"""What a check-up of an installation finds."""

from datetime import UTC, datetime, timedelta

import pytest

from verl_e2e.core.model.access import Absence
from verl_e2e.core.pulls.checkup import (
    FAR_OFF_S,
    Health,
    SetupFinding,
    failed_deliveries,
    of_absence,
    of_branch,
    of_clock,
    of_deliveries,
    of_dispatch_branch,
    of_fork_pool,
    of_hook,
    of_installation,
    of_kept_runners,
    of_runners,
    of_sources,
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


def states(found: "list[SetupFinding]") -> list[tuple[str, Health]]:
    return [(finding.about, finding.state) for finding in found]


@pytest.mark.parametrize("none", Absence)
def test_what_the_gate_asks_where_nothing_is_required_is_said(none: Absence) -> None:
    found = of_absence(none)
    assert f"(gate.none: {none})" in found.sentence
    assert (found.state, bool(found.fix)) == ((Health.NOTE, True) if none is Absence.OPEN else (Health.OK, False))


def test_an_app_with_all_that_it_needs_is_well() -> None:
    found = list(of_installation(WHOLE, "o/r", NEEDED, EVENTS))
    assert states(found) == [("permissions", Health.OK), ("events", Health.OK)]


@pytest.mark.parametrize(
    ("installation", "message", "fix"),
    [
        (None, "not installed in o/r", "install it"),
        (Installation(1, 42, "a", READ, ALL), "does not have checks: write", "accept"),
        (Installation(1, 42, "a", {"contents": "read"}, ALL), "does not have checks: write", "accept"),
        (Installation(1, 42, "a", {"checks": "x", "contents": "read"}, ALL), "does not have checks: write", "accept"),
        (Installation(1, 42, "a", NEEDED, frozenset({"push"})), "does not receive merge_group", "merge_queues: read"),
        (Installation(1, 42, "a", NEEDED, ALL, suspended=True), "suspended", "unsuspend"),
    ],
)  # fmt: skip
def test_what_an_app_does_not_have_comes_with_the_fix(
    installation: Installation | None, message: str, fix: str
) -> None:
    sick = [
        finding for finding in of_installation(installation, "o/r", NEEDED, EVENTS) if finding.state is Health.ERROR
    ]
    assert len(sick) == 1
    assert message in sick[0].sentence
    assert fix in sick[0].fix


@pytest.mark.parametrize(
    ("required", "state", "message"),
    [
        ((OURS,), Health.OK, "from our App alone"),
        ((OURS, RequiredCheck("lint", None, "ruleset 1")), Health.OK, "from our App alone"),
        ((), Health.ERROR, "nothing requires 'verl-e2e' on main"),
        ((RequiredCheck("Verl-E2E", 42, "ruleset 1"),), Health.ERROR, "nothing requires"),
        (
            (RequiredCheck("verl-e2e", None, "ruleset 1"),),
            Health.ERROR,
            "ruleset 1 takes 'verl-e2e' on main from anyone",
        ),
        ((RequiredCheck("verl-e2e", 7, "branch protection"),), Health.ERROR, "from App 7, not ours"),
        ((OURS, RequiredCheck("verl-e2e", 7, "ruleset 1")), Health.ERROR, "from App 7, not ours"),
        ((OURS, RequiredCheck("verl-e2e", None, "ruleset 1")), Health.OK, "from our App alone"),
    ],
)
def test_the_gate_is_required_and_bound_to_our_app(
    required: tuple[RequiredCheck, ...], state: Health, message: str
) -> None:
    (found,) = of_branch(BranchRules(required), "main", "verl-e2e", 42, 3300)
    assert (found.state, bool(found.fix)) == (state, state is Health.ERROR)
    assert message in found.sentence


@pytest.mark.parametrize(("minutes", "state"), [(60, Health.OK), (55, Health.ERROR), (5, Health.ERROR)])
def test_a_merge_queue_waits_longer_than_the_gate_takes(minutes: int, state: Health) -> None:
    _, queue = of_branch(BranchRules((OURS,), minutes), "main", "verl-e2e", 42, 3300)
    assert queue.state is state


@pytest.mark.parametrize(
    ("state", "text", "found", "message"),
    [
        ("active", b"on: push\r\njobs: 1\n", Health.OK, "this version's"),
        ("active", b"on: push\njobs: 2\n", Health.ERROR, "differs"),
        ("disabled_manually", b"on: push\njobs: 1\n", Health.ERROR, "is disabled manually"),
        ("", None, Health.ERROR, "has no .github/workflows/a.yml"),
        ("active", None, Health.ERROR, "has no .github/workflows/a.yml"),
    ],
)
def test_the_workflow_is_there_active_and_current(state: str, text: bytes | None, found: Health, message: str) -> None:
    finding = of_workflow(state, text, b"on: push\njobs: 1\n", ".github/workflows/a.yml", "main")
    assert finding.state is found
    assert message in finding.sentence


def machine(name: str, *labels: str, online: bool = True, busy: bool = False) -> Machine:
    return Machine(name, online, busy, labels)


@pytest.mark.parametrize(
    ("machines", "state", "message"),
    [
        ([machine("a", "Self-Hosted", "gpu", "more")], Health.OK, "a with self-hosted, gpu: idle"),
        ([machine("a", "self-hosted", "gpu", busy=True)], Health.NOTE, "is busy: a"),
        ([machine("a", "self-hosted", "gpu", online=False)], Health.ERROR, "is online: a"),
        ([machine("a", "self-hosted")], Health.ERROR, "no runner has the labels"),
        ([], Health.ERROR, "no runner has the labels"),
    ],
)
def test_runners_answer_by_their_labels(machines: list[Machine], state: Health, message: str) -> None:
    (found,) = of_runners(machines, {8: ("self-hosted", "gpu")})
    assert found.state is state
    assert message in found.sentence


def test_a_size_without_labels_is_reported() -> None:
    found = list(of_runners([machine("a", "x")], {1: ("x",)}))
    assert states(found)[0] == ("runners for 1 GPU", Health.OK)
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
    assert [delivery_attempt.id for delivery_attempt in failed] == [8, 4]
    message = of_deliveries(failed, 3, again=False)
    assert (message.state, "--redeliver" in message.fix) == (Health.ERROR, True)
    assert (
        "2 webhook(s) of the last 3 days were not taken, last pull_request.opened at 2026-11-20 12:07"
        in message.sentence
    )
    assert of_deliveries(failed, 3, again=True).state is Health.NOTE
    assert of_deliveries((), 3, again=True).state is Health.OK


@pytest.mark.parametrize(
    ("configured", "state"),
    [("https://a.example/webhook", Health.OK), ("https://a.example/webhook/", Health.OK),
     ("https://b.example/webhook", Health.ERROR), ("", Health.ERROR)],
)  # fmt: skip
def test_webhooks_go_to_us(configured: str, state: Health) -> None:
    assert of_hook(configured, "https://a.example/webhook").state is state


@pytest.mark.parametrize(
    ("ahead_s", "ok", "said"),
    [
        (FAR_OFF_S, True, "agrees with GitHub's"),
        (-FAR_OFF_S, True, "agrees with GitHub's"),
        (61.0, False, "61 s behind GitHub's"),
        (-3_600.0, False, "3600 s ahead of GitHub's"),
    ],
)
def test_a_clock_that_is_far_off_is_named_with_the_direction(ahead_s: float, ok: bool, said: str) -> None:
    found = of_clock(ahead_s)
    assert said in found.sentence
    assert ("NTP" in found.fix) is not ok


def test_each_address_that_cannot_be_fetched_is_an_error_of_its_own() -> None:
    good, bad = of_sources({"https://a/o/n": "", "https://b/o/n": "it refused the token"})
    assert (good.state, bad.state) == (Health.OK, Health.ERROR)
    assert "https://b/o/n: it refused the token" in bad.sentence
    assert "hosts of jobs" in bad.fix


RUNNERS = {1: ("self-hosted", "gpu-x1"), 8: ("self-hosted", "gpu-x8")}
FORKS = {1: ("self-hosted", "forks-x1")}


def pool_machine(*labels: str, ephemeral: bool | None = True) -> Machine:
    return Machine("host", online=True, busy=False, labels=("self-hosted", *labels), ephemeral=ephemeral)


@pytest.mark.parametrize(
    ("machines", "forks", "state", "message"),
    [
        ([pool_machine("Forks-X1")], FORKS, Health.OK, "host: one job each"),
        # A just-in-time runner is there only while a job waits.
        ([pool_machine("gpu-x1", ephemeral=False)], FORKS, Health.OK, "none is registered now"),
        ([pool_machine("forks-x1", ephemeral=False)], FORKS, Health.ERROR, "host takes jobs of forks and stays"),
        (
            [pool_machine("forks-x1", ephemeral=None)],
            FORKS,
            Health.NOTE,
            "does not tell whether host serves one job only",
        ),
        (
            [pool_machine("forks-x1", "gpu-x8")],
            FORKS,
            Health.ERROR,
            "host would take jobs of forks and other jobs",
        ),
        (
            [pool_machine("forks-x1", "gpu-x1", ephemeral=False)],
            FORKS,
            Health.ERROR,
            "host would take jobs of forks and",
        ),
        ([pool_machine("gpu-x1")], {}, Health.ERROR, "no runners are named for the jobs of forks"),
        ([], {1: ("self-hosted", "gpu-x1")}, Health.OK, "none is registered now"),
    ],
)
def test_the_pool_of_forks(
    machines: list[Machine], forks: dict[int, tuple[str, ...]], state: Health, message: str
) -> None:
    found = next(iter(of_fork_pool(machines, RUNNERS, forks)))
    assert found.state is state
    assert message in found.sentence
    assert bool(found.fix) is (state is not Health.OK)


def test_everything_that_is_wrong_with_the_pool_is_reported() -> None:
    found = list(of_fork_pool([pool_machine("forks-x1", "gpu-x1", ephemeral=False)], RUNNERS, FORKS))
    assert [finding.state for finding in found] == [Health.ERROR, Health.ERROR]


def test_a_runner_that_stays_is_reported() -> None:
    assert list(of_kept_runners([pool_machine("gpu-x1"), pool_machine("other", ephemeral=False)], RUNNERS)) == []
    (found,) = of_kept_runners([pool_machine("gpu-x1", ephemeral=False)], RUNNERS)
    assert (found.state, "host serves one job after another" in found.sentence) == (Health.NOTE, True)


def test_jobs_run_on_a_branch_of_their_own() -> None:
    assert of_dispatch_branch("verl-e2e", "main").state is Health.OK
    assert "VERL_E2E_WORKFLOW_REF" in of_dispatch_branch("main", "main").fix
