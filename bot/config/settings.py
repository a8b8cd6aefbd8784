"""The service's settings: one table of environment variables, read once at start.

`VARIABLES` is the source of docs/settings.md. A secret is never part of a message.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bot.config.problems import ConfigError, Problem, closest

_SOURCE = "environment"
_PEM = re.compile(r"-----BEGIN (RSA )?PRIVATE KEY-----(?P<body>[A-Za-z0-9+/=\s]+)-----END (RSA )?PRIVATE KEY-----")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_WORKFLOW = re.compile(r"[A-Za-z0-9_.-]+\.ya?ml")
_LEVELS = ("debug", "info", "warning", "error")
BACKENDS = ("github-actions", "local")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the service was told; secrets are left out of its text."""

    api_url: str
    app_id: int
    private_key: str = field(repr=False)
    webhook_secret: str = field(repr=False)
    database_url: str = field(repr=False)
    public_url: str
    host: str
    port: int
    data: Path
    repositories: tuple[str, ...]
    backend: str
    workflow: str
    workflow_ref: str
    site_profile: str
    workers: int
    tick_s: int
    log_level: str


class _BadValueError(ValueError):
    """What is wrong with a value, without the value where it is secret, and the mend."""

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(what)
        self.what, self.mend = what, mend


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: what it means, its default (None: required), and how its text is read."""

    name: str
    meaning: str
    read: Callable[[str], Any]
    default: str | None = None
    shown_default: str = ""


def load_settings(environ: Mapping[str, str]) -> Settings:
    """The settings of an environment; raises ConfigError with one line for each variable that is missing or bad."""
    problems: list[Problem] = [*_misspelt(environ)]
    values: dict[str, Any] = {}
    for key, variable in VARIABLES.items():
        try:
            values[key] = variable.read(_text_of(variable, environ))
        except _BadValueError as error:
            problems.append(Problem(_SOURCE, 0, variable.name, error.what, error.mend))
    if problems:
        raise ConfigError(problems)
    # Only here, because its default lies in the folder that another variable names.
    database = values.pop("database_url") or f"sqlite:///{values['data'] / 'verl-e2e.sqlite3'}"
    return Settings(**values, database_url=database)


def settings_table() -> str:
    """The variables as a Markdown table."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for variable in VARIABLES.values():
        default = variable.shown_default or (f"`{variable.default}`" if variable.default else "none")
        rows.append(
            f"| `{variable.name}` | {'(required)' if variable.default is None else default} | {variable.meaning} |"
        )
    return "\n".join(rows) + "\n"


def _text_of(variable: Variable, environ: Mapping[str, str]) -> str:
    if variable.name == _KEY:
        return _key_text(environ)
    text = environ.get(variable.name, "").strip()
    if text:
        return text
    if variable.default is None:
        raise _BadValueError("it is not set" if variable.name not in environ else "it is empty", "it is required")
    return variable.default


def _key_text(environ: Mapping[str, str]) -> str:
    """The private key from its own variable or from the file that the other one names."""
    text, file = environ.get(_KEY, "").strip(), environ.get(_KEY_FILE, "").strip()
    if text and file:
        raise _BadValueError(f"{_KEY_FILE} is set too", "set one of the two")
    if text:
        # Many secret stores keep one line only.
        return text.replace("\\n", "\n")
    if not file:
        raise _BadValueError(
            "it is not set", f"set it to the App's private key, or {_KEY_FILE} to a file that holds it"
        )
    try:
        return Path(file).read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise _BadValueError(f"{_KEY_FILE} {file}: {error.strerror}", "name a PEM file that can be read") from None


def _misspelt(environ: Mapping[str, str]) -> list[Problem]:
    """Names that are nearly ours: a setting that nothing reads looks just like one that is obeyed."""
    known = {variable.name for variable in VARIABLES.values()} | {_KEY_FILE}
    ours = ("VERL_E2E_", "GITHUB_APP_", "GITHUB_WEBHOOK_")
    problems = []
    for name in sorted(set(environ) - known - _OTHERS):
        mend = closest(name, known) if name.startswith(ours) else ""
        if mend.startswith("did you mean"):
            problems.append(Problem(_SOURCE, 0, name, "there is no such variable", mend))
    return problems


