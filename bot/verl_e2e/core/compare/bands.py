"""Healthy bands: what healthy runs of a probe measured, and the bounds and tolerances that follow from it."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

from verl_e2e.core.compare.jobs import about, probe_digest, training_digest
from verl_e2e.core.compare.performance import performance_of
from verl_e2e.core.compare.steps import (
    COMPARED,
    DATA,
    STATED_TOLERANCES,
    Agreement,
    MetricRow,
    Tolerance,
    Tolerances,
    compare_steps,
)
from verl_e2e.core.consumer.consumer import Quantity
from verl_e2e.core.consumer.consumers import FIRST_NAMES, measured
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.facts import LogFacts, StepMetrics, StepValues
from verl_e2e.core.model.jobs import Digest, Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import Record
from verl_e2e.core.model.related import Bands, Healthy, PairStep, Performance, Probe, RunPair
from verl_e2e.core.triage.silent import AGREEMENT

ENOUGH = 5
SPREADS = 3.0
# Five runs may agree to the last digit; rounding and another GPU must not look like a fault then.
LEAST_MARGIN = 1e-4
# A tolerance from measured pairs is this many times the largest difference seen, within these multiples of the default.
TIMES_SEEN = 3.0
NARROWEST, WIDEST = 0.25, 3.0
# However noisy a probe is, a difference of this share of the larger value is never within tolerance.
MOST_RELATIVE = 0.4


@dataclass(frozen=True, slots=True)
class CorrelationBand:
    """The healthy band of a correlation: the lowest of `count` healthy runs, and the bound below it."""

    lowest: float
    bound: float
    count: int


def band_of(bands: Bands | None, job: Job) -> CorrelationBand | None:
    """The band of the job's probe, None until enough healthy runs were measured."""
    return band_from(_probe(bands, job))


def band_from(probe: Probe) -> CorrelationBand | None:
    """The band of one probe: below its lowest run by three times the spread of its runs."""
    values = [item.correlation for item in probe.healthy]
    if len(values) < ENOUGH:
        return None
    margin = max(SPREADS * stdev(values), LEAST_MARGIN)
    return CorrelationBand(min(values), min(values) - margin, len(values))


def tolerances_of(bands: Bands | None, job: Job, steps: Sequence[StepValues] = ()) -> Tolerances:
    """The tolerances for the job's probe: measured where identical runs were, else the stated defaults.

    Pairs count where they trained at the learning rate of `steps`: noise grows with it. A metric that was judged often
    enough gets the largest difference seen, with room.
    """
    rates = {measured(step.values, Quantity.LEARNING_RATE) for step in steps} - {None}
    pairs = _probe(bands, job).pairs
    # By whether the samples were the same, and by metric.
    seen: dict[tuple[bool, str], list[MetricRow]] = {}
    for item in (item for pair in pairs for item in pair.steps):
        if not rates or measured(item.first, Quantity.LEARNING_RATE) in rates:
            found = compare_steps([StepMetrics(item.step, 0, item.first)], [StepMetrics(item.step, 0, item.second)])
            for row in (row for metric in found.metrics for row in metric.rows):
                if row.agreement is not Agreement.SHOWN:
                    seen.setdefault((bool(found.same_samples), row.metric), []).append(row)
    widths: dict[bool, dict[str, Tolerance]] = {True: {}, False: {}}
    for (same, metric), rows in seen.items():
        if len(rows) >= ENOUGH and (stated := rows[0].tolerance) is not None:
            factor = min(max(TIMES_SEEN * max(abs(row.excess) for row in rows), NARROWEST), WIDEST)
            relative = min(stated.relative * factor, max(MOST_RELATIVE, stated.relative))
            widths[same][metric] = Tolerance(relative, stated.absolute * factor, stated.spread * factor)
    if not any(widths.values()):
        return STATED_TOLERANCES
    source = f"tolerances measured on {len(pairs)} pair(s) of identical runs"
    return Tolerances(source, widths[True], widths[False])


def measured_runs(bands: Bands | None, job: Job) -> tuple[Performance, ...]:
    """What the healthy runs of the job's probe took, on whichever hosts."""
    return tuple(item.performance for item in _probe(bands, job).healthy if item.performance is not None)


def _probe(bands: Bands | None, job: Job) -> Probe:
    return (bands.probes.get(probe_digest(job)) if bands else None) or Probe()


def with_healthy(bands: Bands, job: Job, found: Healthy) -> Bands:
    """The bands with one more healthy run; the same run counts once."""
    probe = _probe(bands, job)
    if any(item.run == found.run for item in probe.healthy):
        return bands
    return _with(bands, job, probe.model_copy(update={"healthy": (*probe.healthy, found)}))


