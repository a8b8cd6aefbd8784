"""Traces by OpenTelemetry: what became of a delivery, and the life of a run, over processes and restarts.

A run has a trace of its own, whose ids are the beginning of the run's key: so the process that orders it and the one
that judges it add to one trace without telling each other anything. So has a delivery, by its id. A reconciliation
continues the trace of the delivery that asked for it, where that was processed here, and is linked with the runs that
it touches. Attributes are ids and words of ours; no text of an error is sent.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from verl_e2e import __version__

Attributes = Mapping[str, str | int | float | bool]
# Spans are sent at the latest when the process ends; it waits so long for that.
_FLUSH_MS = 3_000
_GIVEN: ContextVar[SpanContext | None] = ContextVar("given", default=None)


class Traces:
    """The spans of this process; safe to use from several threads."""

    def __init__(self, processor: SpanProcessor) -> None:
        resource = Resource.create({"service.name": "verl-e2e", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, id_generator=_Ids(), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("verl_e2e", __version__)

    @contextmanager
    def span(self, name: str, attributes: Attributes, *, of: str = "", links: tuple[str, ...] = ()) -> Iterator[None]:
        """A span around a piece of work.

        It is a part of the span that is open here, or of the story that `of` names; both are then linked. `links` are
        other stories that it belongs to.
        """
        outer = get_current_span()
        linked = [Link(_context_of(story)) for story in links]
        parent: Context | None = None
        if of:
            parent = set_span_in_context(NonRecordingSpan(_context_of(of)), Context())
            if outer.get_span_context().is_valid:
                linked.append(Link(outer.get_span_context()))
                outer.add_link(_context_of(of))
        with self._tracer.start_as_current_span(
            name,
            parent,
            attributes=dict(attributes),
            links=linked,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                # Its text may hold anything.
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise

    def story(self, of: str, name: str, began: datetime, ended: datetime, attributes: Attributes) -> None:
        """The span of a whole story, once it is over; the parts may have been sent long before."""
        token = _GIVEN.set(_context_of(of))
        try:
            span = self._tracer.start_span(name, Context(), attributes=dict(attributes), start_time=_nanoseconds(began))
        finally:
            _GIVEN.reset(token)
        span.end(_nanoseconds(max(began, ended)))

    def close(self) -> None:
        """Send what is not sent yet, for a few seconds at most."""
        self._provider.force_flush(_FLUSH_MS)
        self._provider.shutdown()


def send_traces(endpoint: str) -> Traces:
    """Traces that are sent to an OTLP/HTTP address, in a thread of their own."""
    return Traces(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=5)))


class _Ids(RandomIdGenerator):  # type: ignore[misc]
    """Random ids, but for the span of a story."""

    def generate_trace_id(self) -> int:
        given = _GIVEN.get()
        return int(super().generate_trace_id() if given is None else given.trace_id)

    def generate_span_id(self) -> int:
        given = _GIVEN.get()
        return int(super().generate_span_id() if given is None else given.span_id)


def _context_of(story: str) -> SpanContext:
    """The span of a story, by its name: a run's key gives its first 16 bytes as the id of the trace."""
    digest = story if len(story) == 64 and not story.strip("0123456789abcdef") else ""
    raw = bytes.fromhex(digest) if digest else hashlib.sha256(story.encode()).digest()
    trace_id, span_id = int.from_bytes(raw[:16]), int.from_bytes(raw[16:24])
    return SpanContext(trace_id or 1, span_id or 1, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1e9)
