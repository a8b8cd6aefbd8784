"""When a run entered each stage: from the run's own events, else from the times that its log lines carry."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from verl_e2e.core.model.facts import Excerpt, LogFacts
from verl_e2e.core.model.stages import Stage

DAY_S = 86_400.0
_TIME = r"(?P<h>[01]\d|2[0-3]):(?P<m>[0-5]\d):(?P<s>[0-5]\d(?:[.,]\d{1,6})?)"
# A recorder or a CI system writes before every line; programs write a date too. Their clocks may differ.
_AT_START = re.compile(rf"(?:\d{{4}}-\d\d-\d\d[T ])?{_TIME}(?:Z|[+-]\d\d:?\d\d)?\s")
_IN_TEXT = re.compile(rf"\b(?:\d{{4}}-)?\d\d-\d\d[T ]{_TIME}")


@dataclass(frozen=True, slots=True)
class Phase:
    """One stage of the latest run: the line that proves it, and seconds since the start where they are known."""

    stage: Stage
    at: Excerpt
    seconds: float | None


def timeline(facts: LogFacts, events: Mapping[Stage, float] | None = None) -> tuple[Phase, ...]:
    """The stages of the latest run in the order of entry; `events` are seconds by stage from `events.jsonl`."""
    known = events or {}
    marks = [mark.at for mark in facts.timeline]
    clock = _seconds([*([facts.first] if facts.first and facts.runs < 2 else []), *marks])
    return tuple(Phase(mark.stage, mark.at, known.get(mark.stage, clock.get(mark.at))) for mark in facts.timeline)


def _seconds(lines: Iterable[Excerpt]) -> dict[Excerpt, float]:
    """Seconds since the first line that carries a time, for every line that carries one of the same clock."""
    rows = list(lines)
    for pattern in (_AT_START, _IN_TEXT):
        read = [(line, _of_day(pattern, line.text)) for line in rows]
        timed = [(line, second) for line, second in read if second is not None]
        if timed:
            return _since(timed)
    return {}


def _of_day(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.match(text) if pattern is _AT_START else pattern.search(text)
    if found is None:
        return None
    return int(found["h"]) * 3600 + int(found["m"]) * 60 + float(found["s"].replace(",", "."))


def _since(timed: list[tuple[Excerpt, float]]) -> dict[Excerpt, float]:
    start, days, before, since = timed[0][1], 0, timed[0][1], {}
    for line, second in timed:
        # Workers report a little out of order; half a day back is the next day.
        days += second < before - DAY_S / 2
        before = second
        since[line] = max(0.0, second + days * DAY_S - start)
    return since
