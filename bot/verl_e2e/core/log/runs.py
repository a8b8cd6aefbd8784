"""Read a log run by run: what one run printed says nothing about another. The log's facts are joined from its runs."""

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from verl_e2e.core.log.builds import MAX_BUILDS
from verl_e2e.core.log.errors import MAX_ERRORS, fold, folding_key
from verl_e2e.core.log.lines import Line
from verl_e2e.core.log.literals import Literal
from verl_e2e.core.log.packages import MAX_PATHS
from verl_e2e.core.log.progress import MAX_STEPS, RunBook, StepReader
from verl_e2e.core.log.read_facts import MAX_CONFIGS, MAX_SMALL, MAX_WORKERS, Before, FactBook
from verl_e2e.core.model.facts import Excerpt, LogFacts, LoggedError, RunFacts, StepMetrics

MAX_RUNS = 8
MAX_EARLIER = 64
# Of a run that another one followed.
MAX_STEPS_KEPT = 1000
# Reading a printed configuration costs more than all other lines of a run: it is read for so many runs of a log.
MAX_CONFIG_RUNS = 16


class LogBook:
    """Facts in the making, with the interface of `FactBook`: the whole log's, and those of its last `MAX_RUNS` runs."""

    def __init__(self, before: Before) -> None:
        self._reader = StepReader()
        self._before_line = before
        self._latest = FactBook(self._another, self._reader, before)
        self._begins: Line | None = None
        self._seen: Line | None = None
        self._count = 1
        self._before: LogFacts | None = None
        self._ended: deque[RunFacts] = deque(maxlen=MAX_RUNS - 1)
        # The steps of the runs before, each once: the reader gives equal lines of several runs one object.
        self._steps: dict[int, StepMetrics] = {}

    @property
    def run(self) -> RunBook:
        """How far the latest run came."""
        return self._latest.run

    @property
    def is_open(self) -> bool:
        """Whether every next line must be decoded."""
        return self._latest.is_open

    @property
    def reads_driver(self) -> bool:
        """Whether one of the next lines of the driver may belong to something that is not finished."""
        return self._latest.reads_driver

    def take(self, line: Line, literals: Sequence[Literal]) -> None:
        """Learn from one line and the literals that it holds."""
        self._latest.take(line, literals)
        self._seen = line

    def echoed(self, number: int, text: str) -> None:
        """Take a line on which the driver's shell echoes variables."""
        self._latest.echoed(number, text)

    def misread(self, line: Line) -> None:
        """See `FactBook.misread`: of the latest run."""
        self._latest.misread(line)

    def understood(self, since: int) -> None:
        """See `FactBook.understood`: of the latest run."""
        self._latest.understood(since)

    def close_all(self) -> None:
        """The log has ended."""
        self._latest.close_all()

    def fatal(self) -> LoggedError | None:
        """See `FactBook.fatal`: of the latest run."""
        return self._latest.fatal()

    def unrecoverable(self) -> Excerpt | None:
        """See `FactBook.unrecoverable`: of the latest run."""
        return self._latest.unrecoverable()

    def facts(
        self, line_count: int, first: Excerpt | None, last: Excerpt | None, tail: Sequence[Line] = ()
    ) -> LogFacts:
        """Everything known so far, frozen; `tail` are the last lines of the log."""
        if self._before is None:
            return self._latest.facts(line_count, first, last, tail)
        part = self._part(line_count, last, tail)
        parts = (*self._ended, part)
        new = (step for step in part.facts.steps if id(step.values) not in self._steps)
        steps = tuple(islice(chain(self._steps.values(), new), MAX_STEPS))
        return replace(joined(self._before, part.facts), steps=steps, first=first, runs=self._count, parts=parts)

    def _another(self, line: Line, literals: Sequence[Literal]) -> None:
        """The run so far has ended in the line before; `line` begins the next one."""
        part = self._part(line.number - 1, None if self._seen is None else self._seen.excerpt())
        self._before = part.facts if self._before is None else joined(self._before, part.facts)
        for step in part.facts.steps[: MAX_STEPS - len(self._steps)]:
            self._steps.setdefault(id(step.values), step)
        if len(part.facts.steps) > MAX_STEPS_KEPT:
            part = replace(part, facts=replace(part.facts, steps=part.facts.steps[:MAX_STEPS_KEPT]))
        self._ended.append(part)
        self._count += 1
        configs, asked = self._count <= MAX_CONFIG_RUNS, self._latest.asked.following()
        self._latest = FactBook(self._another, self._reader, self._before_line, configs=configs, asked=asked)
        self._begins = line
        self._latest.take(line, literals)

    def _part(self, ends: int, last: Excerpt | None, tail: Sequence[Line] = ()) -> RunFacts:
        first = None if self._begins is None else self._begins.excerpt()
        begins = 1 if first is None else first.line
        facts = self._latest.facts(ends, first, last, [line for line in tail if line.number >= begins])
        return RunFacts(self._count, begins, ends, facts)


