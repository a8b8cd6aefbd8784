"""Criteria that compare a run with another run of the same training: parity across sizes, and a resumed step.

`core/compare/steps.py` says what is compared and how far it may differ, and calculates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from verl_e2e.core.compare.bands import tolerances_of
from verl_e2e.core.compare.steps import (
    ACTOR_NORM,
    CRITIC_NORM,
    KL_LOSS,
    MetricComparison,
    Report,
    RunComparison,
    StepValues,
    compare_steps,
)
from verl_e2e.core.judge.case import Case
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.related import RELATED_FILE, RelatedRun, Role

_NOT_COMPARED = "the resumed step was compared with no uninterrupted run"
_NO_REFERENCE = "there is no unsharded reference run: parity is not shown"
_SHOWN = 3
# A KL to the reference below this share of the uninterrupted run's looks like an adapter that was never trained.
_UNTRAINED = 0.75


def parity(case: Case) -> Evidence:
    """Level 2: the same training with and without parallelism agrees, where a comparison was requested."""
    reference = _last(case.related(Role.UNSHARDED))
    if reference is None:
        return Evidence(State.WAIVED, _absent(case, Role.UNSHARDED, _NO_REFERENCE), RELATED_FILE)
    unfit = _unfit(reference, "the unsharded reference run")
    if unfit:
        return Evidence(State.MISSING, unfit, RELATED_FILE)
    return judge_parity(case, parity_of(case, reference))


def parity_of(case: Case, reference: RelatedRun) -> RunComparison:
    """The run's steps compared with those of the unsharded reference run."""
    return compare_steps(
        case.train_steps(), reference.steps, tolerances_of(case.record.bands, case.job, reference.steps)
    )


def judge_parity(case: Case, found: RunComparison) -> Evidence:
    """The evidence that a comparison across parallel sizes carries."""
    gap = _gap(found) or found.counters_differ
    if gap:
        return Evidence(State.MISSING, f"the two runs cannot be compared: {gap}", RELATED_FILE)
    line = _line(case, found.steps[-1])
    excerpt = "; ".join(_figures(metric_comparison) for metric_comparison in _telling(found))
    if found.beyond:
        summary = f"the training differs from the unsharded reference run: {_named(found)}"
        return Evidence(State.BROKEN, summary, case.log, line, excerpt)
    summary = f"{len(found.steps)} step(s) agree with the unsharded reference run, {_samples(found)} ({found.source})"
    return Evidence(State.MET, summary, case.log, line, excerpt)


@dataclass(frozen=True, slots=True)
class ResumedComparison:
    """The last step before the save and the step after the resume, each compared with the uninterrupted run's.

    The two runs are identical before the save, so `before` shows how noisy this pair of runs is.
    """

    # The last step before the save.
    before: RunComparison
    # The step after the resume.
    after: RunComparison
    # Whether both drew the same samples and agreed before the save: then the narrow tolerances apply after it.
    calm: bool


def resumed_step(case: Case) -> Evidence:
    """Level 1: the resumed step equals the same step of an uninterrupted run, within tolerance."""
    reference = _last(case.related(Role.UNINTERRUPTED))
    if reference is None:
        return Evidence(State.WAIVED, _absent(case, Role.UNINTERRUPTED, _NOT_COMPARED), RELATED_FILE)
    unfit = _unfit(reference, "the uninterrupted run")
    if unfit:
        return Evidence(State.MISSING, unfit, RELATED_FILE)
    return _judge_resumed(case, resumed_of(case, reference))


def resumed_of(case: Case, reference: RelatedRun) -> ResumedComparison:
    """The two steps around the save, compared with those of the uninterrupted run."""
    last = case.job.steps
    tolerances = tolerances_of(case.record.bands, case.job, reference.steps)
    ours, theirs = case.train_steps(), reference.steps
    before = compare_steps(_only(ours, last - 1), _only(theirs, last - 1), tolerances)
    calm = bool(before.same_samples) and not before.beyond
    after = compare_steps(_only(ours, last), _only(theirs, last), tolerances, narrow=calm)
    return ResumedComparison(before, after, calm)


def _judge_resumed(case: Case, found: ResumedComparison) -> Evidence:
    step = case.job.steps
    gap = _gap(found.after) or _noisy(found.before)
    if gap:
        summary = f"the resumed step cannot be compared with its uninterrupted reference run: {gap}"
        return Evidence(State.MISSING, summary, RELATED_FILE)
    line = _line(case, step)
    excerpt = "; ".join(_figures(metric_comparison) for metric_comparison in _telling(found.after))
    if found.after.counters_differ or found.after.beyond:
        what = found.after.counters_differ or _named(found.after)
        summary = f"step {step} after the resume is not step {step} of the uninterrupted run: {what}{_hint(found)}"
        return Evidence(State.BROKEN, summary, case.log, line, excerpt)
    basis = "as the step before the save does" if found.calm else _samples(found.after)
    summary = f"step {step} after the resume agrees with the uninterrupted run, {basis} ({found.after.source})"
    return Evidence(State.MET, summary, case.log, line, excerpt)


