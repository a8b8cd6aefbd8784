"""The gate of a change that ran in part: which jobs others make up for, and what never ran at all."""

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import make_job
from tests.core.executions import DROPOUT, GATHER, IN_TEST, LORA, TRANSFORM, change, ran, verdict_on
from tests.core.pulls.entries import HEAD, POLICY, asked, override, run, target_state
from verl_e2e.core.judge.verdict_document import verdict_json
from verl_e2e.core.model.access import Demand
from verl_e2e.core.model.execution import Executed
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.decide import Actions, decide_actions
from verl_e2e.core.pulls.forge import Conclusion
from verl_e2e.core.pulls.gate import joined_execution
from verl_e2e.core.pulls.ledger import JobStatus, Run, RunState, status_of_run, status_of_verdict
from verl_e2e.core.pulls.wanted_jobs import WantedJob
from verl_e2e.core.report.pull_card import card_notices

# Level 0 is planned for what it cannot enter, level 4 for that and for what it can.
SMOKE = make_job(changed=change(DROPOUT))
FEATURE = make_job(Level.FEATURE, "feature", changed=change(DROPOUT, TRANSFORM))
WANTED = (
    WantedJob("0-lora-ddp", Level.SMOKE, job=SMOKE),
    WantedJob("4-feature", Level.FEATURE, ("0-lora-ddp",), FEATURE),
)
OLD = Executed(problem="the run's Python is 3.11")


def ended(job: Job, record: Executed | None, **given: Any) -> Run:
    """The run of a job, judged by its record."""
    verdict = verdict_on(job, record)
    fields: dict[str, Any] = {
        "result": verdict.result,
        "never_entered": verdict.never_entered,
        "sentence": verdict.sentence,
        "verdict": verdict_json(verdict),
    }
    return run(job, **(fields | given))


def decided(*runs: Run, **given: Any) -> Actions:
    names: tuple[str, ...] = ("unexecuted", "unrecorded", "uncoverable", "disagreement")
    rules: dict[str, Any] = {name: given.pop(name) for name in names if name in given}
    policy = POLICY.model_copy(update={"gate": POLICY.gate.model_copy(update=rules)})
    return decide_actions(target_state(*runs, **{"wanted": WANTED, "policy": policy, **given}))


UNENTERED = ended(SMOKE, ran())
BOTH = ended(FEATURE, ran(DROPOUT, TRANSFORM))
PART = ended(FEATURE, ran(TRANSFORM))
IN_TESTS = (ended(SMOKE, ran(DROPOUT, by=(IN_TEST,))), ended(FEATURE, ran(DROPOUT, TRANSFORM, by=(IN_TEST,))))
# A verdict that says nothing of the change.
SILENT = ended(SMOKE, ran(DROPOUT), verdict=verdict_json(replace(verdict_on(SMOKE, ran(DROPOUT)), execution=None)))
P, A, U, B, F, TAKEN = (
    JobStatus.PASSED,
    JobStatus.ACCEPTED,
    JobStatus.UNEXECUTED,
    JobStatus.BLOCKED,
    JobStatus.FAILED,
    JobStatus.OVERRIDDEN,
)
NEVER = f"1 changed function in reach never ran: {LORA}:70 LoRA.drop"
# What no host can run, and the job of its family.
KIMI = DROPOUT.model_copy(update={"uncoverable": "kimi"})
LEFT_OVER = (
    WantedJob("0-lora-ddp", Level.SMOKE, job=make_job(changed=change(KIMI))),
    WantedJob("4-feature-kimi", Level.FEATURE, ("0-lora-ddp",), missing="job is not run", uncoverable="no class of it"),
)
Row = tuple[str, tuple[Run, ...], dict[str, Any], tuple[JobStatus, ...], JobStatus, str]
TABLE: tuple[Row, ...] = (
    ("level 4 ran what level 0 missed", (UNENTERED, BOTH), {}, (A, P), P,
     "1 of 2 required jobs passed, 1 accepted that never entered the change"),
    ("nothing ran it", (UNENTERED, PART), {}, (U, P), B, "0-lora-ddp unexecuted: Level 0 blocked"),
    ("nothing ran it, and the policy allows that", (UNENTERED, PART), {"unexecuted": Demand.ALLOW}, (A, P), P,
     f"1 of 2 required jobs passed, 1 accepted that never entered the change; {NEVER}"),
    ("a Bridge test ran it", (ended(SMOKE, ran(DROPOUT, by=(IN_TEST,))), PART), {}, (A, P), P,
     "1 accepted that never entered the change; 1 of 2 changed functions ran in Bridge tests alone"),
    ("Bridge tests alone ran all of it", IN_TESTS, {}, (A, A), P,
     "0 of 2 required jobs passed, 2 accepted that never entered the change; the change was executed by Bridge tests "
     "alone, by no verl run"),
    ("level 4 failed after it ran it", (UNENTERED, BOTH.model_copy(update={"result": Result.FAIL})), {}, (U, F), F,
     "4-feature failed"),
    ("level 4 runs", (UNENTERED, run(FEATURE, RunState.RUNNING)), {}, (U, JobStatus.RUNNING), JobStatus.RUNNING,
     "running 4-feature"),
    ("level 0 is overridden", (UNENTERED, PART), {"entries": (override(Level.SMOKE),)}, (TAKEN, P), P, "overridden"),
    ("both passed in part", (ended(SMOKE, OLD), PART), {}, (P, P), B, NEVER),
    ("both passed in part, and level 4 is overridden", (ended(SMOKE, OLD), PART),
     {"entries": (override(Level.FEATURE),)}, (P, P), P, "All 2 required jobs passed"),
    ("both passed in part, and the policy allows that", (ended(SMOKE, OLD), PART), {"unexecuted": Demand.ALLOW},
     (P, P), P, f"All 2 required jobs passed; {NEVER}"),
    ("nothing was recorded", (ended(SMOKE, OLD), ended(FEATURE, None)), {}, (P, P), B,
     "Whether 2 changed functions ran is not known (0-lora-ddp: the run's Python is 3.11)"),
    ("nothing was recorded, and the policy allows that", (ended(SMOKE, OLD), ended(FEATURE, None)),
     {"unrecorded": Demand.ALLOW}, (P, P), P, "which the policy allows"),
    ("a verdict is no longer kept", (ended(SMOKE, ran(DROPOUT), verdict=""), ended(FEATURE, OLD)), {}, (P, P), B,
     "the verdict of the run is no longer kept"),
    ("a verdict says nothing of the change", (SILENT, ended(FEATURE, OLD)), {}, (P, P), B,
     "the verdict of the run is no longer kept"),
    ("the verdict of what missed it is no longer kept",
     (UNENTERED.model_copy(update={"verdict": ""}), BOTH), {}, (A, P), P, "1 accepted"),
    ("everything ran", (ended(SMOKE, ran(DROPOUT)), BOTH), {}, (P, P), P, "All 2 required jobs passed"),
)  # fmt: skip


