"""Criteria on what a run prints anyway: its own metrics and warnings, and its metrics compared with another run's.

A green run can hide a fault that these show. `core/compare/steps.py` says which metrics of two runs are compared and
how far they may differ, and `core/signal` judges whether a run learned.
"""

import math
from collections.abc import Iterator, Sequence

from verl_e2e.core.compare.bands import band_of, measured_runs, tolerances_of
from verl_e2e.core.compare.jobs import begins_equal, is_parity
from verl_e2e.core.compare.performance import compare_performance, performance_of
from verl_e2e.core.compare.steps import (
    MetricComparison,
    MetricRow,
    Report,
    RunComparison,
    compare_steps,
)
from verl_e2e.core.consumer.consumer import ConfigKey, LogMark, Quantity
from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.consumer.verl_log import ADAPTER_LINE
from verl_e2e.core.judge.case import Case, trained_models, wants_adapter
from verl_e2e.core.judge.criteria.basic import global_step
from verl_e2e.core.model.access import Slowdown
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.facts import StepMetrics, StepValues
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import JOB_FILE, Record
from verl_e2e.core.model.related import RELATED_FILE, Performance, RelatedRun, Role
from verl_e2e.core.signal import curves
from verl_e2e.core.signal.report import (
    BaselineRun,
    SignalFigure,
    SignalOptions,
    SignalOutcome,
    SignalReport,
    length_free_reward,
    signal_figure,
    signal_report,
)
from verl_e2e.core.text.escape import count_of
from verl_e2e.core.triage.silent import AGREEMENT, AGREEMENT_FAIL_BELOW, is_correlation, lost_weights_text

AGREEMENT_NOTE_BELOW = 0.999
# For a consumer that reports the mean difference of log-probabilities and no correlation. SkyRL's own end-to-end test
# asks for 0.01764 at most (gsm8k_colocate_megatron.sh); until healthy runs are measured, three times that is a fault.
DIFFERENCE_FAIL_ABOVE = 0.053


def gradients(case: Case) -> Evidence:
    """Gradient norms of actor, and critic where one trains, finite and above zero at every requested step."""
    steps = case.train_steps()
    metrics = consumer_of(case.job).gradient_norms(trained_models(case))
    for step in steps:
        for metric in metrics:
            value = step.values.get(metric)
            if value is None or not (math.isfinite(value) and value > 0):
                state, shown = (State.MISSING, "absent") if value is None else (State.BROKEN, value)
                summary = f"{metric} is {shown} at step {step.step}"
                return Evidence(state, summary, case.log, step.line, f"step:{step.step} {metric}:{shown}")
    seen = {step.step for step in steps}
    absent = next((step for step in range(1, case.job.steps + 1) if step not in seen), None)
    if absent is not None:
        return Evidence(State.MISSING, f"no gradient norms of step {absent}", case.log)
    last = steps[-1]
    figures = ", ".join(f"{metric} {last.values[metric]:.4g}" for metric in metrics)
    summary = f"finite and above zero at every step; last {figures}"
    excerpt = f"step:{last.step} global_step:{global_step(last):g} {figures}"
    return Evidence(State.MET, summary, case.log, last.line, excerpt)


def rollout_agreement(case: Case) -> Evidence:
    """Trainer and rollout agree: the one cheap proof that import, export and weight sync carry the same weights."""

    def margin(step: StepMetrics) -> float:
        value = step.values[AGREEMENT]
        return value - _bounds(case, step)[0] if is_correlation(value) else -math.inf

    # The furthest below its bound; a value that is not a correlation is the worst.
    step = min(_reporting(case), key=margin, default=None)
    if step is None:
        return _difference(case) or Evidence(State.WAIVED, "trainer and rollout agreement is not reported", case.log)
    worst, (fail_below, _, shown) = step.values[AGREEMENT], _bounds(case, step)
    state, summary = State.MET, f"trainer and rollout probabilities correlate at {worst:.5f}"
    if not is_correlation(worst):
        state = State.MISSING
        summary = f"trainer and rollout correlation is {worst} at step {step.step}, which is not a correlation"
    elif worst < fail_below:
        state, summary = State.BROKEN, f"{summary}, below {shown}"
    return Evidence(state, summary, case.log, step.line, f"step:{step.step} {AGREEMENT}:{worst}")


