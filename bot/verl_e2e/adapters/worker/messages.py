"""Write the messages of the outbox, one at a time in each lane; no gate waits for them."""

import logging
from collections.abc import Callable, Collection
from datetime import datetime
from functools import partial

from verl_e2e.adapters.worker.lanes import Lanes, MakePool, log_failure, problem, retry_at
from verl_e2e.core.pulls.messages import Letter, Message
from verl_e2e.log_context import log_context
from verl_e2e.ports import ForgeError, Outbox

_THREADS, _BATCH = 6, 32
# About a day with the waits of `retry_at`; after that no one waits for an answer.
_ATTEMPTS = 100

log = logging.getLogger(__name__)


class Mailing:
    """Takes messages from the outbox and has them written; `round` is called by one thread."""

    def __init__(
        self,
        write: Callable[[Message], None],
        outbox: Outbox,
        now: Callable[[], datetime],
        wake: Callable[[], None],
        make_pool: MakePool,
    ) -> None:
        self._write, self._outbox, self._now = write, outbox, now
        self._lanes = Lanes(_THREADS, lambda _: 1, "mail", wake, make_pool)

    @property
    def held(self) -> Collection[int]:
        """The messages that were taken from the outbox and are not written yet."""
        return tuple(map(int, self._lanes.keys))

    def round(self) -> bool:
        """Start what can be started; whether that was anything."""
        letters = self._outbox.take(self._now(), _BATCH, besides=self._lanes.filled(_BATCH // 2))
        for letter in letters:
            self._lanes.put(str(letter.number), letter.message.lane, partial(self._work, letter))
        return bool(letters)

    def stop(self) -> None:
        """Start nothing more."""
        self._lanes.stop()

    def _work(self, letter: Letter) -> None:
        message = letter.message
        try:
            with log_context(repository=message.repository, pull_request=message.number, subject=message.subject):
                self._try(letter)
        except Exception as error:
            # The database went away: the message still waits there, and writing it again changes nothing.
            log_failure("result of a message not stored", error, {})

    def _try(self, letter: Letter) -> None:
        try:
            self._write(letter.message)
        except Exception as error:
            log_failure("message not written", error, {})
            refused = isinstance(error, ForgeError) and not error.passing
            given_up = refused or letter.attempts + 1 >= _ATTEMPTS
            again_at = None if given_up else retry_at(self._now(), letter.attempts, error)
            self._outbox.failed(letter.number, problem(error), again_at)
        else:
            self._outbox.written(letter.number)
