"""Log lines as JSON, one document for each, with secrets taken out."""

import json
import logging
from datetime import UTC, datetime

from verl_e2e.core.text.secret_patterns import hide_secrets

# What every record has anyway; anything else was given as `extra`.
_OWN = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "color_message"}
_TEXT_CHARACTERS = 20_000


class JsonLines(logging.Formatter):
    """One JSON document for a record: time, level, logger, message, what was given as `extra`, the traceback."""

    def __init__(self, *secrets: str) -> None:
        super().__init__()
        # As they are, and as a document or a web address would show them.
        self._secrets = sorted({form for secret in secrets if secret for form in (secret, json.dumps(secret)[1:-1])})

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._safe(record.getMessage()),
        }
        for key, value in vars(record).items():
            if key not in _OWN and key not in document:
                document[key] = value if isinstance(value, int | float | None) else self._safe(str(value))
        if record.exc_info:
            document["traceback"] = self._safe(self.formatException(record.exc_info))
        return json.dumps(document, ensure_ascii=False)

    def _safe(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "<redacted>")
        return hide_secrets(text[:_TEXT_CHARACTERS].encode(errors="replace")).decode(errors="replace")


def log_to_stderr(level: str, *secrets: str) -> None:
    """Write every logger's lines from this level on to standard error, without those secrets."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(*secrets))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Its lines about every request would tell nothing that ours do not.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
