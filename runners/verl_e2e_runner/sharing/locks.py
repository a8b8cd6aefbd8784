"""Locks on files of the host: the system releases them with the last breath of their process, whatever ended it."""

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_NOTE_BYTES = 400
_LOOK_S = 0.01


def make_folder(folder: Path) -> bool:
    """Make a folder in which every user of the host may have locks; false where there cannot be one."""
    with suppress(OSError):
        folder.mkdir(parents=True)
        folder.chmod(0o1777)
    return folder.is_dir() and not folder.is_symlink() and os.access(folder, os.W_OK)


def open_lock(file: Path) -> int | None:
    """The descriptor of a file to lock, None where there cannot be one; a link is never followed."""
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        # Another user's file in a sticky folder may be locked, though neither created nor written.
        with suppress(OSError):
            descriptor = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
            # The service makes files private; a lock that no other user can open keeps no one out.
            with suppress(OSError):
                os.fchmod(descriptor, 0o644)
            return descriptor
    return None


def has_locked(descriptor: int, *, shared: bool = False) -> bool:
    """Take a lock without waiting; whether this process has it now."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def take_lock(held: ExitStack, file: Path, note: str) -> bool:
    """Take a lock without waiting and keep it as long as `held`; `note` says who has it."""
    descriptor = open_lock(file)
    if descriptor is None:
        return False
    if not has_locked(descriptor):
        os.close(descriptor)
        return False
    held.callback(os.close, descriptor)
    write_note(descriptor, note)
    return True


def write_note(descriptor: int, note: str) -> None:
    """Say in a locked file who holds it."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note.encode()[:_NOTE_BYTES], 0)


def read_note(descriptor: int) -> str:
    """What the holder of a lock wrote: text of anyone on the host, on one line."""
    raw = os.pread(descriptor, _NOTE_BYTES, 0).decode(errors="replace")
    return "".join(letter for letter in raw if letter.isprintable())


def holders(files: Iterable[Path]) -> tuple[str, ...]:
    """The notes of those locks that another process holds, each once."""
    notes: list[str] = []
    for file in files:
        descriptor = open_lock(file)
        if descriptor is None:
            continue
        try:
            if not has_locked(descriptor, shared=True):
                notes.append(read_note(descriptor))
        finally:
            os.close(descriptor)
    return tuple(dict.fromkeys(notes))


@contextmanager
def lock_within(file: Path, limit_s: float) -> Iterator[bool]:
    """Wait for a lock that others hold for a moment only; false when it did not come in time."""
    descriptor = open_lock(file)
    deadline = time.monotonic() + limit_s
    try:
        taken = descriptor is not None and has_locked(descriptor)
        while descriptor is not None and not taken and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            taken = has_locked(descriptor)
        yield taken
    finally:
        if descriptor is not None:
            os.close(descriptor)
