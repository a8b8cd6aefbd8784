"""How far a run came: stages, steps, the progress bar and completion."""

import re
from dataclasses import replace

from verl_e2e.core.log.lines import Line
from verl_e2e.core.log.literals import Literal, Mark
from verl_e2e.core.log.metrics import EPOCHS_SHAPE, pack, parse_step
from verl_e2e.core.log.openings import Openings
from verl_e2e.core.log.phase_markers import FIRST, Move, PhaseMachine, move
from verl_e2e.core.model.facts import Excerpt, Progress, StepMetrics
from verl_e2e.core.model.stages import Stage

MAX_STEPS = 20_000
MAX_NAMES = 64

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
        if len(self._names) > MAX_NAMES:
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