def first_disagreement(case: Case) -> int | None:
    """The first step whose correlation is broken or none at all; None where there is no such step."""
    steps = sorted(_reporting(case), key=lambda step: step.step)
    values = ((step, step.values[AGREEMENT]) for step in steps)
    return next((step.step for step, value in values if not value >= _bounds(case, step)[0]), None)


def _difference(case: Case) -> Evidence | None:
    """Trainer and rollout agree by the largest difference of their log-probabilities; None where none is reported."""
    metrics = consumer_of(case.job).metrics
    # A ratio less one is at least the difference; NeMo-RL's own end-to-end test asks for 0.05 (grpo_megatron.sh).
    names = {
        **dict.fromkeys(metrics[Quantity.LOG_PROBABILITY_DIFFERENCE], 0),
        **dict.fromkeys(metrics[Quantity.PROBABILITY_RATIO], 1),
    }
    steps = case.train_steps()
    found = [
        (step.values[name] - less, name, step) for step in steps for name, less in names.items() if name in step.values
    ]
    if not found:
        return None
    odd = next((item for item in found if not (math.isfinite(item[0]) and item[0] >= 0)), None)
    worst, metric, step = odd or max(found, key=lambda item: item[0])
    state, summary = State.MET, f"the log-probabilities of trainer and rollout differ by {worst:.5f}"
    if odd:
        state, summary = State.MISSING, f"{metric} is {worst} at step {step.step}, which is not a difference"
    elif worst > DIFFERENCE_FAIL_ABOVE:
        state, summary = State.BROKEN, f"{summary}, above {DIFFERENCE_FAIL_ABOVE}"
    return Evidence(state, summary, case.log, step.line, f"step:{step.step} {metric}:{worst}")


def _bounds(case: Case, step: StepMetrics) -> tuple[float, float, str]:
    """Below the first a correlation is a fault, below the second a limitation; and the first in words.

    At the first step it is the healthy band of the probe, which was measured there.
    """
    band = band_of(case.record.bands, case.job) if step.step == 1 else None
    if band is None:
        return AGREEMENT_FAIL_BELOW, AGREEMENT_NOTE_BELOW, str(AGREEMENT_FAIL_BELOW)
    return band.bound, band.lowest, f"{band.bound:.5f}, the band of {band.count} healthy runs of this probe"


def _reporting(case: Case) -> tuple[StepMetrics, ...]:
    """The training steps that report the correlation."""
    return tuple(step for step in case.train_steps() if AGREEMENT in step.values)


def agreement_note(case: Case) -> str:
    """A limitation when the correlation is above failure yet below what healthy runs show; else empty."""
    found = [(step.values[AGREEMENT], _bounds(case, step)[1]) for step in _reporting(case)]
    weak = min((pair for pair in found if pair[0] < pair[1]), default=None)
    if weak is None or rollout_agreement(case).state is not State.MET:
        return ""
    return f"Trainer and rollout agree at {weak[0]:.5f} only (healthy runs: {weak[1]:.6g} and more)."


def adapter(case: Case) -> Evidence:
    """Under LoRA every model's adapter has parameters: an adapter that matched nothing raises nowhere."""
    reports = case.facts.adapters
    empty = next((report for report in reports if report.adapter <= 0), None)
    if empty:
        excerpt = f"{ADAPTER_LINE} {empty.adapter} of {empty.total:,}"
        summary = "LoRA matched no module: the adapter has 0 parameters"
        return Evidence(State.BROKEN, summary, case.log, empty.line, excerpt)
    if reports:
        first = reports[0]
        excerpt = f"{ADAPTER_LINE} {first.adapter:,} of {first.total:,}"
        return Evidence(State.MET, "the adapter has parameters", case.log, first.line, excerpt)
    consumer = consumer_of(case.job)
    if wants_adapter(case) and all(literal.mark is not LogMark.ADAPTER for literal in consumer.log.literals):
        # The size of the adapters as built is a criterion of its own, which then has no second witness.
        unsaid = f"{consumer.title} prints no number of adapter parameters: only the fingerprints show them"
        return Evidence(State.WAIVED, unsaid, case.log)
    if wants_adapter(case):
        return Evidence(State.MISSING, "no adapter report in the log", case.log)
    return Evidence(State.MET, "no adapter was asked for", JOB_FILE)


