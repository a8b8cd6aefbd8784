"""The gate: success only with evidence for every required job of that very head, whatever else is there."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.builders import make_job
from tests.core.pulls.entries import CHANGED, HEAD, OTHER, RESUME, SMOKE, WANTED, override, run
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.gate import Gate, gate, standings
from verl_e2e.core.pulls.ledger import JobStatus, Override, Run, RunState
from verl_e2e.core.pulls.target_state import Hold
from verl_e2e.core.pulls.wanted_jobs import WantedJob

FORK, CANCELLED = Hold("awaiting approval", "it is a fork"), Hold("cancelled by ann", cancelled=True)


def gate_of(*runs: Run, overrides: tuple[Override, ...] = (), hold: Hold | None = None, **given: object) -> Gate:
    found = standings(given.pop("wanted", WANTED), runs, overrides, HEAD, hold)  # type: ignore[arg-type]
    return gate(found, **given)  # type: ignore[arg-type]


PASSED = (run(SMOKE), run(RESUME))
TABLE: tuple[tuple[str, tuple[Run, ...], dict[str, Any], JobStatus, str], ...] = (
    ("both passed", PASSED, {}, JobStatus.PASSED, "All 2 required jobs passed"),
    ("nothing ran yet", (), {}, JobStatus.RUNNING, "0 of 2"),
    ("the first runs", (run(SMOKE, RunState.RUNNING),), {}, JobStatus.RUNNING, "running 0-lora-ddp"),
    ("the second still waits", (run(SMOKE),), {}, JobStatus.RUNNING, "1 of 2"),
    ("the first failed", (run(SMOKE, result=Result.FAIL),), {}, JobStatus.FAILED, "0-lora-ddp failed"),
    ("the first is blocked", (run(SMOKE, result=Result.BLOCKED),), {}, JobStatus.BLOCKED, "0-lora-ddp blocked"),
    ("the first got lost", (run(SMOKE, RunState.LOST),), {}, JobStatus.BLOCKED, "0-lora-ddp blocked"),
    ("the first was refused", (run(SMOKE, RunState.REFUSED),), {}, JobStatus.BLOCKED, "0-lora-ddp blocked"),
    ("one was cancelled", (run(SMOKE), run(RESUME, RunState.CANCELLED)), {}, JobStatus.BLOCKED, "1-resume"),
    ("one passed, one failed", (run(SMOKE), run(RESUME, result=Result.FAIL)), {}, JobStatus.FAILED, "1-resume failed"),
    ("a rerun runs", (run(SMOKE, result=Result.FAIL), run(SMOKE, RunState.RUNNING, attempt=2)), {},
     JobStatus.RUNNING, "running 0-lora-ddp"),
    ("a rerun passed", (run(SMOKE, result=Result.FAIL), run(SMOKE, attempt=2), run(RESUME)), {},
     JobStatus.PASSED, "All 2"),
    ("a finished run without a result", (run(SMOKE, result=None),), {}, JobStatus.BLOCKED, "blocked"),
    ("of another head", (run(SMOKE, head_sha=OTHER), run(RESUME, head_sha=OTHER)), {}, JobStatus.RUNNING, "0 of 2"),
    ("of a changed job", (run(CHANGED), run(RESUME)), {}, JobStatus.RUNNING, "1 of 2"),
    ("an extra of the same job", (run(SMOKE, required=False), run(RESUME)), {}, JobStatus.RUNNING, "1 of 2"),
    ("awaiting approval", (), {"hold": FORK}, JobStatus.HELD, "Awaiting approval: it is a fork"),
    ("held after the first passed", (run(SMOKE),), {"hold": CANCELLED}, JobStatus.CANCELLED, "Cancelled by ann"),
    ("the first overridden", (run(SMOKE, result=Result.FAIL), run(RESUME)), {"overrides": (override(Level.SMOKE),)},
     JobStatus.PASSED, "1 of 2 required jobs passed, 1 overridden by mona"),
    ("an override of another head", (run(RESUME),), {"overrides": (override(Level.SMOKE, OTHER),)},
     JobStatus.RUNNING, "1 of 2"),
    ("no plan", (), {"wanted": (), "obstacle": "the policy is broken"}, JobStatus.BLOCKED, "policy is broken"),
    ("nothing required", (), {"wanted": (), "nothing_reason": ("no path is run",)}, JobStatus.NOT_REQUIRED, "No verl"),
    ("a broken contract", (), {"hold": FORK, "broken": ("create_peft gone",)}, JobStatus.FAILED, "breaks what verl"),
    ("a broken contract though all passed", PASSED, {"broken": ("create_peft is gone",)}, JobStatus.FAILED, "breaks"),
    ("a broken contract, overridden", (), {"broken": ("gone",),
     "overrides": (override(Level.SMOKE), override(Level.SAVE_RESUME))}, JobStatus.PASSED, "2 overridden by mona"),
    ("an obstacle and all passed", PASSED, {"obstacle": "no plan"}, JobStatus.BLOCKED, "No plan"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "runs", "given", "state", "title"), TABLE, ids=[item[0] for item in TABLE])
def test_the_gate(name: str, runs: tuple[Run, ...], given: dict[str, object], state: JobStatus, title: str) -> None:
    found = gate_of(*runs, **given)  # type: ignore[arg-type]
    assert (found.status, title in found.title) == (state, True), (name, found)


def test_what_needs_a_failed_job_is_skipped_with_the_reason() -> None:
    found = standings(WANTED, (run(SMOKE, result=Result.FAIL),), (), HEAD)
    assert (found[1].state, found[1].reason) == (JobStatus.SKIPPED, "it needs 0-lora-ddp, which did not pass")


def test_a_job_that_cannot_be_completed_blocks() -> None:
    found = gate_of(wanted=(WantedJob("4-feature", Level.FEATURE, missing="no checkpoint is known"),))
    assert (found.status, "no checkpoint" in found.title) == (JobStatus.BLOCKED, True)


def test_an_extra_neither_opens_nor_closes_the_gate() -> None:
    extra = WantedJob("2-vpp", Level.PARALLELISM, job=make_job(Level.PARALLELISM, "vpp"), required=False)
    failed = run(make_job(Level.PARALLELISM, "vpp"), result=Result.FAIL, required=False)
    assert gate_of(*PASSED, failed, wanted=(*WANTED, extra)).status is JobStatus.PASSED
    assert gate_of(run(make_job(Level.PARALLELISM, "vpp"), required=False), wanted=(*WANTED, extra)).status is (
        JobStatus.RUNNING
    )


JOBS = (SMOKE, RESUME, CHANGED)
RUNS = st.builds(
    lambda job, state, result, head, attempt, required: run(
        job, state, result, head_sha=head, attempt=attempt, required=required
    ),
    st.sampled_from(JOBS),
    st.sampled_from(RunState),
    st.sampled_from([*Result, None]),
    st.sampled_from([HEAD, OTHER]),
    st.integers(1, 3),
    st.booleans(),
)
OVERRIDES = st.builds(
    override, st.sampled_from([Level.SMOKE, Level.SAVE_RESUME, Level.FEATURE]), st.sampled_from([HEAD, OTHER])
)


@given(
    st.lists(RUNS, max_size=8),
    st.lists(OVERRIDES, max_size=2),
    st.sampled_from([None, FORK, CANCELLED]),
    st.sampled_from(["", "no plan"]),
    st.sampled_from([(), ("gone",)]),
)
def test_success_needs_evidence_for_every_required_job_of_this_head(
    runs: list[Run], overrides: list[Override], hold: Hold | None, obstacle: str, broken: tuple[str, ...]
) -> None:
    found = gate_of(*runs, overrides=tuple(overrides), hold=hold, obstacle=obstacle, broken=broken)
    if not found.is_open:
        return
    assert not obstacle
    for wanted in WANTED:
        taken = any(override.head_sha == HEAD and override.level is wanted.level for override in overrides)
        evidence = [
            run
            for run in runs
            if run.head_sha == HEAD and run.job_digest == wanted.digest and run.required and run.result is Result.PASS
        ]
        assert taken or (evidence and not broken), wanted


@given(st.lists(RUNS, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_runs_is_irrelevant(runs: list[Run], shuffle: object) -> None:
    unique = list({run.key: run for run in runs}.values())
    shuffled = list(unique)
    shuffle.shuffle(shuffled)  # type: ignore[attr-defined]
    assert gate_of(*unique) == gate_of(*shuffled)
