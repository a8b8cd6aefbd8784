"""What tests need of Node, installed once by npm from a lock file, into pytest's cache."""

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

_FILES = ("package.json", "package-lock.json")


def install(locked: Path, folder: Path) -> Path:
    """Fill `folder` with the `node_modules` that the lock file in `locked` names; at once where they are there.

    Several test processes may ask at a time: one installs, the others wait. CalledProcessError when npm fails.
    """
    digest = hashlib.sha256(b"".join((locked / name).read_bytes() for name in _FILES)).hexdigest()
    done = folder / "installed"
    with (folder / "lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not done.exists() or done.read_text(encoding="ascii") != digest:
            for name in _FILES:
                shutil.copy(locked / name, folder / name)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev"]
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=600)
            done.write_text(digest, encoding="ascii")
    return folder / "node_modules"
