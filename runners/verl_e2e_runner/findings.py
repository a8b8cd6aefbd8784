"""Short ways to state a preflight finding, and the callback that records what happens."""

from typing import Protocol

from verl_e2e.core.model.record import Check, Finding
from verl_e2e.core.model.stages import Stage


class Emit(Protocol):
    """Records one event of the run: its kind and its data (JSON values only)."""

    def __call__(self, kind: str, **data: object) -> None:
        """Record the event now."""


def good(check: Check, summary: str) -> Finding:
    """The check holds; `summary` says what was found."""
    return Finding(check=check, ok=True, summary=summary)


def blocked(check: Check, summary: str, fix: str, *, stage: Stage = Stage.ENVIRONMENT) -> Finding:
    """The run must not start: what was found, and what the user does about it."""
    return Finding(check=check, ok=False, blocking=True, stage=stage, summary=summary, fix=fix)


def note(check: Check, summary: str, fix: str = "", *, stage: Stage = Stage.ENVIRONMENT) -> Finding:
    """Something that the card should say and that stops nothing."""
    return Finding(check=check, ok=False, blocking=False, stage=stage, summary=summary, fix=fix)


def stops(findings: tuple[Finding, ...] | list[Finding]) -> bool:
    """Whether any of the findings blocks the run."""
    return any(finding.blocking and not finding.ok for finding in findings)
