"""The traces of a pull request: every step is a span, and a run's steps join though another process judges it."""

from collections import defaultdict

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.stories.conftest import Story
from tests.stories.recordings import SMOKE
from verl_e2e.adapters.tracing import Traces

Found = dict[str, list[ReadableSpan]]


def by_name(exporter: InMemorySpanExporter) -> Found:
    found: Found = defaultdict(list)
    for span in exporter.get_finished_spans():
        found[span.name].append(span)
    return found


def test_the_steps_of_a_run_are_one_trace_and_those_of_a_delivery_another(story: Story) -> None:
    exporter = InMemorySpanExporter()
    story.service.traces = Traces(SimpleSpanProcessor(exporter))
    story.service.restart()
    story.open()
    (run,) = story.service.ledger.open_runs()
    before = by_name(exporter)
    # The next process has a tracer of its own.
    story.service.traces = Traces(SimpleSpanProcessor(exporter))
    story.service.restart()
    story.world.start_run()
    story.service.settle()
    story.finish(SMOKE)
    story.service.go_on()
    found = by_name(exporter)
    steps = {"delivery", "process", "reconcile", "plan", "dispatch", "collect", "judge", "publish", "run"}
    assert steps <= found.keys()

    (whole,) = found["run"]
    of_run = [span for name in ("dispatch", "poll", "collect", "judge") for span in found[name]]
    assert whole.context.trace_id == int(run.key[:32], 16)
    assert {span.context.trace_id for span in of_run} == {whole.context.trace_id}
    assert {span.parent.span_id for span in of_run if span.parent} == {whole.context.span_id}
    assert {span.attributes["run.key"] for span in (*of_run, whole) if span.attributes} == {run.key}
    assert (whole.attributes or {})["run.end"] == "pass"
    assert whole.start_time == int(run.created.timestamp() * 1e9)

    # The delivery that opened the pull request: processed, reconciled, planned, published, and linked with the run.
    (dispatch,) = before["dispatch"]
    (asked,) = [span for span in before["reconcile"] if span.context.span_id == dispatch.links[0].context.span_id]
    assert {link.context.span_id for link in asked.links} >= {whole.context.span_id}
    trace = [span for span in exporter.get_finished_spans() if span.context.trace_id == asked.context.trace_id]
    assert {"delivery", "process", "reconcile", "plan", "publish"} <= {span.name for span in trace}
    (opened,) = [span for span in trace if span.name == "delivery"]
    assert asked.parent is not None
    assert asked.parent.span_id == opened.context.span_id
