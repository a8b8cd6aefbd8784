"""What is private to one run on the host: its mark, its Ray folder, and where the instrumentation writes.

Which records the instrumentation takes can be switched, to measure what they cost.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from verl_e2e.core.model.errors import UserError
from verl_e2e_runner.process.processes import make_own_folder, remove_own_folder

IMPORTS_VARIABLE = "VERL_E2E_IMPORTS"
EXECUTED_VARIABLE = "VERL_E2E_EXECUTED"
FINGERPRINTS_VARIABLE = "VERL_E2E_FINGERPRINTS"
PATH_VARIABLE = "VERL_E2E_PATH"
# Tells the instrumentation that the run joins a Ray cluster which others use.
SHARED_RAY_VARIABLE = "VERL_E2E_SHARED_RAY"

# A unix socket's path has at most 107 bytes, and Ray adds
# `/ray/session_YYYY-MM-DD_hh-mm-ss_uuuuuu_ppppppp/sockets/plasma_store` to its folder.
_LONGEST_RAY_FOLDER = 107 - 69


@dataclass(frozen=True, slots=True)
class Session:
    """What is private to one run on the host."""

    # In the environment of every process of the run.
    nonce: str
    # Ray's temporary folder, the run's own and short: sockets lie in it.
    ray_folder: Path
    # Where the instrumentation writes a line for each import of a module under test.
    imports: Path
    # What the execution record is to hold, a file that the runner writes; None: nothing is recorded.
    executed: Path | None = None
    # The folder into which the instrumentation writes fingerprints, a file for each process; None: it takes none.
    fingerprints: Path | None = None
    # The indices of the run's GPUs, in the order of the bus; None: those that CUDA_VISIBLE_DEVICES shows anyway.
    gpus: tuple[int, ...] | None = None
    # The Ray cluster of the job's nodes, HOST:PORT; empty: verl starts one of its own.
    ray_address: str = ""
    # The folder of the kernel caches, as the code under test sees it; None: where the libraries put them anyway.
    caches: Path | None = None


def planned_session(
    nonce: str, imports: Path, *, executed: Path | None = None, fingerprints: Path | None = None, caged: bool = False
) -> Session:
    """The session that `open_session` would make; touches nothing. In a cage /tmp is the run's own."""
    root = Path("/tmp") if caged else _short_root()  # noqa: S108
    recorded = executed.resolve() if executed else None
    prints = fingerprints.resolve() if fingerprints else None
    return Session(nonce, root / f"ve-{nonce[:8]}", imports.resolve(), recorded, prints)


def open_session(
    nonce: str, imports: Path, *, executed: Path | None = None, fingerprints: Path | None = None
) -> Session:
    """Make the run's Ray folder; `nonce` must be new (a random hex string), `imports` is the file of import lines."""
    session = planned_session(nonce, imports, executed=executed, fingerprints=fingerprints)
    make_own_folder(session.ray_folder, nonce)
    return session


def close_session(session: Session) -> bool:
    """Remove the run's Ray folder, when none of its processes is left; false when something stays behind."""
    return remove_own_folder(session.ray_folder, session.nonce)


def _short_root() -> Path:
    """The system's temporary folder, or `/tmp` where that one is too long for Ray's sockets."""
    root = Path(tempfile.gettempdir()).resolve()
    return root if len(str(root)) + len("/ve-12345678") <= _LONGEST_RAY_FOLDER else Path("/tmp")  # noqa: S108


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
