"""What is observed of the work: log lines say what they are about, metrics count it, traces follow it."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar, cast

from verl_e2e.adapters.metrics import Metrics
from verl_e2e.adapters.worker import Work
from verl_e2e.app.judge_finished import Judged
from verl_e2e.config.settings import Settings
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.pulls.deliveries import Received
from verl_e2e.core.pulls.figures import cause_class, run_end
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.pulls.messages import Message
from verl_e2e.log_context import log_context
from verl_e2e.ports import Clock, UnreadableDeliveryError

Port = TypeVar("Port")
Attributes = Mapping[str, str | int | float | bool]


class Tracer(Protocol):
    """Where spans go. A story is what one delivery or one run comes to; it is named by the delivery's id or its key."""

    def span(
        self, name: str, attributes: Attributes, *, of: str = "", links: tuple[str, ...] = ()
    ) -> AbstractContextManager[None]:
        """A span around a piece of work, a part of the story `of`."""
        ...

    def story(self, of: str, name: str, began: datetime, ended: datetime, attributes: Attributes) -> None:
        """The span of a whole story."""
        ...

    def close(self) -> None:
        """Send what is not sent yet."""
        ...


class NoTraces:
    """Sends nothing, and costs nothing."""

    _nothing = nullcontext()

    def span(
        self, name: str, attributes: Attributes, *, of: str = "", links: tuple[str, ...] = ()
    ) -> AbstractContextManager[None]:
        """No span."""
        del name, attributes, of, links
        return self._nothing

    def story(self, of: str, name: str, began: datetime, ended: datetime, attributes: Attributes) -> None:
        """No span."""

    def close(self) -> None:
        """There is nothing to send."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Where this process tells what it does."""

    metrics: Metrics = field(default_factory=Metrics)
    traces: Tracer = field(default_factory=NoTraces)
    # Checks of readiness beyond the service's own, by name: what is wrong, empty for nothing.
    checks: dict[str, Callable[[], str]] = field(default_factory=dict)

    def run_ordered(self, run: Run) -> None:
        """A run is in the ledger for the first time."""
        self.metrics.run_ordered(run)

    def run_ended(self, run: Run) -> None:
        """A run has reached a final state."""
        self.metrics.run_ended(run)
        names = _names(run) | {"run.end": str(run_end(run)), "run.cause": str(cause_class(run))}
        self.traces.story(run.key, "run", run.created, run.updated, names | {"run.gpu_minutes": run.gpu_minutes})

    def close(self) -> None:
        """Send what is not sent yet."""
        self.traces.close()


def telemetry_of(settings: Settings) -> Telemetry:
    """What the settings ask for; UserError where the extra for traces is not installed."""
    if not settings.traces:
        return Telemetry()
    try:
        # Only here, because it comes with an extra.
        from verl_e2e.adapters.tracing import send_traces  # noqa: PLC0415
    except ModuleNotFoundError:
        fix = "pip install 'verl-e2e[otel]', or unset it"
        raise UserError(f"VERL_E2E_TRACES: OpenTelemetry is not installed; {fix}") from None
    return Telemetry(traces=send_traces(settings.traces))


def observed_work(work: Work, telemetry: Telemetry, clock: Clock) -> Work:
    """The same work, observed."""
    metrics, traces, asked = telemetry.metrics, telemetry.traces, _Asked()

    def process(delivery: Received) -> Collection[str]:
        outcome = "failed"
        names = {"delivery": delivery.id, "event": delivery.event}
        try:
            with traces.span("process", names, of=delivery.id):
                targets = work.process(delivery)
            asked.note(targets, delivery.id)
            outcome = "processed"
            return targets
        except UnreadableDeliveryError:
            outcome = "refused"
            raise
        finally:
            metrics.processed(delivery.event, outcome)
            if outcome != "failed":
                traces.story(delivery.id, "delivery", delivery.received, clock.now(), names | {"outcome": outcome})

    def reconcile(target: str) -> float | None:
        began = time.perf_counter()
        first, *others = asked.take(target) or ("",)
        try:
            with traces.span("reconcile", {"target": target}, of=first, links=tuple(others)):
                return work.reconcile(target)
        finally:
            metrics.reconciled(time.perf_counter() - began)

    def write(message: Message) -> None:
        with traces.span("publish", {"repository": message.repository, "pull_request": message.number}):
            work.write(message)

    return replace(work, process=process, reconcile=reconcile, write=write)


