"""Which records the instrumentation takes in the processes of a run: a switch, to measure what they cost."""

from collections.abc import Mapping
from enum import StrEnum

from verl_e2e.core.model.errors import UserError

RECORD_VARIABLE = "VERL_E2E_RECORD"
_OFF = "off"


class Part(StrEnum):
    """A record that can be switched off."""

    EXECUTED = "executed"
    FINGERPRINTS = "fingerprints"


class RecordingError(UserError):
    """The variable has a value that it cannot have; the message names those that it can."""


def recorded_parts(environ: Mapping[str, str]) -> frozenset[Part]:
    """The records that the runner's variable asks for: all of them where it is not set, none for `off`."""
    given = environ.get(RECORD_VARIABLE, "").strip()
    if not given:
        return frozenset(Part)
    if given == _OFF:
        return frozenset()
    names = {name.strip() for name in given.split(",")}
    if unknown := sorted(names - {part.value for part in Part}):
        known = ", ".join(part.value for part in Part)
        raise RecordingError(f"{RECORD_VARIABLE}={given}: {unknown[0]!r} is not one of {known}; `off` stands for none")
    return frozenset(Part(name) for name in names)
