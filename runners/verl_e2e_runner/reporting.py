"""Constructors of preflight findings, and the type of the function that records events."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import Check, Finding


class Emit(Protocol):
    """Records one event of the run: its kind and its data (JSON values only)."""

    def __call__(self, kind: str, **data: object) -> None:
        """Record the event now."""


def good(check: Check, summary: str) -> Finding:
    """A check that passed; `summary` says what was found."""
    return Finding(check=check, ok=True, summary=summary)


def blocked(check: Check, summary: str, fix: str, *, stage: Stage = Stage.ENVIRONMENT) -> Finding:
    """A finding that blocks the run: what was found, and what the user should do about it."""
    return Finding(check=check, ok=False, blocking=True, stage=stage, summary=summary, fix=fix)


def note(check: Check, summary: str, fix: str = "", *, stage: Stage = Stage.ENVIRONMENT) -> Finding:
    """A note for the card that does not block the run."""
    return Finding(check=check, ok=False, blocking=False, stage=stage, summary=summary, fix=fix)


def untried(*checks: Check) -> tuple[Finding, ...]:
    """Notes for checks that an earlier one makes needless."""
    return tuple(note(check, f"{check} was not checked, because an earlier check blocks the run") for check in checks)


def emit_findings(emit: Emit, findings: Iterable[Finding]) -> None:
    """Record each finding as an event."""
    for finding in findings:
        emit("finding", **finding.model_dump(mode="json"))


def stops(findings: tuple[Finding, ...] | list[Finding]) -> bool:
    """Whether any of the findings blocks the run."""
    return any(finding.blocking and not finding.ok for finding in findings)


PLAIN_S = 30.0
MOVING_S = 0.5


@dataclass(slots=True)
class ProgressLine:
    """Writes the phase, the time since the start, the stage and the step to a stream."""

    stream: TextIO
    # Seconds of a monotonic clock.
    monotonic: Callable[[], float]
    # True (a terminal) keeps one line up to date. False writes a line on each change, and after `PLAIN_S` seconds
    # without one, so that a reader of the output sees that the run is alive.
    moving: bool
    # Begins each line, for example the job's id.
    label: str = ""
    _phase: str = ""
    _stage: str = ""
    _step: str = ""
    _shown: str = ""
    _shown_at: float = field(default=-PLAIN_S)
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.monotonic()

    def phase(self, name: str) -> None:
        """A phase begins (preflight, bridge tests, prepare, run, collect)."""
        self._phase, self._stage, self._step = name, "", ""
        self.tick()

    def stage(self, name: str) -> None:
        """The run entered a stage."""
        self._stage = name
        self.tick()

    def step(self, done: int, total: int = 0) -> None:
        """The run finished a step; `total` 0 when unknown."""
        self._step = f"step {done}/{total}" if total else f"step {done}"
        self.tick()

    def note(self, text: str) -> None:
        """One sentence that stays on the screen."""
        self._write(f"\r\x1b[K{text}\n" if self.moving else f"{text}\n")
        if self.moving:
            self._shown = ""
            self.tick()

    def tick(self) -> None:
        """Show how far the run is, if that changed or if enough time has passed; call it often."""
        now = self.monotonic()
        state = " · ".join(part for part in (self._phase, self._stage, self._step) if part)
        due = now - self._shown_at >= (MOVING_S if self.moving else PLAIN_S)
        if state and (due or state != self._shown):
            self._shown, self._shown_at = state, now
            minutes, seconds = divmod(int(now - self._began), 60)
            hours, minutes = divmod(minutes, 60)
            clock = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:2}:{seconds:02}"
            line = f"[{clock}] {self.label + ': ' if self.label else ''}{state}"
            if self.moving:
                width = shutil.get_terminal_size().columns
                self._write(f"\r\x1b[K{line[: max(20, width - 1)]}")
            else:
                self._write(f"{line}\n")

    def close(self) -> None:
        """Leave the moving line; later text begins on a line of its own."""
        if self.moving and self._shown:
            self._write("\n")
        self._shown = ""

    def _write(self, text: str) -> None:
        # A reader that went away must not end a run that costs GPU hours.
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            self.moving = False
