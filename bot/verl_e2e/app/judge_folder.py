"""What people ask of run folders: a judgement, a comparison, the learning signal, the maps of what ran."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from verl_e2e.core.compare.bands import (
    ENOUGH,
    HealthyRun,
    NotHealthyError,
    band_from,
    healthy_of,
    healthy_run,
    pair_of,
    tolerances_of,
    with_healthy,
    with_pair,
)
from verl_e2e.core.compare.jobs import begins_equal, differing_values, job_differences
from verl_e2e.core.compare.performance import performance_bands
from verl_e2e.core.compare.steps import Report, compare_steps
from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.metrics import baselines_of, case_options, figure_title
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import Verdict, verdict_json
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.execution import ExecutionMap, ExecutionMaps, entered_files, merged_maps
from verl_e2e.core.model.facts import LogFacts, StepMetrics
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import (
    CARD_MARKDOWN_FILE,
    CARD_TEXT_FILE,
    EVIDENCE_FILE,
    VERDICT_FILE,
    CheckNotes,
    Record,
    Started,
    read_data,
)
from verl_e2e.core.model.related import Bands
from verl_e2e.core.report.comparison_text import (
    PARITY_JSON_FILE,
    PARITY_MARKDOWN_FILE,
    render_report_markdown,
    report_json,
)
from verl_e2e.core.report.run_card import Card, NotRun, evidence_json, render_markdown, render_text
from verl_e2e.core.signal.report import (
    BaselineRun,
    SignalFigure,
    SignalOptions,
    SignalReport,
    signal_figure,
    signal_report,
)
from verl_e2e.core.triage.triage import triage_of_run
from verl_e2e.pages.report import LOG_PAGE_FILE, REPORT_FILE, linked_lines, render_log_page, render_run_report
from verl_e2e.ports import RunFolders, UnreadableLogError


def judge_folders(folders: RunFolders, folder: Path) -> tuple[Verdict, ...]:
    """The verdict of every run folder that `folder` is or holds."""
    return tuple(judge_run(folders, path)[0] for path in folders.find(folder))


def judge_run(folders: RunFolders, path: Path, known: LogFacts | None = None) -> tuple[Verdict, LogFacts | None]:
    """One run folder and what its log says; a damaged log is missing evidence and hides no other job of a check.

    `known` are the facts of an earlier look at the same log, which is then not read again.
    """
    record = folders.record(path)
    try:
        facts = folders.facts(path) if known is None else known
    except UnreadableLogError as error:
        return judge(record.model_copy(update={"missing": (*record.missing, str(error))}), None), None
    return judge(record, facts), facts


def write_judgement(folders: RunFolders, folder: Path, verdicts: tuple[Verdict, ...]) -> None:
    """Write verdict, evidence, card and report of each run folder next to its log."""
    for path, verdict in zip(folders.find(folder), verdicts, strict=True):
        write_verdict(folders, path, verdict, folders.record(path))


def write_verdict(folders: RunFolders, path: Path, verdict: Verdict, record: Record) -> None:
    """Write the same of one run folder, whose record was read already."""
    card, marked = Card((verdict,)), linked_lines(verdict, record.log)
    folders.write(
        path,
        {
            EVIDENCE_FILE: evidence_json(verdict.evidence),
            VERDICT_FILE: verdict_json(verdict),
            CARD_TEXT_FILE: render_text(card),
            CARD_MARKDOWN_FILE: render_markdown(card),
            REPORT_FILE: render_run_report(verdict, record),
            LOG_PAGE_FILE: "".join(render_log_page(verdict.job_id, folders.lines(path), marked)),
        },
    )
    if verdict.reports:
        markdown, document = render_report_markdown(verdict.reports), report_json(verdict.reports)
        folders.write(path, {PARITY_MARKDOWN_FILE: markdown, PARITY_JSON_FILE: document})
    if verdict.figure is not None:
        folders.draw(path, verdict.figure)


def make_card(
    verdicts: tuple[Verdict, ...],
    not_run: tuple[NotRun, ...] = (),
    notes: CheckNotes = CheckNotes(),
) -> Card:
    """One card of all verdicts, in level order; `notes` are those of a whole check."""
    in_order = tuple(sorted(verdicts, key=lambda verdict: verdict.job_id))
    trainer = CONSUMERS[notes.consumer].title
    return Card(in_order, not_run, notes.notes, contract=notes.contract, execution=notes.execution, trainer=trainer)


def card_of(folders: RunFolders, folder: Path, verdicts: tuple[Verdict, ...] | None = None) -> Card:
    """The card of a run folder or a `check` folder; a planned job without a run folder keeps it from a Pass.

    `verdicts` are those of the folder, where they are known already: a log is large and need not be read twice.
    """
    verdicts = judge_folders(folders, folder) if verdicts is None else verdicts
    ran = {verdict.job_id for verdict in verdicts}
    missing = [(name, level) for name, level in folders.planned(folder).items() if name not in ran]
    notes = folders.notes(folder)
    reasons = {name: notes.not_run.get(name, "it has no run folder") for name, _ in missing}
    not_run = tuple(
        NotRun(name, coverage(name, level), reasons[name], name in notes.uncoverable) for name, level in missing
    )
    return make_card(verdicts, not_run, notes)


def coverage(job_id: str, level: Level) -> str:
    """What a job of this id covers, as a card says it."""
    return f"Level {int(level)}: {level.title} ({job_id.partition('-')[2]})"


class NotComparableError(UserError):
    """A folder that cannot be compared, in one sentence. The user's mistake."""


