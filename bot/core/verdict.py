"""The verdict of one job: Pass, Fail or Blocked, from the record, the log's facts and the criteria.

The rule: a wrong or unproven set-up is Blocked (not evidence against the change), a fault after Bridge-managed
construction is Fail unless its root is outside, and Pass needs every criterion met. Missing evidence is never a Pass.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from bot.core import limitations, wording
from bot.core.criteria import BASIC, Case
from bot.core.evidence import Criterion, Evidence, State
from bot.core.facts import LogFacts
from bot.core.health import HEALTH
from bot.core.levels import Level
from bot.core.record import JOB_FILE, LOG_FILE, EndReason, Finding, Record, RepositoryState
from bot.core.stages import Stage
from bot.core.triage import Triage, TriageVerdict, triage


class Result(StrEnum):
    """The whole: inconclusive is a cause of Blocked."""

    PASS = "Pass"
    FAIL = "Fail"
    BLOCKED = "Blocked"


class Outcome(StrEnum):
    """One deliverable of the card."""

    PASS = "Pass"
    FAIL = "Fail"
    SKIPPED = "Skipped"
    NOT_REQUESTED = "Not requested"
    BLOCKED = "Blocked"


@dataclass(frozen=True, slots=True)
class Deliverable:
    """One line under `Deliverables:`."""

    name: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one job with everything that the card shows; `stage` is None for a Pass."""

    job_id: str
    result: Result
    stage: Stage | None
    cause: str
    sentence: str
    coverage: str
    checkpoint: str
    deliverables: tuple[Deliverable, ...]
    evidence: tuple[Evidence, ...]
    repositories: tuple[str, ...]
    command: str
    key_lines: tuple[Evidence, ...]
    limitations: tuple[str, ...]
    followups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Decision:
    result: Result
    stage: Stage | None
    cause: str
    mend: str = ""
    at: Evidence | None = None


def judge(record: Record, facts: LogFacts | None) -> Verdict:
    """Judge a run folder. `facts` is None when it holds no log."""
    if record.job is None:
        return _without_job(record, facts)
    answer = triage(facts) if facts else None
    case = Case(record.job, record, facts or LogFacts(0), answer or _no_log())
    evidence = _judge_criteria(case)
    decision = _decide(case, evidence, facts is not None)
    return _assemble(case, evidence, decision, facts is not None)


def _no_log() -> Triage:
    return Triage(TriageVerdict.BLOCKED, Stage.ENVIRONMENT, wording.NO_LOG, 0, "", (), "", "")


def _judge_criteria(case: Case) -> tuple[Evidence, ...]:
    basic = tuple(judge_one(case) for judge_one in BASIC)
    health = tuple(judge_one(case) for judge_one in HEALTH)
    return basic + health + tuple(_level_evidence(case))


_LEVEL_CRITERION = {
    Level.SAVE_RESUME: Criterion.RESUMED,
    Level.PARALLELISM: Criterion.PARALLEL_SIZES,
    Level.MEGATRON_FSDP: Criterion.FSDP_ACTIVE,
    Level.FEATURE: Criterion.FEATURE_ACTIVE,
    Level.LEARNING_SIGNAL: Criterion.LEARNING_SIGNAL,
}


def _level_evidence(case: Case) -> Iterable[Evidence]:
    """What a level above 0 asks for beside the rest; not judged yet, so never a Pass."""
    criterion = _LEVEL_CRITERION.get(case.job.level)
    if criterion:
        yield Evidence(criterion, State.MISSING, wording.not_judged(case.job.level), JOB_FILE)


def _decide(case: Case, evidence: tuple[Evidence, ...], has_log: bool) -> _Decision:
    """The first of these that applies decides; the order is the order of trust."""
    by = {item.criterion: item for item in evidence}
    return (
        _broken_import(by)
        or _failed_bridge_tests(by)
        or _blocking_finding(case)
        or _broken_health(by, case)
        or _fault_in_log(case, has_log)
        or _lost_run(case)
        or _not_as_asked(by)
        or _missing_evidence(evidence)
        or _Decision(Result.PASS, None, "")
    )


def _broken_import(by: dict[Criterion, Evidence]) -> _Decision | None:
    item = by[Criterion.LOCAL_IMPORT]
    if item.state is State.BROKEN:
        return _Decision(Result.BLOCKED, Stage.IMPORT, item.summary, wording.MEND_IMPORT, item)
    return None


def _failed_bridge_tests(by: dict[Criterion, Evidence]) -> _Decision | None:
    item = by[Criterion.BRIDGE_TESTS]
    if item.state is State.BROKEN:
        return _Decision(Result.FAIL, Stage.BRIDGE_PROVIDER, item.summary, wording.MEND_BRIDGE_TESTS, item)
    return None


