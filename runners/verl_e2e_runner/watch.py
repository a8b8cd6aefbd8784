"""Supervises the wrapper: reads its output, and ends the run as soon as it is lost.

A run is lost when a fatal error leaves its processes hanging, when a fact of the log or an import from the
wrong tree makes its result worthless, when the host has no memory left and the run took more than it states, when a
stage makes no progress, at the time limit, or when a person or the system interrupts us. Nothing is judged here: the
reason is recorded, `verl_e2e.core` judges.
"""

import json
import os
import signal
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from verl_e2e.core.log.scan import LogScanner
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import EndReason
from verl_e2e_runner.folder.recorder import FLUSH_S, Recorder
from verl_e2e_runner.process.cage import read_below
from verl_e2e_runner.process.processes import Ended, MonotonicClock, Survivor, WrapperProcess, received_signals
from verl_e2e_runner.reporting import ProgressLine
from verl_e2e_runner.samplers import GpuSampler, MemorySampler

_READ_BYTES = 1 << 18


@dataclass(slots=True)
class ImportLines:
    """Reads the lines of the import instrumentation as they grow, and looks for a module from the wrong tree."""

    path: Path
    roots: Mapping[str, str]
    _offset: int = 0

    def wrong(self) -> str:
        """A sentence about the first module below none of its roots since the last call, empty when all is well."""
        grown = read_below(self.path.parent, self.path.name, limit=_READ_BYTES, offset=self._offset) or b""
        whole = grown[: grown.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            # The code under test may write here: a line of another shape says nothing.
            with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                entry = json.loads(line)
                module, file = str(entry["module"]), str(entry.get("file") or "")
                root = self.roots.get(module)
                if not root or not file:
                    continue
                normal = os.path.normpath(file), os.path.normpath(root)
                real = os.path.realpath(file), os.path.realpath(root)
                if not any(Path(path).is_relative_to(base) for path, base in (normal, real)):
                    return f"{module} was imported from {file}, not from {root} (process {entry.get('pid')})."
        return ""


FATAL_END_S = 10.0
_KILL_MARGIN_S = 0.7
_LEAST_GRACE_S = 0.5


@dataclass(frozen=True, slots=True)
class WatchLimits:
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
    def of(job: Job) -> "WatchLimits":
        """The limits that a job and its site ask for."""
        return WatchLimits(job.time_limit_s, dict(job.site.stall_s), job.site.hang_grace_s)

    def kill_grace_s(self, fatal_for_s: float) -> float:
        """How long a run may take between SIGTERM and SIGKILL when its fatal error is `fatal_for_s` old."""
        return min(self.end_grace_s, max(_LEAST_GRACE_S, FATAL_END_S - _KILL_MARGIN_S - fatal_for_s))

    def stall(self, stage: Stage) -> float:
        """How long this stage may show no progress."""
        return self.stall_s.get(stage.value, self.stall_s.get("default", 600.0))


_TICK_S = 0.5
_LOOK_S = 5.0
_CHUNK_BYTES = 1 << 18
_DRAIN_S = 5.0
_QUIET_S = 0.5
_AT_END_S = 0.05


Loss = tuple[EndReason, str]


@dataclass(slots=True)
class _Watch:
    process: WrapperProcess
    scanner: LogScanner
    recorder: Recorder
    limits: WatchLimits
    imports: ImportLines
    gpu: GpuSampler
    memory: MemorySampler
    clock: MonotonicClock
    progress: ProgressLine
    signals: list[str]
    total_steps: int
    began: float = field(init=False)
    progressed_at: float = field(init=False)
    fatal_at: float | None = None
    looked_at: float = 0.0
    ticked_at: float = 0.0
    at_end: bool = False
    # What the scanner said of stage, step and progress before it read of this phase; None once it did.
    before: tuple[object, ...] | None = field(init=False)
    step: int | None = None
    marker: object = None
    # The last one that the run entered.
    stage: Stage | None = None

    def __post_init__(self) -> None:
        self.began = self.progressed_at = self.clock.monotonic()
        self.before = (self.scanner.stage, self.scanner.step, self.scanner.marker)

    def until_end(self) -> tuple[EndReason, int | None, str]:
        while True:
            self.read(_TICK_S)
            loss = self.look()
            code = self.process.poll()
            if code is not None:
                self.drain()
                # A scheduler that cancels a job often signals all of its processes at once.
                if code and self.signals:
                    return EndReason.INTERRUPTED, None, f"Interrupted by {self.signals[0]}."
                # Then the guard has ended it: see `verl_e2e_runner.process.deadline`.
                if code == -signal.SIGKILL and loss and loss[0] is EndReason.TIME_LIMIT:
                    return loss[0], None, loss[1]
                return EndReason.EXITED, code, ""
            if loss:
                return loss[0], None, loss[1]

    def read(self, timeout_s: float) -> bool:
        """Take what the wrapper printed, waiting at most `timeout_s` for it; false when there was nothing."""
        if self.at_end:
            self.clock.wait(None, min(timeout_s, _AT_END_S))
            return False
        if not self.clock.wait(self.process.output, timeout_s):
            self.recorder.flush(if_older_s=FLUSH_S)
            return False
        chunk = os.read(self.process.output, _CHUNK_BYTES)
        self.at_end = not chunk
        self.scanner.feed(self.recorder.log(chunk))
        return bool(chunk)

    def drain(self) -> None:
        """Read what is left; a daemon that holds the pipe open must not keep us."""
        deadline = self.clock.monotonic() + _DRAIN_S
        while not self.at_end and self.clock.monotonic() < deadline:
            if not self.read(_QUIET_S):
                break

    def look(self) -> Loss | None:
        """Record what is new, then say whether the run is lost."""
        now = self.clock.monotonic()
        self.note_progress(now)
        quick = self.lost_by_log(now)
        if not quick and now - self.ticked_at < _TICK_S:
            return None
        self.ticked_at = now
        self.progress.tick()
        if memory := self.memory.tick(now):
            self.recorder.event("memory", **memory)
        if sample := self.gpu.tick(now):
            self.recorder.event("gpu", **sample)
            if problem := sample.get("problem"):
                self.progress.note(str(problem))
        if now - self.looked_at >= _LOOK_S:
            self.looked_at = now
            self.process.observe()
        if self.signals:
            return EndReason.INTERRUPTED, f"Interrupted by {self.signals[0]}."
        if wrong := self.imports.wrong():
            return EndReason.WRONG_IMPORT, wrong
        if self.memory.loss:
            return EndReason.HOST_MEMORY, self.memory.loss
        if quick:
            return quick
        stage = self.scanner.stage or Stage.ENVIRONMENT
        if now - self.began >= self.limits.time_limit_s:
            return EndReason.TIME_LIMIT, f"Time limit of {self.limits.time_limit_s:g} s reached in stage {stage.value}."
        if now - self.progressed_at >= (allowed := self.limits.stall(stage)):
            return EndReason.STALLED, f"No progress for {allowed:g} s in stage {stage.value}."
        return None

    def note_progress(self, now: float) -> None:
        stage, step, marker = self.scanner.stage, self.scanner.step, self.scanner.marker
        if (stage, step, marker) == self.before:
            return
        self.before = None
        # A worker that starts late repeats only stages of the set-up.
        later = stage is not None and (self.stage is None or stage.order > self.stage.order)
        if stage is not None and (later or (stage is not self.stage and stage.order >= Stage.ROLLOUT_ENGINE.order)):
            self.stage = stage
            self.recorder.event("stage", stage=stage.value)
            self.progress.stage(stage.value)
            self.progressed_at = now
        if step is not None and step != self.step:
            self.step = step
            self.recorder.event("step", step=step)
            self.progress.step(step, self.total_steps)
            self.progressed_at = now
        if marker != self.marker:
            self.marker, self.progressed_at = marker, now

    def lost_by_log(self, now: float) -> Loss | None:
        if unrecoverable := self.scanner.unrecoverable:
            return EndReason.UNRECOVERABLE, f"Line {unrecoverable.line}: {unrecoverable.text}"
        fatal = self.scanner.fatal
        if fatal is None or fatal.after_completion:
            return None
        if self.fatal_at is None:
            self.fatal_at = now
            self.recorder.event("fatal", line=fatal.at.line, kind=fatal.kind, excerpt=fatal.at.text)
        if now - self.fatal_at < self.limits.hang_grace_s:
            return None
        grace = f"{self.limits.hang_grace_s:g} s"
        return EndReason.FATAL_ERROR_HANG, f"Line {fatal.at.line}: {fatal.at.text}; no exit within {grace}."

    def finish(self, *, linger_s: float) -> tuple[Survivor, ...]:
        """End what is left of the run and read its last output."""
        deadline = self.clock.monotonic() + linger_s
        while self.process.alive() and self.clock.monotonic() < deadline:
            self.read(_TICK_S / 5)
        grace_s = self.limits.end_grace_s
        if self.memory.loss:
            grace_s = min(grace_s, self.limits.memory_grace_s)
        elif self.fatal_at is not None:
            grace_s = self.limits.kill_grace_s(self.clock.monotonic() - self.fatal_at)
        survivors = self.process.end(
            grace_s=grace_s, clock=self.clock, wait=self.read, hurry=lambda: len(self.signals) > 1
        )
        self.drain()
        self.scanner.feed(self.recorder.end_of_output())
        self.note_progress(self.clock.monotonic())
        return survivors


def watch(
    process: WrapperProcess,
    scanner: LogScanner,
    recorder: Recorder,
    *,
    limits: WatchLimits,
    imports_file: Path,
    expected_roots: Mapping[str, str],
    gpu_sampler: GpuSampler,
    memory_sampler: MemorySampler,
    clock: MonotonicClock,
    progress: ProgressLine,
    total_steps: int = 0,
    signals: list[str] | None = None,
) -> Ended:
    """Watch a started wrapper until it ends, or end it as soon as it is lost; nothing of it is left running.

    The scanner reads exactly what is written to the log. `expected_roots` maps a module to the directory below
    which its file must lie, as in `Environment.import_roots` but not redacted. An error of our own ends the
    run before it is raised. `signals` is a list that the caller collects interruptions in since before the start;
    without it they are collected here.
    """
    with received_signals() if signals is None else nullcontext(signals) as signals:
        imports = ImportLines(imports_file, expected_roots)
        samplers = (gpu_sampler, memory_sampler)
        state = _Watch(process, scanner, recorder, limits, imports, *samplers, clock, progress, signals, total_steps)
        reason, code, note = EndReason.INTERRUPTED, None, ""
        try:
            reason, code, note = state.until_end()
            if reason is not EndReason.EXITED:
                recorder.event("ending", reason=reason.value, note=note)
                progress.note(f"Ending the run: {note}")
        except BaseException:
            process.end(grace_s=1.0, clock=clock, wait=lambda seconds: clock.wait(None, seconds), hurry=lambda: True)
            raise
        survivors = state.finish(linger_s=limits.linger_s if reason is EndReason.EXITED else 0.0)
    for kind, peak in (("gpu", gpu_sampler.peak()), ("memory", memory_sampler.peak())):
        if peak:
            recorder.event(kind, **peak)
    return Ended(reason, code, note, survivors)
