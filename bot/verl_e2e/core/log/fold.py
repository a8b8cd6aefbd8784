"""The fold over a log: each marked line gives typed facts, kept by kind and key, and moves its run on.

`KINDS` says how facts of each kind are kept, within a run and where the runs of a log are joined; all of it is
bounded. A `LoggedRun` is read by `take`, and its facts are made when they are asked for. A log may hold several runs.
"""

import re
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import lru_cache
from itertools import islice
from typing import Any

from verl_e2e.core.consumer.consumer import Literal, LogMark
from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.consumer.verl_log import ADAPTER_LINE
from verl_e2e.core.log.errors import (
    EXIT_STATUS,
    as_caught,
    error_of,
    failed_exit,
    fold,
    folding_key,
    is_deadly,
    is_soft,
    last_words,
    lone_error,
    settled,
    unvaried,
    was_caught,
)
from verl_e2e.core.log.lines import FOLDED, Line
from verl_e2e.core.log.literals import EXIT_NOISE, STRATEGY_SIGN
from verl_e2e.core.log.printed import (
    Asked,
    ConfigCollector,
    lora_rank,
    package_paths,
    packed_metrics,
    refuses,
)
from verl_e2e.core.log.traceback import LoneMessage, TracebackReader, escaped_rows, exception_of, record_above, starts
from verl_e2e.core.model.facts import (
    AdapterReport,
    BridgeUse,
    CheckpointEvent,
    Excerpt,
    LogFacts,
    LoggedError,
    LoggedProcess,
    Misread,
    ModelChunks,
    ModelRank,
    Noise,
    ProgressBar,
    RunFacts,
    Sign,
    StageMark,
    StatedNumber,
    StepMetrics,
    TracebackRecord,
    WrappedModel,
)
from verl_e2e.core.model.outcome import Stage

MAX_CONFIGS = 4
MAX_SMALL = 256
MAX_WORKERS = 2048
MAX_BUILDS = 512
MAX_STEPS = 20_000
MAX_RUNS = 8
MAX_EARLIER = 64
# Of a run that another one followed.
MAX_STEPS_KEPT = 1000
# Reading a printed configuration costs more than all other lines of a run: it is read for so many runs of a log.
MAX_CONFIG_RUNS = 16
MAX_LABELS = 512
MAX_OPEN = 512
OPEN_WINDOW = 256
# A traceback whose exception was read waits for no more than a link to the next one.
SETTLED_WINDOW = 40
EXPIRE_EVERY = 16
# No sample that is printed is longer; one without a score hides no more than this.
SAMPLE_LINES = 200
_MAX_NAMES = 64
_SEARCHED = 8192

# Lone lines below which the program says more.
MULTILINE = frozenset({"ConfigCompositionException", "MissingConfigException", "OverrideParseException"})
_GLOBAL_STEP = re.compile(r"global_step_(\d{1,12})")
# The forms of the consumer that prints a literal.
_FORMS = {literal: consumer.log for consumer in CONSUMERS.values() for literal in consumer.log.literals}


# How many facts of a kind are kept, by the name of the field of `LogFacts`.
KINDS: Mapping[str, int] = {
    "stages": MAX_SMALL,
    "configs": MAX_CONFIGS,
    "adapters": MAX_SMALL,
    "workers": MAX_WORKERS,
    "errors": 200,
    "hints": 200,
    "noise": MAX_SMALL,
    "lost_weights": MAX_SMALL,
    "refused_weights": MAX_SMALL,
    "packages": 64,
    "lora_ranks": MAX_SMALL,
    "checkpoints": MAX_SMALL,
    **dict.fromkeys(("ranks", "wrapped", "chunks", "bridges"), MAX_BUILDS),
    "signs": MAX_SMALL,
}


