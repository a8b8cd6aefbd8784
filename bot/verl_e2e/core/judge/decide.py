"""The rule of the verdict: the first statement that applies decides, in the order of trust.

A wrong or unproven set-up is Blocked (no evidence against the change), a fault after Bridge-managed construction is
Fail unless its root lies outside, and Pass needs every criterion. Missing evidence is never a Pass, and a fault is
never the change's unless it is shown that the change is what ran.
"""

from collections.abc import Iterable, Mapping

from verl_e2e.core.judge import wording
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.basic import checkout_gap, run_imported_checkout
from verl_e2e.core.judge.criteria.invariants import CriterionFinding
from verl_e2e.core.judge.criteria.metrics import first_disagreement
from verl_e2e.core.judge.criteria.table import CRITERIA, ROWS, Broken, Criterion, CriterionRow, Gap
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.outcome import (
    EVIDENCE_CAUSE,
    NEIGHBOUR_CAUSE,
    SEAL_CAUSE,
    UNPROVEN_CAUSE,
    Attribution,
    Decision,
    Result,
    Stage,
    of_end,
    of_log,
    of_preflight,
)
from verl_e2e.core.model.record import EndReason, Finding, GpuEvent, Record, read_data
from verl_e2e.core.text.escape import count_of
from verl_e2e.core.triage.triage import INCOMPLETE, TriageVerdict

# A process that only holds a CUDA context takes some hundred MiB.
_TELLING_MIB = 1024
# The rules of triage by which the fault may lie with others on the GPU.
_SHARED_CAUSES = frozenset({"gpu-memory", "engine-memory"})
PASSED = Decision(Result.PASS, None, "")
# What each criterion that was asked for found.
By = Mapping[str, CriterionFinding]


def decide(case: Case, found: Iterable[CriterionFinding]) -> Decision:
    """The decision on the whole job."""
    by = {item.evidence.criterion: item for item in found}
    return (
        _broken_seal(case)
        or _by_criterion(by, Criterion.LOCAL_IMPORT, Result.BLOCKED, Stage.IMPORT)
        or _by_criterion(by, Criterion.BRIDGE_TESTS, Result.FAIL, Stage.BRIDGE_PROVIDER)
        or _decide_run(case, by)
        or _gap(case, by, Gap.OF_THE_RUN, Gap.OF_THE_JOB)
        or _unexecuted(by)
        or PASSED
    )


def decide_run(case: Case, found: Iterable[CriterionFinding]) -> Decision:
    """The decision on the run by itself, whatever the focused Bridge tests say."""
    by = {item.evidence.criterion: item for item in found}
    return _decide_run(case, by) or _unexecuted(by) or PASSED


def _decide_run(case: Case, by: By) -> Decision | None:
    """The decision on a run that is not good, whether or not it entered the changed code."""
    as_asked = "the run was not as asked: "
    return (
        _broken_seal(case)
        or _by_criterion(by, Criterion.LOCAL_IMPORT, Result.BLOCKED, Stage.IMPORT)
        or _blocking_finding(case)
        # A run of another configuration says nothing about the one that was asked for, whatever became of it.
        or _by_criterion(by, Criterion.RESOLVED_CONFIG, Result.BLOCKED, Stage.ENVIRONMENT, lead=as_asked)
        or _proven(
            case, _broken_at_its_line(by, case) or _error_in_log(case) or _broken_row(by, case, Broken.AFTER_ERRORS)
        )
        or _lost_run(case)
        or _proven(case, _broken_row(by, case, Broken.AFTER_END))
        or _gap(case, by, Gap.OF_THE_RUN)
        # A complete run whose metrics do not show what level 5 asks for: nothing shows whose fault that is.
        or _by_criterion(
            by, Criterion.LEARNING_SIGNAL, Result.BLOCKED, Stage.LEARNING_SIGNAL, wording.FIX_SIGNAL, State.MISSING
        )
    )


def _by_criterion(
    by: By,
    criterion: Criterion,
    result: Result,
    stage: Stage,
    fix: str = "",
    state: State = State.BROKEN,
    *,
    lead: str = "",
) -> Decision | None:
    """What a criterion decides by itself where it has that state."""
    item = by[criterion].evidence if criterion in by else None
    if item is None or item.state is not state:
        return None
    return Decision(result, stage, f"{lead}{item.summary}", fix or ROWS[criterion].fix, item)