class _Asked:
    """The deliveries that asked for a target since it was last reconciled, the latest few of the latest targets."""

    _targets, _deliveries = 2_000, 20

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_target: OrderedDict[str, deque[str]] = OrderedDict()

    def note(self, targets: Collection[str], delivery: str) -> None:
        """A delivery asked for targets."""
        with self._lock:
            for target in targets:
                self._by_target.setdefault(target, deque(maxlen=self._deliveries)).append(delivery)
            while len(self._by_target) > self._targets:
                self._by_target.popitem(last=False)

    def take(self, target: str) -> tuple[str, ...]:
        """The deliveries that asked for a target; it is reconciled now."""
        with self._lock:
            return tuple(self._by_target.pop(target, ()))


def observed_backend(backend: Port, telemetry: Telemetry) -> Port:
    """The same back end, whose calls are counted, named in log lines, and spans in the trace of their run."""
    spans = {"submit": "dispatch", "artifacts": "collect"}

    @contextmanager
    def around(operation: str, arguments: tuple[object, ...]) -> Iterator[None]:
        with (
            _about_run(arguments),
            telemetry.metrics.backend_call(operation),
            _span_of_run(telemetry.traces, spans.get(operation, operation), arguments),
        ):
            yield

    return cast(Port, _Observed(backend, around))


def observed_analysis(analysis: Port, telemetry: Telemetry) -> Port:
    """The same analysis: plans and judgements are spans, log lines name the run, and its phases are counted."""

    @contextmanager
    def around(operation: str, arguments: tuple[object, ...]) -> Iterator[None]:
        with _about_run(arguments), _span_of_run(telemetry.traces, operation, arguments):
            yield

    def note(answer: object) -> None:
        if isinstance(answer, Judged):
            telemetry.metrics.run_phases(answer.phase_s)

    return cast(Port, _Observed(analysis, around, note))


def observed_writes(port: Port, telemetry: Telemetry, writes: Collection[str]) -> Port:
    """The same port of GitHub, whose writes are spans."""

    def around(operation: str, _: tuple[object, ...]) -> AbstractContextManager[None]:
        if operation not in writes:
            return nullcontext()
        return telemetry.traces.span("publish", {"operation": operation})

    return cast(Port, _Observed(port, around))


def _names(run: Run) -> dict[str, str | int | float | bool]:
    names: dict[str, str | int | float | bool] = {
        "run.key": run.key,
        "run.job": run.job_id,
        "run.attempt": run.attempt,
        "repository": run.repository,
        "head": run.head_sha,
    }
    return names | ({} if run.number is None else {"pull_request": run.number})


def _run_among(arguments: tuple[object, ...]) -> Run | None:
    return next((value for value in arguments if isinstance(value, Run)), None)


def _span_of_run(traces: Tracer, name: str, arguments: tuple[object, ...]) -> AbstractContextManager[None]:
    run = _run_among(arguments)
    return traces.span(name, _names(run), of=run.key) if run is not None else traces.span(name, {})


def _about_run(arguments: tuple[object, ...]) -> AbstractContextManager[None]:
    run = _run_among(arguments)
    return log_context(run=run.key, head=run.head_sha, job=run.job_id) if run is not None else nullcontext()


class _Observed:
    """Any port, each call of which is made inside `around(name, arguments)`; `note` takes what it answers."""

    def __init__(
        self,
        inner: object,
        around: Callable[[str, tuple[object, ...]], Any],
        note: Callable[[object], None] = lambda _: None,
    ) -> None:
        self._inner, self._around, self._note = inner, around, note

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*arguments: object, **named: object) -> object:
            with self._around(name, arguments):
                answer = found(*arguments, **named)
                self._note(answer)
                return answer

        return call
