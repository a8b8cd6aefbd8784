"""Two runs of the same training, step by step: parity across parallel sizes, and a resumed step against its twin."""

from bot.core.case import Case
from bot.core.evidence import Criterion, Evidence, State
from bot.core.related import RELATED_FILE

_NO_TWIN = "the resumed step was compared with no uninterrupted run"
_NO_REFERENCE = "no run at trivial sizes stands beside this one"


def resumed_step(case: Case) -> Evidence:  # noqa: ARG001
    """Level 1: the resumed step equals the same step of an uninterrupted run, within tolerance."""
    return Evidence(Criterion.RESUMED_STEP, State.WAIVED, _NO_TWIN, RELATED_FILE)


def parity(case: Case) -> Evidence:  # noqa: ARG001
    """Level 2: the same training at trivial and at non-trivial sizes, when it was asked for."""
    return Evidence(Criterion.PARITY, State.WAIVED, _NO_REFERENCE, RELATED_FILE)