def weights_kept(case: Case) -> Evidence:
    """No warning of Bridge that tensors were lost on HF import or export."""
    lost, needless = case.facts.lost_weights, case.needless_warnings
    if lost:
        return Evidence(State.BROKEN, lost_weights_text(lost), case.log, lost[0].line, lost[0].text)
    if not needless:
        return Evidence(State.MET, "no warning of lost weights", case.log)
    summary = "the one that Bridge did not find is the output layer, which tied embeddings stand for"
    return Evidence(State.MET, f"no weight was lost: {summary}", case.log, needless[0].line, needless[0].text)


_NOT_COMPARED = "the resumed step was compared with no uninterrupted run"
_NO_REFERENCE = "there is no unsharded reference run: parity is not shown"
_HOW_TO_COMPARE = ", and `verl-e2e run --follow-ups` or `check` makes one"
_SHOWN = 3
# A KL to the reference below this share of the uninterrupted run's looks like an adapter that was never trained.
_UNTRAINED = 0.75


def unsharded_parity(case: Case) -> Evidence:
    """Level 2: the same training with and without parallelism agrees; a job that is not there for it may do without."""
    absent, how = (State.MISSING, _HOW_TO_COMPARE) if is_parity(case.job) else (State.WAIVED, "")
    reference = _fit_reference(case, Role.UNSHARDED, f"{_NO_REFERENCE}{how}", "the unsharded reference run", absent)
    if isinstance(reference, Evidence):
        return reference
    found = _parity_of(case, reference)
    gap = _gap(found) or found.counters_differ
    if gap:
        return Evidence(State.MISSING, f"the two runs cannot be compared: {gap}", RELATED_FILE)
    norm = next(
        (f", {_at_step(item.rows[0])}" for item in found.metrics if item.compared.quantity is Quantity.GRADIENT_NORM),
        "",
    )
    state, summary = State.MET, f"{len(found.steps)} step(s) agree with the unsharded reference run{norm}"
    summary = f"{summary}, {_samples(found)} ({found.source})"
    if found.beyond:
        state, summary = State.BROKEN, f"the training differs from the unsharded reference run: {_named(found)}"
    return Evidence(state, summary, case.log, _line(case, found.steps[-1]), _telling(found))


def _parity_of(case: Case, reference: RelatedRun) -> RunComparison:
    tolerances = tolerances_of(case.record.bands, case.job, reference.steps)
    return compare_steps(case.train_steps(), reference.steps, tolerances, equal_start=begins_equal(case.job))


def samples_note(case: Case) -> str:
    """The limitation of a parity that holds although its two runs drew other samples at a step; else empty."""
    reference = _reference(case, Role.UNSHARDED)
    if reference is None or unsharded_parity(case).state is not State.MET:
        return ""
    found = _parity_of(case, reference)
    if len(found.same_samples) == len(found.steps):
        return ""
    at = f"at {len(found.steps) - len(found.same_samples)} of {count_of(len(found.steps), 'step')}"
    wide = "only the wide tolerances apply there, so a smaller fault does not show"
    return f"Parity: the samples of the run and of its reference run differ {at}: {wide}."


