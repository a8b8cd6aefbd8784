"""How far a run came: stages, steps, the progress bar and completion - of the latest run, when a log holds several."""

import re

from bot.core.facts import Excerpt, Progress, StageMark, StepMetrics
from bot.core.log import Line
from bot.core.metrics import pack, parse_step
from bot.core.stages import Stage

MAX_STEPS = 20_000
MAX_NAMES = 64
MAX_EARLIER = 64

_BAR = re.compile(r"Training Progress:\s*(\d{1,3})%\|[^|]{0,200}\|\s*(\d{1,12})/(\d{1,12})")
_FIRST_STAGES = frozenset({Stage.ENVIRONMENT, Stage.RAY})


class RunBook:
    """`stood`, `completed`, `progress`, `final` and `last_step` are those of the latest run in the log.

    `earlier` are the last bars of the runs before it.
    `marker` is the line of the last sign of progress. `stages` and `steps` cover the whole log; steps beyond
    `MAX_STEPS` only move `last_step`.
    """

    def __init__(self) -> None:
        self.stood: Stage | None = None
        self.marker = 0
        self.completed: Excerpt | None = None
        self.last_step: StepMetrics | None = None
        self.final: Excerpt | None = None
        self.progress: Progress | None = None
        self.earlier: list[Progress] = []
        self.stages: dict[Stage, StageMark] = {}
        self.steps: list[StepMetrics] = []
        self._step_texts: dict[int, StepMetrics] = {}
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}

    def enter(self, stage: Stage, line: Line) -> None:
        """The line proves that the run is in `stage`."""
        if self.completed is not None and stage in _FIRST_STAGES:
            self._begin()
        if stage not in self.stages:
            self.stages[stage] = StageMark(stage, line.excerpt())
        # A weight sync inside a step is part of the step, and what streams print late is part of the shutdown.
        part = self.stood is Stage.TRAIN_STEP and stage is Stage.EXPORT_WEIGHT_SYNC
        if self.completed is None and not part:
            self.stood = stage
        self.marker = line.number

    def _begin(self) -> None:
        if self.progress is not None and len(self.earlier) < MAX_EARLIER:
            self.earlier.append(self.progress)
        self.completed = self.final = self.progress = self.last_step = self.stood = None

    def step(self, line: Line) -> None:
        """Take a metric line; an identical one seen before is not read again."""
        number = int(line.text[5 : line.text.index(" - ")])
        known = self._step_texts.get(hash(line.text))
        if known is None:
            parsed = parse_step(line.text)
            assert parsed is not None  # the literal's shape is the same
            known = StepMetrics(number, line.number, pack(parsed[1], self._shared_names()))
            if len(self.steps) < MAX_STEPS:
                self.steps.append(known)
                self._step_texts[hash(line.text)] = known
        self.enter(Stage.TRAIN_STEP, line)
        self.last_step = known

    def _shared_names(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        if len(self._names) > MAX_NAMES:
            self._names.clear()
        return self._names

    def bar(self, line: Line) -> None:
        """Take a progress bar; of several on one line the last counts."""
        bars = _BAR.findall(line.text)
        if not bars or not line.text.lstrip().startswith("Training Progress:"):
            return
        percent, done, total = (int(number) for number in bars[-1])
        if self.completed is not None and done < total:
            self._begin()
        self.enter(Stage.TRAIN_STEP, line)
        self.progress = Progress(percent, done, total, line.excerpt())
        if done >= total > 0:
            self._complete(line)

    def final_metrics(self, line: Line) -> None:
        """Take the line that verl prints after the last step, with or without metrics."""
        self.enter(Stage.TRAIN_STEP, line)
        if "None" not in line.text[:40]:
            self.final = line.excerpt()
        self._complete(line)

    def _complete(self, line: Line) -> None:
        self.completed = line.excerpt()
        if Stage.SHUTDOWN not in self.stages:
            self.stages[Stage.SHUTDOWN] = StageMark(Stage.SHUTDOWN, line.excerpt())
        self.stood = Stage.SHUTDOWN
