"""`verl-e2e check` and the gate of the service come to one answer on the same verdicts, whatever ran of the change."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.builders import make_job
from tests.core.executions import DROPOUT, GATHER, IN_TEST, IN_TRAINER, TRANSFORM, change, ran, verdict_on
from tests.core.pulls.entries import POLICY, run, target_state
from verl_e2e.core.judge.verdict_document import Verdict, verdict_json
from verl_e2e.core.model.access import Demand, ExecutionRules
from verl_e2e.core.model.execution import ChangedFunction, Executed
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.pulls.decide import decide_actions
from verl_e2e.core.pulls.ledger import JobStatus
from verl_e2e.core.pulls.wanted_jobs import WantedJob
from verl_e2e.core.report.run_card import Card, result_of

FUNCTIONS = st.sets(st.sampled_from((TRANSFORM, DROPOUT, GATHER)), min_size=0).map(
    lambda found: tuple(sorted(found, key=lambda function: (function.path, function.first_line)))
)
RECORDS = st.one_of(
    st.none(),
    st.just(Executed(problem="the run's Python is 3.11")),
    st.builds(lambda entered, by: ran(*entered, by=by), FUNCTIONS, st.sampled_from([(IN_TRAINER,), (IN_TEST,)])),
)
VARIANTS = ((Level.SMOKE, "lora-ddp"), (Level.SAVE_RESUME, "resume"), (Level.FEATURE, "feature"))
RULES = st.builds(ExecutionRules, unexecuted=st.sampled_from(Demand), unrecorded=st.sampled_from(Demand))
OF_STATUS = {
    JobStatus.PASSED: Result.PASS,
    JobStatus.FAILED: Result.FAIL,
    JobStatus.BLOCKED: Result.BLOCKED,
}


def judged(planned: tuple[ChangedFunction, ...], record: Executed | None, number: int) -> tuple[Job, Verdict]:
    level, variant = VARIANTS[number]
    job = make_job(level, variant, changed=change(*planned))
    return job, verdict_on(job, record)


JOBS = st.lists(st.tuples(FUNCTIONS, RECORDS), min_size=1, max_size=len(VARIANTS)).map(
    lambda rows: [judged(planned, record, number) for number, (planned, record) in enumerate(rows)]
)


@settings(deadline=None, max_examples=60)
@given(JOBS, RULES, st.sampled_from([None, Result.FAIL]))
def test_a_check_and_the_gate_agree(
    jobs: list[tuple[Job, Verdict]], rules: ExecutionRules, last: Result | None
) -> None:
    if last is not None:
        job, verdict = jobs[-1]
        jobs = [*jobs[:-1], (job, replace(verdict, result=last, decided_by=None))]
    card = Card(tuple(verdict for _, verdict in jobs), execution=rules)
    runs = [
        run(job, result=verdict.result, never_entered=verdict.never_entered, verdict=verdict_json(verdict))
        for job, verdict in jobs
    ]
    wanted = tuple(WantedJob(job.id, job.level, (), job) for job, _ in jobs)
    gate = POLICY.gate.model_copy(update=dict(rules))
    policy = POLICY.model_copy(update={"gate": gate})
    found = decide_actions(target_state(*runs, wanted=wanted, policy=policy)).gate
    assert OF_STATUS[found.status] is result_of(card), found


@settings(deadline=None, max_examples=60)
@given(JOBS)
def test_no_pass_over_a_function_that_is_known_not_to_have_run(jobs: list[tuple[Job, Verdict]]) -> None:
    card = Card(tuple(verdict for _, verdict in jobs), execution=ExecutionRules())
    if result_of(card) is not Result.PASS:
        return
    ran_anywhere = {function.key for _, verdict in jobs if verdict.execution for function in verdict.execution.entered}
    by_tests = {
        function.key
        for _, verdict in jobs
        if verdict.execution
        for function in verdict.execution.functions
        if function.entered == "by Bridge tests"
    }
    planned = {function.key for _, verdict in jobs if verdict.execution for function in verdict.execution.functions}
    assert planned <= ran_anywhere | by_tests
