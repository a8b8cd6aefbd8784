"""Which of a log's errors ended the run: the candidates in the order in which they are weighed.

Nested remote tracebacks are already one error with its root, and the same error of many workers one with a count
(`verl_e2e.core.log.errors`). What is left to tell apart is the fault from its echoes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from verl_e2e.core.model.facts import LogFacts, LoggedError, Record
from verl_e2e.core.triage.codes import Origin
from verl_e2e.core.triage.origin import death_reason, origin_of
from verl_e2e.core.triage.survived import SIGNS, caught, signs_after, went_on

SIGNAL_LINES = 6
_TIMEOUT = "CollectiveTimeout"
# What comes and goes: a service that did not answer once.
_PASSES = frozenset({Origin.HUB, Origin.NETWORK, Origin.TRACKER})
_ABORT = re.compile(r"SIGABRT|Fatal Python error: Aborted|DistBackendError")


class Standing(StrEnum):
    """Why a candidate stands where it stands; the value is what a person reads."""

    DRIVER = "ends the driver"
    PRIMARY = "raised where it happened"
    REPEAT = "folded by Ray: printed before by another worker"
    LOGGED = "caught and logged"
    STATED = "states what ended the run from outside"
    CUT = "cut before its exception"
    ECHO = "only reports that another process died or stopped answering"
    SURVIVED = "survived: the run went on"
    WARNING = "a warning that a run may survive"
    OVER = "a warning that the run survived"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An error and its standing."""

    error: LoggedError
    standing: Standing

    @property
    def decides(self) -> bool:
        """Whether the error may be the root cause by itself."""
        return self.standing not in (Standing.SURVIVED, Standing.WARNING, Standing.OVER)


def candidates(errors: Sequence[LoggedError], facts: LogFacts) -> tuple[Candidate, ...]:
    """All of `errors`, the root cause first.

    The driver's own exception comes first, unless it is cut or only an echo: then the errors before it do, by line.
    Warnings and what the run survived come last.
    """
    waited_out = _waited_out(errors)
    # What a library says right before or after the signal that it ended with.
    natives = [error.at.line for error in errors if error.kind == "NativeError" and not error.soft]
    ranked = [Candidate(error, _standing(error, facts, waited_out=waited_out, natives=natives)) for error in errors]
    ranked = [replace(item, standing=_until_the_end(item, ranked, facts)) for item in ranked]
    driver = next((item.error.at.line for item in ranked if item.error.driver and item.decides), None)
    return tuple(sorted(ranked, key=lambda item: _key(item, driver)))


def _until_the_end(item: Candidate, ranked: Sequence[Candidate], facts: LogFacts) -> Standing:
    """The standing in the light of an end from outside: what the run had survived until then did not end it."""
    line = max(item.error.at.line, item.error.last)
    ends = [other.error.at.line for other in ranked if other.standing is Standing.STATED]
    end = max([*ends, *([facts.line_count + 1] if facts.stopped else [])], default=0)
    raised = item.standing in (Standing.PRIMARY, Standing.REPEAT, Standing.LOGGED)
    if not raised and (item.standing is not Standing.WARNING or item.error.soft):
        return item.standing
    died = next((other.error.at.line for other in ranked if _died(other) and other.error.at.line > line), 0)
    passed = item.standing is Standing.LOGGED and not died and _is_over(item.error, facts)
    stopped = line < end and not 0 < died < end and caught(item.error, facts)
    return Standing.SURVIVED if passed or stopped else item.standing


def _explained(error: LoggedError, natives: Sequence[int]) -> bool:
    """Whether a signal is what a library ended with that said more right before or after it."""
    return error.kind == "Signal" and any(abs(line - error.at.line) <= SIGNAL_LINES for line in natives)


def _died(item: Candidate) -> bool:
    return item.standing in (Standing.ECHO, Standing.DRIVER)


def _is_over(error: LoggedError, facts: LogFacts) -> bool:
    """Whether what comes and goes is followed by any progress, or by other work of the same process."""
    signs = signs_after(error, facts)
    return signs >= SIGNS or (origin_of(error) in _PASSES and (error.over or signs > 0))


def _waited_out(errors: Sequence[LoggedError]) -> int:
    """The line where processes began to abort themselves over a collective that timed out; 0 when none did."""
    waited = min((error.at.line for error in errors if error.kind == _TIMEOUT), default=0)
    aborts = (error.at.line for error in errors if _aborts(error))
    return next((line for line in sorted(aborts) if 0 < waited < line), 0)


def _aborts(error: LoggedError) -> bool:
    return error.kind == "Signal" and _ABORT.search(error.message) is not None


def _standing(error: LoggedError, facts: LogFacts, *, waited_out: int, natives: Sequence[int]) -> Standing:
    if error.soft:
        return Standing.OVER if error.over or _is_over(error, facts) else Standing.WARNING
    # Two steps, for the line of one may arrive late from another process.
    if not error.driver and len(facts.steps) > 1 and facts.steps[-2].line > error.at.line:
        return Standing.SURVIVED
    if error.record not in (Record.RAISED, Record.PREFIXED) and not error.secondary:
        if went_on(error, facts):
            return Standing.SURVIVED
        return Standing.LOGGED if error.record is Record.ERROR else Standing.WARNING
    # A timeout is an echo of a peer's end, unless the one that waited ended itself over it: then no peer had ended.
    if waited_out and error.kind == _TIMEOUT:
        return Standing.PRIMARY
    if error.kind == "Cancelled" or (error.secondary and death_reason(error) is not None):
        return Standing.STATED
    if error.secondary or (_aborts(error) and 0 < waited_out <= error.at.line) or _explained(error, natives):
        return Standing.ECHO
    if not error.kind:
        return Standing.CUT
    if error.repeated:
        return Standing.REPEAT
    return Standing.DRIVER if error.driver else Standing.PRIMARY


_ORDER = (
    Standing.DRIVER,
    Standing.PRIMARY,
    Standing.REPEAT,
    Standing.LOGGED,
    Standing.STATED,
    Standing.CUT,
    Standing.ECHO,
    Standing.SURVIVED,
    Standing.WARNING,
    Standing.OVER,
)


def _key(candidate: Candidate, driver: int | None) -> tuple[int, bool, bool, int]:
    """Rank, then what came before the driver's end, then the driver and echoes that say what died, then the line."""
    late = driver is not None and candidate.error.at.line > driver
    first = candidate.error.driver or (candidate.standing is Standing.ECHO and origin_of(candidate.error) is not None)
    return (_ORDER.index(candidate.standing), late, not first, candidate.error.at.line)
