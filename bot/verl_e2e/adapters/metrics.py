"""The metrics of a process, in Prometheus' text format; docs/metrics.md explains each one.

What this process counts as it happens, and collectors of what other parts count and of what the database says. A label
has few values: each is a member of an enumeration or of a list here, or is replaced by `other`.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from verl_e2e.core.pulls.deliveries import MODELS
from verl_e2e.core.pulls.figures import (
    OTHER,
    RUN_PHASES,
    ApiBudget,
    SharedFigures,
    cause_class,
    planned_gpu_minutes,
    run_end,
    run_kind,
    run_level,
    waited_s,
)
from verl_e2e.core.pulls.ledger import Run

NAMESPACE = "verl_e2e"
# In seconds: for what the service does itself, and for what runs on a GPU host.
_QUICK_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_RUN_S = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0)
# The wait for a machine, as a phase of a run.
QUEUED = "queued"
# For a request without a valid signature, whatever event it names.
UNSIGNED = "none"


class Metrics:
    """What one process counts; safe to use from several threads."""

    def __init__(self) -> None:
        # When a counter began says nothing that the start of the process does not.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._answers = self._counter("webhook_answers", "Answers to requests at /webhook.", "event", "kind")
        self._deliveries = self._counter(
            "deliveries", "Attempts to process a delivery, by event and outcome.", "event", "outcome"
        )
        self._reconcile_s = self._histogram("reconcile_seconds", "Time of one reconciliation.", _QUICK_S)
        self._ordered = self._counter("runs_ordered", "Runs that were written down to be started.", "level", "kind")
        self._ended = self._counter("runs_ended", "Runs that ended.", "level", "result", "cause")
        self._planned = self._counter("gpu_seconds_planned", "Expected GPU seconds of ordered runs.", "level")
        self._used = self._counter("gpu_seconds_used", "GPU seconds of ended runs.", "level")
        self._run_s = self._histogram("run_seconds", "Time of one phase of a run.", _RUN_S, "phase")
        self._backend_s = self._histogram(
            "backend_call_seconds", "Time of one call to the back end.", _QUICK_S, "operation", "outcome"
        )
        for kind in (ProcessCollector, PlatformCollector, GCCollector):
            kind(registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace=NAMESPACE, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, namespace=NAMESPACE, buckets=buckets, registry=self.registry)

    def watch(self, collector: Collector) -> None:
        """Also show what a collector reads at each request."""
        self.registry.register(collector)

    def text(self) -> bytes:
        """All metrics now."""
        return generate_latest(self.registry)

    def answered(self, event: str, kind: str) -> None:
        """A request at /webhook was answered; `event` is empty where no signature proves it."""
        self._answers.labels(_known(event, MODELS) if event else UNSIGNED, kind).inc()

    def processed(self, event: str, outcome: str) -> None:
        """An attempt to process a delivery ended."""
        self._deliveries.labels(_known(event, MODELS), outcome).inc()

    def reconciled(self, seconds: float) -> None:
        """A reconciliation ended, well or not."""
        self._reconcile_s.observe(seconds)

    def run_ordered(self, run: Run) -> None:
        level = run_level(run)
        self._ordered.labels(level, run_kind(run)).inc()
        self._planned.labels(level).inc(60 * planned_gpu_minutes(run))

    def run_ended(self, run: Run) -> None:
        level = run_level(run)
        self._ended.labels(level, run_end(run), cause_class(run)).inc()
        if run.carried_from:
            return
        self._used.labels(level).inc(60 * run.gpu_minutes)
        if (seconds := waited_s(run)) is not None:
            self._run_s.labels(QUEUED).observe(seconds)

    def run_phases(self, phases: Iterable[tuple[str, float]]) -> None:
        for name, seconds in phases:
            self._run_s.labels(_known(name, RUN_PHASES)).observe(seconds)

    @contextmanager
    def backend_call(self, operation: str) -> Iterator[None]:
        began, outcome = perf_counter(), "failed"
        try:
            yield
            outcome = "ok"
        finally:
            self._backend_s.labels(operation, outcome).observe(perf_counter() - began)


def _known(word: str, words: Collection[str]) -> str:
    return word if word in words else OTHER


# How the help of a metric begins that is the same for every process on one database.
SHARED = "Shared: "

log = logging.getLogger(__name__)


class _Collector(Collector):
    """A collector whose numbers mean something only while the service works: a registry does not ask it before."""

    def describe(self) -> Iterable[Metric]:
        """Nothing: `collect` asks others, and must not be called when it is registered."""
        return ()


class CountsCollector(_Collector):
    """Numbers by name, as other parts of this process keep them: `counters` only grow, `gauges` go both ways.

    Each is a function that gives (name, help, value) rows.
    """

    def __init__(
        self,
        counters: Callable[[], Iterable[tuple[str, str, float]]],
        gauges: Callable[[], Iterable[tuple[str, str, float]]],
    ) -> None:
        self._counters, self._gauges = counters, gauges

    def collect(self) -> Iterator[Metric]:
        """One family for each number."""
        for name, text, value in self._counters():
            yield CounterMetricFamily(f"{NAMESPACE}_{name}", text, value=value)
        for name, text, value in self._gauges():
            yield GaugeMetricFamily(f"{NAMESPACE}_{name}", text, value=value)


class ApiCollector(_Collector):
    """What was asked of GitHub, and what it still grants: of all installations the one with the least left."""

    def __init__(
        self, requests: Callable[[], Mapping[tuple[str, str], int]], budgets: Callable[[], Iterable[ApiBudget]]
    ) -> None:
        self._requests, self._budgets = requests, budgets

    def collect(self) -> Iterator[Metric]:
        """Requests by verb and outcome, and the tightest budget of each resource."""
        sent = CounterMetricFamily(
            f"{NAMESPACE}_github_requests", "Requests to GitHub's API.", labels=("verb", "outcome")
        )
        for (verb, outcome), count in self._requests().items():
            sent.add_metric((verb, outcome), count)
        yield sent
        least: dict[str, ApiBudget] = {}
        for budget in self._budgets():
            known = least.get(budget.resource, budget)
            least[budget.resource] = budget if budget.remaining <= known.remaining else known
        for field in ("limit", "remaining", "used"):
            text = f"GitHub's rate limit: requests {field}, of the installation with the fewest left."
            family = GaugeMetricFamily(f"{NAMESPACE}_github_rate_limit_{field}", text, labels=("resource",))
            for name, budget in least.items():
                family.add_metric((name,), getattr(budget, field))
            yield family


class SharedCollector(_Collector):
    """What the database says; nothing but `database_up 0` while it does not answer in time."""

    def __init__(self, read: Callable[[], SharedFigures]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """What waits, by queue and by state of the run."""
        up = GaugeMetricFamily(f"{NAMESPACE}_database_up", "Whether the database answered this request in time.")
        try:
            figures = self._read()
        except Exception as error:
            log.warning("the database did not answer for the metrics: %s", type(error).__name__)
            up.add_metric((), 0)
            yield up
            return
        up.add_metric((), 1)
        yield up
        for name, text, value in (
            ("deliveries_waiting", "Deliveries to process.", figures.deliveries.count),
            ("deliveries_refused", "Deliveries that can never be processed.", figures.deliveries_refused),
            ("targets_waiting", "Pull requests and merge groups to reconcile now.", figures.targets.count),
            ("messages_waiting", "Reactions and replies to write now.", figures.messages.count),
            ("runs_open", "Runs that are not over.", figures.runs_open),
        ):
            yield GaugeMetricFamily(f"{NAMESPACE}_{name}", SHARED + text, value=value)
        queues = {"deliveries": figures.deliveries, "targets": figures.targets, "messages": figures.messages}
        for name, text, label, waits, amount in (
            ("oldest_waiting_seconds", "How long the oldest has waited.", "queue", queues, "oldest_s"),
            ("runs", "Open runs by state.", "state", figures.runs, "count"),
            ("runs_oldest_seconds", "How long ago the oldest run was ordered.", "state", figures.runs, "oldest_s"),
        ):
            family = GaugeMetricFamily(f"{NAMESPACE}_{name}", SHARED + text, labels=(label,))
            for key, waiting in waits.items():
                family.add_metric((key,), getattr(waiting, amount))
            yield family
