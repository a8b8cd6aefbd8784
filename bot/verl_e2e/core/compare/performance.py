"""Time and memory of a run, compared with runs of the same settings on the same kind of host.

Each run gives one figure of each kind, so that the noise between runs is measured and not that between steps. A figure
is beyond the noise when it is worse than the others by more than a prediction bound of Student's t allows, on a
logarithmic scale: one healthy run in a hundred is. `docs/parity.md` says what that finds.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from verl_e2e.core.compare.jobs import settings_digest
from verl_e2e.core.consumer.consumer import Quantity
from verl_e2e.core.consumer.consumers import FIRST_NAMES, measured
from verl_e2e.core.model.facts import StepValues
from verl_e2e.core.model.record import Environment, MemoryEvent, Record, read_data
from verl_e2e.core.model.related import Performance, Probe
from verl_e2e.core.text.escape import count_of

# So many runs at least tell how far healthy runs differ.
ENOUGH_RUNS = 3
# The 99 % quantiles of Student's t from 2 degrees of freedom on; with more than 10 the last one is on the safe side.
_T99 = (6.965, 4.541, 3.747, 3.365, 3.143, 2.998, 2.896, 2.821, 2.764)
_ALLOCATED = FIRST_NAMES[Quantity.MEMORY]
# The 90 % quantile of the normal distribution.
_Z90 = 1.2816
# Beyond what any run takes, and within what can be computed with: a log may hold any number.
_MOST_FIGURE, _MOST_LOG = 1e15, 100.0


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a run."""

    # The name of the field that holds it.
    key: str
    title: str
    unit: str
    # 1 where a larger value is worse, -1 where a smaller one is.
    worse: int
    # Below this share no difference counts, however equal the other runs are.
    least: float
    # Whether runs beside it on the host change it.
    is_time: bool = False


STEP = Measure("step_s", "step", "s", 1, 0.05, is_time=True)
TOKENS = Measure("tokens_per_s", "throughput", "tokens/s per GPU", -1, 0.05, is_time=True)
MEASURES = (
    STEP,
    TOKENS,
    Measure("gpu_gib", "GPU memory", "GiB", 1, 0.02),
    Measure("host_gib", "host memory", "GiB", 1, 0.05),
)


def performance_of(record: Record, steps: Sequence[StepValues]) -> Performance | None:
    """The figures of a run that trained all of its steps on a recorded host; None of any other."""
    job, environment = record.job, record.environment
    trained = {step.step: step.values for step in steps if step.step > 0}
    if job is None or environment is None or trained.keys() != {*range(1, job.steps + 1)}:
        return None
    peaks = [event.peak for item in record.events if item.kind == "memory" and (event := read_data(item, MemoryEvent))]
    held = [peak.held_mib for peak in peaks if peak is not None]
    others = [peak.other_runs for peak in peaks if peak is not None]
    # Of each model that trains.
    allocated = [value for values in trained.values() for name, value in values.items() if name.endswith(_ALLOCATED)]
    after = [values for step, values in trained.items() if step > 1]
    gpus = sorted(gpu.name for gpu in environment.gpus)
    named = ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus))
    known = environment.cpu_count > 0
    processors = count_of(environment.cpu_count, "processor") if known else "processors unknown"
    return Performance(
        settings=settings_digest(job),
        stack=_stack(record, environment),
        host=f"{named}, {processors}",
        other_runs=max((count for count in others if count is not None), default=None) if None not in others else None,
        step_s=_of_faster_half(measured(values, Quantity.STEP_TIME) for values in after),
        tokens_per_s=_of_faster_half((measured(values, Quantity.THROUGHPUT) for values in after), faster=-1),
        gpu_gib=_positive(max(allocated, default=0.0)),
        host_gib=_positive(max(held, default=0) / 1024),
    )


