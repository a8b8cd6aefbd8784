"""What a reader wants of an exception: its whole message, and the frame of ours that is nearest to it."""

import re

from verl_e2e.core.log.lines import Line
from verl_e2e.core.log.records import record_of
from verl_e2e.core.model.facts import Frame, Record

MAX_LINES = 40
MAX_TEXT = 4000
MAX_SOURCE = 300

# A line that no message holds: the shell's echo, Hydra's advice, progress bars, marks of processes and of crashes.
_FOREIGN = re.compile(
    r"\++ |Set the environment variable HYDRA|Error executing job|\*\*\* |Exception ignored|\(\w+[^)]{0,60}\) |\[rank\d"
    r"|(?:Training Progress|step):|\d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ]"
)
_BAR = "%|"
# What may follow an empty line inside a message: `Greatest absolute difference: 1.0`, an item, an indented line.
_AFTER_BLANK = re.compile(r"\s|[-*] |[A-Z][\w /()-]{2,40}: ")
_PACKAGES = re.compile(r"(?:^|/)(?:site|dist)-packages/")
_OURS = re.compile(r"(?:^|/)(?:megatron/(?:bridge|core|training|legacy|inference|rl)|verl(?!/(?:lib|\.venv|venv)\b))/")


class Message:
    """The message of an exception, line by line, until something else is printed."""

    def __init__(self, first: str = "") -> None:
        self._rows = [first] if first else []
        self._size = len(first)
        self._open = True
        self._blank = False

    @property
    def is_open(self) -> bool:
        """Whether the next line may belong to it."""
        return self._open

    def blank(self) -> None:
        """An empty line: the message may go on below it."""
        self._open = self._open and not self._blank
        self._blank = True

    def add(self, text: str, *, plain: bool) -> None:
        """Take the next line of the same process; a line that is not part of the message ends it."""
        if not self._open or not plain or self._ends(text):
            self._open = False
            return
        if len(self._rows) < MAX_LINES and self._size < MAX_TEXT:
            self._rows += ["", text.rstrip()] if self._blank and self._rows else [text.rstrip()]
            self._size += len(text)
        self._blank = False

    def _ends(self, text: str) -> bool:
        if _FOREIGN.match(text) or _BAR in text[:MAX_SOURCE]:
            return True
        if self._blank and not _AFTER_BLANK.match(text):
            return True
        return not text[:1].isspace() and record_of(text) is not Record.RAISED

    def __str__(self) -> str:
        return "\n".join(self._rows)[:MAX_TEXT]


class LoneMessage:
    """The lines below an error that is printed without a traceback, as Hydra prints its own."""

    def __init__(self, first: Line, message: str = "") -> None:
        self.at = first.number
        self.source = first.source
        self.text = Message(message or first.text.strip())

    def take(self, line: Line, *, plain: bool) -> bool:
        """Take the next line; False when the message has ended before it."""
        if line.number > self.at + MAX_LINES:
            return False
        if line.source != self.source:
            return True
        if not line.text.strip():
            return False
        self.text.add(line.text, plain=plain)
        return self.text.is_open


class InnerFrame:
    """The last frame of a stack that lies in Megatron-Bridge, Megatron-LM or verl, with its source line."""

    def __init__(self) -> None:
        self._frame: tuple[str, int, str] | None = None
        self._source = ""
        self._waits = False

    def add(self, path: str, line: int, function: str) -> None:
        """Take the next frame, from the outermost to the innermost."""
        self._waits = is_ours(path)
        if self._waits:
            self._frame, self._source = (path, line, function), ""

    def source(self, text: str) -> None:
        """Take a line below a frame; the first one is the frame's source."""
        if self._waits:
            self._source, self._waits = text.strip()[:MAX_SOURCE], False

    def frame(self) -> Frame | None:
        """The frame, None when no frame so far is one of ours."""
        return None if self._frame is None else Frame(*self._frame, self._source)


def is_ours(path: str) -> bool:
    """Whether a file is one of Megatron-Bridge, Megatron-LM or verl, wherever they are installed."""
    return _OURS.search(_PACKAGES.split(path)[-1]) is not None
