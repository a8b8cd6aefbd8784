"""Evidence: facts that carry a pass criterion, each with the file, line and excerpt it was read from."""

from dataclasses import dataclass
from enum import StrEnum

# The one criterion that is known by name outside of judging: a run may be good and never have entered the change.
CHANGE_EXECUTED = "change_executed"


class State(StrEnum):
    """What the evidence says about one criterion; `missing` is never a pass."""

    MET = "met"
    BROKEN = "broken"
    MISSING = "missing"
    WAIVED = "waived"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One criterion, judged: the state, one sentence, and where it was read (line 0: the file as a whole)."""

    state: State
    summary: str
    file: str = ""
    line: int = 0
    excerpt: str = ""
    # The name of the criterion; its row in `core/judge/criteria/table.py` sets it.
    criterion: str = ""
