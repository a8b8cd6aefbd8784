"""Show the learning signal of a run folder or a bare log, compared with baselines of the user's choice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.signal import baselines_of, case_options, figure_title
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.facts import LogFacts, StepMetrics
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import Record
from verl_e2e.core.signal.compare import Run
from verl_e2e.core.signal.figure import SignalFigure, signal_figure
from verl_e2e.core.signal.report import SignalOptions, SignalReport, signal_report
from verl_e2e.core.triage.triage import triage_of_run
from verl_e2e.ports import RunFolders, UnreadableLogError


class NoSignalError(UserError):
    """A folder without a learning signal to look at, in one sentence with the fix. The user's mistake."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where metrics come from: a run folder with its record, or a bare log without one."""

    path: Path
    facts: LogFacts
    record: Record | None = None


@dataclass(frozen=True, slots=True)
class Signal:
    """The report on a run, its steps, and the figure of both with the baselines."""

    report: SignalReport
    steps: tuple[StepMetrics, ...]
    figure: SignalFigure


def source_of(folders: RunFolders, path: Path) -> Source:
    """The run folder that `path` is, or the one of level 5 that it holds."""
    found = folders.find(path)
    if len(found) > 1:
        found = tuple(folder for folder in found if _level(folders.record(folder)) is Level.LEARNING_SIGNAL)
    if len(found) != 1:
        raise NoSignalError(f"{path}: holds {len(found)} run folders of level 5; name the folder of one run")
    try:
        facts = folders.facts(found[0])
    except UnreadableLogError as error:
        raise NoSignalError(f"{found[0]}: {error}; give a folder with a whole log") from None
    if facts is None:
        raise NoSignalError(f"{found[0]}: no log in it; give the folder of a run, or a log")
    return Source(found[0], facts, folders.record(found[0]))


def _level(record: Record) -> Level | None:
    return record.job.level if record.job else None


def signal_of(
    source: Source,
    *,
    baselines: Sequence[Source] = (),
    max_cap_share: float | None = None,
) -> Signal:
    """The report on a run compared with the given baselines, else with those that its own folder names."""
    options, known = _asked(source)
    if max_cap_share is not None:
        options = replace(options, max_cap_share=max_cap_share)
    runs = tuple(map(_run, baselines)) or known
    report = signal_report(source.facts.steps, baseline=runs, options=options)
    title = figure_title(source.record) if source.record and source.record.job else source.path.name
    return Signal(report, source.facts.steps, signal_figure(f"{title}: {report.headline}", source.facts.steps, runs))


def _run(source: Source) -> Run:
    if not any(step.step > 0 for step in source.facts.steps):
        raise NoSignalError(f"{source.path}: its log shows no training step; give a run that trained")
    return Run(source.path.name, source.facts.steps)


def _asked(source: Source) -> tuple[SignalOptions, tuple[Run, ...]]:
    record = source.record
    if record is None or record.job is None:
        return SignalOptions(), ()
    case = Case(record.job, record, source.facts, triage_of_run(source.facts, learning_signal=True))
    return case_options(case), baselines_of(case)