def compare_folders(folders: RunFolders, run: Path, reference: Path) -> Report:
    """The steps of two run folders side by side; what else differs between their jobs is a note."""
    job, steps, bands = _trained(folders, run)
    other, other_steps, _ = _trained(folders, reference)
    equal_start = begins_equal(job) and begins_equal(other)
    found = compare_steps(steps, other_steps, tolerances_of(bands, job, other_steps), equal_start=equal_start)
    return Report(
        f"{job.id} ({run.name}) compared with {other.id} ({reference.name})", found, job_differences(job, other)
    )


def told_apart(folders: RunFolders, run: Path, other: Path) -> tuple[str, ...]:
    """A row for each value by which the verdicts, jobs and environments of two run folders differ."""
    return tuple(differing_values(*(_described(folders, _one(folders, path)) for path in (run, other))))


def _described(folders: RunFolders, folder: Path) -> dict[str, object]:
    verdict, record = judge_run(folders, folder)[0], folders.record(folder)
    kept = {"repositories", "python", "packages", "gpus", "driver", "container", "isolation", "kernel_caches"}
    return {
        "verdict": {"result": verdict.result, "stage": verdict.stage, "sentence": verdict.sentence},
        "job": record.job.model_dump(mode="json") if record.job else {},
        "environment": record.environment.model_dump(mode="json", include=kept) if record.environment else {},
    }


def _trained(folders: RunFolders, path: Path) -> tuple[Job, tuple[StepMetrics, ...], Bands | None]:
    folder = _one(folders, path)
    record = folders.record(folder)
    if record.job is None:
        raise NotComparableError(f"{folder}: {'; '.join(record.missing)}; give the folder of a run")
    try:
        facts = folders.facts(folder)
    except UnreadableLogError as error:
        raise NotComparableError(f"{folder}: {error}; give a folder with a whole log") from None
    steps = tuple(step for step in facts.steps if step.step > 0) if facts else ()
    if not steps:
        raise NotComparableError(f"{folder}: its log shows no training step; give a run that trained")
    return record.job, steps, record.bands


def _one(folders: RunFolders, path: Path) -> Path:
    found = folders.find(path)
    if len(found) != 1:
        raise NotComparableError(f"{path}: holds {len(found)} run folders; name one of them")
    return found[0]


def add_healthy(folders: RunFolders, bands: Bands, paths: tuple[Path, ...]) -> Bands:
    """The bands with every run below the folders; all must be judged Pass, or none is taken."""
    for path in paths:
        for folder in folders.find(path):
            run = _healthy(folders, folder)
            bands = with_healthy(bands, run.job, healthy_of(run))
    return bands


def add_pair(folders: RunFolders, bands: Bands, item: Path, other: Path) -> Bands:
    """The bands with two runs of the same training as a measure of noise."""
    first, second = (_healthy(folders, _one(folders, path)) for path in (item, other))
    return with_pair(bands, first.job, pair_of(first, second))


def _healthy(folders: RunFolders, folder: Path) -> HealthyRun:
    """The run, judged afresh."""
    record = folders.record(folder)
    try:
        facts = folders.facts(folder)
    except UnreadableLogError as error:
        raise NotHealthyError(f"{folder}: {error}; a band takes only whole runs") from None
    verdict = judge(record, facts)
    return healthy_run(str(folder), record, facts, verdict.result, verdict.cause)


def described(bands: Bands) -> tuple[str, ...]:
    """One sentence for each probe: how much was measured, and what follows from it; its time and memory below."""
    rows = []
    for digest, probe in sorted(bands.probes.items()):
        band, missing = band_from(probe), ENOUGH - len(probe.healthy)
        text = f"correlation below {band.bound:.5f} fails" if band else f"{missing} more make a band"
        counts = f"{len(probe.healthy)} healthy run(s), {len(probe.pairs)} pair(s)"
        rows.append(f"{digest[:12]} ({probe.about}): {counts}; {text}")
        rows += [f"  {row}" for row in performance_bands(probe)]
    return tuple(rows) or ("nothing is measured yet: the fixed bounds and the stated tolerances hold",)


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
        found = tuple(
            folder
            for folder in found
            if (job := folders.record(folder).job) is not None and job.level is Level.LEARNING_SIGNAL
        )
    if len(found) != 1:
        raise NoSignalError(f"{path}: holds {len(found)} run folders of level 5; name the folder of one run")
    try:
        facts = folders.facts(found[0])
    except UnreadableLogError as error:
        raise NoSignalError(f"{found[0]}: {error}; give a folder with a whole log") from None
    if facts is None:
        raise NoSignalError(f"{found[0]}: no log in it; give the folder of a run, or a log")
    return Source(found[0], facts, folders.record(found[0]))


