"""How far a run came: stages, steps, the progress bar and completion - of the latest run, when a log holds several."""

import re

from bot.core.facts import Excerpt, Progress, StageMark, StepMetrics
from bot.core.log import Line
from bot.core.metrics import pack, parse_step
from bot.core.scan.phases import PhaseMachine
from bot.core.stages import Stage

MAX_STEPS = 20_000
MAX_NAMES = 64
MAX_EARLIER = 64

_BAR = re.compile(r"Training Progress:\s*(\d{1,3})%\|[^|]{0,200}\|\s*(\d{1,12})/(\d{1,12})")


class RunBook:
    """`phases` is where the latest run stands; `completed`, `progress`, `final` and `last_step` are those of it.

    `earlier` are the last bars of the runs before it.
    `marker` is the line of the last sign of progress. `steps` covers the whole log; steps beyond `MAX_STEPS` only
    move `last_step`.
    """

    def __init__(self) -> None:
        self.phases = PhaseMachine()
        self.marker = 0
        self.completed: Excerpt | None = None
        self.last_step: StepMetrics | None = None
        self.final: Excerpt | None = None
        self.progress: Progress | None = None
        self.earlier: list[Progress] = []
        self.steps: list[StepMetrics] = []
        self._step_texts: dict[int, StepMetrics] = {}
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}

    @property
    def stood(self) -> Stage | None:
        """The stage that the latest run is in, None before the first sign of one."""
        return self.phases.stood

    @property
    def stages(self) -> dict[Stage, StageMark]:
        """The first line of every stage of the whole log."""
        return self.phases.seen

    def enter(self, stage: Stage, line: Line) -> None:
        """The line proves that the run is in `stage`."""
        if self.phases.enter(stage, line):
            self._forget()
        self.marker = line.number

    def _forget(self) -> None:
        if self.progress is not None and len(self.earlier) < MAX_EARLIER:
            self.earlier.append(self.progress)
        self.completed = self.final = self.progress = self.last_step = None

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
            self.phases.begin()
            self._forget()
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
        self.phases.enter(Stage.SHUTDOWN, line)