class KeptFacts:
    """Facts by kind and key, in the order of their first lines; bounded. Of equal ones the first, errors folded."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[Hashable, Any]] = {kind: {} for kind in KINDS}

    def add(self, kind: str, key: Hashable, fact: Any) -> Any:
        """Keep a fact, and return what is kept under its key now."""
        rows = self.rows[kind]
        known = rows.get(key)
        if known is not None and isinstance(fact, LoggedError):
            rows[key] = fold(known, fact)
        elif known is not None:
            rows[key] = replace(known, count=known.count + fact.count) if isinstance(fact, Noise | Sign) else known
        elif len(rows) < KINDS[kind]:
            rows[key] = fact
        elif isinstance(fact, LoggedError) and (fact.driver or is_deadly(fact)):
            # What ends the run is kept, whatever came before it.
            rows.popitem()
            rows[key] = fact
        return rows.get(key, fact)

    def join(self, later: "KeptFacts") -> None:
        """Add the facts of a later run."""
        for kind, rows in later.rows.items():
            for key, fact in rows.items():
                self.add(kind, key, fact)

    def copy(self) -> "KeptFacts":
        """The same facts, to be added to."""
        other = KeptFacts()
        other.rows = {kind: dict(rows) for kind, rows in self.rows.items()}
        return other

    def add_error(self, error: LoggedError, kind: str = "errors") -> LoggedError:
        """Keep an error; one that is known is counted."""
        kept: LoggedError = self.add(kind, folding_key(error), error)
        return kept

    def change_error(
        self, is_meant: Callable[[LoggedError], bool], change: Callable[[LoggedError], LoggedError]
    ) -> None:
        """Change the latest error and the latest hint that are meant."""
        for rows in (self.rows["errors"], self.rows["hints"]):
            key = next((key for key, error in reversed(rows.items()) if is_meant(error)), None)
            if key is not None:
                rows[key] = change(rows[key])

    def facts(self) -> dict[str, Any]:
        """The fields of `LogFacts`."""
        fields: dict[str, Any] = {kind: tuple(rows.values()) for kind, rows in self.rows.items()}
        for kind in ("errors", "hints"):
            fields[kind] = tuple(sorted(fields[kind], key=lambda error: error.at.line))
        return fields


FIRST = frozenset({Stage.ENVIRONMENT, Stage.RAY})
SET_UP = frozenset(stage for stage in Stage if stage.order <= Stage.OPTIMIZER.order)
STEPPING = frozenset({Stage.TRAIN_STEP, Stage.CHECKPOINT_SAVE, Stage.LEARNING_SIGNAL})


class Move(Enum):
    """What a milestone does: the run goes on to its stage, stays where it is, or a new run begins."""

    ON = auto()
    STAY = auto()
    NEW_RUN = auto()


def move(stood: Stage | None, to: Stage, *, driver: bool) -> Move:
    """What a milestone of stage `to` does to a run that is in `stood`; `driver` when no worker printed it.

    The set-up has no strict order (critic before actor, workers side by side), so its milestones move a run freely
    until the first weight sync. After that only the driver can begin a new run with one, for a worker that starts late
    prints them again. After the end nothing moves.
    """
    if stood is Stage.SHUTDOWN:
        return Move.NEW_RUN if to in FIRST else Move.STAY
    if to in SET_UP and (stood in STEPPING or stood in (Stage.EXPORT_WEIGHT_SYNC, Stage.CHECKPOINT_LOAD)):
        return Move.NEW_RUN if driver and to in FIRST else Move.STAY
    # A weight sync inside a step is part of the step.
    return Move.STAY if stood is Stage.TRAIN_STEP and to is Stage.EXPORT_WEIGHT_SYNC else Move.ON


@dataclass(slots=True)
class _Program:
    """What one of the programs of a run printed, as a launcher labels them; there is one where nothing is labelled."""

    ended: bool = False
    failed: bool = False
    seen: dict[str, int | None] = field(default_factory=dict)
    latest: str = ""


class Openings:
    """The opening lines of the latest run.

    A run prints each of them once: the driver its command, checks and Ray start, the task runner its configuration.
    So a second one of the same kind begins another run, and so does any of them after the driver has ended. Programs
    of several hosts print them side by side: the end of one says nothing of another.
    """

    def __init__(self) -> None:
        self._programs: dict[str, _Program] = {}

    def program(self, label: str) -> _Program:
        """The program with this label."""
        if label not in self._programs and len(self._programs) >= MAX_LABELS:
            label = ""
        return self._programs.setdefault(label, _Program())

    def has_ended(self, label: str) -> bool:
        """Whether the driver with this label has ended; of a label that is new, whether those of all others have."""
        known = self._programs.get(label)
        others = self._programs.values()
        return known.ended if known is not None else bool(others) and all(program.ended for program in others)

    def goes_on(self, label: str) -> bool:
        """Whether the label is that of one of several programs, and one that has not ended."""
        return len(self._programs) > 1 and label in self._programs and not self._programs[label].ended

    def begins(self, literal: Literal, line: Line) -> bool:
        """Whether an opening line begins a run after this one."""
        if not _counts(literal, line):
            return False
        ended, own = self.has_ended(line.label), self.program(line.label)
        if literal.text in own.seen:
            return ended or own.failed or own.latest != literal.text or own.seen[literal.text] != line.pid
        if ended:
            return self.is_of_another(line)
        # The shell echoes the command before the command prints anything.
        return literal.mark is LogMark.OPENING and bool(own.seen)

    def take(self, literal: Literal, line: Line) -> None:
        """Remember an opening line of the latest run, with the process that printed it (None: the driver)."""
        if _counts(literal, line):
            own = self.program(line.label)
            own.seen.setdefault(literal.text, line.pid)
            own.latest = literal.text

    def is_of_another(self, line: Line) -> bool:
        """What a worker prints may arrive after the end of its driver; another task runner is of another run."""
        known = [pid for pid in self.program(line.label).seen.values() if pid is not None]
        return line.driver or (bool(known) and line.pid not in known)


def _counts(literal: Literal, line: Line) -> bool:
    """Workers connect to Ray too, and Ray repeats what several processes print."""
    connects = literal.mark is LogMark.STAGE and literal.stage is Stage.RAY
    return not (connects and not line.driver) and not line.source.endswith(FOLDED)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A traceback in the making, with what the run was doing when it began."""

    reader: TracebackReader
    first: Line
    stood: Stage
    completed: bool
    record: TracebackRecord