def signal_of(source: Source, *, baselines: Sequence[Source] = (), max_cap_share: float | None = None) -> Signal:
    """The report on a run compared with the given baselines, else with those that its own folder names."""
    record, options, title = source.record, SignalOptions(), source.path.name
    known: tuple[BaselineRun, ...] = ()
    if record is not None and record.job is not None:
        case = Case(record.job, record, source.facts, triage_of_run(source.facts, learning_signal=True))
        options, known, title = case_options(case), baselines_of(case), figure_title(record)
    if max_cap_share is not None:
        options = replace(options, max_cap_share=max_cap_share)
    for baseline in baselines:
        if not any(step.step > 0 for step in baseline.facts.steps):
            raise NoSignalError(f"{baseline.path}: its log shows no training step; give a run that trained")
    runs = tuple(BaselineRun(baseline.path.name, baseline.facts.steps) for baseline in baselines) or known
    report = signal_report(source.facts.steps, baseline=runs, options=options)
    return Signal(report, source.facts.steps, signal_figure(f"{title}: {report.headline}", source.facts.steps, runs))


# What a run must show for its record to say that it did not enter a function.
_WHOLE = (Criterion.LOCAL_IMPORT, Criterion.RESOLVED_CONFIG, Criterion.STEPS_COMPLETED, Criterion.EXIT_ZERO)


class NotMappableError(UserError):
    """A folder that gives no map, in one sentence. The user's mistake."""


def add_maps(folders: RunFolders, maps: ExecutionMaps, paths: Iterable[Path]) -> ExecutionMaps:
    """The maps with that of every run below the folders; a job that has one gets the new one."""
    made = [_map_of(folders, folder) for path in paths for folder in folders.find(path)]
    jobs = [found.job for found in made]
    twice = sorted({job for job in jobs if jobs.count(job) > 1})
    if twice:
        raise NotMappableError(f"{twice[0]} is in several of the folders; name one run of each job")
    return merged_maps(maps, ExecutionMaps(maps=tuple(made)))


def described_maps(maps: ExecutionMaps) -> tuple[str, ...]:
    """One sentence for each map."""
    rows = (
        f"{found.job}: {found.count(of_bridge=True)} functions of Bridge and {found.count(of_bridge=False)} of "
        f"Megatron-LM, on {found.model}, Bridge {found.bridge[:12]}, verl {found.verl[:12]}, {found.measured}"
        for found in maps.maps
    )
    return tuple(rows) or ("no job is measured yet: what a job enters is known by reading the sources alone",)


def _map_of(folders: RunFolders, folder: Path) -> ExecutionMap:
    """The map of one run folder, judged again: of a run that can say what it does not enter."""
    record = folders.record(folder)
    verdict, _ = judge_run(folders, folder)
    job, executed = record.job, record.executed
    if job is None or executed is None:
        raise NotMappableError(f"{folder}: it holds no record of what ran; run the job again with this version")
    problem = executed.problem or next(iter(executed.cut), "")
    # What keeps a run from being whole.
    states = {item.criterion: item for item in verdict.evidence}
    problem = problem or next((states[name].summary for name in _WHOLE if states[name].state is not State.MET), "")
    if problem:
        raise NotMappableError(f"{folder}: {problem}; a map takes only whole runs")
    files = entered_files(executed)
    if not files:
        raise NotMappableError(f"{folder}: no function of the trees under test ran; give a run that trained")
    trees = record.environment.repositories if record.environment else ()
    return ExecutionMap(
        job=job.id,
        variant=f"{int(job.level)}-{job.variant}",
        settings=job.settings,
        model=job.checkpoint.model_id,
        bridge=job.bridge.commit,
        verl=job.verl.commit,
        megatron_lm=next((tree.commit for tree in trees if tree.name == "megatron_lm"), ""),
        measured=_day(record, folder),
        files=files,
    )


def _day(record: Record, folder: Path) -> str:
    """The day on which the run began."""
    started = [read_data(event, Started) for event in record.events if event.kind == "started"]
    seconds = started[-1].unix_s if started and started[-1] is not None else None
    try:
        if seconds is not None:
            return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        pass
    raise NotMappableError(f"{folder}: the start of the run has no date; give the folder of a run of this version")