def _url(text: str) -> str:
    parts = _split(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise _BadValueError("it is no address of the form https://HOST/PATH", "give one without a query")
    if parts.username or parts.password:
        raise _BadValueError("it holds a user or a password", "give the address alone")
    return text.rstrip("/")


def _api_url(text: str) -> str:
    url = _url(text)
    if url.startswith("http:") and _split(url).hostname not in _LOOPBACK:
        raise _BadValueError(f"{url} would send the App's tokens in the clear", "use https")
    return url


def _split(text: str) -> Any:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise _BadValueError("it is no address of the form https://HOST/PATH", "see host and port") from None
    return parts


def _number(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text) or not low <= int(text) <= high:
            raise _BadValueError(f"{_shown(text)} is no whole number from {low} to {high}", "give one")
        return int(text)

    return read


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in words:
            raise _BadValueError(f"{_shown(text)} is not known", closest(text.lower(), words))
        return text.lower()

    return read


def _private_key(text: str) -> str:
    """A PEM private key, looked at as far as a truncated or mistaken one shows."""
    found = _PEM.fullmatch(text)
    if not found:
        kind = "an encrypted or public key, a certificate, or cut off" if "-----BEGIN" in text else "no PEM text"
        raise _BadValueError(f"it is {kind}", "give the whole private key that GitHub let you download (.pem)")
    try:
        raw = base64.b64decode("".join(found["body"].split()), validate=True)
    except binascii.Error:
        raw = b""
    if _der_length(raw) != len(raw):
        raise _BadValueError("the key inside is damaged", "copy the .pem file again, with every line")
    return text + "\n"


def _der_length(raw: bytes) -> int:
    """The length that an ASN.1 sequence says of itself, heading included; -1 when it is none."""
    if len(raw) < 4 or raw[0] != 0x30:
        return -1
    if raw[1] < 0x80:
        return 2 + raw[1]
    width = raw[1] & 0x7F
    return 2 + width + int.from_bytes(raw[2 : 2 + width], "big")


def _secret(text: str) -> str:
    if len(text) < 16:
        raise _BadValueError(f"it has {len(text)} characters", "use 16 random characters or more")
    return text


def _database_url(text: str) -> str:
    if not text:
        return ""
    # What many hosts hand out, and SQLAlchemy does not know.
    url = re.sub(r"^postgres://", "postgresql://", text)
    if not re.match(r"(sqlite|postgresql)://", url):
        raise _BadValueError("it names no database that is known", "write sqlite:///FILE or postgresql://...")
    if url in ("sqlite://", "sqlite:///", "sqlite:///:memory:"):
        raise _BadValueError("a database in memory forgets everything at each start", "write sqlite:///FILE")
    return url


def _repositories(text: str) -> tuple[str, ...]:
    names = tuple(text.replace(",", " ").split())
    for name in names:
        if not _REPOSITORY.fullmatch(name):
            raise _BadValueError(f"{_shown(name)} is no repository", "write owner/name, several with spaces between")
    return names


def _workflow(text: str) -> str:
    if not _WORKFLOW.fullmatch(text):
        raise _BadValueError(f"{_shown(text)} is no workflow file's name", "write it without a folder: verl-e2e.yml")
    return text


def _host(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:-]+", text):
        raise _BadValueError(f"{_shown(text)} is no address to listen on", "write 127.0.0.1, 0.0.0.0 or a host name")
    return text


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


_KEY, _KEY_FILE = "GITHUB_APP_PRIVATE_KEY", "GITHUB_APP_PRIVATE_KEY_FILE"
# Ours as well, but read elsewhere; they mean nothing here.
_OTHERS = frozenset({"VERL_E2E_DEBUG", "VERL_E2E_IMPORTS", "VERL_E2E_PATH", "VERL_E2E_RUN", "VERL_E2E_TESTS"})

# By the name of the field that each fills.
VARIABLES: Mapping[str, Variable] = {
    "app_id": Variable("GITHUB_APP_ID", "The App's id, a number on its settings page.", _number(1, 10**15)),
    "private_key": Variable(
        _KEY,
        f"The App's private key in PEM; line ends may be written `\\n`. Or `{_KEY_FILE}`: the file that holds it.",
        _private_key,
    ),
    "webhook_secret": Variable(
        "GITHUB_WEBHOOK_SECRET", "The secret of the App's webhook, at least 16 characters.", _secret
    ),
    "api_url": Variable(
        "GITHUB_API_URL",
        "GitHub's API; for GitHub Enterprise Server `https://HOST/api/v3`. Plain http only to this machine.",
        _api_url,
        "https://api.github.com",
    ),
    "public_url": Variable(
        "VERL_E2E_PUBLIC_URL",
        "Where GitHub reaches this service from outside, without `/webhook`; `doctor` compares it with the App's hook.",
        lambda text: _url(text) if text else "",
        "",
    ),
    "database_url": Variable(
        "DATABASE_URL",
        "`sqlite:///FILE`, or `postgresql://USER:PASSWORD@HOST/NAME` (needs the extra `postgres`).",
        _database_url,
        "",
        "`verl-e2e.sqlite3` in `VERL_E2E_DATA`",
    ),
    "data": Variable(
        "VERL_E2E_DATA",
        "The folder for the database, git mirrors and run folders; it is made when missing.",
        lambda text: Path(text).expanduser().absolute(),
        "verl-e2e-data",
    ),
    "host": Variable("VERL_E2E_HOST", "The address to listen on.", _host, "127.0.0.1"),
    "port": Variable("VERL_E2E_PORT", "The port to listen on; 0 takes a free one.", _number(0, 65535), "8080"),
    "repositories": Variable(
        "VERL_E2E_REPOSITORIES",
        "The repositories to serve, `owner/name`, several with spaces between; empty: wherever the App is installed.",
        _repositories,
        "",
    ),
    "backend": Variable(
        "VERL_E2E_BACKEND", f"Where jobs run: `{'`, `'.join(BACKENDS)}`.", _one_of(*BACKENDS), BACKENDS[0]
    ),
    "workflow": Variable(
        "VERL_E2E_WORKFLOW", "The workflow that runs a job, for `github-actions`.", _workflow, "verl-e2e.yml"
    ),
    "workflow_ref": Variable(
        "VERL_E2E_WORKFLOW_REF",
        "The branch or tag that the workflow is taken from; empty: the default branch.",
        str,
        "",
    ),
    "site_profile": Variable(
        "VERL_E2E_SITE_PROFILE", "The site profile of this host, packaged name or file, for `local`.", str, "default"
    ),
    "workers": Variable("VERL_E2E_WORKERS", "How many pull requests are looked at at once.", _number(1, 64), "4"),
    "tick_s": Variable(
        "VERL_E2E_TICK_S", "Seconds between two looks at open runs and recent pull requests.", _number(1, 3600), "60"
    ),
    "log_level": Variable("VERL_E2E_LOG_LEVEL", f"`{'`, `'.join(_LEVELS)}`.", _one_of(*_LEVELS), "info"),
}
