"""What is read at each request for metrics: the counts of other parts, and what the database says."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from verl_e2e.adapters.metrics.counted import NAMESPACE
from verl_e2e.core.pulls.figures import ApiBudget, SharedFigures

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
        self,
        requests: Callable[[], Mapping[tuple[str, str], int]],
        budgets: Callable[[], Iterable[ApiBudget]],
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
        yield from _shared(figures)


def _shared(figures: SharedFigures) -> Iterator[Metric]:
    for name, text, value in (
        ("deliveries_waiting", "Deliveries to process.", figures.deliveries.count),
        ("deliveries_refused", "Deliveries that can never be processed.", figures.deliveries_refused),
        ("targets_waiting", "Pull requests and merge groups to reconcile now.", figures.targets.count),
        ("messages_waiting", "Reactions and replies to write now.", figures.messages.count),
        ("runs_open", "Runs that are not over.", figures.runs_open),
    ):
        yield GaugeMetricFamily(f"{NAMESPACE}_{name}", SHARED + text, value=value)
    oldest = GaugeMetricFamily(
        f"{NAMESPACE}_oldest_waiting_seconds", f"{SHARED}How long the oldest has waited.", labels=("queue",)
    )
    for queue, waiting in (
        ("deliveries", figures.deliveries),
        ("targets", figures.targets),
        ("messages", figures.messages),
    ):
        oldest.add_metric((queue,), waiting.oldest_s)
    yield oldest
    runs = GaugeMetricFamily(f"{NAMESPACE}_runs", f"{SHARED}Open runs by state.", labels=("state",))
    ages = GaugeMetricFamily(
        f"{NAMESPACE}_runs_oldest_seconds",
        f"{SHARED}How long ago the oldest run was ordered.",
        labels=("state",),
    )
    for state, waiting in figures.runs.items():
        runs.add_metric((state,), waiting.count)
        ages.add_metric((state,), waiting.oldest_s)
    yield runs
    yield ages
