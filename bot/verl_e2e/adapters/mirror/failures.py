"""What git says when a fetch fails, as what it means for us."""

import re
from enum import Enum, auto
from urllib.parse import urlsplit

from verl_e2e.git.program import Finished, Stop
from verl_e2e.ports import ForgeError


class TooMuchError(ForgeError):
    """A fetch was stopped, because it took too long or brought too much."""


class Cause(Enum):
    """Why a fetch failed."""

    UNKNOWN_OBJECT = auto()
    DENIED = auto()
    ABSENT = auto()
    NETWORK = auto()
    DISK = auto()
    STOPPED = auto()
    DAMAGE = auto()


_PATTERNS = (
    (Cause.UNKNOWN_OBJECT, r"not our ref|couldn't find remote ref|no such remote ref|unadvertised object"),
    (Cause.DISK, r"No space left on device|Disk quota exceeded|Read-only file system|Permission denied"),
    (Cause.DENIED, r"returned error: 40[13]|Authentication failed|could not read (Username|Password)|Access denied"),
    (Cause.ABSENT, r"returned error: 404|repository '.*' not found|Repository not found|unable to update url base"),
    (
        Cause.NETWORK,
        r"unable to access|Could not resolve|Failed to connect|timed out|RPC failed|early EOF|unexpected disconnect"
        r"|remote end hung up|curl \d+|HTTP [45]\d\d|returned error: \d+|SSL|expected flush|bad line length",
    ),
)
_OBJECT = re.compile(r"not our ref ([0-9a-f]{40,64})")


def cause_of(finished: Finished) -> Cause:
    """Why a fetch failed; what nothing else explains is damage of the clone."""
    if finished.stop is not None:
        return Cause.STOPPED
    return next((cause for cause, pattern in _PATTERNS if re.search(pattern, finished.stderr)), Cause.DAMAGE)


def unknown_object(finished: Finished) -> str | None:
    """The object that the other side does not have, where it says so."""
    found = _OBJECT.search(finished.stderr)
    return found[1] if found else None


def error_of(finished: Finished, url: str) -> ForgeError:
    """The failure in one sentence with what to do."""
    parts = urlsplit(url)
    repository, host = parts.path.strip("/").removesuffix(".git"), parts.hostname
    error = finished.error
    match cause_of(finished):
        case Cause.STOPPED if finished.stop is Stop.MISSING:
            return ForgeError(error)
        case Cause.STOPPED:
            return TooMuchError(f"Fetching {repository} from {host} {finished.ending}, and was stopped", passing=True)
        case Cause.DENIED:
            return ForgeError(f"{host} does not let us read {repository}: give a token that may, in GITHUB_TOKEN")
        case Cause.ABSENT:
            return ForgeError(f"{host} has no repository {repository}, or it is private: check it, or set GITHUB_TOKEN")
        case Cause.UNKNOWN_OBJECT:
            return ForgeError(f"{host} no longer has what was asked for of {repository}: {error}")
        case Cause.DISK:
            return ForgeError(
                f"The clone of {repository} could not be written: {error}; free space, or name another cache"
            )
        case Cause.NETWORK:
            return ForgeError(f"{repository} could not be fetched from {host}: {error}; try again later", passing=True)
        case Cause.DAMAGE:
            return ForgeError(f"git could not fetch {repository} from {host}: {error}", passing=True)
