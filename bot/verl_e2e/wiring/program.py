"""Which version of the program this is, to the last byte: a release's number is the same for every commit before it."""

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# The bot decides and judges, and the runner runs; both come from one wheel.
_PACKAGES = ("verl_e2e", "verl_e2e_runner")


def program_digest(*elsewhere: str) -> str:
    """SHA-256 of all files of the installed packages, and of what names the program on other machines.

    `elsewhere` is what the settings say of it: a pinned commit, or the command of an installation.
    """
    return hashlib.sha256("\0".join((_installed(), *elsewhere)).encode("utf-8", "surrogateescape")).hexdigest()


@cache
def _installed() -> str:
    digest = hashlib.sha256()
    for package in _PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    digest.update(f"{package}/{path.relative_to(folder).as_posix()}\0".encode())
                    digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
