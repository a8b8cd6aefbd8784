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


class _Lines(logging.Formatter):
    """What both forms share: the values of a record, without secrets."""

    def __init__(self, *secrets: str) -> None:
        super().__init__()
        # As they are, and as a document or a web address would show them.
        self._secrets = sorted({form for secret in secrets if secret for form in (secret, json.dumps(secret)[1:-1])})

    def message(self, record: logging.LogRecord) -> str:
        """The message."""
        return self._safe(record.getMessage())

    def about(self, record: logging.LogRecord) -> dict[str, object]:
        """What the piece of work is about, and what was given as `extra`."""
        given = {name: value for name, value in vars(record).items() if name not in _OWN}
        return {
            name: value if isinstance(value, int | float | None) else self._safe(str(value))
            for name, value in {**current_log_context(), **given}.items()
        }

    def traceback(self, record: logging.LogRecord) -> str:
        """The traceback, empty where there is none."""
        return self._safe(self.formatException(record.exc_info)) if record.exc_info else ""

    def _safe(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "<redacted>")
        return hide_secrets(text[:_TEXT_CHARACTERS].encode(errors="replace")).decode(errors="replace")


class JsonLines(_Lines):
    """One JSON document for a record: time, level, logger, message, what it is about, the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        document: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message(record),
        }
        document |= {name: value for name, value in self.about(record).items() if name not in document}
        if traceback := self.traceback(record):
            document["traceback"] = traceback
        return _printable(json.dumps(document, ensure_ascii=False))


class TextLines(_Lines):
    """One line for a record, `TIME LEVEL MESSAGE name=value ...`; lines of a traceback follow, each after `  | `."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        about = (f" {name}={_word(value)}" for name, value in self.about(record).items())
        message = _printable(json.dumps(self.message(record), ensure_ascii=False)[1:-1].replace('\\"', '"'))
        rows = [f"{_time(record)} {record.levelname:<7} {message}{''.join(about)}"]
        rows += (f"  | {_printable(row)}" for row in self.traceback(record).splitlines())
        return "\n".join(rows)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _word(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else _printable(json.dumps(text, ensure_ascii=False))


def _printable(text: str) -> str:
    r"""The text with what cannot be printed as `\u....`: control characters, line ends, marks of direction."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else json.dumps(char)[1:-1]


def log_to_stderr(level: str, *secrets: str, form: str = "json") -> None:
    """Write every logger's lines from this level on to standard error, without those secrets.

    `form` is `json`, `text`, or `auto`: text where standard error is a terminal.
    """
    handler = logging.StreamHandler()
    text = form == "text" or (form == "auto" and handler.stream.isatty())
    handler.setFormatter(TextLines(*secrets) if text else JsonLines(*secrets))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Its lines about every request would tell nothing that ours do not.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