class LoggedRun:
    """One run in the making. `take` is called with every line that the scan decodes, in order.

    `begins` is its first line where another run was before it, and `marker` the line of its last sign of progress.
    Steps beyond `MAX_STEPS` only move `last_step`. Without `configs` printed configurations are passed over. `before`
    gives the lines above the present one, the nearest first.
    """

    def __init__(
        self,
        names: dict[tuple[str, ...], tuple[str, ...]],
        before: Callable[[], Iterable[Line]],
        begins: Line | None = None,
        asked: Asked | None = None,
        *,
        configs: bool = True,
    ) -> None:
        self.begins = begins
        self.asked = asked or Asked()
        self.kept = KeptFacts()
        self.openings = Openings()
        self.stood: Stage | None = None
        self.marker = 0
        self.completed: Excerpt | None = None
        self.progress: ProgressBar | None = None
        self.steps: dict[int, StepMetrics] = {}
        self.last_step: StepMetrics | None = None
        self.misread: Misread | None = None
        self.lora: Excerpt | None = None
        self._final: Excerpt | None = None
        self._epochs: ProgressBar | None = None
        self._planned: StatedNumber | None = None
        self._names = names
        self._before = before
        self._max_configs = MAX_CONFIGS if configs else 0
        self._collector: ConfigCollector | None = None
        # The process whose steps and bars count; trainer and rollouter of one run may count apart.
        self._trainer: dict[LogMark, tuple[str, str]] = {}
        self._totals: dict[str, int] = {}
        self._open: dict[str, _Opened] = {}
        self._driver_next: str | None = None
        self._ignored: set[str] = set()
        self._samples: dict[str, int] = {}
        self._lone_message: LoneMessage | None = None

    @property
    def is_open(self) -> bool:
        """Whether every next line must be decoded: a traceback or a configuration is not finished."""
        traceback_or_config = bool(self._open) or self._collector is not None
        return traceback_or_config or self._lone_message is not None or self.asked.is_open

    def take(self, line: Line, literals: Sequence[Literal]) -> Sequence[Literal]:
        """Learn from one line and the literals that it holds; returns those with which another run begins."""
        if self.is_open:
            self._go_on(line, literals)
        if not literals and not self._open:
            return ()
        marks = [literal.mark for literal in literals]
        if LogMark.PACKAGE in marks:
            for path in package_paths(line):
                self.kept.add("packages", (path.package, path.root, path.actor, path.traced), path)
        if not self._open and marks == [LogMark.VARIABLE] * len(marks):
            if line.driver:
                self.echoed(line.number, line.text, line.label)
            return ()
        opens = LogMark.TRACEBACK in marks
        if (opens or self._open) and self._traceback(line, literals, opens=opens):
            return ()
        for index, literal in enumerate(literals):
            if literal.mark in (LogMark.TRACEBACK, LogMark.PACKAGE):
                continue
            found = search(literal, line.text)
            if found is None:
                continue
            if self._begins_another(literal, line, found):
                # Tracebacks and a configuration of this run end here.
                self.close_all()
                return literals[index:]
            self._learn(literal, line, found)
        return ()

    def first_line(self) -> int:
        """The number of its first line."""
        return 1 if self.begins is None else self.begins.number

    def echoed(self, number: int, text: str, label: str = "") -> None:
        """Take a line on which the driver's shell echoes variables."""
        self.asked.echoed(number, text, ended=self.openings.has_ended(label))

    def take_misread(self, line: Line) -> None:
        """Take a line with a known beginning behind something that is not understood."""
        found = self.misread or Misread(line.excerpt(), 0, 0, 0)
        header, frame = "Traceback (most recent" in line.text, '  File "' in line.text
        self.misread = replace(
            found, count=found.count + 1, headers=found.headers + header, frames=found.frames + frame
        )

    def understood(self, since: int) -> None:
        """What was not understood is by now, if it began after line `since`."""
        if self.misread is not None and self.misread.at.line > since:
            self.misread = None

    def close_all(self) -> None:
        """The run has ended: whatever is open ends here."""
        for source in list(self._open):
            self._close(source)
        self._end_config()
        self._end_lone_message()

    def fatal(self) -> LoggedError | None:
        """The driver's error, the death of an engine or a collective that timed out, unless the run had completed."""
        if self.completed is not None:
            return None
        errors: Sequence[LoggedError] = tuple(self._so_far().rows["errors"].values())
        of_driver = [error for error in errors if error.driver]
        if of_driver:
            return max(of_driver, key=lambda error: max(error.at.line, error.last))
        return next((error for error in errors if is_deadly(error)), None)

    def unrecoverable(self) -> Excerpt | None:
        """The adapter table that shows no parameters although LoRA was asked for."""
        empty = next((report for report in self.kept.rows["adapters"].values() if report.adapter == 0), None)
        wanted = self.lora is not None or any(lora_rank(config) > 0 for config in self.kept.rows["configs"].values())
        return Excerpt(empty.line, f"{ADAPTER_LINE} 0") if empty is not None and wanted else None

    def final(self, tail: Sequence[Line] = ()) -> KeptFacts:
        """Everything known so far, with what the last lines of the run say."""
        kept = self._so_far()
        errors, hints = kept.rows["errors"], kept.rows["hints"]
        if self.completed is None:
            known: list[LoggedError] = [*errors.values(), *hints.values()]
            lone = (f"{error.full_message}\n{error.kind}: {error.full_message}" for error in known)
            printed = {unvaried(row) for text in lone for row in text.split("\n")}
            lines = {error.at.line for error in errors.values()}
            for kind, line in last_words(tail):
                if line.number not in lines and unvaried(line.text) not in printed:
                    kept.add_error(self._lone_error(kind, line, soft=is_soft(kind)), "hints")
        elif (status := failed_exit(tail, self.completed.line)) is not None:
            kept.add_error(self._lone_error(EXIT_STATUS, status), "hints")
        kept.rows["hints"] = {key: settled(hint, tail) for key, hint in hints.items() if key not in errors}
        kept.rows["errors"] = {key: settled(error, tail) for key, error in errors.items()}
        return kept

    def facts(self, kept: KeptFacts, ends: int, first: Excerpt | None, last: Excerpt | None) -> LogFacts:
        """The facts `kept` of this run, or of a log with this run as its last one, and how the run went; frozen."""
        timeline = tuple(self.kept.rows["stages"].values())
        return LogFacts(
            line_count=ends,
            steps=tuple(self.steps.values()),
            progress=self.progress,
            epochs=self._epochs,
            completed_at=self.completed,
            asked=self.asked.settings(),
            planned_steps=self._planned,
            last=last,
            stood=self.stood,
            lora_at=self.lora,
            final_metrics=self._final,
            last_step=self.last_step,
            timeline=timeline,
            runs=int(bool(timeline)),
            first=first,
            misread=self.misread,
            **kept.facts(),
        )

    def _go_on(self, line: Line, literals: Sequence[Literal]) -> None:
        """Give the line to what is open besides tracebacks: a configuration, a message, a command."""
        if self._collector is not None:
            if line.source == self._collector.source:
                self._collector.add(line)
            self._end_config(only_if_done=line.number - self._collector.last <= OPEN_WINDOW * 8)
        if self._lone_message is not None and not self._lone_message.take(line, plain=_is_plain(line, literals)):
            self._end_lone_message()
        if self.asked.is_open:
            self.asked.go_on(line)

    def _begins_another(self, literal: Literal, line: Line, found: re.Match[str]) -> bool:
        """Whether a line that holds `literal` begins a run after this one."""
        if literal.mark in (LogMark.PROGRESS, LogMark.STEP):
            # The trainer counts back; or an error ended the driver, and another process trains.
            back, bar, last = False, self.progress, self.last_step
            if (line.label, line.actor) == self._trainer.get(literal.mark) and literal.mark is LogMark.STEP:
                back = last is not None and int(found[1]) < last.step
            elif (line.label, line.actor) == self._trainer.get(literal.mark):
                back = bar is not None and int(found[2]) < (int(found[3]) if self.completed else bar.done)
            ended = self.completed is None and self.openings.has_ended(line.label)
            return back or (ended and self.openings.is_of_another(line))
        if literal.opens and self.openings.begins(literal, line):
            return True
        if literal.stage not in FIRST or self.openings.goes_on(line.label):
            return False
        return move(self.stood, literal.stage, driver=line.driver) is Move.NEW_RUN

    def _learn(self, literal: Literal, line: Line, found: re.Match[str]) -> None:
        """Take what one literal of a line says."""
        kept, mark = self.kept, literal.mark
        if mark is LogMark.OPENING or (mark is LogMark.BRIDGE and self.stood is Stage.CHECKPOINT_SAVE):
            # A save exports weights too.
            self.marker = line.number
        elif literal.stage is not None and literal.name != "scratch":
            self._enter(literal.stage, line)
        if line.pid is not None and (literal.builds or mark in (LogMark.STAGE, LogMark.CONFIG, LogMark.BRIDGE)):
            worker = LoggedProcess(line.pid, line.actor, line.number, literal.builds)
            known = kept.add("workers", line.pid, worker)
            if literal.builds and not known.built_model and line.pid in kept.rows["workers"]:
                kept.rows["workers"][line.pid] = replace(known, built_model=True)
        if literal.opens:
            self.openings.take(literal, line)
        self._advance(literal, line, found)
        self._describe(literal, line, found)
        self._complain(literal, line)

    def _advance(self, literal: Literal, line: Line, found: re.Match[str]) -> None:
        """How far the run came."""
        match mark := literal.mark:
            case LogMark.STEP:
                # Of identical lines the first is kept.
                step = self.steps.get(hash(line.text))
                if step is None and (parsed := _FORMS[literal].read_step(line.text)) is not None:
                    if len(self._names) > _MAX_NAMES:
                        self._names.clear()
                    step = StepMetrics(parsed[0], line.number, packed_metrics(parsed[1], self._names))
                    if len(self.steps) < MAX_STEPS:
                        self.steps[hash(line.text)] = step
                self.last_step = step
                self._trainer[mark] = (line.label, line.actor)
            case LogMark.PROGRESS:
                percent, done, total = map(int, found.groups())
                self.progress = ProgressBar(percent, done, total, line.excerpt())
                self._trainer[mark] = (line.label, line.actor)
                if done >= total > 0:
                    self._complete(line)
            case LogMark.EPOCHS:
                # The bar of one epoch completes nothing that is tested here.
                epoch, epochs, percent, done, total = map(int, found.groups())
                self._epochs = ProgressBar(percent, (epoch - 1) * total + done, epochs * total, line.excerpt())
            case LogMark.FINAL:
                # verl prints the line after the last step, with or without metrics.
                if "None" not in line.text[:40]:
                    self._final = line.excerpt()
                self._complete(line)
            case LogMark.CHECKPOINT:
                at, named = line.excerpt(), _GLOBAL_STEP.search(line.text)
                event = CheckpointEvent(literal.name, int(named[1]) if named else None, at)
                self.kept.add("checkpoints", (event.action, event.step, at.text), event)
            case _:
                pass

    def _describe(self, literal: Literal, line: Line, found: re.Match[str]) -> None:
        """What the run was asked for, and what it built."""
        kept = self.kept
        match literal.mark:
            case LogMark.VARIABLE if line.driver:
                self.echoed(line.number, line.text, line.label)
            case LogMark.COMMAND:
                self.asked.command(line)
            case LogMark.PLANNED:
                self._planned = StatedNumber(int(found[1]), line.excerpt())
            case LogMark.CONFIG if len(kept.rows["configs"]) < self._max_configs and self._collector is None:
                self._collector = ConfigCollector(line, _FORMS[literal].config)
                self._end_config(only_if_done=True)
            case LogMark.LORA:
                rank = StatedNumber(int(found[1]), line.excerpt())
                kept.add("lora_ranks", rank.value, rank)
                self.lora = self.lora or (rank.at if rank.value > 0 else None)
            case LogMark.TOTAL if len(self._totals) < MAX_SMALL:
                self._totals[line.source] = _number(found)
            case LogMark.ADAPTER:
                if literal.name == "asked":
                    self.lora = self.lora or line.excerpt()
                report = AdapterReport(line.number, line.pid, self._totals.pop(line.source, 0), _number(found))
                kept.add("adapters", (report.pid, report.total, report.adapter), report)
            case LogMark.RANK:
                kept.add("ranks", line.number, ModelRank(line.number, int(found[1]), int(found[2])))
            case LogMark.WRAPPED:
                kept.add("wrapped", line.number, WrappedModel(line.excerpt(), found[1]))
            case LogMark.CHUNKS:
                kept.add("chunks", line.number, ModelChunks(line.number, line.pid, int(found[1])))
            case LogMark.BRIDGE if found[3] is not None and found[1] == found[2]:
                # A conversion that is not at its end yet says nothing.
                kept.add("bridges", (line.pid, found[3]), BridgeUse(line.excerpt(), found[3]))
            case LogMark.SIGN | LogMark.STRATEGY:
                name = f"{STRATEGY_SIGN}{found[1]}" if literal.mark is LogMark.STRATEGY else literal.name
                kept.add("signs", name, Sign(name, line.excerpt(), 1))
            case _:
                pass

    def _complain(self, literal: Literal, line: Line) -> None:
        """What went wrong, or looks like it."""
        kept = self.kept
        match literal.mark:
            case LogMark.LOST:
                kept.add("lost_weights", line.text, line.excerpt())
            case LogMark.REFUSED:
                if line.text not in kept.rows["refused_weights"] and refuses(line, self.stood):
                    kept.add("refused_weights", line.text, line.excerpt())
            case LogMark.DRIVER:
                self._driver_next = line.label
                self.asked.listed(line)
                self.openings.program(line.label).ended = True
            case LogMark.NOISE:
                kept.add("noise", literal.name, Noise(literal.name, line.excerpt(), 1))
                if literal.name == EXIT_NOISE and len(self._ignored) < MAX_SMALL:
                    self._ignored.add(line.source)
            case LogMark.RETRY:
                # The process of the line says that it tries again: it had caught what it printed last.
                opened = self._open.get(line.source)
                if opened is not None and opened.reader.settled:
                    self._close(line.source)
                kept.change_error(lambda error: was_caught(error, line), as_caught)
            case LogMark.SAMPLE:
                self._samples.pop(line.source, None)
                if literal.name and len(self._samples) < MAX_SMALL:
                    self._samples[line.source] = line.number
            case LogMark.LONE:
                self._lone(literal, line)
            case LogMark.BARE if self._lone_message is None and (raised := exception_of(line.text)) is not None:
                kept.add_error(self._lone_error(raised[0], line, raised[1], soft=True), "hints")
                self._lone_message = LoneMessage(line, raised[1])
            case _:
                pass

    def _enter(self, stage: Stage, line: Line) -> None:
        """The line proves that the run is in `stage`; `move` said before that it begins no other run."""
        if move(self.stood, stage, driver=line.driver) is not Move.STAY:
            self.stood = stage
        if stage not in self.kept.rows["stages"]:
            self.kept.add("stages", stage, StageMark(stage, line.excerpt()))
        self.marker = line.number

    def _complete(self, line: Line) -> None:
        self.completed = line.excerpt()
        self.openings.program(line.label).ended = True
        self._enter(Stage.SHUTDOWN, line)

    def _end_config(self, *, only_if_done: bool = False) -> None:
        if self._collector is not None and (self._collector.done or not only_if_done):
            config, self._collector = self._collector.result(), None
            self.kept.add("configs", config.line, config)

    def _lone(self, literal: Literal, line: Line) -> None:
        if line.number - self._samples.get(line.source, -SAMPLE_LINES) < SAMPLE_LINES:
            return  # a model wrote it
        if not literal.soft and line.driver:
            # Either of driver and shell may survive it.
            self.openings.program(line.label).failed = True
        self.kept.add_error(self._lone_error(literal.name, line, soft=literal.soft))
        if literal.name in MULTILINE:
            self._end_lone_message()
            self._lone_message = LoneMessage(line)

    def _lone_error(self, kind: str, line: Line, message: str = "", *, soft: bool = False) -> LoggedError:
        stood, completed = self.stood or Stage.ENVIRONMENT, self.completed is not None
        return lone_error(kind, line, message, stood=stood, completed=completed, soft=soft)

    def _end_lone_message(self) -> None:
        if self._lone_message is not None:
            at, text = self._lone_message.at, str(self._lone_message.text)
            self._lone_message = None
            self.kept.change_error(lambda error: error.at.line == at, lambda error: replace(error, full_message=text))

    def _traceback(self, line: Line, literals: Sequence[Literal], *, opens: bool) -> bool:
        """Give the line to the open traceback of its source, or open one; True when it is part of one."""
        if line.number % EXPIRE_EVERY == 0:
            for source, waiting in list(self._open.items()):
                window = SETTLED_WINDOW if waiting.reader.settled else OPEN_WINDOW
                if line.number - waiting.reader.touched > window:
                    self._close(source)
        own = self._open.get(line.source)
        if own is not None:
            taken = own.reader.take(line, plain=_is_plain(line, literals))
            if own.reader.closed:
                self._close(line.source)
            if taken:
                return True
        elif self._torn(line):
            return True
        if not opens:
            return False
        reader, completed = TracebackReader(), self.completed is not None
        stood = self.stood or Stage.ENVIRONMENT
        if rows := escaped_rows(line.text):
            # A program that prints a traceback as one line had caught the exception.
            for row in rows:
                reader.take(replace(line, text=row))
            self._record(self.kept, _Opened(reader, line, stood, completed, TracebackRecord.ERROR))
            return True
        if not starts(line.text) or len(self._open) >= MAX_OPEN:
            return False
        reader.take(line)
        self._open[line.source] = _Opened(reader, line, stood, completed, record_above(line, self._before()))
        return True

    def _torn(self, line: Line) -> bool:
        """Give the line to a traceback that another process of the same kind began.

        Ray prints a line that several workers have in common once, under the first of them: the lines of one
        traceback stand under several processes then.
        """
        if not line.actor:
            return False
        folded = line.source.endswith(FOLDED)
        # What was folded goes on with what was folded, and else with the first traceback that it was folded out of.
        for _, opened in sorted(self._open.items(), key=lambda item: folded and not item[0].endswith(FOLDED)):
            same = (opened.first.label, opened.first.actor) == (line.label, line.actor)
            if same and opened.reader.wants(line.text, folded=folded):
                return opened.reader.take(line)
        return False

    def _close(self, source: str) -> None:
        opened = self._open.pop(source)
        if source in self._ignored:
            # Python prints the traceback of an exception that it ignores right below the line that says so.
            self._ignored.discard(source)
            return
        error = self._record(self.kept, opened)
        if opened.first.driver:
            self._driver_next = None
        if error is not None and error.driver and opened.record is TracebackRecord.RAISED:
            self.openings.program(opened.first.label).ended = True

    def _record(self, kept: KeptFacts, opened: _Opened) -> LoggedError | None:
        first = opened.first
        driver = first.driver and self._driver_next == first.label
        error = error_of(opened.reader.snapshot(), first, opened.stood, completed=opened.completed, driver=driver)
        if error is None:
            return None
        return kept.add_error(replace(error, record=TracebackRecord.RAISED if error.driver else opened.record))

    def _so_far(self) -> KeptFacts:
        """What is kept, with the errors whose traceback may still go on: a run that hangs prints no more lines."""
        kept = self.kept.copy()
        for source, opened in self._open.items():
            if opened.reader.settled and source not in self._ignored:
                self._record(kept, opened)
        return kept


