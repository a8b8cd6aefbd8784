"""What a child process may take, and the messages that it exchanges with its parent."""

import enum
import io
import pickle
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from typing import Any, Final

from pydantic import BaseModel

from verl_e2e.core.model.errors import UserError

# A child must not be able to name any other class: a pickle may call whatever it names.
_VALUES: Final = ("verl_e2e.core.", "verl_e2e.ports", "verl_e2e.app.plan_change", "verl_e2e.app.analysis")
_PLAIN: Final = frozenset(
    {("builtins", "frozenset"), ("builtins", "set"), ("datetime", "date"), ("pathlib", "PurePosixPath")}
)


@dataclass(frozen=True, slots=True)
class WorkLimits:
    """What one piece of work may take; the git processes that it starts are each held to the same."""

    memory_bytes: int = 1 << 30
    """Address space of a process."""
    cpu_s: int = 60
    """Seconds of one core for a process."""
    wall_s: float = 120.0
    """Seconds from the start of the work to its answer, all processes together."""
    message_bytes: int = 16 << 20
    """The largest message from the child: a question, or the answer."""
    file_bytes: int = 1 << 30
    """The largest file that may be written."""


class StepError(Exception):
    """The work ended with a fault of ours; the text is what the child said, `where` the end of its traceback."""

    def __init__(self, text: str, where: str = "") -> None:
        super().__init__(text)
        self.where = where


class StepRefusedError(UserError):
    """The work ended with an error that a person can correct; the text is what the child said."""


class MessageKind(enum.StrEnum):
    """What a message from the child is."""

    READY = "ready"
    QUESTION = "question"
    VALUE = "value"
    REFUSED = "refused"
    FAILED = "failed"
    LIMIT = "limit"
    ASKED = "asked"


def dumps(value: object) -> bytes:
    """A message."""
    written = io.BytesIO()
    _Pickler(written, protocol=5).dump(value)
    return written.getvalue()


def message(kind: MessageKind, value: object = None) -> bytes:
    """A message of the child's."""
    return dumps((kind.value, value))


def loads(raw: bytes) -> Any:
    """A message of the child's: plain data and our own frozen values, and nothing that a pickle could run."""
    return _Values(io.BytesIO(raw)).load()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        # Python 3.11.0 to 3.11.3 write a member of an enum as a call of `getattr`, which the reader refuses.
        return (type(value), (value.value,)) if isinstance(value, enum.Enum) else NotImplemented


class _Values(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN:
            return super().find_class(module, name)
        if "." not in name and f"{module}.".startswith(_VALUES):
            found = getattr(import_module(module), name, None)
            if isinstance(found, type) and (is_dataclass(found) or issubclass(found, enum.Enum | BaseModel)):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is not a value that a child may send")
