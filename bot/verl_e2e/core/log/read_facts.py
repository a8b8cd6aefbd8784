"""What the scan has learned so far: one place that turns marked lines into facts, all of it bounded."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from verl_e2e.core.log.errors import (
    EXIT_STATUS,
    ErrorBook,
    error_of,
    failed_exit,
    folding_key,
    is_soft,
    last_words,
    settled,
    unvaried,
)
from verl_e2e.core.log.lines import FOLDED, Line
from verl_e2e.core.log.literals import EXIT_NOISE, Literal, Mark
from verl_e2e.core.log.printed import (
    STRATEGY_SIGN,
    AskedBook,
    BuildBook,
    ConfigCollector,
    PackageBook,
    lora_rank,
    refuses,
)
from verl_e2e.core.log.progress import RunBook, StepReader
from verl_e2e.core.log.traceback import LoneMessage, TracebackReader, escaped_rows, exception_of, record_above, starts
from verl_e2e.core.model.facts import (
    AdapterReport,
    CheckpointEvent,
    Excerpt,
    LogFacts,
    LoggedError,
    Misread,
    Noise,
    Number,
    Record,
    ResolvedConfig,
    Worker,
)
from verl_e2e.core.model.outcome import Stage

MAX_CONFIGS = 4
MAX_SMALL = 256
MAX_WORKERS = 2048
MAX_OPEN = 512
OPEN_WINDOW = 256
# A traceback whose exception was read waits for no more than a link to the next one.
SETTLED_WINDOW = 40
EXPIRE_EVERY = 16
# No sample that is printed is longer; one without a score hides no more than this.
SAMPLE_LINES = 200

# Lone lines below which the program says more.
MULTILINE = frozenset({"ConfigCompositionException", "MissingConfigException", "OverrideParseException"})
Another = Callable[[Line, Sequence[Literal]], None]
Before = Callable[[], Iterable[Line]]

_GLOBAL_STEP = re.compile(r"global_step_(\d{1,12})")


@dataclass(frozen=True, slots=True)
class _Opened:
    """A traceback in the making, with what the run was doing when it began."""

    reader: TracebackReader
    first: Line
    stood: Stage
    completed: bool
    record: Record


class FactBook:
    """Facts in the making. `take` is called with every line that the scan decodes, in order.

    The facts are those of one run. `another` is called with the first line of the next run and with the literals
    that are left of it; nothing else is given to this book then. `before` gives the lines above the present one, the
    nearest first. Without `configs` printed configurations are passed over.
    """

    def __init__(
        self,
        another: Another,
        reader: StepReader,
        before: Before,
        *,
        configs: bool = True,
        asked: AskedBook | None = None,
    ) -> None:
        self.run = RunBook(reader)
        self._before = before
        self.asked = asked or AskedBook()
        self._packages = PackageBook()
        self._ranks: dict[int, Number] = {}
        self._planned: Number | None = None
        self._another = another
        self._max_configs = MAX_CONFIGS if configs else 0
        self._builds = BuildBook()
        self._configs: list[ResolvedConfig] = []
        self._collector: ConfigCollector | None = None
        self._adapters: list[AdapterReport] = []
        self._totals: dict[str, int] = {}
        self._lora: Excerpt | None = None
        self._workers: dict[int, Worker] = {}
        self._noise: dict[str, Noise] = {}
        self._lost: dict[str, Excerpt] = {}
        self._refused: dict[str, Excerpt] = {}
        self._checkpoints: list[CheckpointEvent] = []
        self._errors = ErrorBook()
        self._bare_lines = ErrorBook()
        self._open: dict[str, _Opened] = {}
        self._driver_next: str | None = None
        self._misread: Misread | None = None
        self._ignored: set[str] = set()
        self._samples: dict[str, int] = {}
        self._lone_message: LoneMessage | None = None
        self._handlers: dict[Mark, Callable[[Literal, Line], None]] = {
            Mark.STAGE: self._stage,
            Mark.DRIVER: self._driver,
            Mark.STEP: lambda _, line: self.run.step(line),
            Mark.PROGRESS: lambda _, line: self.run.bar(line),
            Mark.EPOCHS: lambda _, line: self.run.epoch(line),
            Mark.FINAL: lambda _, line: self.run.final_metrics(line),
            Mark.ADAPTER: self._adapter,
            Mark.TOTAL: self._total,
            Mark.LORA: self._lora_asked,
            Mark.CONFIG: self._config,
            Mark.CHECKPOINT: self._checkpoint,
            Mark.LOST: self._lost_weight,
            Mark.REFUSED: self._refused_weight,
            Mark.VARIABLE: lambda _, line: self._take_variables(line),
            Mark.COMMAND: lambda _, line: self.asked.command(line),
            Mark.PLANNED: self._plan,
            Mark.NOISE: self._noisy,
            Mark.LONE: self._lone,
            Mark.RANK: self._rank,
            Mark.WRAPPED: self._wrapped,
            Mark.CHUNKS: self._chunks,
            Mark.BRIDGE: self._bridge,
            Mark.SIGN: lambda literal, line: self._builds.sign(literal.name, line),
            Mark.STRATEGY: self._strategy,
            Mark.RETRY: self._retry,
            Mark.BARE: self._bare,
            Mark.OPENING: self._opening,
            Mark.SAMPLE: self._sample,
        }

    @property
    def is_open(self) -> bool:
        """Whether every next line must be decoded: a traceback or a configuration is not finished."""
        traceback_or_config = bool(self._open) or self._collector is not None
        return traceback_or_config or self._lone_message is not None or self.asked.is_open

    @property
    def reads_driver(self) -> bool:
        """Whether one of the next lines of the driver may belong to something that is not finished."""
        config = self._collector is not None and not self._collector.source
        return config or "" in self._open or self._lone_message is not None or self.asked.is_open

    def take(self, line: Line, literals: Sequence[Literal]) -> None:
        """Learn from one line and the literals that it holds."""
        if self._collector is not None:
            self._collect(line)
        if self._lone_message is not None and not self._lone_message.take(
            line, plain=not _means_something(literals, line.text)
        ):
            self._end_lone_message()
        if self._only_asks(line, literals):
            return None
        if (self._open or _may_open(literals)) and self._traceback(line, literals):
            return None
        for index, literal in enumerate(literals):
            handler = self._handlers.get(literal.mark)
            if handler is None or not _applies(literal, line.text):
                continue
            if self.run.begins_another(literal, line):
                # Tracebacks and a configuration of this run end here.
                self.close_all()
                return self._another(line, literals[index:])
            handler(literal, line)
            if literal.opens:
                self.run.openings.take(literal, line)
        return None

    def echoed(self, number: int, text: str) -> None:
        """Take a line on which the driver's shell echoes variables."""
        self.asked.echoed(number, text, ended=self.run.openings.has_ended(""))

    def misread(self, line: Line) -> None:
        """Take a line with a known beginning behind something that is not understood."""
        found = self._misread or Misread(line.excerpt(), 0, 0, 0)
        header, frame = "Traceback (most recent" in line.text, '  File "' in line.text
        self._misread = replace(
            found, count=found.count + 1, headers=found.headers + header, frames=found.frames + frame
        )

    def understood(self, since: int) -> None:
        """What was not understood is by now, if it began after line `since`."""
        if self._misread is not None and self._misread.at.line > since:
            self._misread = None

    def _only_asks(self, line: Line, literals: Sequence[Literal]) -> bool:
        """Take what any line may say in addition; True for a line on which the shell echoes a variable."""
        if self.asked.is_open:
            self.asked.go_on(line)
        for literal in literals:
            if literal.mark is Mark.PACKAGE:
                self._packages.take(line)
                break
        if not literals or self._open or not literals[0].mark is literals[-1].mark is Mark.VARIABLE:
            return False
        self._take_variables(line)
        return True

    def _take_variables(self, line: Line) -> None:
        self.asked.variables(line, ended=self.run.openings.has_ended(line.label))

    def close_all(self) -> None:
        """The log has ended: whatever is open ends here."""
        for source in list(self._open):
            self._close(source)
        self._end_config()
        self._end_lone_message()

    def fatal(self) -> LoggedError | None:
        """The driver's error, the death of an engine or a collective that timed out, unless the run had completed."""
        if self.run.completed is not None:
            return None
        errors = self._errors_so_far()
        return errors.driver or errors.deadly

    def unrecoverable(self) -> Excerpt | None:
        """The adapter table that shows no parameters although LoRA was asked for."""
        empty = next((report for report in self._adapters if report.adapter == 0), None)
        if empty is None or not self._lora_wanted():
            return None
        return Excerpt(empty.line, "Adapter parameters: 0")

    def facts(
        self, line_count: int, first: Excerpt | None, last: Excerpt | None, tail: Sequence[Line] = ()
    ) -> LogFacts:
        """Everything known so far, frozen; `tail` are the last lines of the run."""
        errors = settled(self._errors_so_far().all(), tail)
        return LogFacts(
            line_count=line_count,
            stages=tuple(self.run.phases.timeline.values()),
            configs=tuple(self._configs),
            steps=tuple(self.run.steps.values()),
            progress=self.run.progress,
            epochs=self.run.epochs,
            completed_at=self.run.completed,
            adapters=tuple(self._adapters),
            workers=tuple(self._workers.values()),
            errors=errors,
            hints=self._hinted(errors, tail),
            noise=tuple(self._noise.values()),
            lost_weights=tuple(self._lost.values()),
            refused_weights=tuple(self._refused.values()),
            asked=self.asked.settings(),
            packages=self._packages.all(),
            lora_ranks=tuple(self._ranks.values()),
            planned_steps=self._planned,
            checkpoints=tuple(self._checkpoints),
            last=last,
            stood=self.run.stood,
            lora_at=self._lora,
            final_metrics=self.run.final,
            last_step=self.run.last_step,
            timeline=tuple(self.run.phases.timeline.values()),
            runs=int(bool(self.run.phases.timeline)),
            first=first,
            misread=self._misread,
            ranks=tuple(self._builds.ranks),
            wrapped=tuple(self._builds.wrapped),
            chunks=tuple(self._builds.chunks),
            bridges=self._builds.bridges,
            signs=self._builds.signs,
        )

    def _lora_wanted(self) -> bool:
        return self._lora is not None or any(lora_rank(config) > 0 for config in self._configs)

    def _stage(self, literal: Literal, line: Line) -> None:
        assert literal.stage is not None
        self.run.enter(literal.stage, line)
        self._worker(line, builds=literal.builds)

    def _opening(self, _literal: Literal, line: Line) -> None:
        self.run.marker = line.number

    # Construction

    def _total(self, literal: Literal, line: Line) -> None:
        if len(self._totals) < MAX_SMALL:
            self._totals[line.source] = _number(literal, line)

    def _adapter(self, literal: Literal, line: Line) -> None:
        self._stage(literal, line)
        if literal.name == "asked" and self._lora is None:
            self._lora = line.excerpt()
        if len(self._adapters) < MAX_SMALL:
            total = self._totals.pop(line.source, 0)
            report = AdapterReport(line.number, line.pid, total, _number(literal, line))
            if not any(_same(report, other) for other in self._adapters):
                self._adapters.append(report)

    def _lora_asked(self, literal: Literal, line: Line) -> None:
        self._stage(literal, line)
        rank = _number(literal, line)
        if len(self._ranks) < MAX_SMALL:
            self._ranks.setdefault(rank, Number(rank, line.excerpt()))
        if self._lora is None and rank > 0:
            self._lora = line.excerpt()

    def _rank(self, literal: Literal, line: Line) -> None:
        self._stage(literal, line)
        self._builds.rank(line)

    def _wrapped(self, literal: Literal, line: Line) -> None:
        self._stage(literal, line)
        self._builds.wrap(line)

    def _chunks(self, literal: Literal, line: Line) -> None:
        self._worker(line, builds=literal.builds)
        self._builds.chunk(line)

    def _bridge(self, literal: Literal, line: Line) -> None:
        # A save exports weights too.
        if self.run.stood is Stage.CHECKPOINT_SAVE:
            self.run.marker = line.number
            self._worker(line, builds=literal.builds)
        else:
            self._stage(literal, line)
        self._builds.bridge(line)

    def _strategy(self, literal: Literal, line: Line) -> None:
        found = _search(literal, line.text)
        assert found is not None  # the caller saw it match
        self._builds.sign(f"{STRATEGY_SIGN}{found[1]}", line)

    def _worker(self, line: Line, *, builds: bool) -> None:
        pid = line.pid
        if pid is None:
            return
        known = self._workers.get(pid)
        if known is None and len(self._workers) < MAX_WORKERS:
            self._workers[pid] = Worker(pid, line.actor, line.number, builds)
        elif known is not None and builds and not known.built_model:
            self._workers[pid] = Worker(pid, known.actor, known.line, built_model=True)

    def _config(self, literal: Literal, line: Line) -> None:
        self._stage(literal, line)
        if len(self._configs) < self._max_configs and self._collector is None:
            self._collector = ConfigCollector(line)
            self._end_if_done()

    def _collect(self, line: Line) -> None:
        assert self._collector is not None
        if line.source == self._collector.source:
            self._collector.add(line)
        elif line.number - self._collector.last > OPEN_WINDOW * 8:
            self._end_config()
            return
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._collector is not None and self._collector.done:
            self._end_config()

    def _end_config(self) -> None:
        if self._collector is not None:
            self._configs.append(self._collector.result())
            self._collector = None

    # Checkpoints, weights, noise

    def _checkpoint(self, literal: Literal, line: Line) -> None:
        assert literal.stage is not None
        found = _GLOBAL_STEP.search(line.text)
        event = CheckpointEvent(literal.name, int(found[1]) if found else None, line.excerpt())
        if literal.name != "scratch":
            self.run.enter(literal.stage, line)
        if len(self._checkpoints) < MAX_SMALL and not any(_same_event(event, other) for other in self._checkpoints):
            self._checkpoints.append(event)

    def _lost_weight(self, _literal: Literal, line: Line) -> None:
        if len(self._lost) < MAX_SMALL:
            self._lost.setdefault(line.text, line.excerpt())

    def _refused_weight(self, _literal: Literal, line: Line) -> None:
        if len(self._refused) < MAX_SMALL and line.text not in self._refused and refuses(line, self.run.stood):
            self._refused[line.text] = line.excerpt()

    def _plan(self, literal: Literal, line: Line) -> None:
        self._planned = Number(_number(literal, line), line.excerpt())

    def _noisy(self, literal: Literal, line: Line) -> None:
        if literal.name == EXIT_NOISE and len(self._ignored) < MAX_SMALL:
            self._ignored.add(line.source)
        known = self._noise.get(literal.name)
        excerpt = line.excerpt() if known is None else known.at
        self._noise[literal.name] = Noise(literal.name, excerpt, known.count + 1 if known else 1)

    # Errors

    def _driver(self, _literal: Literal, line: Line) -> None:
        self._driver_next = line.label
        self.asked.listed(line)
        self.run.openings.end(line.label)

    def _retry(self, _literal: Literal, line: Line) -> None:
        opened = self._open.get(line.source)
        if opened is not None and opened.reader.settled:
            self._close(line.source)
        for book in (self._errors, self._bare_lines):
            book.caught(line)

    def _sample(self, literal: Literal, line: Line) -> None:
        self._samples.pop(line.source, None)
        if literal.name and len(self._samples) < MAX_SMALL:
            self._samples[line.source] = line.number

    def _lone(self, literal: Literal, line: Line) -> None:
        if line.number - self._samples.get(line.source, -SAMPLE_LINES) < SAMPLE_LINES:
            return  # a model wrote it
        if not literal.soft and line.driver:
            self.run.openings.fail(line.label)
        completed = self.run.completed is not None
        self._errors.add_line(literal.name, line, self._where(), completed=completed, soft=literal.soft)
        if literal.name in MULTILINE:
            self._end_lone_message()
            self._lone_message = LoneMessage(line)

    def _bare(self, _literal: Literal, line: Line) -> None:
        found = exception_of(line.text)
        if found is not None and self._lone_message is None:
            kind, message = found
            completed = self.run.completed is not None
            self._bare_lines.add_line(kind, line, self._where(), message=message, completed=completed, soft=True)
            self._lone_message = LoneMessage(line, message)

    def _end_lone_message(self) -> None:
        if self._lone_message is not None:
            for book in (self._errors, self._bare_lines):
                book.explain(self._lone_message.at, str(self._lone_message.text))
            self._lone_message = None

    def _where(self) -> Stage:
        return self.run.stood or Stage.ENVIRONMENT

    def _traceback(self, line: Line, literals: Sequence[Literal]) -> bool:
        """Give the line to the open traceback of its source, or open one; True when it is part of one."""
        if line.number % EXPIRE_EVERY == 0:
            self._expire(line)
        opened = self._open.get(line.source)
        if opened is not None:
            taken = opened.reader.take(line, plain=not _means_something(literals, line.text))
            if opened.reader.closed:
                self._close(line.source)
            if taken:
                return True
        elif self._torn(line):
            return True
        if not _may_open(literals):
            return False
        if rows := escaped_rows(line.text):
            self._printed(line, rows)
            return True
        if not starts(line.text) or len(self._open) >= MAX_OPEN:
            return False
        reader = TracebackReader()
        reader.take(line)
        record = record_above(line, self._before())
        self._open[line.source] = _Opened(reader, line, self._where(), self.run.completed is not None, record)
        return True

    def _printed(self, line: Line, rows: Sequence[str]) -> None:
        """Take a traceback that a program printed as one line: it had caught the exception."""
        reader = TracebackReader()
        for row in rows:
            reader.take(replace(line, text=row))
        completed = self.run.completed is not None
        self._record(self._errors, _Opened(reader, line, self._where(), completed, Record.ERROR))

    def _torn(self, line: Line) -> bool:
        """Give the line to a traceback that another process of the same kind began.

        Ray prints a line that several workers have in common once, under the first of them: the lines of one
        traceback stand under several processes then.
        """
        if not self._open:
            return False
        folded = line.source.endswith(FOLDED)
        waiting = [
            (source, opened)
            for source, opened in self._open.items()
            if opened.reader.in_frames or (folded and opened.reader.in_message)
        ]
        if not waiting or not line.actor:
            return False
        # What was folded goes on with what was folded, and else with the first traceback that it was folded out of.
        for _, opened in sorted(waiting, key=lambda item: folded and not item[0].endswith(FOLDED)):
            same = (opened.first.label, opened.first.actor) == (line.label, line.actor)
            if same and opened.reader.wants(line.text, folded=folded):
                return opened.reader.take(line)
        return False

    def _expire(self, line: Line) -> None:
        for source, opened in list(self._open.items()):
            window = SETTLED_WINDOW if opened.reader.settled else OPEN_WINDOW
            if line.number - opened.reader.touched > window:
                self._close(source)

    def _close(self, source: str) -> None:
        opened = self._open.pop(source)
        if source in self._ignored:
            # Python prints the traceback of an exception that it ignores right below the line that says so.
            self._ignored.discard(source)
            return
        before = self._errors.driver
        self._record(self._errors, opened)
        if opened.first.driver:
            self._driver_next = None
        if self._errors.driver is not before and opened.record is Record.RAISED:
            self.run.openings.end(opened.first.label)

    def _record(self, errors: ErrorBook, opened: "_Opened") -> None:
        chain = opened.reader.snapshot()
        driver = opened.first.driver and self._driver_next == opened.first.label
        error = error_of(chain, opened.first, opened.stood, completed=opened.completed, driver=driver)
        if error is not None:
            errors.add(replace(error, record=Record.RAISED if error.driver else opened.record))

    def _hinted(self, errors: Sequence[LoggedError], tail: Sequence[Line]) -> tuple[LoggedError, ...]:
        """The bare last lines of exceptions, and what the last lines say of the end of a run that did not complete."""
        known = {folding_key(error) for error in errors}
        hints = self._bare_lines.copy()
        if self.run.completed is None:
            lone = (f"{error.full_message}\n{error.kind}: {error.full_message}" for error in (*errors, *hints.all()))
            printed = {unvaried(row) for text in lone for row in text.split("\n")}
            lines = {error.at.line for error in errors}
            for kind, line in last_words(tail):
                if line.number not in lines and unvaried(line.text) not in printed:
                    hints.add_line(kind, line, self._where(), soft=is_soft(kind))
        elif (status := failed_exit(tail, self.run.completed.line)) is not None:
            hints.add_line(EXIT_STATUS, status, self._where(), completed=True)
        return settled([hint for hint in hints.all() if folding_key(hint) not in known], tail)

    def _errors_so_far(self) -> ErrorBook:
        """The errors read, with those whose traceback may still go on: a run that hangs prints no more lines."""
        settled = {source: opened for source, opened in self._open.items() if opened.reader.settled}
        if not settled.keys() - self._ignored:
            return self._errors
        errors = self._errors.copy()
        for source, opened in settled.items():
            if source not in self._ignored:
                self._record(errors, opened)
        return errors


