"""What a job made for a change is there for: places of the changed code, each with the condition that leads into it."""

from typing import Annotated

from pydantic import Field

from verl_e2e.core.model.changed_code import Side
from verl_e2e.core.model.document import Document
from verl_e2e.core.model.wants import Axis, Value, Want

# What a job carries: it travels in the inputs of a workflow.
MOST_PURPOSES = 15
_MOST_LINES = 40
_MOST_CHARACTERS = 200
_MOST_OF_PART = 80
_MOST_PARTS = 3
_MOST_RULES = 10


class Purpose(Document):
    """One place that a job is there for."""

    # The file.
    path: str
    # The function's qualified name; empty for what belongs to no function.
    symbol: str = ""
    # The changed lines that the settings lead to, ascending; empty for the whole symbol.
    lines: Annotated[tuple[int, ...], Field(max_length=_MOST_LINES)] = ()
    # The condition as the code states it.
    condition: str
    # The settings that it asks for, by axis.
    settings: dict[Axis, Value] = Field(default_factory=dict)
    # The settings of verl that no axis has, by their Hydra key.
    overrides: dict[str, Value] = Field(default_factory=dict)
    # Parts of the condition that no setting is known for.
    open: tuple[str, ...] = ()
    # The names of the rules by which the condition became settings.
    rules: tuple[str, ...] = ()
    # Whose source the lines are counted in: what the change removes is there on the merge base alone.
    side: Side = Side.HEAD

    @property
    def place(self) -> str:
        """The place as people name it."""
        return f"{self.path}:{self.symbol}" if self.symbol else self.path


# What a run that is made from a job's own one does not take over: it is there to be compared with.
NO_PURPOSES: dict[str, object] = {"purposes": (), "settings": {}}


def purpose_of(want: Want) -> Purpose:
    """The purpose of a job that a want is covered by; long texts are cut."""
    return Purpose(
        path=_shown(want.path),
        symbol=_shown(want.symbol),
        lines=want.lines[:_MOST_LINES],
        condition=_shown(want.condition),
        settings=dict(want.axes),
        overrides=dict(want.overrides),
        open=tuple(_shown(part, _MOST_OF_PART) for part in want.open[:_MOST_PARTS]),
        rules=want.rules[:_MOST_RULES],
        side=want.side,
    )


def _shown(text: str, most: int = _MOST_CHARACTERS) -> str:
    """A text of the code on one line, not longer than people read."""
    line = " ".join(text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").split())
    return line if len(line) <= most else f"{line[: most - 3]}..."
