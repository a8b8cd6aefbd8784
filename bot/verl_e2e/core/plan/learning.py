"""What the run of a derived job says of the planner: whether the settings for a condition led into the code.

A condition that was set and did not lead there is a finding about the rules that turned it into settings.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

from verl_e2e.core.model.change import on_one_line
from verl_e2e.core.model.changed_code import Side
from verl_e2e.core.model.executed import Executed, ExecutedFile, ProcessRole
from verl_e2e.core.model.purposes import Purpose
from verl_e2e.core.reach.conditions.standing import STANDING

_INNER = ".<locals>."
# The rules whose settings change what the code does, and lead nowhere.
_STANDING = frozenset(rule for row in STANDING for rule in row.settings.rules)


class Led(StrEnum):
    """Where the settings for a condition led a run."""

    # A process of the run entered the function, and ran one of the lines where lines are named.
    THERE = "there"
    # The function was entered, and none of the lines ran.
    PAST_THE_LINES = "past the lines"
    # The function was never entered.
    ELSEWHERE = "elsewhere"
    # The change removes the place, so a run on the head cannot tell.
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a run says about one place that its job was made for."""

    # The job.
    job: str
    # The place and its condition.
    purpose: Purpose
    # Where the run went.
    led: Led

    @property
    def blames_rules(self) -> bool:
        """Whether the rules are wrong: all parts of the condition were set, and the run did not get there."""
        missed = self.led in (Led.PAST_THE_LINES, Led.ELSEWHERE)
        return missed and not self.purpose.open and not self.is_standing

    @property
    def is_standing(self) -> bool:
        """Whether the settings are there for what the code does, and not to lead into it."""
        rules = self.purpose.rules
        return bool(rules) and _STANDING.issuperset(rules)


def lessons(job: str, purposes: Iterable[Purpose], executed: Executed) -> tuple[Lesson, ...]:
    """What a whole run says about each place that its job was made for."""
    files = {file.path: file for file in executed.files}
    return tuple(Lesson(job, purpose, _led(purpose, files.get(purpose.path), executed)) for purpose in purposes)


def lesson_text(lesson: Lesson) -> str:
    """One lesson in a sentence, with what is to be corrected."""
    purpose = lesson.purpose
    settings = ", ".join(f"{axis} {value}" for axis, value in (*purpose.settings.items(), *purpose.overrides.items()))
    start = f"{lesson.job}: {on_one_line(purpose.place)}: {on_one_line(purpose.condition)} ({settings or 'a model'})"
    if lesson.led is Led.THERE:
        return f"{start} led there: known entered"
    if lesson.led is Led.REMOVED:
        return f"{start}: the change removes this code, so a run on the head cannot show it"
    went = "the function was entered and none of the lines ran" if lesson.led is Led.PAST_THE_LINES else "never entered"
    if purpose.open:
        return f"{start}: {went}; no setting is known for {on_one_line(', '.join(purpose.open))}"
    if lesson.is_standing:
        return f"{start}: {went}; these settings change what the code does, they do not lead there"
    rules = ", ".join(map(on_one_line, purpose.rules)) or "none is named"
    return f"{start}: {went}, so a rule of the planner is wrong: {rules}"


def lesson_json(lesson: Lesson) -> dict[str, object]:
    """One lesson as a document."""
    return {**asdict(lesson), "purpose": lesson.purpose.model_dump(mode="json"), "blames_rules": lesson.blames_rules}


def _led(purpose: Purpose, file: ExecutedFile | None, executed: Executed) -> Led:
    if purpose.side is Side.MERGE_BASE:
        return Led.REMOVED
    if file is None:
        return Led.ELSEWHERE
    symbol = purpose.symbol
    names = [item for item in file.functions if item.symbol == symbol or item.symbol.startswith(f"{symbol}{_INNER}")]
    entered = any(_of_run(function.first_s, executed) for function in names)
    ran = any(_of_run(file.lines.get(line, ()), executed) for line in purpose.lines)
    if not entered and not (ran and not symbol):
        return Led.ELSEWHERE
    # The lines of a file are recorded where the change touches it.
    return Led.THERE if ran or not purpose.lines or not file.lines else Led.PAST_THE_LINES


def _of_run(processes: Iterable[int], executed: Executed) -> bool:
    """Whether one of the processes belongs to verl's run: a focused Bridge test does not."""
    count = len(executed.processes)
    return any(
        executed.processes[index].role is not ProcessRole.BRIDGE_TEST for index in processes if 0 <= index < count
    )
