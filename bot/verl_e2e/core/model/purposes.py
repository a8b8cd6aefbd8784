"""What a job made for a change is there for: places of the changed code, each with the condition that leads into it."""

from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import Field

from verl_e2e.core.model.document import Document
from verl_e2e.core.model.execution import ChangedFunction, Side
from verl_e2e.core.model.settings import Axis, Value

# What a job carries: it travels in the inputs of a workflow.
MOST_PURPOSES = 15
_MOST_LINES = 40
_MOST_CHARACTERS = 200


class Purpose(Document):
    """One place that a job is there for."""

    # The file.
    path: str
    # The function's qualified name; empty for what belongs to no function.
    symbol: str = ""
    # The changed lines, ascending; empty for the whole symbol.
    lines: Annotated[tuple[int, ...], Field(max_length=_MOST_LINES)] = ()
    # By what it is known to be entered, or what is wanted of a run besides.
    condition: str
    # The settings that this asks for, by axis.
    settings: dict[Axis, Value] = Field(default_factory=dict)
    # Whose source the lines are counted in: what the change removes is there on the merge base alone.
    side: Side = Side.HEAD

    @property
    def place(self) -> str:
        """The place as people name it."""
        return f"{self.path}:{self.symbol}" if self.symbol else self.path


# What a run that is made from a job's own one does not take over: it is there to be compared with.
NO_PURPOSES: dict[str, object] = {"purposes": (), "settings": {}}


def purpose_of(
    function: ChangedFunction, lines: Iterable[int], condition: str, settings: Mapping[Axis, Value]
) -> Purpose:
    """The purpose of a job for lines of a function; long texts are cut."""
    return Purpose(
        path=_shown(function.path),
        symbol=_shown(function.symbol),
        lines=tuple(lines)[:_MOST_LINES],
        condition=_shown(condition),
        settings=dict(settings),
        side=function.side,
    )


def _shown(text: str) -> str:
    """A text of the code on one line, not longer than people read."""
    line = " ".join(text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 3]}..."