def _unexecuted(by: By) -> Decision | None:
    """A run that is good in everything else and never entered the change: it shows nothing about it."""
    return _by_criterion(by, Criterion.CHANGE_EXECUTED, Result.BLOCKED, Stage.TRAIN_STEP, wording.FIX_UNEXECUTED)


def _broken_seal(case: Case) -> Decision | None:
    """A folder that is not as the recorder left it is evidence of nothing."""
    seal = case.record.seal
    if seal is None or seal.state != "broken":
        return None
    cause = wording.not_the_recorders(seal.problem)
    return Decision(Result.BLOCKED, Stage.ENVIRONMENT, cause, wording.FIX_SEAL, causes=(SEAL_CAUSE,))


def blocking(record: Record) -> tuple[Finding, ...]:
    """The preflight findings that stop a run."""
    findings = record.environment.findings if record.environment else ()
    return tuple(finding for finding in findings if finding.blocking and not finding.ok)


def _blocking_finding(case: Case) -> Decision | None:
    """The first finding that stops a run; the fixes of all of them are follow-ups.

    One that the host has to answer for decides for all: nothing shows what the run would be without it.
    """
    found = blocking(case.record)
    if not found:
        return None
    at_fault = {finding.attribution for finding in found}
    # The first in full.
    more = f" (and {count_of(len(found) - 1, 'more finding')})" if len(found) > 1 else ""
    cause = f"{wording.strip_full_stop(found[0].summary)}{more}"
    marks = () if Attribution.HOST in at_fault else tuple(finding.fingerprint for finding in found)
    result = Result.FAIL if at_fault == {Attribution.TREES} else Result.BLOCKED
    undecided = bool(marks) and result is Result.BLOCKED
    failed = tuple(dict.fromkeys(of_preflight(finding.check) for finding in found))
    return Decision(result, found[0].stage, cause, undecided=undecided, marks=marks, causes=failed)


def _broken(by: By, kind: Broken) -> list[tuple[CriterionRow, CriterionFinding]]:
    """The broken criteria that decide at this place of the chain, in the order of the table."""
    asked = [(row, by[row.criterion]) for row in CRITERIA if row.broken is kind and row.criterion in by]
    return [(row, found) for row, found in asked if found.evidence.state is State.BROKEN]


def _broken_at_its_line(by: By, case: Case) -> Decision | None:
    """The first fact that a green run can hide, unless the log shows a fault before it.

    Of several on one line, that which the level is for comes first, then the one of the earliest stage.
    """
    broken = [(row, found.evidence) for row, found in _broken(by, Broken.AT_ITS_LINE)]
    if not broken:
        return None
    row, first = min(broken, key=lambda found: (found[1].line, found[0].level is None, found[0].stage_order))
    answer = case.triage
    if answer.verdict is not TriageVerdict.PASS and 0 < answer.line < first.line:
        return None
    if first.criterion == Criterion.ROLLOUT_AGREEMENT and (by_weights := _weights_before(by, case)):
        return by_weights
    lost = first.criterion == Criterion.WEIGHTS_KEPT and answer.line == first.line
    # Triage knows from the lines around it whether weights were lost on the way in or on the way out.
    return Decision(Result.FAIL, answer.stage if lost else row.stage, first.summary, row.fix, first)


def _weights_before(by: By, case: Case) -> Decision | None:
    """What a tensor holds that it may not, where that may have set trainer and rollout apart when they first were."""
    first = first_disagreement(case)
    for row, found in _broken(by, Broken.AFTER_ERRORS):
        if first is not None and found.spoils is not None and found.spoils <= first:
            return Decision(Result.FAIL, found.stage, found.evidence.summary, row.fix, found.evidence)
    return None


def _broken_row(by: By, case: Case, kind: Broken) -> Decision | None:
    """The first criterion that is shown to be broken by a run that went on, where that is shown to be someone's fault.

    Weights or optimizer state come before what followed from them.
    """
    for row, found in _broken(by, kind):
        stage = row.fault_stage(case) if row.fault_stage is not None else found.stage
        if stage is not None:
            return Decision(Result.FAIL, stage, found.evidence.summary, row.fix, found.evidence)
    return None


