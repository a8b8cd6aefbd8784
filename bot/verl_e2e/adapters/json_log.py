"""Log lines, one for each event: JSON for programs, text for a terminal. Secrets are taken out of both.

Text of strangers cannot begin a line, nor send control characters to a terminal: what cannot be printed is escaped.
"""

import json
import logging
import re
from datetime import UTC, datetime

from verl_e2e.core.text.redact import hide_secrets
from verl_e2e.log_context import current_log_context

# What every record has anyway; anything else was given as `extra`.
_OWN = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "color_message"}
_TEXT_CHARACTERS = 20_000
_PLAIN = re.compile(r"[\w.,:;/#@+~%-]+", re.ASCII)


class LogLines(logging.Formatter):
    """One JSON document for a record: time, level, logger, message, what it is about, the traceback.

    With `text` one line instead, `TIME LEVEL MESSAGE name=value ...`; lines of a traceback follow, each after `  | `.
    """

    def __init__(self, *secrets: str, text: bool = False) -> None:
        super().__init__()
        self._text = text
        # As they are, and as a document or a web address would show them.
        self._secrets = sorted({form for secret in secrets if secret for form in (secret, json.dumps(secret)[1:-1])})

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        message = self._safe(record.getMessage())
        given = {name: value for name, value in vars(record).items() if name not in _OWN}
        about = {
            name: value if isinstance(value, int | float | None) else self._safe(str(value))
            for name, value in {**current_log_context(), **given}.items()
        }
        traceback = self._safe(self.formatException(record.exc_info)) if record.exc_info else ""
        if not self._text:
            fixed = {"time": time, "level": record.levelname.lower(), "logger": record.name, "message": message}
            document = {**fixed, **{name: value for name, value in about.items() if name not in fixed}}
            return _printable(
                json.dumps(document | ({"traceback": traceback} if traceback else {}), ensure_ascii=False)
            )
        words = {
            name: str(value) if _PLAIN.fullmatch(str(value)) else json.dumps(str(value), ensure_ascii=False)
            for name, value in about.items()
        }
        shown = json.dumps(message, ensure_ascii=False)[1:-1].replace('\\"', '"')
        row = " ".join([f"{time} {record.levelname:<7} {shown}", *(f"{name}={word}" for name, word in words.items())])
        return "\n".join([_printable(row), *(f"  | {_printable(line)}" for line in traceback.splitlines())])

    def _safe(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "<redacted>")
        return hide_secrets(text[:_TEXT_CHARACTERS].encode(errors="replace")).decode(errors="replace")


def _printable(text: str) -> str:
    r"""The text with what cannot be printed as `\u....`: control characters, line ends, marks of direction."""
    if text.isprintable():
        return text

    def escaped(char: str) -> str:
        return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else json.dumps(char)[1:-1]

    return "".join(char if char.isprintable() else escaped(char) for char in text)


def log_to_stderr(level: str, *secrets: str, form: str = "json") -> None:
    """Write every logger's lines from this level on to standard error, without those secrets.

    `form` is `json`, `text`, or `auto`: text where standard error is a terminal.
    """
    handler = logging.StreamHandler()
    text = form == "text" or (form == "auto" and handler.stream.isatty())
    handler.setFormatter(LogLines(*secrets, text=text))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Its lines about every request would tell nothing that ours do not.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
