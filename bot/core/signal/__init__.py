"""The learning signal of a short run: do the metrics move as training should move them?"""

from bot.core.signal.compare import Run
from bot.core.signal.judging import case_figure, learning_signal, signal_limitations
from bot.core.signal.report import SignalOptions, SignalOutcome, SignalReport, signal_report

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