_SEARCHED = 8192


@lru_cache(maxsize=1024)
def _shape(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _search(literal: Literal, text: str) -> re.Match[str] | None:
    """Search a literal's shape; in a long line only around the literal, for some shapes take quadratic time."""
    if len(text) <= _SEARCHED:
        return _shape(literal.shape).search(text)
    at = max(text.find(literal.text), 0)
    return _shape(literal.shape).search(text, max(at - _SEARCHED // 2, 0), at + _SEARCHED // 2)


def _applies(literal: Literal, text: str) -> bool:
    if literal.shape:
        return _search(literal, text) is not None
    return literal.text in text


def _may_open(literals: Sequence[Literal]) -> bool:
    """Whether a line with these literals may open a traceback."""
    return any(literal.mark is Mark.TRACEBACK for literal in literals)


def _means_something(literals: Sequence[Literal], text: str) -> bool:
    return any(_applies(literal, text) for literal in literals)


def _number(literal: Literal, line: Line) -> int:
    match = _search(literal, line.text)
    assert match is not None  # the caller saw it match
    return int(match[1].replace(",", "") or "0")


def _same(report: AdapterReport, other: AdapterReport) -> bool:
    return (report.pid, report.total, report.adapter) == (other.pid, other.total, other.adapter)


def _same_event(event: CheckpointEvent, other: CheckpointEvent) -> bool:
    return (event.action, event.step, event.at.text) == (other.action, other.step, other.at.text)
