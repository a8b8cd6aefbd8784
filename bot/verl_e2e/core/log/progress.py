"""The phase machine: which stage a run is in, from the milestones that it prints.

A run goes through its set-up in no strict order (critic before actor, workers side by side, models before the
rollout engine), then syncs weights and trains steps, then ends. So a milestone of the set-up moves the machine freely
until the first weight sync; after that only the driver can begin a new run with one, for a worker that starts
late prints the milestones of the set-up again. What streams print after the end moves nothing.

What a run prints once while it starts, and when such a line means that another run begins in the same log.

How far a run came: stages, steps, the progress bar and completion.
"""

import re
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from verl_e2e.core.log.lines import FOLDED, Line
from verl_e2e.core.log.literals import Literal, Mark
from verl_e2e.core.log.printed import EPOCHS_SHAPE, pack, parse_step
from verl_e2e.core.model.facts import Excerpt, Progress, StageMark, StepMetrics
from verl_e2e.core.model.outcome import Stage

FIRST = frozenset({Stage.ENVIRONMENT, Stage.RAY})
SET_UP = frozenset(stage for stage in Stage if stage.order <= Stage.OPTIMIZER.order)
STEPPING = frozenset({Stage.TRAIN_STEP, Stage.CHECKPOINT_SAVE, Stage.LEARNING_SIGNAL})


class Move(Enum):
    """What a milestone does: the run goes on to its stage, stays where it is, or a new run begins."""

    ON = auto()
    STAY = auto()
    NEW_RUN = auto()


def move(stood: Stage | None, to: Stage, *, driver: bool) -> Move:
    """What a milestone of stage `to` does to a run that stands in `stood`; `driver` when no worker printed it."""
    if stood is Stage.SHUTDOWN:
        return Move.NEW_RUN if to in FIRST else Move.STAY
    if to in SET_UP and (stood in STEPPING or stood in (Stage.EXPORT_WEIGHT_SYNC, Stage.CHECKPOINT_LOAD)):
        return Move.NEW_RUN if driver and to in FIRST else Move.STAY
    # A weight sync inside a step is part of the step.
    return Move.STAY if stood is Stage.TRAIN_STEP and to is Stage.EXPORT_WEIGHT_SYNC else Move.ON


@dataclass(slots=True)
class PhaseMachine:
    """The present stage of a run, and the first line of each of its stages in the order of entry."""

    stood: Stage | None = None
    timeline: dict[Stage, StageMark] = field(default_factory=dict)

    def enter(self, stage: Stage, line: Line) -> None:
        """Take a milestone of this run; `move` says before whether it begins another one."""
        if move(self.stood, stage, driver=line.driver) is not Move.STAY:
            self.stood = stage
        if stage not in self.timeline:
            self.timeline[stage] = StageMark(stage, line.excerpt())


MAX_LABELS = 512


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

    def end(self, label: str) -> None:
        """The driver of the program with this label ended: it completed, or an exception of its own ended it."""
        self._program(label).ended = True

    def fail(self, label: str) -> None:
        """The driver or its shell printed an error, which either may survive."""
        self._program(label).failed = True

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
        ended, own = self.has_ended(line.label), self._program(line.label)
        if literal.text in own.seen:
            return ended or own.failed or own.latest != literal.text or own.seen[literal.text] != line.pid
        if ended:
            return self.is_of_another(line)
        # The shell echoes the command before the command prints anything.
        return literal.mark is Mark.OPENING and bool(own.seen)

    def take(self, literal: Literal, line: Line) -> None:
        """Remember an opening line of the latest run, with the process that printed it (None: the driver)."""
        if _counts(literal, line):
            own = self._program(line.label)
            own.seen.setdefault(literal.text, line.pid)
            own.latest = literal.text

    def is_of_another(self, line: Line) -> bool:
        """What a worker prints may arrive after the end of its driver; another task runner is of another run."""
        known = [pid for pid in self._program(line.label).seen.values() if pid is not None]
        return line.driver or (bool(known) and line.pid not in known)

    def _program(self, label: str) -> _Program:
        if label not in self._programs and len(self._programs) >= MAX_LABELS:
            label = ""
        return self._programs.setdefault(label, _Program())


def _counts(literal: Literal, line: Line) -> bool:
    """Workers connect to Ray too, and Ray repeats what several processes print."""
    connects = literal.mark is Mark.STAGE and literal.stage is Stage.RAY
    return not (connects and not line.driver) and not line.source.endswith(FOLDED)


MAX_STEPS = 20_000
_MAX_NAMES = 64

_BAR = re.compile(r"Training Progress:\s*(\d{1,3})%\|[^|]{0,200}\|\s*(\d{1,12})/(\d{1,12})")