def of_kimi(record: Executed, **given: Any) -> Actions:
    job = LEFT_OVER[0].job
    assert job is not None
    return decided(ended(job, record), wanted=LEFT_OVER, **given)


def test_a_family_that_no_host_can_run_keeps_the_gate_closed_unless_the_policy_allows_it() -> None:
    found = of_kimi(ran(), uncoverable=Demand.BLOCK)
    assert [standing.state for standing in found.standings] == [U, B]
    assert (found.standings[1].reason, found.gate.is_open) == ("job is not run", False)
    blocked = of_kimi(ran(DROPOUT), uncoverable=Demand.BLOCK)
    assert blocked.gate.title.startswith("4-feature-kimi blocked")
    accepted_by_hand = of_kimi(ran(DROPOUT), uncoverable=Demand.BLOCK, entries=(override(Level.FEATURE),))
    assert [standing.state for standing in accepted_by_hand.standings] == [P, TAKEN]


@pytest.mark.parametrize(
    ("record", "states", "title"),
    [
        (ran(), (A, JobStatus.UNCOVERABLE),
         "0 of 2 required jobs passed, 1 accepted that never entered the change, 1 not covered: no class of it; "
         f"1 changed function belongs to kimi, which no host can run: {LORA}:70 LoRA.drop"),
        # What a run entered all the same is executed.
        (ran(DROPOUT), (P, JobStatus.UNCOVERABLE), "1 of 2 required jobs passed, 1 not covered: no class of it"),
        (OLD, (P, JobStatus.UNCOVERABLE), "1 of 2 required jobs passed, 1 not covered: no class of it; 1 changed"),
    ],
)  # fmt: skip
def test_an_open_gate_says_first_what_no_host_can_run(
    record: Executed, states: tuple[JobStatus, ...], title: str
) -> None:
    found = of_kimi(record, uncoverable=Demand.ALLOW)
    assert tuple(standing.state for standing in found.standings) == states
    assert found.gate.is_open
    assert found.gate.title.startswith(title[:190])
    notice = next(line for line in card_notices(target_state(wanted=LEFT_OVER), found) if "Not covered" in line)
    assert notice == "Not covered by 4-feature-kimi: no class of it."


def test_code_that_a_host_could_run_keeps_the_gate_closed_beside_a_family_that_none_can() -> None:
    job = make_job(changed=change(KIMI, TRANSFORM))
    wanted = (WantedJob("0-lora-ddp", Level.SMOKE, job=job), LEFT_OVER[1])
    found = decided(ended(job, OLD), wanted=wanted, uncoverable=Demand.ALLOW).gate
    assert (found.status, found.is_open) == (B, False)
    assert found.action.startswith("whether 1 changed function ran is not known")
    assert f"/verl-e2e override 0 {HEAD}" in found.action