def _blocking_finding(case: Case) -> _Decision | None:
    finding = next(iter(blocking(case.record)), None)
    if finding is None:
        return None
    return _Decision(Result.BLOCKED, finding.stage, finding.summary, finding.mend)


def blocking(record: Record) -> tuple[Finding, ...]:
    """The preflight findings that stop a run."""
    findings = record.environment.findings if record.environment else ()
    return tuple(finding for finding in findings if finding.blocking and not finding.ok)


_HEALTH_STAGE = {
    Criterion.ADAPTER: Stage.PEFT,
    Criterion.WEIGHTS_KEPT: Stage.HF_IMPORT,
    Criterion.ROLLOUT_AGREEMENT: Stage.EXPORT_WEIGHT_SYNC,
    Criterion.GRADIENTS: Stage.TRAIN_STEP,
}


def _broken_health(by: dict[Criterion, Evidence], case: Case) -> _Decision | None:
    """A broken health fact, unless the log shows a fault before it."""
    broken = [by[criterion] for criterion in _HEALTH_STAGE if by[criterion].state is State.BROKEN]
    first = min(broken, key=lambda item: item.line, default=None)
    if first is None:
        return None
    earlier = case.triage.verdict is not TriageVerdict.PASS and 0 < case.triage.line < first.line
    if earlier:
        return None
    stage = _HEALTH_STAGE[first.criterion]
    return _Decision(Result.FAIL, stage, first.summary, wording.MEND_HEALTH[first.criterion], first)


def _fault_in_log(case: Case, has_log: bool) -> _Decision | None:
    answer = case.triage
    unexplained_end = answer.verdict is TriageVerdict.BLOCKED and not answer.excerpt
    if not has_log or answer.verdict is TriageVerdict.PASS or unexplained_end:
        return None
    result = Result.FAIL if answer.verdict is TriageVerdict.FAIL else Result.BLOCKED
    at = Evidence(Criterion.NO_EXCEPTION, State.BROKEN, answer.cause, LOG_FILE, answer.line, answer.excerpt)
    return _Decision(result, answer.stage, answer.cause, answer.mend, at)


def _lost_run(case: Case) -> _Decision | None:
    """The runner ended the run, or the process failed without an error in its log."""
    ended = next((event for event in reversed(case.record.events) if event.kind == "ended"), None)
    if ended is None or (ended.data.get("reason") == EndReason.EXITED and ended.data.get("exit_code") == 0):
        return None
    stage = case.facts.reached() or Stage.ENVIRONMENT
    cause = wording.ended_early(str(ended.data.get("reason")), ended.data.get("exit_code"), ended.data.get("note"))
    return _Decision(Result.BLOCKED, stage, cause, wording.MEND_LOST, None)


def _not_as_asked(by: dict[Criterion, Evidence]) -> _Decision | None:
    item = by[Criterion.RESOLVED_CONFIG]
    if item.state is State.BROKEN:
        cause = wording.not_as_asked(item.summary)
        return _Decision(Result.BLOCKED, Stage.ENVIRONMENT, cause, wording.MEND_CONFIG, item)
    return None


def _missing_evidence(evidence: tuple[Evidence, ...]) -> _Decision | None:
    missing = [item for item in evidence if item.state in (State.MISSING, State.BROKEN)]
    if not missing:
        return None
    cause = wording.missing_evidence([item.summary for item in missing])
    stage = Stage.IMPORT if missing[0].criterion is Criterion.LOCAL_IMPORT else Stage.ENVIRONMENT
    return _Decision(Result.BLOCKED, stage, cause, wording.MEND_EVIDENCE, missing[0])


def _assemble(case: Case, evidence: tuple[Evidence, ...], decision: _Decision, has_log: bool) -> Verdict:
    job = case.job
    return Verdict(
        job_id=job.id,
        result=decision.result,
        stage=decision.stage,
        cause=decision.cause,
        sentence=_sentence(case, decision),
        coverage=wording.coverage(job),
        checkpoint=wording.checkpoint(job),
        deliverables=_deliverables(case, evidence, decision, has_log),
        evidence=evidence,
        repositories=tuple(wording.repository(state) for state in _repositories(case.record)),
        command=wording.command(case.record),
        key_lines=_key_lines(evidence, decision),
        limitations=limitations.of(case, evidence),
        followups=_followups(case, decision),
    )


def _repositories(record: Record) -> tuple[RepositoryState, ...]:
    return record.environment.repositories if record.environment else ()


def _sentence(case: Case, decision: _Decision) -> str:
    job = case.job
    if decision.result is Result.PASS:
        return wording.passed(job, _bridge_commit(case))
    if decision.result is Result.FAIL:
        return wording.failed(job, decision.stage or Stage.ENVIRONMENT, decision.cause)
    reached = case.facts.reached()
    return wording.blocked(job, decision.stage or Stage.ENVIRONMENT, decision.cause, reached)