def with_pair(bands: Bands, job: Job, found: RunPair) -> Bands:
    """The bands with one more pair of identical runs; the same two count once."""
    probe = _probe(bands, job)
    if any(set(pair.runs) == set(found.runs) for pair in probe.pairs):
        return bands
    return _with(bands, job, probe.model_copy(update={"pairs": (*probe.pairs, found)}))


def _with(bands: Bands, job: Job, probe: Probe) -> Bands:
    named = probe.model_copy(update={"about": probe.about or about(job)})
    return bands.model_copy(update={"probes": {**bands.probes, probe_digest(job): named}})


def merged_bands(first: Bands, second: Bands) -> Bands:
    """Both files' measurements; of a probe that both know, each run and each pair once."""
    probes = dict(first.probes)
    for digest, probe in second.probes.items():
        known = probes.get(digest, Probe())
        healthy = {item.run: item for item in (*known.healthy, *probe.healthy)}
        pairs = {frozenset(pair.runs): pair for pair in (*known.pairs, *probe.pairs)}
        probes[digest] = Probe(
            about=known.about or probe.about, healthy=tuple(healthy.values()), pairs=tuple(pairs.values())
        )
    return Bands(probes=probes)


def only_of(bands: Bands, job: Job) -> Bands:
    """What of a bands file concerns one job."""
    digest = probe_digest(job)
    return Bands(probes={digest: bands.probes[digest]} if digest in bands.probes else {})


# The metrics of a pair that are kept: those compared, their ranges, and what says whether two steps compare at all.
_KEPT = (
    *(compared.metric for compared in COMPARED),
    *(
        f"{compared.metric.removesuffix('mean')}{end}"
        for compared in COMPARED
        if compared.metric.endswith("/mean")
        for end in ("max", "min")
    ),
    *(name for quantity in (*DATA, Quantity.LEARNING_RATE) for name in FIRST_NAMES[quantity]),
)


class NotHealthyError(UserError):
    """A run that no band may take, in one sentence. The user's mistake."""


@dataclass(frozen=True, slots=True)
class HealthyRun:
    """A run that was judged Pass; `name` is what the user called it, `run` tells it from others of the same job."""

    name: str
    job: Job
    steps: tuple[StepMetrics, ...]
    run: Digest
    performance: Performance | None


def healthy_run(name: str, record: Record, facts: LogFacts | None, result: Result, cause: str) -> HealthyRun:
    """The run, when it was judged Pass; NotHealthyError with the cause for any other."""
    if record.job is None or facts is None or result is not Result.PASS:
        why = f"{result}: {cause}" if cause else str(result)
        raise NotHealthyError(f"{name}: judged {why}; a band takes only runs that passed")
    # What tells one run from another of the same job: when each thing happened.
    rows = json.dumps([[event.t_s, event.kind] for event in record.events], separators=(",", ":"))
    run = hashlib.sha256(rows.encode()).hexdigest()
    return HealthyRun(name, record.job, facts.steps, run, performance_of(record, facts.steps))


def healthy_of(run: HealthyRun) -> Healthy:
    """What a band keeps of a healthy run: the correlation at step 1, and what the run took."""
    found = next((item.values.get(AGREEMENT, math.nan) for item in run.steps if item.step == 1), math.nan)
    if not math.isfinite(found):
        raise NotHealthyError(f"{run.name}: no {AGREEMENT} at step 1; a band needs that number")
    return Healthy(
        run=run.run,
        job=run.job.id,
        bridge_commit=run.job.bridge.commit,
        correlation=found,
        performance=run.performance,
    )


def pair_of(first: HealthyRun, other: HealthyRun) -> RunPair:
    """What a bands file keeps of two runs of the same training; NotHealthyError when they are not."""
    both = f"{first.name} and {other.name}"
    if training_digest(first.job) != training_digest(other.job):
        raise NotHealthyError(f"{both}: not the same training; a pair is one job run twice at one Bridge commit")
    if first.run == other.run:
        raise NotHealthyError(f"{both}: one and the same run; run the job a second time")
    # Without the step after a resume: what a resume changes is not noise.
    ours, theirs = (
        {step.step: step for step in run.steps if step.step <= run.job.steps - (run.job.level is Level.SAVE_RESUME)}
        for run in (first, other)
    )
    found = compare_steps(tuple(ours.values()), tuple(theirs.values()))
    if found.data_differs or not found.steps:
        why = found.data_differs or "no training step in common"
        raise NotHealthyError(f"{both}: {why}; a pair trains on the same data")

    def kept(values: Mapping[str, float]) -> dict[str, float]:
        return {name: values[name] for name in _KEPT if name in values and math.isfinite(values[name])}

    steps = tuple(
        PairStep(step=step, first=kept(ours[step].values), second=kept(theirs[step].values)) for step in found.steps
    )
    return RunPair(runs=(first.run, other.run), job=first.job.id, steps=steps)