@pytest.mark.parametrize(("name", "runs", "given", "states", "status", "title"), TABLE, ids=[row[0] for row in TABLE])
def test_the_gate_of_a_change_that_ran_in_part(
    name: str,
    runs: tuple[Run, ...],
    given: dict[str, Any],
    states: tuple[JobStatus, ...],
    status: JobStatus,
    title: str,
) -> None:
    found = decided(*runs, **given)
    assert tuple(standing.state for standing in found.standings) == states, name
    assert (found.gate.status, title in f"{found.gate.title} {found.gate.general}") == (status, True), found.gate


def test_a_good_run_that_never_entered_the_change_disagrees_with_a_failure_before_it() -> None:
    failed, again = run(SMOKE, result=Result.FAIL), ended(SMOKE, ran(), attempt=2)
    named = "attempt 2 was good and disagrees with attempt 1, which failed"
    actions = decided(failed, again, BOTH)
    assert (actions.standings[0].state, actions.gate.status) == (A, P)
    assert "0-lora-ddp disagrees with attempt 1, which failed" in actions.gate.title
    assert actions.standings[0].reason.startswith(named)
    closed = decided(failed, again, BOTH, disagreement=Demand.BLOCK)
    assert (closed.standings[0].state, closed.gate.status) == (B, B)
    assert closed.standings[0].reason.startswith(named)


def test_a_job_starts_after_one_that_ran_well_and_never_entered_the_change() -> None:
    assert [item.job_id for item in decided(UNENTERED).dispatch] == ["4-feature"]
    blocked = UNENTERED.model_copy(update={"never_entered": False})
    assert decided(blocked).dispatch == ()


def test_it_is_run_again_where_someone_asks_for_it() -> None:
    for runs in ((UNENTERED,), (UNENTERED, BOTH)):
        found = decided(*runs, entries=(asked("rerun", "0-lora-ddp", minute=1),))
        assert "0-lora-ddp" in [item.job_id for item in found.dispatch]


def test_what_a_person_requested_in_addition_makes_up_for_nothing() -> None:
    extra = replace(WANTED[1], required=False)
    found = decided(UNENTERED, BOTH.model_copy(update={"required": False}), wanted=(WANTED[0], extra))
    assert (found.standings[0].state, found.gate.status) == (U, B)


def test_the_reason_says_where_it_ran() -> None:
    found = decided(UNENTERED, BOTH)
    text = "the run was good and never entered its part of the change; what it missed ran in 4-feature"
    assert found.standings[0].reason == text
    assert f"0-lora-ddp: accepted, {text}" in found.gate.of_jobs


def test_the_gate_names_the_command_that_accepts_what_never_ran() -> None:
    found = decided(ended(SMOKE, OLD), PART).gate
    assert found.action.endswith(f"; `/verl-e2e override 0 {HEAD} REASON` accepts that")
    assert found.conclusion is Conclusion.ACTION_REQUIRED
    # Level 4 was planned for it too; while level 0 is overridden nothing is left to accept.
    assert decided(ended(SMOKE, OLD), PART, entries=(override(Level.SMOKE),)).gate.is_open


def test_functions_that_were_cut_off_are_accepted_by_an_override_too() -> None:
    job = make_job(changed=change(TRANSFORM, left_out=3))
    wanted = (WantedJob("0-lora-ddp", Level.SMOKE, job=job),)
    found = decided(ended(job, ran(TRANSFORM)), wanted=wanted).gate
    assert found.status is B
    assert found.action.startswith("whether 3 changed functions ran is not known; `/verl-e2e override 0 ")
    assert decided(ended(job, ran(TRANSFORM)), wanted=wanted, entries=(override(Level.SMOKE),)).gate.is_open


def test_a_job_that_is_for_no_change_or_has_not_ended_executed_nothing_of_it() -> None:
    plain = make_job()
    wanted = (WantedJob("0-lora-ddp", Level.SMOKE, job=plain), WANTED[1])
    for last in (run(FEATURE, RunState.RUNNING), run(FEATURE, RunState.LOST)):
        assert joined_execution(decided(run(plain), last, wanted=wanted).standings).functions == ()
    missing = (WantedJob("0-lora-ddp", Level.SMOKE, missing="no model"),)
    assert joined_execution(decided(wanted=missing).standings).functions == ()


def test_the_status_of_a_verdict_and_of_its_run_agree() -> None:
    for record, status in ((ran(), U), (ran(DROPOUT), P), (ran(GATHER), U)):
        assert status_of_verdict(verdict_on(SMOKE, record)) is status_of_run(ended(SMOKE, record)) is status
    failed = replace(verdict_on(SMOKE, ran()), result=Result.FAIL)
    assert status_of_verdict(failed) is F