def _error_in_log(case: Case) -> Decision | None:
    """What triage blames, unless the end of the run is explained better by who ended it."""
    answer = case.triage
    if answer.verdict is TriageVerdict.PASS or not answer.excerpt:
        return None
    # Nothing shows what of the log is the fault of a host without memory, or of the end.
    if case.ended_by(EndReason.HOST_MEMORY) or (_lost_run(case) and _knows_no_cause(case)):
        return None
    result = Result.FAIL if answer.verdict is TriageVerdict.FAIL else Result.BLOCKED
    at = Evidence(State.BROKEN, answer.cause, case.log, answer.line, answer.excerpt, criterion=Criterion.NO_EXCEPTION)
    rule = (of_log(answer.rule),)
    readings = [read_data(event, GpuEvent) for event in case.events("gpu") if answer.rule in _SHARED_CAUSES]
    peaks = [peak for reading in readings if reading is not None for peak in reading.peak]
    worst = max(peaks, key=lambda peak: peak.others_mib or 0, default=None)
    if worst is not None and (worst.others_mib or 0) >= _TELLING_MIB:
        neighbour = f"a neighbour held up to {worst.others_mib} MiB of GPU {worst.index} during the run"
        cause, shared = f"{answer.cause}; {neighbour}", (NEIGHBOUR_CAUSE, *rule)
        return Decision(Result.BLOCKED, answer.stage, cause, wording.FIX_NEIGHBOUR, at, causes=shared)
    undecided = result is Result.BLOCKED and answer.undecided
    return Decision(result, answer.stage, answer.cause, answer.fix, at, undecided=undecided, causes=rule)


# What processes print because the runner, or the person who interrupted it, ended them.
_ENDED = frozenset({"Terminated", "Killed", "Cancelled", "KeyboardInterrupt", "SystemExit"})


def _knows_no_cause(case: Case) -> bool:
    """Whether triage points at no error, or only at the echo of the runner ending the run."""
    errors = (*case.facts.errors, *case.facts.hints)
    error = next((error for error in errors if error.at.line == case.triage.line), None)
    if error is None or case.triage.rule == INCOMPLETE:
        return case.triage.verdict is TriageVerdict.BLOCKED
    ours = (EndReason.STALLED, EndReason.TIME_LIMIT, EndReason.INTERRUPTED, EndReason.WRONG_IMPORT)
    return error.kind in _ENDED and any(case.ended_by(reason) for reason in ours)


def _proven(case: Case, decision: Decision | None) -> Decision | None:
    """Keep a Fail only when the folder shows that the checkout under test is what failed."""
    if decision is None or decision.result is not Result.FAIL:
        return decision
    gap = checkout_gap(case)
    if not gap and not run_imported_checkout(case):
        gap = "no process of the run shows where it imported Bridge from"
    if not gap:
        return decision
    cause = f"{wording.strip_full_stop(decision.cause)}, but {wording.strip_full_stop(gap)}"
    known = (UNPROVEN_CAUSE, *decision.causes)
    return Decision(Result.BLOCKED, decision.stage, cause, wording.FIX_EVIDENCE, decision.at, causes=known)


def _stood(case: Case) -> Stage:
    return case.facts.stood or case.facts.reached() or Stage.ENVIRONMENT


def _lost_run(case: Case) -> Decision | None:
    """The runner ended the run, or the process failed without an error in its log."""
    for ended in case.ends():
        if not ended.exited_zero:
            cause = wording.ended_early(ended)
            early = (of_end(ended.end_reason or EndReason.EXITED),)
            fix = wording.FIX_HOST_MEMORY if ended.end_reason is EndReason.HOST_MEMORY else wording.FIX_LOST
            return Decision(Result.BLOCKED, _stood(case), cause, fix, causes=early)
    return None


def _gap(case: Case, by: By, *kinds: Gap) -> Decision | None:
    """Every item that a Pass would need and that is not there."""
    gaps = [
        found
        for found in by.values()
        if found.evidence.state in (State.MISSING, State.BROKEN) and ROWS[found.evidence.criterion].gap in kinds
    ]
    names = [*case.record.missing, *(found.evidence.summary for found in gaps)]
    if not names:
        return None
    cause, causes = wording.missing_evidence(names), (EVIDENCE_CAUSE,)
    stage = gaps[0].stage or _stood(case) if gaps and case.facts.line_count else Stage.ENVIRONMENT
    at = gaps[0].evidence if gaps else None
    return Decision(Result.BLOCKED, stage, cause, wording.FIX_EVIDENCE, at, causes=causes)
