"""The child process: `python -m verl_e2e.adapters.limited.child DESCRIPTOR MODULE:FUNCTION`.

It imports what its work needs, says that it is ready, takes one piece of work, binds itself to the limits, and answers.
"""

import os
import pickle
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from verl_e2e.adapters.limited.limits import MessageKind, WorkLimits, loads, message
from verl_e2e.core.model.errors import LimitError, UserError

_MOST_FILES = 256
_NICE = 10
_SHOWN = 2000


class _Asked:
    """Asks the parent; remembers the error that the answer was."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection
        self.error: Exception | None = None

    def __call__(self, question: object) -> Any:
        self._connection.send_bytes(message(MessageKind.QUESTION, question))
        # The parent may be believed: what it says never comes from outside.
        good, value = pickle.loads(self._connection.recv_bytes())  # noqa: S301
        if good:
            return value
        self.error = value
        raise value


def main(descriptor: int, entry: str) -> None:
    """Do one piece of work."""
    # Webhooks and what people say come first.
    os.nice(_NICE)
    connection: Connection[Any, Any] = Connection(descriptor)
    module, _, function = entry.partition(":")
    work = getattr(import_module(module), function)
    connection.send_bytes(message(MessageKind.READY))
    try:
        name, argument, limits = pickle.loads(connection.recv_bytes())  # noqa: S301  (the parent's)
    except EOFError:
        return  # no work came before the parent ended
    # Bind this process, and all that it will start, to the limits.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MOST_FILES, _MOST_FILES))
    # Should the parent be gone, no one else would end this one.
    signal.alarm(int(4 * limits.wall_s) + 1)
    # The first to go where the machine itself runs out of memory.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    ask = _Asked(connection)
    connection.send_bytes(_last_message(lambda: work(name, argument, ask), ask, limits))


def _last_message(work: Callable[[], object], ask: _Asked, limits: WorkLimits) -> bytes:
    """The outcome of the work, whatever it is, as the last message."""
    try:
        answer = message(MessageKind.VALUE, work())
        loads(answer)
    except MemoryError:
        return message(MessageKind.LIMIT, ("the memory that it needs", f"{limits.memory_bytes >> 20} MiB"))
    except RecursionError:
        return message(MessageKind.LIMIT, ("its nesting", f"{sys.getrecursionlimit()} levels"))
    except LimitError as error:
        return message(MessageKind.LIMIT, (error.what, error.limit))
    except Exception as error:
        text = f"{error}"[:_SHOWN]
        if error is ask.error:
            return message(MessageKind.ASKED, "")
        if isinstance(error, UserError):
            return message(MessageKind.REFUSED, text)
        where = traceback.format_exc(limit=-5)[-_SHOWN:]
        return message(MessageKind.FAILED, (f"{type(error).__name__}: {text}", where))
    if len(answer) > limits.message_bytes:
        return message(MessageKind.LIMIT, ("its answer", f"{limits.message_bytes >> 20} MiB"))
    return answer


if __name__ == "__main__":
    os.chdir("/")
    main(int(sys.argv[1]), sys.argv[2])