def joined(before: LogFacts, run: LogFacts) -> LogFacts:
    """The facts of a log whose last run is `run`, without its steps; what is not joined is that of the last run."""
    kept = {name: _join(name, getattr(before, name), getattr(run, name)) for name in JOINED}
    earlier = (*before.earlier, *(bar for bar in (before.progress,) if bar is not None))
    return replace(run, **kept, earlier=earlier[:MAX_EARLIER])


def _join(name: str, before: Any, run: Any) -> Any:
    return JOINED[name](before, run) if before and run else before or run


Key = Callable[[Any], object]


def _firsts(limit: int, key: Key) -> Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]:
    """Join two rows: of those with one key the first counts."""

    def join(before: tuple[Any, ...], run: tuple[Any, ...]) -> tuple[Any, ...]:
        known = set(map(key, before))
        return (*before, *(item for item in run if key(item) not in known))[:limit]

    return join


def _counted(before: tuple[Any, ...], run: tuple[Any, ...]) -> tuple[Any, ...]:
    """Join two rows of what has a name and a count."""
    known = {item.name: item for item in before}
    for item in run:
        first = known.get(item.name)
        known[item.name] = item if first is None else replace(first, count=first.count + item.count)
    return tuple(known.values())


def _errors(before: tuple[LoggedError, ...], run: tuple[LoggedError, ...]) -> tuple[LoggedError, ...]:
    known = {folding_key(error): error for error in before}
    for error in run:
        first = known.get(folding_key(error))
        if first is not None:
            count = first.count + error.count
            known[folding_key(error)] = replace(fold(first, error), count=count)
        elif len(known) < MAX_ERRORS:
            known[folding_key(error)] = error
    return tuple(sorted(known.values(), key=lambda error: error.at.line))


_PREFIX = re.compile(r"^(?:\([^()]{0,80}\) ?)+")

# How a fact of the whole log follows from those of its runs. What is not named here is that of the last run.
# Steps are many, and so are joined by the book itself.
JOINED: dict[str, Callable[[Any, Any], Any]] = {
    "stages": _firsts(MAX_SMALL, lambda mark: mark.stage),
    "configs": lambda before, run: (*before, *run)[:MAX_CONFIGS],
    "adapters": _firsts(MAX_SMALL, lambda report: (report.pid, report.total, report.adapter)),
    "workers": _firsts(MAX_WORKERS, lambda worker: worker.pid),
    "errors": _errors,
    "hints": _errors,
    "noise": _counted,
    "lost_weights": _firsts(MAX_SMALL, lambda lost: _PREFIX.sub("", lost.text)),
    "refused_weights": _firsts(MAX_SMALL, lambda refused: _PREFIX.sub("", refused.text)),
    "packages": _firsts(MAX_PATHS, lambda path: (path.package, path.root, path.actor, path.traced)),
    "lora_ranks": _firsts(MAX_SMALL, lambda rank: rank.value),
    "checkpoints": _firsts(MAX_SMALL, lambda event: (event.action, event.step, event.at.text)),
    "misread": lambda before, _run: before,
    "lora_at": lambda before, _run: before,
    "ranks": lambda before, run: (*before, *run)[:MAX_BUILDS],
    "wrapped": lambda before, run: (*before, *run)[:MAX_BUILDS],
    "chunks": lambda before, run: (*before, *run)[:MAX_BUILDS],
    "bridges": _firsts(MAX_BUILDS, lambda use: (use.pid, use.bridge)),
    "signs": _counted,
}
