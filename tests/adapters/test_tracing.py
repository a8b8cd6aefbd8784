"""Spans of one process: what they hold, and what is there without the extra."""

import sys
from datetime import UTC, datetime, timedelta

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.config.test_settings import GOOD
from verl_e2e.adapters.tracing import Traces
from verl_e2e.config.settings import load_settings
from verl_e2e.core.model.errors import UserError
from verl_e2e.wiring.telemetry import NoTraces, telemetry_of

NOW = datetime(2026, 11, 20, 19, 0, tzinfo=UTC)
KEY = "ab" * 32


def test_a_span_of_a_failure_has_the_kind_of_the_error_and_not_its_text() -> None:
    exporter = InMemorySpanExporter()
    traces = Traces(SimpleSpanProcessor(exporter))
    with pytest.raises(OSError, match="swordfish"), traces.span("dispatch", {"run.key": KEY}, of=KEY):
        raise OSError("https://bot:swordfish@github.example")
    (span,) = exporter.get_finished_spans()
    assert (span.status.is_ok, span.status.description) == (False, "OSError")
    assert "swordfish" not in span.to_json()


def test_a_story_has_the_ids_of_its_name_and_does_not_end_before_it_began() -> None:
    exporter = InMemorySpanExporter()
    traces = Traces(SimpleSpanProcessor(exporter))
    traces.story(KEY, "run", NOW, NOW - timedelta(seconds=5), {})
    with traces.span("process", {}, of="72d3162e-cc78-11e3-81ab-4c9367dc0958"):
        pass
    traces.close()
    run, process = exporter.get_finished_spans()
    assert f"{run.context.trace_id:032x}{run.context.span_id:016x}" == KEY[:48]
    assert run.start_time == run.end_time == int(NOW.timestamp() * 1e9)
    assert process.parent is not None
    assert process.context.trace_id not in (run.context.trace_id, 0)


def test_without_the_setting_nothing_is_sent_and_without_the_extra_it_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(telemetry_of(load_settings(GOOD)).traces, NoTraces)
    monkeypatch.delitem(sys.modules, "verl_e2e.adapters.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    with pytest.raises(
        UserError, match=r"VERL_E2E_TRACES: OpenTelemetry is not installed; pip install 'verl-e2e\[otel\]'"
    ):
        telemetry_of(load_settings(GOOD | {"VERL_E2E_TRACES": "http://127.0.0.1:4318/v1/traces"}))