class StepReader:
    """Reads metric lines; one that was read before, in this run or another, is not read again."""

    def __init__(self) -> None:
        self._known: dict[int, StepMetrics] = {}
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}

    def read(self, line: Line) -> StepMetrics:
        """The metrics of a line that has the shape of a metric line."""
        known = self._known.get(hash(line.text))
        if known is not None:
            return known if known.line == line.number else replace(known, line=line.number)
        parsed = parse_step(line.text)
        assert parsed is not None  # the literal's shape is the same
        step = StepMetrics(_step_of(line), line.number, pack(parsed[1], self._shared_names()))
        if len(self._known) < MAX_STEPS:
            self._known[hash(line.text)] = step
        return step

    def _shared_names(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        if len(self._names) > _MAX_NAMES:
            self._names.clear()
        return self._names


class RunBook:
    """How far one run came: `phases` is where it stands, `marker` the line of its last sign of progress.

    Steps beyond `MAX_STEPS` only move `last_step`.
    """

    def __init__(self, reader: StepReader) -> None:
        self.phases = PhaseMachine()
        self.openings = Openings()
        self.marker = 0
        self.completed: Excerpt | None = None
        self.last_step: StepMetrics | None = None
        self.final: Excerpt | None = None
        self.progress: Progress | None = None
        self.epochs: Progress | None = None
        self.steps: dict[int, StepMetrics] = {}
        self._reader = reader
        self._trainer: dict[Mark, tuple[str, str]] = {}

    @property
    def stood(self) -> Stage | None:
        """The stage that the run is in, None before the first sign of one."""
        return self.phases.stood

    def begins_another(self, literal: Literal, line: Line) -> bool:
        """Whether a line that holds `literal` begins a run after the latest one."""
        if literal.mark in (Mark.PROGRESS, Mark.STEP):
            return self._goes_back(literal, line) or self._trains_after_its_end(line)
        if literal.opens and self.openings.begins(literal, line):
            return True
        stage = literal.stage
        if stage not in FIRST or self.openings.goes_on(line.label):
            return False
        return move(self.stood, stage, driver=line.driver) is Move.NEW_RUN

    def _goes_back(self, literal: Literal, line: Line) -> bool:
        # Trainer and rollouter of one run may count apart.
        if (line.label, line.actor) != self._trainer.get(literal.mark):
            return False
        if literal.mark is Mark.STEP:
            return self.last_step is not None and _step_of(line) < self.last_step.step
        bar, before = _bar_of(line), self.progress
        return bar is not None and before is not None and bar[1] < (bar[2] if self.completed else before.done)

    def _trains_after_its_end(self, line: Line) -> bool:
        """An error ended the driver, and another process trains."""
        ended = self.completed is None and self.openings.has_ended(line.label)
        return ended and self.openings.is_of_another(line)

    def enter(self, stage: Stage, line: Line) -> None:
        """The line proves that the run is in `stage`."""
        self.phases.enter(stage, line)
        self.marker = line.number

    def step(self, line: Line) -> None:
        """Take a metric line; of identical ones the first is kept."""
        step = self._reader.read(line)
        if len(self.steps) < MAX_STEPS:
            step = self.steps.setdefault(hash(line.text), step)
        self.enter(Stage.TRAIN_STEP, line)
        self.last_step = step
        self._trainer[Mark.STEP] = (line.label, line.actor)

    def bar(self, line: Line) -> None:
        """Take a progress bar; of several on one line the last counts."""
        bar = _bar_of(line)
        if bar is None:
            return
        percent, done, total = bar
        self.enter(Stage.TRAIN_STEP, line)
        self.progress = Progress(percent, done, total, line.excerpt())
        self._trainer[Mark.PROGRESS] = (line.label, line.actor)
        if done >= total > 0:
            self._complete(line)

    def epoch(self, line: Line) -> None:
        """Take the bar of one epoch, which completes nothing that is tested here."""
        found = re.match(EPOCHS_SHAPE, line.text)
        assert found is not None  # the literal's shape is the same
        epoch, epochs, percent, done, total = map(int, found.groups())
        self.enter(Stage.TRAIN_STEP, line)
        self.epochs = Progress(percent, (epoch - 1) * total + done, epochs * total, line.excerpt())

    def final_metrics(self, line: Line) -> None:
        """Take the line that verl prints after the last step, with or without metrics."""
        self.enter(Stage.TRAIN_STEP, line)
        if "None" not in line.text[:40]:
            self.final = line.excerpt()
        self._complete(line)

    def _complete(self, line: Line) -> None:
        self.completed = line.excerpt()
        self.openings.end(line.label)
        self.phases.enter(Stage.SHUTDOWN, line)


def _step_of(line: Line) -> int:
    return int(line.text[5 : line.text.index(" - ")])


def _bar_of(line: Line) -> tuple[int, int, int] | None:
    """Percent, steps done and steps requested of the last bar on a line."""
    bars = _BAR.findall(line.text)
    if not bars or not line.text.lstrip().startswith("Training Progress:"):
        return None
    percent, done, total = (int(number) for number in bars[-1])
    return percent, done, total
