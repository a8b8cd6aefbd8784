"""Triage of a bare log: where the run ended, whose fault it was, and the first relevant line."""

from dataclasses import dataclass
from enum import StrEnum

from bot.core.facts import LogFacts, Noise
from bot.core.stages import Stage


class TriageVerdict(StrEnum):
    """`pass` means only that the requested steps completed with no unexplained error; never the verdict Pass."""

    PASS = "pass"
    FAIL = "fail"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class Triage:
    """The answer of triage; `line` is 1-based (0: nothing to point at), `rule` names the rule that decided."""

    verdict: TriageVerdict
    stage: Stage
    cause: str
    line: int
    excerpt: str
    residual_noise: tuple[Noise, ...]
    rule: str
    mend: str


def triage(facts: LogFacts) -> Triage:
    """Judge a log by the furthest stage reached and whose fault its root exception is."""
    raise NotImplementedError