def _bridge_commit(case: Case) -> str:
    states = [state for state in _repositories(case.record) if state.name == "bridge"]
    return states[0].commit if states else case.job.bridge.commit


def _deliverables(
    case: Case, evidence: tuple[Evidence, ...], decision: _Decision, has_log: bool
) -> tuple[Deliverable, ...]:
    by = {item.criterion: item for item in evidence}
    variant_requested = case.job.level is not Level.SMOKE
    run = _run_outcome(decision)
    log = wording.log_detail(case.facts.line_count) if has_log else wording.NO_LOG
    return (
        Deliverable(wording.BRIDGE_CHECKS, _bridge_outcome(by), wording.bridge_detail(case.job, by)),
        Deliverable(wording.LOCAL_IMPORT, _import_outcome(by), by[Criterion.LOCAL_IMPORT].summary),
        Deliverable(wording.BACKEND_RUN, run, wording.backend_detail(case.job, decision.cause)),
        Deliverable(
            wording.VARIANTS,
            run if variant_requested else Outcome.NOT_REQUESTED,
            wording.variant_detail(case.job),
        ),
        Deliverable(wording.LOG_CAPTURE, Outcome.PASS if has_log else Outcome.FAIL, log),
    )


def _run_outcome(decision: _Decision) -> Outcome:
    return {Result.PASS: Outcome.PASS, Result.FAIL: Outcome.FAIL, Result.BLOCKED: Outcome.BLOCKED}[decision.result]


def _bridge_outcome(by: dict[Criterion, Evidence]) -> Outcome:
    state = by[Criterion.BRIDGE_TESTS].state
    return {State.MET: Outcome.PASS, State.BROKEN: Outcome.FAIL}.get(state, Outcome.SKIPPED)


def _import_outcome(by: dict[Criterion, Evidence]) -> Outcome:
    state = by[Criterion.LOCAL_IMPORT].state
    return {State.MET: Outcome.PASS, State.BROKEN: Outcome.FAIL}.get(state, Outcome.BLOCKED)


_KEY = (Criterion.RESOLVED_CONFIG, Criterion.STEPS_COMPLETED, Criterion.GRADIENTS, Criterion.ROLLOUT_AGREEMENT)


def _key_lines(evidence: tuple[Evidence, ...], decision: _Decision) -> tuple[Evidence, ...]:
    if decision.result is Result.PASS:
        return tuple(item for item in evidence if item.criterion in _KEY and item.excerpt)
    return (decision.at,) if decision.at and decision.at.excerpt else ()


def _followups(case: Case, decision: _Decision) -> tuple[str, ...]:
    mends = [finding.mend for finding in blocking(case.record) if finding.mend]
    return tuple(dict.fromkeys([*([decision.mend] if decision.mend else []), *mends]))


def _without_job(record: Record, facts: LogFacts | None) -> Verdict:
    """A folder with no job file: whatever the log says, it is Blocked, and each missing item is named."""
    missing = record.missing or (f"{JOB_FILE}: not there",)
    cause = wording.missing_evidence(missing)
    answer = triage(facts) if facts else None
    at = _triage_evidence(answer) if answer and answer.excerpt else None
    lines = facts.line_count if facts else 0
    log = Deliverable(
        wording.LOG_CAPTURE,
        Outcome.PASS if facts else Outcome.FAIL,
        wording.log_detail(lines) if facts else wording.NO_LOG,
    )
    blocked = tuple(
        Deliverable(name, Outcome.BLOCKED, wording.UNPROVEN)
        for name in (wording.BRIDGE_CHECKS, wording.LOCAL_IMPORT, wording.BACKEND_RUN, wording.VARIANTS)
    )
    return Verdict(
        job_id="unknown",
        result=Result.BLOCKED,
        stage=answer.stage if answer else Stage.ENVIRONMENT,
        cause=cause,
        sentence=wording.log_only(cause, answer),
        coverage=wording.UNKNOWN_COVERAGE,
        checkpoint=wording.UNKNOWN_CHECKPOINT,
        deliverables=(*blocked, log),
        evidence=(),
        repositories=(),
        command="",
        key_lines=(at,) if at else (),
        limitations=tuple(f"Missing: {item}." for item in missing),
        followups=(wording.MEND_EVIDENCE,),
    )


def _triage_evidence(answer: Triage) -> Evidence:
    state = State.MET if answer.verdict is TriageVerdict.PASS else State.BROKEN
    return Evidence(Criterion.NO_EXCEPTION, state, answer.cause, LOG_FILE, answer.line, answer.excerpt)
