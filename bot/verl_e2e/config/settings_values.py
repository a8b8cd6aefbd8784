"""How the text of a setting is read: each function gives the value or says what is wrong with it, and the mend."""

import base64
import binascii
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from verl_e2e.config.problems import closest

_PEM = re.compile(r"-----BEGIN (RSA )?PRIVATE KEY-----(?P<body>[A-Za-z0-9+/=\s]+)-----END (RSA )?PRIVATE KEY-----")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_WORKFLOW = re.compile(r"[A-Za-z0-9_.-]+\.ya?ml")


class BadValueError(ValueError):
    """What is wrong with a value, without the value where it is secret, and the mend."""

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(what)
        self.what, self.mend = what, mend


def url(text: str) -> str:
    """An address of the web without user, password, query or fragment, and without its last slash."""
    parts = _split(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise BadValueError("it is no address of the form https://HOST/PATH", "give one without a query")
    if parts.username or parts.password:
        raise BadValueError("it holds a user or a password", "give the address alone")
    return text.rstrip("/")


def api_url(text: str) -> str:
    """As `url`; plain http only to this machine."""
    address = url(text)
    if address.startswith("http:") and _split(address).hostname not in _LOOPBACK:
        raise BadValueError(f"{address} would send the App's tokens in the clear", "use https")
    return address


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise BadValueError("it is no address of the form https://HOST/PATH", "see host and port") from None
    return parts


def number(low: int, high: int) -> Callable[[str], int]:
    """A reader of whole numbers within bounds."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text) or not low <= int(text) <= high:
            raise BadValueError(f"{_shown(text)} is no whole number from {low} to {high}", "give one")
        return int(text)

    return read


def one_of(*words: str) -> Callable[[str], str]:
    """A reader of one of some words, in either case."""

    def read(text: str) -> str:
        if text.lower() not in words:
            raise BadValueError(f"{_shown(text)} is not known", closest(text.lower(), words))
        return text.lower()

    return read


def private_key(text: str) -> str:
    """A PEM private key, looked at as far as a truncated or mistaken one shows."""
    found = _PEM.fullmatch(text)
    if not found:
        kind = "an encrypted or public key, a certificate, or cut off" if "-----BEGIN" in text else "no PEM text"
        raise BadValueError(f"it is {kind}", "give the whole private key that GitHub let you download (.pem)")
    try:
        raw = base64.b64decode("".join(found["body"].split()), validate=True)
    except binascii.Error:
        raw = b""
    if _der_length(raw) != len(raw):
        raise BadValueError("the key inside is damaged", "copy the .pem file again, with every line")
    return text + "\n"


def _der_length(raw: bytes) -> int:
    """The length that an ASN.1 sequence says of itself, heading included; -1 when it is none."""
    if len(raw) < 4 or raw[0] != 0x30:
        return -1
    if raw[1] < 0x80:
        return 2 + raw[1]
    width = raw[1] & 0x7F
    return 2 + width + int.from_bytes(raw[2 : 2 + width], "big")


def secret(text: str) -> str:
    """A secret of some length."""
    if len(text) < 16:
        raise BadValueError(f"it has {len(text)} characters", "use 16 random characters or more")
    return text


def database_url(text: str) -> str:
    """The URL of a database on disk or on a server; empty stays empty."""
    if not text:
        return ""
    # What many hosts hand out, and SQLAlchemy does not know.
    url = re.sub(r"^postgres://", "postgresql://", text)
    if not re.match(r"(sqlite|postgresql)://", url):
        raise BadValueError("it names no database that is known", "write sqlite:///FILE or postgresql://...")
    if url in ("sqlite://", "sqlite:///", "sqlite:///:memory:"):
        raise BadValueError("a database in memory forgets everything at each start", "write sqlite:///FILE")
    return url


def repositories(text: str) -> tuple[str, ...]:
    """Names of repositories with spaces or commas between."""
    names = tuple(text.replace(",", " ").split())
    for name in names:
        if not _REPOSITORY.fullmatch(name):
            raise BadValueError(f"{_shown(name)} is no repository", "write owner/name, several with spaces between")
    return names


def workflow(text: str) -> str:
    """The file name of a workflow."""
    if not _WORKFLOW.fullmatch(text):
        raise BadValueError(f"{_shown(text)} is no workflow file's name", "write it without a folder: verl-e2e.yml")
    return text


def pinned_tool(text: str) -> tuple[str, str]:
    """A repository and a full commit in it, `owner/name@sha`; empty stays empty."""
    name, _, sha = text.partition("@")
    if text and not (_REPOSITORY.fullmatch(name) and re.fullmatch(r"[0-9a-f]{40}", sha)):
        raise BadValueError(f"{_shown(text)} is no commit of a repository", "write owner/name@SHA with all 40 digits")
    return name, sha


def runners(text: str) -> dict[int, tuple[str, ...]]:
    """Labels by number of GPUs, `1=self-hosted,gpu-x1 8=self-hosted,gpu-x8`."""
    sizes = {}
    for word in text.split():
        size, _, labels = word.partition("=")
        if not re.fullmatch(r"[1-9][0-9]{0,3}", size) or not re.fullmatch(r"[\w.-]+(,[\w.-]+)*", labels, re.ASCII):
            raise BadValueError(f"{_shown(word)} is no GPUS=LABEL,LABEL", "write 1=self-hosted,gpu-x1 and the like")
        sizes[int(size)] = tuple(labels.split(","))
    return sizes


def pairs(text: str) -> dict[str, str]:
    """Names with their values, `name=value name=value`."""
    found = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not name or not equals or not value:
            raise BadValueError(f"{_shown(word)} is no name=value", "write kit=/opt/kit and the like")
        found[name] = value
    return found


def place(text: str) -> str:
    """The address of a repository, or a folder."""
    return url(text) if "://" in text else folder(text)


def folder(text: str) -> str:
    """A folder that is there, by its whole path; empty stays empty."""
    if text and not Path(text).is_dir():
        raise BadValueError(f"{_shown(text)} is no folder", "name one that is there")
    return str(Path(text).absolute()) if text else ""


def host(text: str) -> str:
    """An address or a name to listen on."""
    if not re.fullmatch(r"[A-Za-z0-9_.:-]+", text):
        raise BadValueError(f"{_shown(text)} is no address to listen on", "write 127.0.0.1, 0.0.0.0 or a host name")
    return text


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
