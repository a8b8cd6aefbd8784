"""What a run prints once while it starts, and when such a line means that another run begins in the same log."""

from bot.core.log import FOLDED, Line
from bot.core.scan.literals import Literal, Mark
from bot.core.stages import Stage


class Openings:
    """The opening lines of the latest run.

    A run prints each of them once: the driver its command, checks and Ray start, the task runner its configuration.
    So a second one of the same kind begins another run, and so does any of them after the driver has ended.
    """

    def __init__(self) -> None:
        self.ended = False
        """Whether the driver of this run has ended: completed, or with an exception of its own."""
        self.failed = False
        """Whether the driver or its shell printed an error, which either may survive."""
        self._seen: dict[str, int | None] = {}
        self._latest = ""
        # Each of several hosts may print them.
        self._label: str | None = None

    def begins(self, literal: Literal, line: Line) -> bool:
        """Whether an opening line begins a run after this one."""
        if not _counts(literal, line) or (line.label != self._label and not self.ended):
            return False
        if literal.text in self._seen:
            return self.ended or self.failed or self._latest != literal.text or self._seen[literal.text] != line.pid
        if self.ended:
            return self.is_of_another(line)
        # The shell echoes the command before the command prints anything.
        return literal.mark is Mark.OPENING and bool(self._seen)

    def take(self, literal: Literal, line: Line) -> None:
        """Remember an opening line of the latest run, with the process that printed it (None: the driver)."""
        if _counts(literal, line):
            self._label = line.label if self._label is None else self._label
            self._seen.setdefault(literal.text, line.pid)
            self._latest = literal.text

    def is_of_another(self, line: Line) -> bool:
        """What a worker prints may arrive after the end of its driver; another task runner is of another run."""
        known = [pid for pid in self._seen.values() if pid is not None]
        return line.driver or (bool(known) and line.pid not in known)


def _counts(literal: Literal, line: Line) -> bool:
    """Workers connect to Ray too, and Ray repeats what several processes print."""
    connects = literal.mark is Mark.STAGE and literal.stage is Stage.RAY
    return not (connects and not line.driver) and not line.source.endswith(FOLDED)
