"""Constructors of preflight findings, and the type of the function that records events."""

from collections.abc import Iterable
from typing import Protocol

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