@dataclass(frozen=True, slots=True)
class _Ended:
    """A run that another one followed, with the number of its last line and the last one that was read."""

    run: LoggedRun
    kept: KeptFacts
    ends: int
    last: Excerpt | None


class LogFold:
    """The runs of a log: what all of them show, and the facts of each of the last `MAX_RUNS`; `latest` still grows."""

    def __init__(self, before: Callable[[], Iterable[Line]]) -> None:
        # The names of metrics, shared by the steps that print the same ones.
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._before_line = before
        self.latest = LoggedRun(self._names, before)
        self._seen: Line | None = None
        self._count = 1
        # The last of the runs that ended, and what all of them show.
        self._ended: deque[_Ended] = deque(maxlen=MAX_RUNS - 1)
        self._joined = KeptFacts()
        self._earlier: list[ProgressBar] = []
        self._lora: Excerpt | None = None
        self._misread: Misread | None = None
        # The steps of the runs before, each once, by the hash of their line.
        self._steps: dict[int, StepMetrics] = {}

    def take(self, line: Line, literals: Sequence[Literal]) -> None:
        """Learn from one line and the literals that it holds."""
        left = self.latest.take(line, literals)
        if left:
            self._begin_run(line)
            self.latest.take(line, left)
        self._seen = line

    def facts(
        self, line_count: int, first: Excerpt | None, last: Excerpt | None, tail: Sequence[Line] = ()
    ) -> LogFacts:
        """Everything known so far, frozen; `tail` are the last lines of the log."""
        run = self.latest
        kept = run.final([line for line in tail if line.number >= run.first_line()])
        if not self._ended:
            return run.facts(kept, line_count, first, last)
        whole = self._joined.copy()
        whole.join(kept)
        parts = []
        for number, row in enumerate(
            [*self._ended, _Ended(run, kept, line_count, last)], self._count - len(self._ended)
        ):
            begins = None if row.run.begins is None else row.run.begins.excerpt()
            facts = row.run.facts(row.kept, row.ends, begins, row.last)
            parts.append(RunFacts(number, row.run.first_line(), row.ends, facts))
        own = parts[-1]
        steps = self._steps | {key: step for key, step in run.steps.items() if key not in self._steps}
        return replace(
            own.facts,
            **whole.facts(),
            first=first,
            steps=tuple(islice(steps.values(), MAX_STEPS)),
            runs=self._count,
            earlier=tuple(self._earlier),
            lora_at=self._lora or run.lora,
            misread=self._misread or run.misread,
            parts=tuple(parts),
        )

    def _begin_run(self, line: Line) -> None:
        """The latest run has ended in the line before."""
        run, kept = self.latest, self.latest.final()
        self._joined.join(kept)
        self._earlier += [run.progress] if run.progress is not None and len(self._earlier) < MAX_EARLIER else []
        self._lora, self._misread = self._lora or run.lora, self._misread or run.misread
        for key, step in islice(run.steps.items(), MAX_STEPS - len(self._steps)):
            self._steps.setdefault(key, step)
        run.steps = dict(islice(run.steps.items(), MAX_STEPS_KEPT))
        last = None if self._seen is None else self._seen.excerpt()
        self._ended.append(_Ended(run, kept, line.number - 1, last))
        self._count += 1
        configs, asked = self._count <= MAX_CONFIG_RUNS, run.asked.following()
        self.latest = LoggedRun(self._names, self._before_line, line, asked, configs=configs)


@lru_cache(maxsize=1024)
def _compiled(shape: str, text: str) -> re.Pattern[str]:
    return re.compile(shape or re.escape(text))


def search(literal: Literal, text: str) -> re.Match[str] | None:
    """Search a literal's shape; in a long line only around the literal, for some shapes take quadratic time.

    That of a bar does not, and the last bar of a line may lie far behind the first one.
    """
    pattern = _compiled(literal.shape, literal.text)
    if len(text) <= _SEARCHED or literal.mark is LogMark.PROGRESS:
        return pattern.search(text)
    at = max(text.find(literal.text), 0)
    return pattern.search(text, max(at - _SEARCHED // 2, 0), at + _SEARCHED // 2)


def _is_plain(line: Line, literals: Sequence[Literal]) -> bool:
    """Whether none of the literals makes the line mean something by itself."""
    return all(search(literal, line.text) is None for literal in literals)


def _number(found: re.Match[str]) -> int:
    return int(found[1].replace(",", "") or "0")
