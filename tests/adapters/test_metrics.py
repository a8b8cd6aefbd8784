"""The metrics as Prometheus reads them: names, help, bounded labels, and the same numbers from every process."""

import re
from datetime import timedelta

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.core.pulls.entries import NOW, SMOKE, run
from tests.fakes.places import ROOT
from verl_e2e.adapters.github.requester import Calls, is_limit
from verl_e2e.adapters.metrics import ApiCollector, CountsCollector, Metrics, SharedCollector
from verl_e2e.adapters.store import SqlDeliveries, SqlFigures, SqlLedger, SqlOutbox, SqlWorklist, Store
from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.deliveries import MODELS, Received, reply_to
from verl_e2e.core.pulls.figures import API_RESOURCES, RUN_PHASES, SharedFigures, Waiting
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.retry import RetryClass

LIMITS = {"x-ratelimit-limit": "5000", "x-ratelimit-used": "1", "x-ratelimit-reset": "2000"}
NUMBERS = (("reconciles", "Reconciliations that succeeded.", 3.0),)
GAUGES = (("worker_silent_seconds", "Time since the worker began its last round.", 0.0),)


def families(metrics: Metrics) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    found = (sample for family in families(metrics).values() for sample in family.samples)
    return next((sample.value for sample in found if (sample.name, sample.labels) == (name, labels)), None)


def with_job(of: Run) -> Run:
    return of.model_copy(update={"job": SMOKE})


def complete(calls: Calls) -> Metrics:
    """Every metric there is."""
    metrics = Metrics()
    metrics.watch(CountsCollector(lambda: NUMBERS, lambda: GAUGES))
    metrics.watch(ApiCollector(calls.by_answer, lambda: calls.budgets(1000.0)))
    states = {state: Waiting(1, 2.0) for state in RunState if not state.final}
    metrics.watch(SharedCollector(lambda: SharedFigures(runs=states)))
    with metrics.backend_call("poll"):
        metrics.run_phases([("run", 1.0)])
    for run_of_plan in (run(SMOKE), with_job(run(SMOKE))):
        metrics.run_ordered(run_of_plan)
        metrics.run_ended(run_of_plan)
    metrics.answered("push", "kept")
    metrics.processed("push", "processed")
    calls.answered("octo", "GET", 200, LIMITS | {"x-ratelimit-remaining": "9", "x-ratelimit-resource": "core"})
    return metrics


def given_names_by_strangers() -> Metrics:
    """Metrics after thousands of names that no list has."""
    calls = Calls()
    metrics = complete(calls)
    for number in range(3_000):
        name = f'x{number}"}}\n# HELP evil'
        metrics.answered(name, "kept")
        metrics.processed(name, "processed")
        metrics.run_phases([(name, 1.0)])
        strange = run(SMOKE, RunState.LOST, job_id=name, job_digest=name, head_sha=f"{number:040x}")
        metrics.run_ordered(strange)
        metrics.run_ended(strange)
        headers = LIMITS | {"x-ratelimit-remaining": str(number), "x-ratelimit-resource": name}
        calls.answered(name, "GET", 200 + number % 400, headers)
    return metrics


def test_labels_have_few_values_whatever_strangers_send() -> None:
    metrics = given_names_by_strangers()
    allowed = {
        "event": {*MODELS, "none", "other"},
        "operation": {"poll"},
        "kind": {"plan", "request", "retry", "kept"},
        "outcome": {"processed", "ok", "moved", "not_modified", "refused", "limited", "failed", "none"},
        "level": {*(str(int(level)) for level in Level), "other"},
        "result": {"pass", "fail", "blocked", "cancelled", "lost", "refused"},
        "cause": {"none", "not_entered", "cancelled", *(found.name.lower() for found in RetryClass)},
        "phase": {*RUN_PHASES, "queued", "other"},
        "verb": {"GET"},
        "resource": {*API_RESOURCES, "other"},
        "state": {*map(str, RunState)},
        "queue": {"deliveries", "targets", "messages"},
    }
    samples = [sample for family in families(metrics).values() for sample in family.samples]
    ours = [sample for sample in samples if sample.name.startswith("verl_e2e_")]
    assert len(ours) < 150
    for sample in ours:
        for name, label in sample.labels.items():
            assert name == "le" or label in allowed[name], sample


def test_each_metric_has_a_help_and_a_proper_name() -> None:
    for family in families(complete(Calls())).values():
        assert family.documentation, family.name
        assert family.type in {"counter", "gauge", "histogram", "info"}, family.name
        assert re.fullmatch(r"(verl_e2e|process|python)_[a-z_]+", family.name)
        # Base units, and no unit that is not one.
        assert not re.search(r"_(ms|milliseconds|minutes|mib|kib|count)(_|$)", family.name), family.name


