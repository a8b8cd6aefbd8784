"""The five deliverables of a job; each of them is always listed."""

from collections.abc import Mapping

from verl_e2e.core.judge import wording
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.decide import blocking
from verl_e2e.core.model.evidence import Criterion, Evidence, State
from verl_e2e.core.model.levels import Level, variants_of
from verl_e2e.core.model.outcome import Decision, Deliverable, Outcome, Result
from verl_e2e.core.model.record import EndReason

_OF_RESULT = {Result.PASS: Outcome.PASS, Result.FAIL: Outcome.FAIL, Result.BLOCKED: Outcome.BLOCKED}


def deliverables(
    case: Case, evidence: tuple[Evidence, ...], run: Decision, *, has_log: bool
) -> tuple[Deliverable, ...]:
    """All five, in the order of the card; `run` is the decision on the run by itself."""
    by = {item.criterion: item for item in evidence}
    return (
        _bridge_checks(case, by),
        _local_import(by),
        _backend_run(case, run),
        _variants(case, run, by),
        _log_capture(case, has_log=has_log),
    )


def of_unknown_job(detail: str, log: str, line_count: int | None) -> tuple[Deliverable, ...]:
    """The deliverables of a folder that names no job; `line_count` is None when it holds no log either."""
    names = (wording.BRIDGE_CHECKS, wording.LOCAL_IMPORT, wording.BACKEND_RUN, wording.VARIANTS)
    blocked = tuple(Deliverable(name, Outcome.BLOCKED, detail) for name in names)
    return (*blocked, _log(log, line_count))


def of_job_not_run(reason: str) -> tuple[Deliverable, ...]:
    """The deliverables of a planned job that never started."""
    names = (wording.BRIDGE_CHECKS, wording.LOCAL_IMPORT, wording.BACKEND_RUN, wording.VARIANTS, wording.LOG_CAPTURE)
    return tuple(Deliverable(name, Outcome.SKIPPED, f"not run: {reason}") for name in names)


def of_nothing_required(reason: str) -> tuple[Deliverable, ...]:
    """The deliverables of a change that needs no run."""
    names = (wording.BRIDGE_CHECKS, wording.LOCAL_IMPORT, wording.BACKEND_RUN, wording.VARIANTS, wording.LOG_CAPTURE)
    return tuple(Deliverable(name, Outcome.NOT_REQUESTED, reason) for name in names)


def with_contract(rows: tuple[Deliverable, ...], broken: tuple[str, ...]) -> tuple[Deliverable, ...]:
    """The deliverables with failed Bridge-side checks where the head breaks what verl uses."""
    if not broken:
        return rows
    failed = Deliverable(wording.BRIDGE_CHECKS, Outcome.FAIL, wording.contract_broken(broken))
    return tuple(failed if row.name == wording.BRIDGE_CHECKS else row for row in rows)


def _bridge_checks(case: Case, by: Mapping[Criterion, Evidence]) -> Deliverable:
    item = by[Criterion.BRIDGE_TESTS]
    outcome = {
        State.MET: Outcome.PASS,
        State.BROKEN: Outcome.FAIL,
        State.MISSING: Outcome.BLOCKED,
        State.WAIVED: Outcome.SKIPPED,
    }[item.state]
    return Deliverable(wording.BRIDGE_CHECKS, outcome, wording.bridge_detail(case.job, item))


def _local_import(by: Mapping[Criterion, Evidence]) -> Deliverable:
    item = by[Criterion.LOCAL_IMPORT]
    outcome = {State.MET: Outcome.PASS, State.BROKEN: Outcome.FAIL}.get(item.state, Outcome.BLOCKED)
    return Deliverable(wording.LOCAL_IMPORT, outcome, item.summary)


def _backend_run(case: Case, run: Decision) -> Deliverable:
    return Deliverable(wording.BACKEND_RUN, *_outcome_of_run(case, run))


# The criterion that a level is for: the line of the level quotes it when it is met.
_PURPOSE = {
    Level.SAVE_RESUME: Criterion.RESUMED,
    Level.PARALLELISM: Criterion.PARALLEL_SIZES,
    Level.MEGATRON_FSDP: Criterion.FSDP_ACTIVE,
    Level.FEATURE: Criterion.FEATURE_ACTIVE,
}


def _variants(case: Case, run: Decision, by: Mapping[Criterion, Evidence]) -> Deliverable:
    plain = case.job.level is Level.SMOKE and case.job.variant == variants_of(Level.SMOKE)[0].name
    if plain:
        return Deliverable(wording.VARIANTS, Outcome.NOT_REQUESTED, wording.NO_VARIANT)
    outcome, _ = _outcome_of_run(case, run)
    shown = by.get(_PURPOSE.get(case.job.level, Criterion.RESOLVED_CONFIG))
    text = shown.summary if shown and shown.state is State.MET and case.job.level in _PURPOSE else ""
    return Deliverable(wording.VARIANTS, outcome, wording.variant_detail(case.job, text))


def _outcome_of_run(case: Case, run: Decision) -> tuple[Outcome, str]:
    if case.ended_by(EndReason.NOT_STARTED) and not blocking(case.record) and not _is_wrong_import(run):
        return Outcome.SKIPPED, wording.backend_detail(case.job, wording.NEVER_STARTED)
    return _OF_RESULT[run.result], wording.backend_detail(case.job, run.cause)


def _is_wrong_import(run: Decision) -> bool:
    return run.at is not None and run.at.criterion is Criterion.LOCAL_IMPORT and run.at.state is State.BROKEN


def _log_capture(case: Case, *, has_log: bool) -> Deliverable:
    if case.ended_by(EndReason.NOT_STARTED) and not case.facts.line_count:
        return Deliverable(wording.LOG_CAPTURE, Outcome.SKIPPED, wording.NEVER_STARTED)
    return _log(case.log, case.facts.line_count if has_log else None)


def _log(name: str, line_count: int | None) -> Deliverable:
    if line_count is None:
        return Deliverable(wording.LOG_CAPTURE, Outcome.FAIL, wording.NO_LOG)
    outcome = Outcome.PASS if line_count else Outcome.FAIL
    return Deliverable(wording.LOG_CAPTURE, outcome, wording.log_detail(name, line_count))
