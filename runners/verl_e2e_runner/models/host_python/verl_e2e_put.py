"""Puts a folder where other runs of the host may look for it and read it: whole, and by one process at a time."""

import fcntl
import hashlib
import os
import shutil
from contextlib import contextmanager


@contextmanager
def turn(folder):
    """Wait until no other process makes this folder; the system ends the turn with the process."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder.with_name(f".{folder.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def new_folder(folder):
    """A folder to fill, which takes the place of `folder` when it is whole.

    Where the same lies there already it stays as it is: another run may read it, and must not find it gone.
    """
    unfinished, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{word}") for word in ("unfinished", "old"))
    for rest in (unfinished, old):
        shutil.rmtree(rest, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        if contents(unfinished) != contents(folder):
            if folder.exists():
                folder.rename(old)
            unfinished.rename(folder)
    finally:
        for rest in (unfinished, old):
            shutil.rmtree(rest, ignore_errors=True)


def contents(folder):
    """The digest of every file, by its path; nothing of a folder that is not there."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                digest = hashlib.sha256()
                while block := file.read(1 << 20):
                    digest.update(block)
            found[os.path.relpath(path, folder)] = digest.hexdigest()
    return found
