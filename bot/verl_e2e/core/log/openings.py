"""What a run prints once while it starts, and when such a line means that another run begins in the same log."""

from dataclasses import dataclass, field

from verl_e2e.core.log.lines import FOLDED, Line
from verl_e2e.core.log.literals import Literal, Mark
from verl_e2e.core.model.stages import Stage

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
