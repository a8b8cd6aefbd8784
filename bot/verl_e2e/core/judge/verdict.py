"""The verdict of one job: Pass, Fail or Blocked, from the record, the log's facts and the criteria."""

from dataclasses import replace

from verl_e2e.core.judge import evidence_rows, limitations, wording
from verl_e2e.core.judge.blame import asks_for_base, related_rows, weigh
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.by_level import judges_of
from verl_e2e.core.judge.criteria.change_executed import change_executed, execution
from verl_e2e.core.judge.criteria.every_level import BASIC
from verl_e2e.core.judge.criteria.health import HEALTH, disagreement
from verl_e2e.core.judge.criteria.parity import reports
from verl_e2e.core.judge.criteria.signal import case_figure
from verl_e2e.core.judge.criteria.state import judge_state
from verl_e2e.core.judge.decide import blocking, decide, decide_run
from verl_e2e.core.judge.deliverables import deliverables, of_unknown_job
from verl_e2e.core.judge.limitations import shown_by
from verl_e2e.core.judge.same_failure import fingerprint_of
from verl_e2e.core.judge.value_heads import without_needless_warnings
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.causes import EVIDENCE, of_criterion
from verl_e2e.core.model.evidence import Criterion, Evidence, State
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Decision, Deliverable, Outcome, Result
from verl_e2e.core.model.record import ENVIRONMENT_FILE, JOB_FILE, STOPPED, Finding, Record, RepositoryState
from verl_e2e.core.model.stages import Stage
from verl_e2e.core.triage.triage import Triage, TriageVerdict, triage_of_run

__all__ = ["Deliverable", "Outcome", "Result", "Verdict", "judge"]

_NO_LOG = Triage(TriageVerdict.BLOCKED, Stage.ENVIRONMENT, wording.NO_LOG, 0, "", (), "", "")
_KEY = (
    Criterion.RESOLVED_CONFIG,
    Criterion.STEPS_COMPLETED,
    Criterion.GRADIENTS,
    Criterion.ROLLOUT_AGREEMENT,
    Criterion.RESUMED,
    Criterion.RESUMED_STEP,
    Criterion.PARALLEL_SIZES,
    Criterion.PARITY,
    Criterion.FSDP_ACTIVE,
    Criterion.FEATURE_ACTIVE,
    Criterion.LEARNING_SIGNAL,
    Criterion.CHANGE_EXECUTED,
)


def judge(record: Record, facts: LogFacts | None) -> Verdict:
    """Judge a run folder. `facts` is None when it holds no log."""
    if record.job is None:
        return _without_job(record, facts)
    signal = record.job.level is Level.LEARNING_SIGNAL
    case = without_needless_warnings(Case(record.job, record, facts or LogFacts(0), _NO_LOG))
    if facts is not None:
        stopped = any(ended.end_reason in STOPPED for ended in case.ends())
        case = replace(case, triage=triage_of_run(case.facts, learning_signal=signal, stopped=stopped))
    return judge_case(case, has_log=facts is not None)


def judge_case(case: Case, *, has_log: bool = True) -> Verdict:
    """The verdict on a case whose log is already triaged."""
    evidence = judge_criteria(case)
    alone = decide(case, evidence)
    decision = weigh(case, alone)
    open_ends = limitations.of(case, evidence)
    return Verdict(
        job_id=case.job.id,
        result=decision.result,
        stage=decision.stage,
        cause=decision.cause,
        sentence=_sentence(case, decision),
        coverage=wording.coverage(case.job),
        checkpoint=wording.checkpoint(case.job),
        deliverables=deliverables(case, evidence, weigh(case, decide_run(case, evidence)), has_log=has_log),
        evidence=evidence,
        repositories=evidence_rows.origin(case.record),
        command=evidence_rows.command(case.record, started=case.started),
        key_lines=_key_lines(case, evidence, decision),
        limitations=tuple(limitation.text for limitation in open_ends),
        followups=_followups(case, evidence, decision),
        related=related_rows(case),
        own_result=alone.result,
        fingerprint=fingerprint_of(case, alone),
        reports=reports(case),
        figure=case_figure(case),
        calls=_calls(case, alone),
        left_open=tuple(limitation.aspects for limitation in open_ends),
        shows=shown_by(case, evidence) if decision.result is Result.PASS else (),
        decided_by=alone.at.criterion if alone.at is not None else None,
        execution=execution(case),
        undecided=alone.undecided,
        causes=_causes(decision),
        recurrence=decision.recurrence,
    )


def _causes(decision: Decision) -> tuple[str, ...]:
    at = decision.at
    return decision.causes or (() if at is None else (of_criterion(at.criterion),))


