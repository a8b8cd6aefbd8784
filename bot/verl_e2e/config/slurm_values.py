"""Readers for the settings of a Slurm cluster: each returns the value, or raises UnfitError with the fix."""

import os
import re
import shlex
from pathlib import Path

from verl_e2e.core.model.document import UnfitError

_OPTIONS = (
    *("account", "constraint", "cpus-per-task", "exclude", "licenses", "mem", "nice", "nodelist", "partition", "qos"),
    *("reservation", "wckey"),
)
_OPTION = re.compile(rf"--({'|'.join(_OPTIONS)})=[A-Za-z0-9_.,:@+*&|()\[\]/-]+|--exclusive")
_GPUS = re.compile(r"--(gpus|gpus-per-node|gpus-per-task)=([\w-]+:)?N|--gres=gpu:([\w-]+:)?N", re.ASCII)
# As ssh takes it: `user@host`, or a name of the user's configuration; never an option.
_HOST = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MOUNT = re.compile(r"/[^\s:,]*:/[^\s:,]*(:[a-z+-]+)?")


def options(text: str) -> tuple[str, ...]:
    """Options of `sbatch`, separated by spaces, of those that choose nodes and accounts."""
    words = tuple(text.split())
    for word in words:
        if not _OPTION.fullmatch(word):
            known = ", ".join(f"--{name}" for name in _OPTIONS)
            raise UnfitError(f"{_quoted(word)} is not an option that may be set", f"write --NAME=VALUE with {known}")
    return words


def gpus(text: str) -> str:
    """The option of `sbatch` that asks for N GPUs."""
    if not _GPUS.fullmatch(text):
        raise UnfitError(
            f"{_quoted(text)} does not ask for N GPUs",
            "write an option of sbatch: --gpus-per-node=N, --gpus=N or --gres=gpu:TYPE:N",
        )
    return text


def host(text: str) -> str:
    """A host as ssh takes it; empty stays empty."""
    if text and not _HOST.fullmatch(text):
        raise UnfitError(f"{_quoted(text)} is not a host", "write HOST, USER@HOST or a name of ~/.ssh/config")
    return text


def mounts(text: str) -> tuple[str, ...]:
    """Mounts of a container, separated by spaces."""
    words = tuple(text.split())
    for word in words:
        if not _MOUNT.fullmatch(word):
            raise UnfitError(f"{_quoted(word)} is not a mount", "write /SOURCE:/TARGET with two absolute paths")
    return words


def script(text: str) -> str:
    """The absolute path of a script on the nodes, which this machine need not have; empty stays empty."""
    if text and not Path(text).is_absolute():
        raise UnfitError(f"{_quoted(text)} is not an absolute path", "write the path of a script that the nodes have")
    return text


def host_file(text: str) -> str:
    """The absolute path of a file on the hosts of jobs, which this machine need not have; empty stays empty."""
    if text and not Path(text).is_absolute():
        raise UnfitError(f"{_quoted(text)} is not an absolute path", "write the path of a file that the hosts have")
    return text


def command(text: str) -> tuple[str, ...]:
    """A command with its first words, quoted as in a shell."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UnfitError(f"{_quoted(text)}: {error}", "write it as in a shell") from None
    if not words:
        raise UnfitError("it names no command", "write verl-e2e, or the path of one")
    return words


def shared_folder(text: str) -> Path | None:
    """The absolute path of a folder that is here; empty: None."""
    if text and not (os.path.isabs(text) and os.path.isdir(text)):
        raise UnfitError(
            f"{_quoted(text)} is not an absolute path of a folder", "create one that the nodes see at the same path"
        )
    return Path(text) if text else None


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
