"""The learning signal of a short run: do the metrics move as training should move them?"""

from verl_e2e.core.judge.criteria.signal import case_figure, learning_signal, signal_limitations
from verl_e2e.core.signal.compare import Run
from verl_e2e.core.signal.report import SignalOptions, SignalOutcome, SignalReport, signal_report

__all__ = [
    "Run",
    "SignalOptions",
    "SignalOutcome",
    "SignalReport",
    "case_figure",
    "learning_signal",
    "signal_limitations",
    "signal_report",
]
