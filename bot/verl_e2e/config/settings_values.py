"""Readers for the text of a setting: each returns the value, or raises UnfitError with what is wrong and the fix."""

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import BeforeValidator

from verl_e2e.config.validation import suggest
from verl_e2e.core.model.document import UnfitError

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_WORKFLOW = re.compile(r"[A-Za-z0-9_.-]+\.ya?ml")


def url(text: str) -> str:
    """An http or https address without user, password, query or fragment. A slash at the end is removed."""
    parts = _split(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UnfitError("it is not an address of the form https://HOST/PATH", "give one without a query")
    if parts.username or parts.password:
        raise UnfitError("it contains a user name or a password", "give the address without them")
    return text.rstrip("/")


def api_url(text: str) -> str:
    """Like `url`, but http is accepted for this machine only."""
    address = url(text)
    if address.startswith("http:") and _split(address).hostname not in _LOOPBACK:
        raise UnfitError(f"{address} would send the App's tokens unencrypted", "use https")
    return address


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise UnfitError("it is not an address of the form https://HOST/PATH", "check the host and the port") from None
    return parts


def number(low: int, high: int) -> BeforeValidator:
    """A reader of whole numbers from `low` to `high`."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text) or not low <= int(text) <= high:
            raise UnfitError(f"{_quoted(text)} is not a whole number from {low} to {high}", "give one")
        return int(text)

    return BeforeValidator(read)


def one_of(*words: str) -> BeforeValidator:
    """A reader of one of `words`; upper and lower case are the same."""

    def read(text: str) -> str:
        if text.lower() not in words:
            raise UnfitError(f"{_quoted(text)} is not known", suggest(text.lower(), words))
        return text.lower()

    return BeforeValidator(read)


def private_key(text: str) -> str:
    """A private key in PEM."""
    # Many secret stores keep only one line.
    whole = text.replace("\\n", "\n") + "\n"
    try:
        load_pem_private_key(whole.encode(), password=None)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        kind = "an encrypted key, a public key, a certificate, or damaged" if "-----BEGIN" in text else "not PEM text"
        raise UnfitError(
            f"it is {kind}", "give the whole private key file that you downloaded from GitHub (.pem)"
        ) from None
    return whole


def secret(text: str) -> str:
    """A secret of at least 16 characters."""
    if len(text) < 16:
        raise UnfitError(f"it has {len(text)} characters", "use at least 16 random characters")
    return text


def database_url(text: str) -> str:
    """The URL of a database on disk or on a server; empty stays empty."""
    if not text:
        return ""
    # Many hosts give this form, and SQLAlchemy does not accept it.
    url = re.sub(r"^postgres://", "postgresql://", text)
    if not re.match(r"(sqlite|postgresql)://", url):
        raise UnfitError("this kind of database is not supported", "write sqlite:///FILE or postgresql://...")
    if url in ("sqlite://", "sqlite:///", "sqlite:///:memory:"):
        raise UnfitError("a database in memory loses everything at each restart", "write sqlite:///FILE")
    return url


def repositories(text: str) -> tuple[str, ...]:
    """Names of repositories, separated by spaces or commas."""
    names = tuple(text.replace(",", " ").split())
    for name in names:
        if not _REPOSITORY.fullmatch(name):
            raise UnfitError(f"{_quoted(name)} is not a repository", "write owner/name, several separated by spaces")
    return names


def workflow(text: str) -> str:
    """The file name of a workflow."""
    if not _WORKFLOW.fullmatch(text):
        raise UnfitError(
            f"{_quoted(text)} is not the name of a workflow file", "write it without a folder: verl-e2e.yml"
        )
    return text


def pinned_tool(text: str) -> tuple[str, str]:
    """A repository and a full commit in it, `owner/name@sha`; empty stays empty."""
    name, _, sha = text.partition("@")
    if text and not (_REPOSITORY.fullmatch(name) and re.fullmatch(r"[0-9a-f]{40}", sha)):
        raise UnfitError(f"{_quoted(text)} is not a commit of a repository", "write owner/name@SHA with all 40 digits")
    return name, sha


def runners(text: str) -> dict[int, tuple[str, ...]]:
    """Labels by number of GPUs, `1=self-hosted,gpu-x1 8=self-hosted,gpu-x8`."""
    sizes = {}
    for word in text.split():
        size, _, labels = word.partition("=")
        if not re.fullmatch(r"[1-9][0-9]{0,3}", size) or not re.fullmatch(r"[\w.-]+(,[\w.-]+)*", labels, re.ASCII):
            raise UnfitError(
                f"{_quoted(word)} does not have the form GPUS=LABEL,LABEL", "write for example 1=self-hosted,gpu-x1"
            )
        sizes[int(size)] = tuple(labels.split(","))
    return sizes


def pairs(given: str | Iterable[str]) -> dict[str, str]:
    """Names with their values: a list of `name=value`, or a text with white space between them."""
    found = {}
    for word in given.split() if isinstance(given, str) else given:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise UnfitError(f"{_quoted(word)} does not have the form name=value", "write for example kit=/opt/kit")
        found[name] = value
    return found


def event_payload(file: str) -> dict[str, Any]:
    """The event from a file that GitHub wrote."""
    try:
        found = json.loads(Path(file).read_bytes())
    except (OSError, ValueError, RecursionError):
        raise UnfitError(
            f"{_quoted(file)} is not an event that can be read", "run this as a step of a workflow"
        ) from None
    return found if isinstance(found, dict) else {}


def place(text: str) -> str:
    """The address of a repository, or a folder."""
    return url(text) if "://" in text else folder(text)


def folder(text: str) -> str:
    """An existing folder as an absolute path; empty stays empty."""
    if text and not os.path.isdir(text):
        raise UnfitError(f"{_quoted(text)} is not a folder", "name a folder that exists")
    return str(Path(text).absolute()) if text else ""


def host(text: str) -> str:
    """An address or a name to listen on."""
    if not re.fullmatch(r"[A-Za-z0-9_.:-]+", text):
        raise UnfitError(f"{_quoted(text)} is not an address to listen on", "write 127.0.0.1, 0.0.0.0 or a host name")
    return text


def address(text: str) -> tuple[str, int] | None:
    """A host and a port to listen on, `HOST:PORT` or `[IPV6]:PORT`; None for an empty text."""
    if not text:
        return None
    name, colon, port = text.rpartition(":")
    bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    if not colon or not bare or (":" in bare) != (bare != name) or not re.fullmatch(r"[0-9]{1,5}", port):
        raise UnfitError(f"{_quoted(text)} is not an address to listen on", "write HOST:PORT, as 127.0.0.1:9464")
    if int(port) > 65535:
        raise UnfitError(f"{port} is not a port", "write one from 0 to 65535")
    return host(bare), int(port)


def absolute(path: Path | None) -> Path | None:
    """The absolute path; `~` is the home folder."""
    return path.expanduser().absolute() if path else None


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