def resumed_step(case: Case) -> Evidence:
    """Level 1: the resumed step equals the same step of an uninterrupted run, within tolerance."""
    reference = _fit_reference(case, Role.UNINTERRUPTED, _NOT_COMPARED, "the uninterrupted run")
    if isinstance(reference, Evidence):
        return reference
    before, after, calm = _resumed_of(case, reference)
    step = case.job.steps
    noisy = f"the runs differ before the save already, in {_named(before)}" if before.beyond else ""
    gap = _gap(after) or before.data_differs or noisy
    if gap:
        summary = f"the resumed step cannot be compared with its uninterrupted reference run: {gap}"
        return Evidence(State.MISSING, summary, RELATED_FILE)
    basis = "as the step before the save does" if calm else _samples(after)
    state, summary = State.MET, f"step {step} after the resume agrees with the uninterrupted run, {basis}"
    summary = f"{summary} ({after.source})"
    if after.counters_differ or after.beyond:
        what = after.counters_differ or _named(after)
        # LoRA's B starts at zero, and so does the KL to the reference.
        kl = next((item for item in after.beyond if item.compared.quantity is Quantity.KL), None)
        lower = kl is not None and (kl.rows[-1].run == 0 or kl.ratio < _UNTRAINED)
        hint = "; a lower KL to the reference is what an adapter that was not loaded shows" if lower else ""
        state = State.BROKEN
        summary = f"step {step} after the resume is not step {step} of the uninterrupted run: {what}{hint}"
    return Evidence(state, summary, case.log, _line(case, step), _telling(after))


def _resumed_of(case: Case, reference: RelatedRun) -> tuple[RunComparison, RunComparison, bool]:
    """The last step before the save and the step after the resume, each compared with the uninterrupted run's.

    The two runs are identical before the save, so that comparison shows how noisy this pair of runs is: where both drew
    the same samples and agreed before it, which comes last, the narrow tolerances apply after it.
    """
    last = case.job.steps
    tolerances = tolerances_of(case.record.bands, case.job, reference.steps)
    ours, theirs = case.train_steps(), reference.steps
    before = compare_steps(_only(ours, last - 1), _only(theirs, last - 1), tolerances)
    calm = bool(before.same_samples) and not before.beyond
    return before, compare_steps(_only(ours, last), _only(theirs, last), tolerances, narrow=calm), calm


def _only(steps: Sequence[StepValues], number: int) -> tuple[StepValues, ...]:
    return tuple(item for item in steps if item.step == number)


def reports(case: Case) -> tuple[Report, ...]:
    """Every comparison that the case's related runs allow, for its card and its folder."""
    found: list[Report] = []
    unsharded, uninterrupted = _reference(case, Role.UNSHARDED), _reference(case, Role.UNINTERRUPTED)
    if unsharded is not None and unsharded.steps:
        title = f"{case.job.id} compared with {unsharded.job_id}, the unsharded reference run"
        found.append(Report(title, _parity_of(case, unsharded)))
    known_good = _reference(case, Role.KNOWN_GOOD)
    if known_good is not None and known_good.steps:
        title = f"{case.job.id} compared with {known_good.job_id}, the known-good run through mbridge"
        found.append(Report(title, _parity_of(case, known_good), ("It is shown and decides nothing.",)))
    if uninterrupted is not None and uninterrupted.steps:
        before, after, _ = _resumed_of(case, uninterrupted)
        title, step = f"{case.job.id} compared with {uninterrupted.job_id}, step", case.job.steps
        found.append(Report(f"{title} {step - 1}, before the save", before))
        found.append(Report(f"{title} {step}, after the resume", after))
    return tuple(found)


def _reference(case: Case, role: Role) -> RelatedRun | None:
    """The run that counts: the last one, when a job was run more than once in the same role."""
    runs = case.related(role)
    return runs[-1] if runs else None


def _fit_reference(
    case: Case, role: Role, sentence: str, name: str, absent: State = State.WAIVED
) -> RelatedRun | Evidence:
    """The run to compare with, or that there is none, with the reason where it is known; `absent` is the state then."""
    run = _reference(case, role)
    if run is None:
        reason = case.record.related_not_run.get(role)
        return Evidence(absent, f"{sentence} ({reason})" if reason else sentence, RELATED_FILE)
    tested = case.job.bridge.commit
    if run.bridge_commit != tested:
        other = f"{name} is of Bridge {run.bridge_commit[:12]}, and the run of {tested[:12]}"
        return Evidence(State.MISSING, other, RELATED_FILE)
    if run.result is not Result.PASS:
        return Evidence(State.MISSING, f"{name} ended as {run.result}: {run.cause or run.stage}", RELATED_FILE)
    return run if run.steps else Evidence(State.MISSING, f"{name} recorded no metrics of a training step", RELATED_FILE)


