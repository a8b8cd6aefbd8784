"""Output of a step of a GitHub workflow: text only, never a command that the runner would execute."""

import io
import re
import sys

from verl_e2e.core.text.escape import LINE_ENDS, step_text

_LINE_END = re.compile(f"[{LINE_ENDS}]")
# A command may start after white space; after this many characters we no longer search for its colon.
_MOST_SPACE = 200


class StepOutput(io.TextIOWrapper):
    """A stream that disables every workflow command in the text, also one that arrives in several pieces."""

    _before = ""

    def write(self, text: str) -> int:
        """Write the text; the part of the line that was written before decides whether it begins a command."""
        super().write(step_text(self._before + text)[len(self._before) :])
        self._before = _context(self._before + text)
        return len(text)


def _context(written: str) -> str:
    """The part of the current line that the next piece of text could complete to a command."""
    line = _LINE_END.split(written)[-1]
    if not line.strip().removeprefix(":") and len(line) <= _MOST_SPACE:
        return line
    return f"x{line[-2:]}"


def neutralise_streams() -> None:
    """Disable workflow commands in standard output and standard error."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, StepOutput):
            encoding, line_buffering = stream.encoding, stream.line_buffering
            raw = stream.detach()
            setattr(sys, name, StepOutput(raw, encoding, "backslashreplace", line_buffering=line_buffering))