def _noisy(before: RunComparison) -> str:
    """Why the runs cannot be compared after the save: they differ before it already. Empty when they do not."""
    if before.data_differs:
        return before.data_differs
    if before.beyond:
        return f"the runs differ before the save already, in {_named(before)}"
    return ""


def _hint(found: ResumedComparison) -> str:
    """What a lower KL points to: LoRA's B starts at zero, and so does the KL to the reference."""
    kl = next(
        (metric_comparison for metric_comparison in found.after.beyond if metric_comparison.compared.metric == KL_LOSS),
        None,
    )
    lower = kl is not None and (kl.rows[-1].run == 0 or kl.ratio < _UNTRAINED)
    return "; a lower KL to the reference is what an adapter that was not loaded shows" if lower else ""


def _absent(case: Case, role: Role, sentence: str) -> str:
    """The sentence that there is nothing to compare with, with the reason where it is known."""
    reason = case.record.related_not_run.get(role)
    return f"{sentence} ({reason})" if reason else sentence


def reports(case: Case) -> tuple[Report, ...]:
    """Every comparison that the case's related runs allow, for its card and its folder."""
    found: list[Report] = []
    reference, reference_run = _last(case.related(Role.UNSHARDED)), _last(case.related(Role.UNINTERRUPTED))
    if reference is not None and reference.steps:
        title = f"{case.job.id} compared with {reference.job_id}, the unsharded reference run"
        found.append(Report(title, parity_of(case, reference)))
    if reference_run is not None and reference_run.steps:
        both, step = resumed_of(case, reference_run), case.job.steps
        found.append(
            Report(f"{case.job.id} compared with {reference_run.job_id}, step {step - 1}, before the save", both.before)
        )
        found.append(
            Report(f"{case.job.id} compared with {reference_run.job_id}, step {step}, after the resume", both.after)
        )
    return tuple(found)


def _last(runs: tuple[RelatedRun, ...]) -> RelatedRun | None:
    """The run that counts when a job was run more than once in the same role."""
    return runs[-1] if runs else None


def _unfit(run: RelatedRun, name: str) -> str:
    if run.result is not Result.PASS:
        return f"{name} ended as {run.result}: {run.cause or run.stage}"
    return "" if run.steps else f"{name} recorded no metrics of a training step"


def _gap(found: RunComparison) -> str:
    if not found.steps:
        return "they have no training step in common"
    return found.data_differs or ("" if found.comparable else "they have no metric in common that can be judged")


def _only(steps: Sequence[StepValues], number: int) -> tuple[StepValues, ...]:
    return tuple(item for item in steps if item.step == number)


def _line(case: Case, step: int) -> int:
    return next((item.line for item in reversed(case.train_steps()) if item.step == step), 0)


def _samples(found: RunComparison) -> str:
    same, all_steps = len(found.same_samples), len(found.steps)
    if same == all_steps:
        return "samples the same"
    return "samples differ" if not same else f"samples the same at {same} of {all_steps} steps"


def _named(found: RunComparison) -> str:
    shown = "; ".join(_figures(metric_comparison) for metric_comparison in found.beyond[:_SHOWN])
    more = len(found.beyond) - _SHOWN
    return f"{shown} (and {more} more)" if more > 0 else shown


def _telling(found: RunComparison) -> tuple[MetricComparison, ...]:
    """What the evidence quotes: everything beyond tolerance, else the gradients and the KL."""
    names = (ACTOR_NORM, CRITIC_NORM, KL_LOSS)
    return found.beyond or tuple(item for item in found.metrics if item.compared.metric in names)


def _figures(metric_comparison: MetricComparison) -> str:
    """`actor/grad_norm 0.41 against 0.22 (x1.87)`; over several steps the median ratio."""
    last = metric_comparison.rows[-1]
    ratio = "" if math.isnan(metric_comparison.ratio) else f"x{metric_comparison.ratio:.3g}"
    if len(metric_comparison.rows) > 1 and ratio:
        return f"{metric_comparison.compared.metric} {ratio} in the median of {len(metric_comparison.rows)} steps"
    of_larger = f" ({ratio})" if ratio else ""
    return f"{metric_comparison.compared.metric} {last.run:.4g} against {last.reference:.4g}{of_larger}"