def judge_criteria(case: Case) -> tuple[Evidence, ...]:
    """Every criterion that the job's level, settings and change ask for, judged, in a fixed order."""
    of_change = (change_executed,) if case.job.changed else ()
    asked = (*judges_of(case.job), *of_change)
    of_state = judge_state(case)
    rows = [judge_one(case) for judge_one in (*BASIC, *HEALTH)]
    rows = [disagreement(row, of_state) if row.criterion is Criterion.ROLLOUT_AGREEMENT else row for row in rows]
    return (*rows, *of_state, *(judge_one(case) for judge_one in asked))


def _sentence(case: Case, decision: Decision) -> str:
    stage = decision.stage or Stage.ENVIRONMENT
    if decision.result is Result.PASS:
        return wording.passed(case.job, _bridge(case.record))
    if decision.result is Result.FAIL:
        tests = decision.at is not None and decision.at.criterion is Criterion.BRIDGE_TESTS
        return wording.failed(case.job, wording.FOCUSED_TESTS if tests else stage, decision)
    if decision.at is not None and decision.at.criterion is Criterion.CHANGE_EXECUTED:
        return wording.unexecuted(case.job, decision.cause)
    by_triage = decision.at is not None and decision.at.criterion is Criterion.NO_EXCEPTION
    says_it = by_triage and case.triage.reached is not None
    return wording.blocked(case.job, stage, decision.cause, None if says_it else _construction(case.facts))


def _calls(case: Case, decision: Decision) -> tuple[str, ...]:
    """The frames of the logged error that decided; none where something else did."""
    at = decision.at
    return next((error.calls for error in case.facts.errors if at is not None and error.at.line == at.line), ())


def _bridge(record: Record) -> RepositoryState:
    """The Bridge tree of a proven run."""
    assert record.environment is not None
    return next(state for state in record.environment.repositories if state.name == "bridge")


def _construction(facts: LogFacts) -> Stage | None:
    """How far Bridge-managed construction and training got, None when they never began."""
    first, last = Stage.BRIDGE_PROVIDER.order, Stage.TRAIN_STEP.order
    stages = [mark.stage for mark in facts.stages if first <= mark.stage.order <= last]
    return max(stages, key=lambda stage: stage.order, default=None)


def _key_lines(case: Case, evidence: tuple[Evidence, ...], decision: Decision) -> tuple[Evidence, ...]:
    met = [item for item in evidence if item.criterion in _KEY and item.state is State.MET and item.excerpt]
    if decision.result is Result.PASS:
        return tuple(met)
    config = [item for item in met if item.criterion is Criterion.RESOLVED_CONFIG]
    at = [decision.at] if decision.at and decision.at.excerpt else []
    curves = [item for item in evidence if item.criterion is Criterion.LEARNING_SIGNAL and item.excerpt]
    at += [item for item in curves if item is not decision.at]
    return (*config, *at, *(_finding(finding) for finding in blocking(case.record)))


def _finding(finding: Finding) -> Evidence:
    return Evidence(Criterion.EXIT_ZERO, State.MISSING, finding.summary, ENVIRONMENT_FILE, 0, finding.summary)


def _followups(case: Case, evidence: tuple[Evidence, ...], decision: Decision) -> tuple[str, ...]:
    rows = [decision.fix, *(wording.fix(finding.summary, finding.fix) for finding in blocking(case.record))]
    if asks_for_base(case, decision):
        rows.append(wording.RUN_MERGE_BASE)
    waived = any(item.criterion is Criterion.BRIDGE_TESTS and item.state is State.WAIVED for item in evidence)
    if waived and case.started:
        rows.append(wording.run_bridge_tests(case.job))
    return tuple(dict.fromkeys(row for row in rows if row))


def _without_job(record: Record, facts: LogFacts | None) -> Verdict:
    """A folder with no job file: whatever the log says, it is Blocked, and each missing item is named."""
    missing = record.missing or (f"{JOB_FILE}: not there",)
    cause = wording.missing_evidence(missing)
    answer = triage_of_run(facts) if facts else None
    return Verdict(
        job_id="unknown",
        result=Result.BLOCKED,
        stage=answer.stage if answer else Stage.ENVIRONMENT,
        cause=cause,
        sentence=wording.log_only(cause, answer),
        coverage=wording.UNKNOWN_JOB,
        checkpoint=wording.UNKNOWN_JOB,
        deliverables=of_unknown_job(wording.UNPROVEN, record.log, facts.line_count if facts else None),
        evidence=(),
        repositories=evidence_rows.origin(record),
        command=evidence_rows.command(record, started=bool(facts and facts.line_count)),
        key_lines=(_triage_evidence(answer, record.log),) if answer and answer.excerpt else (),
        limitations=tuple(f"Missing from the folder: {item}." for item in missing),
        followups=(wording.FIX_EVIDENCE,),
        causes=(EVIDENCE,),
    )


def _triage_evidence(answer: Triage, log: str) -> Evidence:
    state = State.MET if answer.verdict is TriageVerdict.PASS else State.BROKEN
    return Evidence(Criterion.NO_EXCEPTION, state, answer.cause, log, answer.line, answer.excerpt)
