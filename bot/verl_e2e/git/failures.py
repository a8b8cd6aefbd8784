"""What git says when a fetch fails, as what it means for us."""

import re
from enum import Enum, auto
from urllib.parse import urlsplit

from verl_e2e.core.model.errors import ForgeError
from verl_e2e.git.program import Finished, Stop


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
_SENTENCES = {
    Cause.STOPPED: "Fetching {repository} from {host} {ending}, and was stopped",
    Cause.DENIED: "{host} does not let us read {repository}: give a token that may, in {credential}",
    Cause.ABSENT: "{host} has no repository {repository}, or it is private: check it, or set {credential}",
    Cause.UNKNOWN_OBJECT: "{host} no longer has what was asked for of {repository}: {error}",
    Cause.DISK: "The clone of {repository} could not be written: {error}; free space, or name another cache",
    Cause.NETWORK: "{repository} could not be fetched from {host}: {error}; try again later",
    Cause.DAMAGE: "git could not fetch {repository} from {host}: {error}",
}
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


def error_of(finished: Finished, url: str, credential: str) -> ForgeError:
    """The failure in one sentence with what to do; `credential` is the variable that gives a token."""
    parts, cause = urlsplit(url), cause_of(finished)
    if finished.stop is Stop.MISSING:
        return ForgeError(finished.error)
    names = {"repository": parts.path.strip("/").removesuffix(".git"), "host": parts.hostname, "error": finished.error}
    kind = TooMuchError if cause is Cause.STOPPED else ForgeError
    text = _SENTENCES[cause].format(**names, ending=finished.ending, credential=credential)
    return kind(text, passing=cause in {Cause.STOPPED, Cause.NETWORK, Cause.DAMAGE})