def test_the_page_of_metrics_explains_each_one_and_says_what_is_shared() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(verl_e2e_\w+)`[^|]* \| (process|shared) \|", page, re.MULTILINE))
    found = {
        family.name + ("_total" if family.type == "counter" else ""): (
            "shared" if family.documentation.startswith("Shared: ") else "process"
        )
        for name, family in families(complete(Calls())).items()
        if name.startswith("verl_e2e_")
    }
    named = set(re.findall(r"verl_e2e_[a-z_]+", (ROOT / "deploy" / "alerts.yml").read_text()))
    series = {sample.name for family in families(complete(Calls())).values() for sample in family.samples}
    assert found.items() <= rows.items()
    assert named <= series | rows.keys()


def test_a_run_is_counted_once_by_the_process_that_wrote_it_down(store: Store) -> None:
    first, second = Metrics(), Metrics()
    ledgers = [SqlLedger(store, first), SqlLedger(store, second)]
    took = BackendTimes(who="slurm", started=NOW + timedelta(seconds=40))
    ordered = with_job(run(SMOKE, RunState.QUEUED))
    ended = with_job(run(SMOKE, gpu_minutes=6.5, took=took))
    for ledger in ledgers:
        ledger.put_run(ordered)
    for ledger in reversed(ledgers):
        ledger.put_run(ordered.model_copy(update={"state": RunState.RUNNING}))
    for ledger in reversed(ledgers):
        ledger.put_run(ended)
    plan, level = {"level": "0", "kind": "plan"}, {"level": "0"}
    passed = level | {"result": "pass", "cause": "none"}
    assert value(first, "verl_e2e_runs_ordered_total", **plan) == 1.0
    assert value(first, "verl_e2e_gpu_seconds_planned_total", **level) == 420.0
    assert value(second, "verl_e2e_runs_ordered_total", **plan) is None
    assert value(second, "verl_e2e_runs_ended_total", **passed) == 1.0
    assert value(second, "verl_e2e_gpu_seconds_used_total", **level) == 390.0
    assert value(second, "verl_e2e_run_seconds_sum", phase="queued") == 40.0
    assert value(first, "verl_e2e_runs_ended_total", **passed) is None


def test_what_waits_is_the_same_for_every_process_on_the_database(store: Store) -> None:
    SqlDeliveries(store).keep([Received(key, "push", b"{}", NOW) for key in ("a", "b")])
    SqlWorklist(store).want(["octo/bridge#7"], NOW + timedelta(seconds=10))
    SqlOutbox(store).put(reply_to("octo/bridge", 7, "comment:1", "Hello", person=True), NOW)
    ledger = SqlLedger(store)
    for attempt, state in enumerate((RunState.QUEUED, RunState.RUNNING, RunState.RUNNING, RunState.LOST), start=1):
        ledger.put_run(run(SMOKE, state, attempt=attempt))
    later = NOW + timedelta(seconds=30)
    both = [SqlFigures(store).read(later) for _ in range(2)]
    assert both[0] == both[1]
    figures = both[0]
    assert (figures.deliveries, figures.targets) == (Waiting(2, 30.0), Waiting(1, 20.0))
    assert (figures.messages, figures.runs_open) == (Waiting(1, 30.0), 3)
    open_runs = {RunState.QUEUED: Waiting(1, 30.0), RunState.RUNNING: Waiting(2, 30.0)}
    none = {RunState.SUBMITTED: Waiting(), RunState.CANCELLING: Waiting()}
    assert figures.runs == open_runs | none


def test_while_the_database_is_away_only_that_is_said_of_it() -> None:
    def read() -> SharedFigures:
        raise TimeoutError("postgresql://bot:secret@db")

    metrics = Metrics()
    metrics.watch(SharedCollector(read))
    assert value(metrics, "verl_e2e_database_up") == 0.0
    assert "verl_e2e_runs_open" not in families(metrics)
    assert b"secret" not in metrics.text()


def test_the_tightest_budget_of_a_resource_is_shown_until_its_window_ends() -> None:
    calls = Calls()
    budgets = (("octo", "4000", "core"), ("acme", "12", "core"), ("octo", "29", "search"))
    for owner, remaining, resource in budgets:
        headers = LIMITS | {"x-ratelimit-remaining": remaining, "x-ratelimit-resource": resource}
        calls.answered(owner, "GET", 200, headers)
    calls.answered("octo", "GET", 200, {"x-ratelimit-remaining": "many"})
    metrics = Metrics()
    metrics.watch(ApiCollector(calls.by_answer, lambda: calls.budgets(1999.0)))
    assert value(metrics, "verl_e2e_github_rate_limit_remaining", resource="core") == 12.0
    assert value(metrics, "verl_e2e_github_rate_limit_remaining", resource="search") == 29.0
    assert calls.budgets(2000.0) == ()


@pytest.mark.parametrize(
    ("status", "headers", "message", "outcome"),
    (
        (201, {}, "", "ok"),
        (304, {}, "", "not_modified"),
        (302, {}, "", "moved"),
        (404, {}, "", "refused"),
        (403, {}, "Resource not accessible by integration", "refused"),
        (403, {"retry-after": "60"}, "", "limited"),
        (403, {}, "You have exceeded a secondary rate limit.", "limited"),
        (403, {}, "You have triggered an abuse detection mechanism.", "limited"),
        (429, {}, "", "limited"),
        (429, {"x-ratelimit-remaining": "0"}, "", "limited"),
        (502, {}, "", "failed"),
    ),
)
def test_requests_are_counted_by_how_they_were_answered(
    status: int, headers: dict[str, str], message: str, outcome: str
) -> None:
    calls = Calls()
    calls.answered("octo", "PATCH", status, headers, limited=is_limit(status, headers, message))
    calls.unanswered("GET")
    assert calls.by_answer() == {("PATCH", outcome): 1, ("GET", "none"): 1}
