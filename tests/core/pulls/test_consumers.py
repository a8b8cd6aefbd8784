"""The jobs of another trainer in a gate: what they wait for, what they make up for, what they take from others."""

from dataclasses import replace

import pytest

from tests.core.builders import make_job
from tests.core.executions import DROPOUT, ran
from tests.core.executions import change as code
from tests.core.pulls.entries import GROUP, PLAN, POLICY, RESUME, SMOKE, WANTED, run, target_state
from tests.core.pulls.test_executed_change import ended
from tests.core.pulls.test_rehearsal_standing import EQUAL, rehearsed_state, rules
from tests.core.pulls.test_retry import AGO, NODE
from verl_e2e.core.model.execution import ChangedFunction
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.known_defects import RetryRules
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.classify import Reason
from verl_e2e.core.plan.policy import ConsumerRules, Policy
from verl_e2e.core.pulls.decide import decide_actions
from verl_e2e.core.pulls.ledger import JobStatus, Run, RunState
from verl_e2e.core.pulls.wanted_jobs import WantedJob


def policy(level: str, base: Policy = POLICY, **more: object) -> Policy:
    asked = ConsumerRules.model_validate({"level": level})
    return base.model_copy(update={"consumers": {"skyrl": asked}, **more})


def own(base: Job = SMOKE, *, required: bool = True) -> WantedJob:
    """Level 0 of SkyRL."""
    name = "0-lora-ddp-skyrl"
    job = base.model_copy(update={"id": name, "consumer": "skyrl"})
    return WantedJob(name, Level.SMOKE, ("0-lora-ddp",), job, consumer="skyrl", required=required)


def test_a_spared_level_0_of_verl_holds_no_job_back() -> None:
    imports = Reason(Level.SMOKE, "src/a.py", "import", at_import=True)
    plan = replace(PLAN, levels=(Level.SMOKE,), reasons=(imports,))
    asked = policy("require", rules()["policy"])
    due = decide_actions(rehearsed_state(EQUAL, plan=plan, wanted=(WANTED[0], own()), policy=asked))
    assert [item.job_id for item in due.dispatch] == ["0-lora-ddp-skyrl"]


@pytest.mark.parametrize("of_verl", [(), (DROPOUT,)])
def test_a_run_of_one_trainer_does_not_make_up_for_one_of_another(of_verl: tuple[ChangedFunction, ...]) -> None:
    verls = make_job(changed=code(DROPOUT))
    skyrls = own(verls)
    assert skyrls.job is not None
    of_skyrl = () if of_verl else (DROPOUT,)
    runs = ended(verls, ran(*of_verl)), ended(skyrls.job, ran(*of_skyrl))
    wanted = (WantedJob("0-lora-ddp", Level.SMOKE, job=verls), skyrls)
    due = decide_actions(target_state(*runs, wanted=wanted, policy=policy("require")))
    assert not due.gate.is_open
    both = ended(verls, ran(DROPOUT)), ended(skyrls.job, ran(DROPOUT))
    assert decide_actions(target_state(*both, wanted=wanted, policy=policy("require"))).gate.is_open


def test_a_shown_job_takes_no_attempt_of_a_required_one() -> None:
    shown = own(required=False)
    assert shown.job is not None

    def lost(job: Job, *, required: bool) -> Run:
        return run(job, RunState.LOST, causes=NODE, updated=AGO, created=AGO, required=required)

    runs = run(SMOKE), lost(shown.job, required=False), lost(RESUME, required=True)
    allowed = policy("show", retry=RetryRules(per_day=1, wait_s=0))
    due = decide_actions(target_state(*runs, wanted=(WANTED[0], shown, WANTED[1]), policy=allowed))
    assert [item.job_id for item in due.dispatch] == ["1-resume"]


def test_a_merge_group_starts_nothing_that_is_only_shown() -> None:
    runs, wanted = (run(SMOKE, number=None), run(RESUME, number=None)), (WANTED[0], own(required=False), WANTED[1])
    due = decide_actions(target_state(*runs, wanted=wanted, policy=policy("show"), target=GROUP))
    assert due.dispatch == ()
    required = (WANTED[0], own(), WANTED[1])
    due = decide_actions(target_state(*runs, wanted=required, policy=policy("require"), target=GROUP))
    assert [item.job_id for item in due.dispatch] == ["0-lora-ddp-skyrl"]


def test_a_shown_run_that_becomes_required_counts() -> None:
    wanted = own()
    assert wanted.job is not None
    runs = run(SMOKE), run(wanted.job, required=False, shown=True)
    due = decide_actions(target_state(*runs, wanted=(WANTED[0], wanted), policy=policy("require")))
    assert due.dispatch == ()
    assert {item.state for item in due.standings} == {JobStatus.PASSED}


def test_a_later_failure_of_a_shown_job_counts_where_it_becomes_required() -> None:
    wanted = own()
    assert wanted.job is not None
    passed = run(wanted.job, required=False, shown=True)
    failed = run(wanted.job, result=Result.FAIL, required=False, shown=True, attempt=2, asked_by="c:1")
    due = decide_actions(target_state(run(SMOKE), passed, failed, wanted=(WANTED[0], wanted), policy=policy("require")))
    assert not due.gate.is_open