def _gap(found: RunComparison) -> str:
    if not found.steps:
        return "they have no training step in common"
    return found.data_differs or ("" if found.comparable else "they have no metric in common that can be judged")


def _line(case: Case, step: int) -> int:
    return next((item.line for item in reversed(case.train_steps()) if item.step == step), 0)


def _samples(found: RunComparison) -> str:
    same, all_steps = len(found.same_samples), len(found.steps)
    if same == all_steps:
        return "samples the same"
    return "samples differ" if not same else f"samples the same at {same} of {all_steps} steps"


def _named(found: RunComparison) -> str:
    shown = "; ".join(map(_figures, found.beyond[:_SHOWN]))
    more = len(found.beyond) - _SHOWN
    return f"{shown} (and {more} more)" if more > 0 else shown


def _telling(found: RunComparison) -> str:
    """What the evidence quotes: everything beyond tolerance, else the gradients and the KL."""
    told = (Quantity.GRADIENT_NORM, Quantity.CRITIC_GRADIENT_NORM, Quantity.KL)
    return "; ".join(map(_figures, found.beyond or [item for item in found.metrics if item.compared.quantity in told]))


def _at_step(row: MetricRow) -> str:
    return f"{row.metric} {row.run:.5g} against {row.reference:.5g} at step {row.step}"


def _figures(found: MetricComparison) -> str:
    """`grad_norm 0.41 against 0.22 (x1.87)`; over several steps the median ratio, or the step that decided."""
    last, name = found.rows[-1], found.compared.metric
    if found.first is not None and found.first.tolerance is not None:
        return f"{_at_step(found.first)} ({found.first.relative:+.2%}, allowed {found.first.tolerance.shown()})"
    ratio = "" if math.isnan(found.ratio) else f"x{found.ratio:.3g}"
    if len(found.rows) > 1 and ratio:
        return f"{name} {ratio} in the median of {len(found.rows)} steps"
    of_larger = f" ({ratio})" if ratio else ""
    return f"{name} {last.run:.4g} against {last.reference:.4g}{of_larger}"


def has_measured_runs(case: Case) -> bool:
    """Whether it is known what healthy runs of the job, or its runs on the merge base, took."""
    return bool(measured_runs(case.record.bands, case.job) or _took(case))


def _took(case: Case) -> tuple[Performance, ...]:
    """What the runs on the merge base took that passed."""
    passed = (run.performance for run in case.related(Role.MERGE_BASE) if run.result is Result.PASS)
    return tuple(found for found in passed if found is not None)


def performance(case: Case) -> Evidence:
    """Time and memory within the noise of healthy runs; beyond it the policy says what follows."""
    own = performance_of(case.record, case.train_steps())
    if own is None:
        return Evidence(State.WAIVED, "time and memory are not compared: the run did not train all of its steps")
    found = compare_performance(own, measured_runs(case.record.bands, case.job), _took(case))
    figures, line = "; ".join(map(str, found.rows)), _line(case, case.job.steps)
    state, summary = State.MET, "time and memory are within the noise of healthy runs"
    if found.findings:
        state, summary = _SLOWDOWN[case.job.performance], "; ".join(found.findings)
    elif found.unsaid:
        state, summary = State.WAIVED, f"not compared with healthy runs: {'; '.join(found.unsaid)}"
    return Evidence(state, summary, case.log, line, f"{summary}: {figures}" if figures else summary)


