"""What a failed piece of work means: when it is tried again, and what is told of it."""

import logging
from datetime import datetime, timedelta

from verl_e2e.core.model.errors import UserError
from verl_e2e.ports import BackendError, ForgeError

_FIRST_RETRY_S, _LAST_RETRY_S = 5.0, 900.0

log = logging.getLogger(__name__)


def retry_at(now: datetime, attempts: int, error: Exception) -> datetime:
    """Later with each failure; an answer that named a time is asked again then."""
    named_s = float(getattr(error, "wait_s", 0.0))
    return now + timedelta(seconds=named_s or min(_FIRST_RETRY_S * 2 ** min(attempts, 20), _LAST_RETRY_S))


def tell(what: str, error: Exception, about: dict[str, str]) -> None:
    """What others answered is one line, a fault of ours comes with where it lies."""
    expected = isinstance(error, UserError | ForgeError | BackendError)
    log.warning("%s: %s", what, error, exc_info=None if expected else error, extra=about)


def problem(error: Exception) -> str:
    """A failure in one text, as the tables keep it."""
    return f"{type(error).__name__}: {error}"
