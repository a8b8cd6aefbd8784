"""What the watch needs: a scanner, a process and samplers as protocols, and the limits of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from verl_e2e.core.model.facts import Excerpt, LoggedError
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.stages import Stage
from verl_e2e_runner.clock import Clock
from verl_e2e_runner.process.processes import Survivor


class Scanner(Protocol):
    """What the watch asks of `verl_e2e.core.log.scan`; every property is cheap and may be read after each chunk."""

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log."""
        ...

    @property
    def stage(self) -> Stage | None:
        """The stage that the log has reached."""
        ...

    @property
    def step(self) -> int | None:
        """The last step whose metrics were printed."""
        ...

    @property
    def fatal(self) -> LoggedError | None:
        """An error after which the run cannot go on."""
        ...

    @property
    def unrecoverable(self) -> Excerpt | None:
        """A fact that makes the rest of the run worthless."""
        ...

    @property
    def marker(self) -> object:
        """Differs from its last value whenever the run got on."""
        ...


class Supervised(Protocol):
    """What the watch asks of the wrapper's process; `process.processes.WrapperProcess` is the real one."""

    @property
    def output(self) -> int:
        """The file descriptor of its output."""
        ...

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        ...

    def observe(self) -> None:
        """Remember the processes that it started."""
        ...

    def alive(self) -> tuple[Survivor, ...]:
        """Those of its processes that run now."""
        ...

    def end(
        self, *, grace_s: float, clock: Clock, wait: Callable[[float], object], hurry: Callable[[], bool]
    ) -> tuple[Survivor, ...]:
        """End them all; what is left comes back."""
        ...


class Sampler(Protocol):
    """What the watch asks of `verl_e2e_runner.watch.gpu.GpuSampler`."""

    def tick(self, now: float) -> dict[str, object] | None:
        """The data of a `gpu` event, when one is due."""
        ...

    def peak(self) -> dict[str, object] | None:
        """The data of the closing `gpu` event."""
        ...


class MemorySampler(Protocol):
    """What the watch asks of `verl_e2e_runner.watch.memory.MemorySampler`."""

    @property
    def loss(self) -> str:
        """Why the run must end now to leave memory to others; else empty."""
        ...

    def tick(self, now: float) -> dict[str, object] | None:
        """The data of a `memory` event, when one is due."""
        ...

    def peak(self) -> dict[str, object] | None:
        """The data of the closing `memory` event."""
        ...


FATAL_END_S = 10.0
KILL_MARGIN_S = 0.7
MIN_GRACE_S = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run is given up."""

    time_limit_s: float
    # How long a stage may show no progress, by the stage's name; `default` for the others.
    stall_s: Mapping[str, float]
    # How long after a fatal error the run may take to exit by itself.
    hang_grace_s: float = 8.0
    # Between SIGTERM and SIGKILL. Less after a fatal error: a run that hangs is gone `FATAL_END_S` after the error.
    end_grace_s: float = 10.0
    # The same where the host has no memory left: the run goes on taking it meanwhile.
    memory_grace_s: float = 2.0
    # How long daemons may take to end by themselves after an ordinary exit.
    linger_s: float = 2.0

    @staticmethod
    def of(job: Job) -> "Limits":
        """The limits that a job and its site ask for."""
        return Limits(job.time_limit_s, dict(job.site.stall_s), job.site.hang_grace_s)

    def kill_grace_s(self, fatal_for_s: float) -> float:
        """How long a run may take between SIGTERM and SIGKILL when its fatal error is `fatal_for_s` old."""
        return min(self.end_grace_s, max(MIN_GRACE_S, FATAL_END_S - KILL_MARGIN_S - fatal_for_s))

    def stall(self, stage: Stage) -> float:
        """How long this stage may show no progress."""
        return self.stall_s.get(stage.value, self.stall_s.get("default", 600.0))
