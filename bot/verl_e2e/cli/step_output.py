"""What a step of a GitHub workflow prints: text for people, and never a command to the runner."""

import io
import re
import sys

from verl_e2e.core.text.escape import LINE_ENDS, step_text

_LINE_END = re.compile(f"[{LINE_ENDS}]")
# At the start of a line a command may begin with white space; beyond this a colon is no longer looked for there.
_MOST_SPACE = 200


class StepOutput(io.TextIOWrapper):
    """A stream that takes the meaning from every command of the runner's, however the text comes in pieces."""

    _before = ""

    def write(self, text: str) -> int:
        """Write the text; what was written of the line before decides whether it begins a command."""
        super().write(step_text(self._before + text)[len(self._before) :])
        self._before = _context(self._before + text)
        return len(text)


def _context(written: str) -> str:
    """What of the line under way the next piece could complete a command with."""
    line = _LINE_END.split(written)[-1]
    if not line.strip().removeprefix(":") and len(line) <= _MOST_SPACE:
        return line
    return f"x{line[-2:]}"


def neutralise_streams() -> None:
    """Let standard output and error print no command to the runner."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, StepOutput):
            encoding, line_buffering = stream.encoding, stream.line_buffering
            raw = stream.detach()
            setattr(sys, name, StepOutput(raw, encoding, "backslashreplace", line_buffering=line_buffering))
