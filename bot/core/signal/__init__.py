"""The learning signal of a short run: do the metrics move as training should move them?"""

from bot.core import wording
from bot.core.case import Case
from bot.core.evidence import Criterion, Evidence, State
from bot.core.record import JOB_FILE

__all__ = ["learning_signal"]


def learning_signal(case: Case) -> Evidence:
    """Level 5: passed, flat, unstable or not enough steps."""
    return Evidence(Criterion.LEARNING_SIGNAL, State.MISSING, wording.not_judged(case.job.level), JOB_FILE)
