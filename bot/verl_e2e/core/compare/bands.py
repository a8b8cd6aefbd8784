"""Healthy bands: what healthy runs of a probe measured, and the bounds and tolerances that follow from it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

from verl_e2e.core.compare.steps import Agreement, Row, Step, compare_steps
from verl_e2e.core.compare.tolerances import COMPARED, DATA, DEFAULTS, Tolerance, Tolerances
from verl_e2e.core.compare.workload import about, probe_digest
from verl_e2e.core.model.bands import Bands, Healthy, Pair, Probe
from verl_e2e.core.model.jobs import Job

ENOUGH = 5
SPREADS = 3.0
# Five runs may agree to the last digit; rounding and another GPU must not look like a fault then.
LEAST_MARGIN = 1e-4
# A tolerance from measured pairs is this many times the largest difference seen, within these multiples of the default.
TIMES_SEEN = 3.0
NARROWEST, WIDEST = 0.25, 3.0
# However noisy a probe is, a difference of this share of the larger value is never within tolerance.
MOST_RELATIVE = 0.4
LEARNING_RATE = "actor/lr"


@dataclass(frozen=True, slots=True)
class Band:
    """The healthy band of a correlation: the lowest of `count` healthy runs, and the bound below it."""

    lowest: float
    bound: float
    count: int


def band_of(bands: Bands | None, job: Job) -> Band | None:
    """The band of the job's probe, None until enough healthy runs were measured."""
    return band_from(_probe(bands, job))


def band_from(probe: Probe) -> Band | None:
    """The band of one probe: below its lowest run by three times the spread of its runs."""
    values = [item.correlation for item in probe.healthy]
    if len(values) < ENOUGH:
        return None
    margin = max(SPREADS * stdev(values), LEAST_MARGIN)
    return Band(min(values), min(values) - margin, len(values))


def tolerances_of(bands: Bands | None, job: Job, steps: Sequence[Step] = ()) -> Tolerances:
    """The tolerances for the job's probe: measured where identical runs were, else the stated defaults.

    Pairs count where they trained at the learning rate of `steps`: noise grows with it.
    """
    rates = {step.values[LEARNING_RATE] for step in steps if LEARNING_RATE in step.values}
    pairs = _probe(bands, job).pairs
    rows = [row for pair in pairs for row in _noise(pair, rates)]
    same = dict(_measured(row for row, same in rows if same))
    sampled = dict(_measured(row for row, same in rows if not same))
    if not same and not sampled:
        return DEFAULTS
    return Tolerances(f"tolerances measured on {len(pairs)} pair(s) of identical runs", same, sampled)


def _probe(bands: Bands | None, job: Job) -> Probe:
    return (bands.probes.get(probe_digest(job)) if bands else None) or Probe()


@dataclass(frozen=True, slots=True)
class _Metrics:
    step: int
    values: Mapping[str, float]


def _noise(pair: Pair, rates: set[float]) -> Iterator[tuple[Row, bool]]:
    """Every judged row of a pair, and whether its samples were the same."""
    for item in pair.steps:
        if rates and item.first.get(LEARNING_RATE) not in rates:
            continue
        found = compare_steps([_Metrics(item.step, item.first)], [_Metrics(item.step, item.second)])
        for metric in found.metrics:
            yield from ((row, bool(found.same_samples)) for row in metric.rows)


def _measured(rows: Iterable[Row]) -> Iterator[tuple[str, Tolerance]]:
    """A tolerance for each metric that was judged often enough: the largest difference seen, with room."""
    seen: dict[str, list[Row]] = {}
    for row in rows:
        if row.agreement is not Agreement.SHOWN:
            seen.setdefault(row.metric, []).append(row)
    for metric, found in seen.items():
        if len(found) >= ENOUGH and found[0].tolerance is not None:
            factor = TIMES_SEEN * max(abs(row.excess) for row in found)
            yield metric, _scaled(found[0].tolerance, min(max(factor, NARROWEST), WIDEST))


def _scaled(tolerance: Tolerance, factor: float) -> Tolerance:
    relative = min(tolerance.relative * factor, max(MOST_RELATIVE, tolerance.relative))
    return Tolerance(relative, tolerance.absolute * factor, tolerance.spread * factor)


def with_healthy(bands: Bands, job: Job, found: Healthy) -> Bands:
    """The bands with one more healthy run; the same run counts once."""
    probe = _probe(bands, job)
    if any(item.run == found.run for item in probe.healthy):
        return bands
    return _with(bands, job, probe.model_copy(update={"healthy": (*probe.healthy, found)}))


def with_pair(bands: Bands, job: Job, found: Pair) -> Bands:
    """The bands with one more pair of identical runs; the same two count once."""
    probe = _probe(bands, job)
    if any(set(pair.runs) == set(found.runs) for pair in probe.pairs):
        return bands
    return _with(bands, job, probe.model_copy(update={"pairs": (*probe.pairs, found)}))


def _with(bands: Bands, job: Job, probe: Probe) -> Bands:
    named = probe.model_copy(update={"about": probe.about or about(job)})
    return bands.model_copy(update={"probes": {**bands.probes, probe_digest(job): named}})


def merged(first: Bands, second: Bands) -> Bands:
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
KEPT = tuple(
    dict.fromkeys(
        (
            *(compared.metric for compared in COMPARED),
            *(
                f"{compared.metric.removesuffix('mean')}{end}"
                for compared in COMPARED
                if compared.metric.endswith("/mean")
                for end in ("max", "min")
            ),
            *DATA,
            LEARNING_RATE,
        )
    )
)