def _of_faster_half(found: Iterable[float | None], *, faster: int = 1) -> float | None:
    """The mean of the better half: what else runs on a host makes a step slower and never faster."""
    known = [value for value in found if value is not None and _positive(value) is not None]
    best = sorted(known, key=lambda value: faster * value)[: (len(known) + 1) // 2]
    return fmean(best) if best else None


def _positive(value: float) -> float | None:
    return value if 0 < value < _MOST_FIGURE else None


def _stack(record: Record, environment: Environment) -> str:
    """The digest of what time and memory depend on besides settings, GPUs and processors."""
    isolation = environment.isolation
    parts = (
        environment.python,
        environment.driver,
        sorted(environment.packages.items()),
        (isolation.mode, isolation.network) if isolation else None,
        environment.kernel_caches is not None,
        (record.executed is not None, record.fingerprints is not None),
    )
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class FigureNoise:
    """What runs of the same kind say of a figure: its usual value, and by which factor it may be worse."""

    usual: float
    # Worse by more than this factor is beyond the noise.
    allowed: float
    # A change by this factor is beyond it in nine of ten runs.
    found: float
    # How many runs say so.
    count: int


def noise_of(measure: Measure, runs: Sequence[Performance], bases: Sequence[Performance] = ()) -> FigureNoise | None:
    """The noise of banked runs and runs on the merge base, around the latter where there are any; None of too few."""
    groups = [[math.log(value) for value in _values(measure, group)] for group in (bases, runs)]
    freedom = sum(len(group) - 1 for group in groups if group)
    if freedom < ENOUGH_RUNS - 1:
        return None
    spread = math.sqrt(sum(stdev(group) ** 2 * (len(group) - 1) for group in groups if len(group) > 1) / freedom)
    centre = groups[0] or groups[1]
    spread *= math.sqrt(1 + 1 / len(centre))
    allowed = max(_T99[min(freedom, len(_T99) + 1) - 2] * spread, math.log1p(measure.least))
    usual, count = math.exp(fmean(centre)), sum(map(len, groups))
    beyond, found = (math.exp(min(bound, _MOST_LOG)) for bound in (allowed, allowed + _Z90 * spread))
    return FigureNoise(usual, beyond, found, count)


def _values(measure: Measure, runs: Iterable[Performance]) -> list[float]:
    return [value for run in runs if (value := getattr(run, measure.key)) is not None]


@dataclass(frozen=True, slots=True)
class PerformanceRow:
    """One figure of a run beside its usual value."""

    measure: Measure
    run: float
    noise: FigureNoise

    @property
    def beyond(self) -> bool:
        """Whether it is worse by more than the noise."""
        worse, better = (self.run, self.noise.usual)[:: self.measure.worse]
        return worse > better * self.noise.allowed

    def __str__(self) -> str:
        usual, unit = self.noise.usual, self.measure.unit
        change = f"{_figure(usual)} {unit} -> {_figure(self.run)} {unit} ({self.run / usual - 1:+.0%})"
        return f"{self.measure.title} {change}".replace("%", " %")

    @property
    def bound(self) -> str:
        """How far healthy runs differ, as people read it."""
        return f"the noise of {count_of(self.noise.count, 'run')} (±{100 * (self.noise.allowed - 1):.0f} %)"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class PerformanceComparison:
    """What could be compared of a run, and why the rest could not."""

    rows: tuple[PerformanceRow, ...]
    # Clauses without a full stop.
    unsaid: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[str, ...]:
        """A sentence for each figure that is worse by more than the noise.

        A step is slower where it takes longer and gets less done in its time: with more tokens it takes longer too.
        """
        beyond = [row for row in self.rows if row.beyond]
        slower = {STEP, TOKENS} <= {row.measure for row in beyond}
        found = [row for row in beyond if not row.measure.is_time or (slower and row.measure is STEP)]
        return tuple(
            f"{'Slower' if row.measure.is_time else 'More memory'}: {row}, beyond {row.bound}" for row in found
        )


def compare_performance(
    own: Performance, runs: Sequence[Performance], bases: Sequence[Performance] = ()
) -> PerformanceComparison:
    """A run beside banked `runs` and runs on the merge base; those of other settings or hosts say nothing of it."""
    rows: list[PerformanceRow] = []
    unsaid: list[str] = []
    for is_time, what in ((True, "time"), (False, "memory")):
        known = [[run for run in group if _comparable(own, run, is_time=is_time)] for group in (runs, bases)]
        measures = [measure for measure in MEASURES if measure.is_time is is_time]
        mine = [(measure, value) for measure in measures for value in _values(measure, (own,))]
        found = [(measure, value, noise_of(measure, *known)) for measure, value in mine]
        rows += [PerformanceRow(measure, value, noise) for measure, value, noise in found if noise is not None]
        beside = "an unknown number of" if own.other_runs is None else f"{own.other_runs}"
        where = f"{own.host}{f', beside {beside} other runs' if is_time else ''}"
        if not mine:
            unsaid.append(f"{what}: the run has no figure of it{' after its first step' if is_time else ''}")
        elif any(noise is None for _, _, noise in found):
            count = count_of(sum(map(len, known)), "comparable run")
            unsaid.append(f"{what}: {count} of these settings on {where}; the noise needs {ENOUGH_RUNS}")
    return PerformanceComparison(tuple(rows), tuple(unsaid))


def _comparable(own: Performance, other: Performance, *, is_time: bool) -> bool:
    """Whether two runs differ by nothing recorded but the code under test; what is beside it changes no memory."""
    same = (own.settings, own.stack, own.host) == (other.settings, other.stack, other.host)
    return same and (not is_time or (own.other_runs == other.other_runs is not None))


def performance_bands(probe: Probe) -> tuple[str, ...]:
    """A sentence for each group of comparable healthy runs of a probe: its figures, and what is found beyond them."""
    groups: dict[tuple[object, ...], list[tuple[str, Performance]]] = {}
    for item in probe.healthy:
        if (run := item.performance) is not None:
            groups.setdefault((run.settings, run.stack, run.host, run.other_runs), []).append((item.job, run))
    rows = []
    for members in groups.values():
        (job, first), runs = members[0], [run for _, run in members]
        beside = "unknown" if first.other_runs is None else first.other_runs
        measured = ((measure, noise_of(measure, runs)) for measure in MEASURES)
        figures = [_band_text(measure, noise) for measure, noise in measured if noise is not None]
        text = "; ".join(figures) or f"{ENOUGH_RUNS - len(runs)} more tell the noise"
        rows.append(f"{job} on {first.host}, other runs beside it: {beside}: {count_of(len(runs), 'run')}; {text}")
    return tuple(rows)


def _band_text(measure: Measure, noise: FigureNoise) -> str:
    sign = "+" if measure.worse > 0 else "-"
    allowed, found = (f"{sign}{100 * abs(factor**measure.worse - 1):.0f} %" for factor in (noise.allowed, noise.found))
    usual = f"{measure.title} {_figure(noise.usual)} {measure.unit}"
    return f"{usual}, beyond the noise from {allowed}, found in 9 of 10 from {found}"