_SLOWDOWN = {Slowdown.SHOW: State.MET, Slowdown.WARN: State.WAIVED, Slowdown.FAIL: State.BROKEN}
_CURVES = {
    "reward": curves.REWARD,
    "loss": curves.POLICY_LOSS,
    "grad": curves.ACTOR_GRADIENT,
    "KL": curves.KL,
    "entropy": curves.ENTROPY,
    "length": curves.LENGTH,
}
# The rule of triage for a step that ended in an exception because of NaN: it prints no metrics any more.
_STOPPED_BY_NAN = "not-finite"


def learning_signal(case: Case) -> Evidence:
    """Level 5: passed is met, unstable broken, flat broken where the baseline learned, all else missing."""
    stopped = case.triage
    if stopped.rule == _STOPPED_BY_NAN:
        summary = f"{SignalOutcome.UNSTABLE}: {stopped.cause}"
        return Evidence(State.BROKEN, summary, case.log, stopped.line, stopped.excerpt)
    report = _signal_of(case)
    passed = report.outcome is SignalOutcome.PASSED and not report.weak
    state = State.BROKEN if report.failed else State.MET if passed else State.MISSING
    line = next((item.line for item in reversed(case.facts.steps) if item.step == report.step), 0)
    trained, drawn = curves.train_steps(case.facts.steps), []
    for title, quantity in _CURVES.items():
        if curve := curves.curve(trained, quantity):
            drawn.append(f"{title} {curve.values[0]:.3g} {curves.sparkline(curve.values)} {curve.values[-1]:.3g}")
    return Evidence(state, report.sentence, case.log, line, ", ".join(drawn))


def _signal_of(case: Case) -> SignalReport:
    """The case's own steps compared with those of the runs on the merge base."""
    return signal_report(case.facts.steps, baseline=baselines_of(case), options=case_options(case))


def baselines_of(case: Case) -> tuple[BaselineRun, ...]:
    """The runs of the same job on the merge base that trained at all."""
    return tuple(BaselineRun(run.folder, run.steps) for run in case.related(Role.MERGE_BASE) if run.steps)


def case_figure(case: Case) -> SignalFigure | None:
    """The curves of a level 5 run and its baselines, to be drawn; None for other levels and untrained runs."""
    if case.job.level is not Level.LEARNING_SIGNAL or not case.train_steps():
        return None
    title = f"{figure_title(case.record)}: {_signal_of(case).headline}"
    return signal_figure(title, case.facts.steps, baselines_of(case))


def figure_title(record: Record) -> str:
    """The job and its Bridge commit."""
    return f"{record.job.id}, Bridge {record.job.bridge.commit[:12]}" if record.job else "unknown job"


def case_options(case: Case) -> SignalOptions:
    """What the job asks of its evidence.

    Random weights know no end of a response, and a job may switch the end off: then every response is cut by the
    length limit, by design. That says nothing as long as the reward does not depend on the length.
    """
    random, reward = case.job.checkpoint.is_random, length_free_reward(case.job)
    endless = random or case.config(ConfigKey.IGNORE_END) is True
    if not endless or not reward:
        return SignalOptions(requested_steps=case.job.steps)
    why = "random weights end no response" if random else "the job lets no response end"
    waived = f"{why}, and the reward {reward} does not depend on the length"
    return SignalOptions(requested_steps=case.job.steps, max_cap_share=1.0, cap_waived=waived)


def signal_limitations(case: Case) -> Iterator[str]:
    """What a learning signal leaves open, as sentences without a full stop; nothing before a step was trained."""
    if not case.train_steps():
        return
    report = _signal_of(case)
    if report.outcome is SignalOutcome.PASSED and not report.weak:
        yield f"Learning-signal passed over {case.job.steps} steps of one run: no convergence is claimed"
    if not report.baselines:
        yield "There is no run on the merge base to compare with, so its curves are not compared"
    yield from report.notes
    for baseline in report.baselines:
        if baseline.outcome in (SignalOutcome.UNSTABLE, SignalOutcome.NOT_ENOUGH_STEPS):
            yield f"Baseline {baseline.name} says nothing: {baseline.outcome}, {baseline.cause}"
