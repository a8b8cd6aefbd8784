"""The service's settings: one table of environment variables, read once at start.

`VARIABLES` is the source of docs/settings.md. A secret is never part of a message.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_e2e.config import settings_values as read
from verl_e2e.config.problems import ConfigError, Problem, closest
from verl_e2e.core.pulls.attestation import Attestation
from verl_e2e.core.text.suggest import likely

_SOURCE = "environment"
_LEVELS = ("debug", "info", "warning", "error")
BACKENDS = ("github-actions", "local")
DEFAULT_VERL = "https://github.com/verl-project/verl"


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
    tool: tuple[str, str]
    image: str
    runners: Mapping[int, tuple[str, ...]]
    fork_runners: Mapping[int, tuple[str, ...]]
    attestation: Attestation
    trusted_root: Path | None
    site_profile: str
    site_values: Mapping[str, str]
    verl: str
    bridge: str
    workers: int
    tick_s: int
    list_lag_s: int
    keep_days: int
    log_level: str


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
        except read.BadValueError as error:
            problems.append(Problem(_SOURCE, 0, variable.name, error.what, error.mend))
    problems += _lacking(values)
    if problems:
        raise ConfigError(problems)
    # Only here, because its default lies in the folder that another variable names.
    database = values.pop("database_url") or f"sqlite:///{values['data'] / 'verl-e2e.sqlite3'}"
    return Settings(**values, database_url=database)


def _lacking(values: Mapping[str, Any]) -> list[Problem]:
    """What the chosen back end needs and nobody named."""
    if values.get("backend") == "github-actions" and values.get("tool") == ("", ""):
        mend = "it is required for github-actions; write OWNER/NAME@SHA"
        return [Problem(_SOURCE, 0, "VERL_E2E_TOOL", "it is not set", mend)]
    if values.get("backend") != "local":
        return []
    needed = {"VERL_E2E_BRIDGE": values.get("bridge"), "VERL_E2E_VERL": values.get("verl")}
    mend = "local needs a folder with a clone"
    bare = [name for name, place in needed.items() if place is not None and (not place or "://" in place)]
    return [Problem(_SOURCE, 0, name, "it names no folder", mend) for name in bare]


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
    text = _secret_text(variable.name, environ)
    if text:
        return text
    if variable.default is None:
        raise read.BadValueError("it is not set" if variable.name not in environ else "it is empty", "it is required")
    return variable.default


def _secret_text(name: str, environ: Mapping[str, str]) -> str:
    """A variable's text, for a secret also from the file that `NAME_FILE` names; empty when neither is set."""
    text, file = environ.get(name, "").strip(), environ.get(_SECRET_FILES.get(name, ""), "").strip()
    if text and file:
        raise read.BadValueError(f"{_SECRET_FILES[name]} is set too", "set one of the two")
    return _content(_SECRET_FILES[name], file) if file else text


def _content(name: str, file: str) -> str:
    try:
        return Path(file).read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise read.BadValueError(f"{name} {file}: {error.strerror}", "name a file that can be read") from None


def _key_text(environ: Mapping[str, str]) -> str:
    """The private key from its own variable or from the file that the other one names."""
    text = _secret_text(_KEY, environ)
    if not text:
        raise read.BadValueError(
            "it is not set", f"set it to the App's private key, or {_KEY_FILE} to a file that holds it"
        )
    # Many secret stores keep one line only.
    return text.replace("\\n", "\n")


def _misspelt(environ: Mapping[str, str]) -> list[Problem]:
    """Names that are nearly ours: a setting that nothing reads looks just like one that is obeyed."""
    known = {variable.name for variable in VARIABLES.values()} | set(_SECRET_FILES.values())
    ours = ("VERL_E2E_", "GITHUB_APP_", "GITHUB_WEBHOOK_")
    others = set(environ) - known - _OTHERS
    gone = [
        Problem(_SOURCE, 0, name, "there is no such variable any more", _WITHDRAWN[name])
        for name in sorted(others & set(_WITHDRAWN))
    ]
    unknown = sorted(name for name in others - set(_WITHDRAWN) if name.startswith(ours) and likely(name, known))
    return [*gone, *(Problem(_SOURCE, 0, name, "there is no such variable", closest(name, known)) for name in unknown)]


_KEY, _KEY_FILE = "GITHUB_APP_PRIVATE_KEY", "GITHUB_APP_PRIVATE_KEY_FILE"
_SECRET_FILES = {name: f"{name}_FILE" for name in (_KEY, "GITHUB_WEBHOOK_SECRET", "DATABASE_URL")}
# What no process that is started from the service needs; each may be given as a file instead.
SECRETS = tuple(_SECRET_FILES)
# Ours as well, but read elsewhere; they mean nothing here.
_OTHERS = frozenset(
    {"VERL_E2E_DEBUG", "VERL_E2E_IMPORTS", "VERL_E2E_RECORDER_KEY", "VERL_E2E_PATH", "VERL_E2E_RUN", "VERL_E2E_TESTS"}
)

# Variables of earlier versions, and what takes their place.
_WITHDRAWN = {"VERL_E2E_QUEUE_MINUTES": "set gate.queue_deadline_s in the policy instead"}

# By the name of the field that each fills.
VARIABLES: Mapping[str, Variable] = {
    "app_id": Variable("GITHUB_APP_ID", "The App's id, a number on its settings page.", read.number(1, 10**15)),
    "private_key": Variable(
        _KEY,
        f"The App's private key in PEM; line ends may be written `\\n`. Or `{_KEY_FILE}`: the file that holds it.",
        read.private_key,
    ),
    "webhook_secret": Variable(
        "GITHUB_WEBHOOK_SECRET",
        "The secret of the App's webhook, at least 16 characters. Or `GITHUB_WEBHOOK_SECRET_FILE`, as above.",
        read.secret,
    ),
    "api_url": Variable(
        "GITHUB_API_URL",
        "GitHub's API; for GitHub Enterprise Server `https://HOST/api/v3`. Plain http only to this machine.",
        read.api_url,
        "https://api.github.com",
    ),
    "public_url": Variable(
        "VERL_E2E_PUBLIC_URL",
        "Where GitHub reaches this service from outside, without `/webhook`; `doctor` compares it with the App's hook.",
        lambda text: read.url(text) if text else "",
        "",
    ),
    "database_url": Variable(
        "DATABASE_URL",
        "`sqlite:///FILE`, or `postgresql://USER:PASSWORD@HOST/NAME` (needs the extra `postgres`). "
        "Or `DATABASE_URL_FILE`, as above.",
        read.database_url,
        "",
        "`verl-e2e.sqlite3` in `VERL_E2E_DATA`",
    ),
    "data": Variable(
        "VERL_E2E_DATA",
        "The folder for the database, git mirrors and run folders; it is made when missing.",
        lambda text: Path(text).expanduser().absolute(),
        "verl-e2e-data",
    ),
    "host": Variable("VERL_E2E_HOST", "The address to listen on.", read.host, "127.0.0.1"),
    "port": Variable("VERL_E2E_PORT", "The port to listen on; 0 takes a free one.", read.number(0, 65535), "8080"),
    "repositories": Variable(
        "VERL_E2E_REPOSITORIES",
        "The repositories to serve, `owner/name`, several with spaces between; empty: wherever the App is installed.",
        read.repositories,
        "",
    ),
    "backend": Variable(
        "VERL_E2E_BACKEND", f"Where jobs run: `{'`, `'.join(BACKENDS)}`.", read.one_of(*BACKENDS), BACKENDS[0]
    ),
    "workflow": Variable(
        "VERL_E2E_WORKFLOW", "The workflow that runs a job, for `github-actions`.", read.workflow, "verl-e2e.yml"
    ),
    "workflow_ref": Variable(
        "VERL_E2E_WORKFLOW_REF",
        "The branch that the workflow is taken from and jobs run on: one that holds nothing else, so that no job "
        "writes the caches of the default branch.",
        str,
        "verl-e2e",
    ),
    "tool": Variable(
        "VERL_E2E_TOOL",
        "The verl-e2e that a job is run by, `OWNER/NAME@SHA` with the full commit; required for `github-actions`.",
        read.pinned_tool,
        "",
    ),
    "image": Variable(
        "VERL_E2E_IMAGE",
        "The image of jobs, for `github-actions`, where the policy pins none by its digest; empty: that of the site.",
        str,
        "",
    ),
    "runners": Variable(
        "VERL_E2E_RUNNERS",
        "Runner labels by number of GPUs, for `github-actions`: `1=self-hosted,gpu-x1 8=self-hosted,gpu-x8`.",
        read.runners,
        "",
        "`self-hosted,linux,gpu-xN` for 1, 2, 4 and 8",
    ),
    "fork_runners": Variable(
        "VERL_E2E_FORK_RUNNERS",
        "The same for the jobs of forks: ephemeral runners of a pool of their own; empty: they share the others.",
        read.runners,
        "",
    ),
    "attestation": Variable(
        "VERL_E2E_ATTESTATION",
        "Whether a run folder counts without a verified attestation of who handed it over, for `github-actions`: "
        "`required`, or `preferred` where GitHub makes none (private repositories, Enterprise Server).",
        lambda text: Attestation(read.one_of(*map(str, Attestation))(text)),
        Attestation.REQUIRED.value,
    ),
    "trusted_root": Variable(
        "VERL_E2E_TRUSTED_ROOT",
        "A file with Sigstore's trust root, by which attestations are verified; empty: the one of the library.",
        lambda text: Path(text).expanduser().absolute() if text else None,
        "",
    ),
    "site_profile": Variable(
        "VERL_E2E_SITE_PROFILE",
        "The site profile of the hosts that run jobs: a packaged name, or a file on this machine. For every back end.",
        str,
        "default",
    ),
    "site_values": Variable(
        "VERL_E2E_SITE_VALUES",
        "What the site profile leaves open, `name=value`, several with spaces between, as `--set` of other verbs.",
        read.pairs,
        "",
    ),
    "verl": Variable(
        "VERL_E2E_VERL",
        "verl's repository: its address, or a folder with a clone of it, which `local` needs.",
        read.place,
        DEFAULT_VERL,
    ),
    "bridge": Variable(
        "VERL_E2E_BRIDGE",
        "For `local`: a folder with a clone of the repository under test that holds the heads of its pull requests.",
        read.folder,
        "",
    ),
    "workers": Variable("VERL_E2E_WORKERS", "How many pull requests are looked at at once.", read.number(1, 64), "4"),
    "tick_s": Variable(
        "VERL_E2E_TICK_S",
        "Seconds between two looks at open runs and at the list of open pull requests: a push, or the end of a run, of "
        "which no webhook told is found after so long at most.",
        read.number(1, 3600),
        "60",
    ),
    "list_lag_s": Variable(
        "VERL_E2E_LIST_LAG_S",
        "Seconds after which GitHub's lists are believed. A comment, check run or workflow run of which nobody knows "
        "whether it was created, after a crash or a lost answer, is created again only then.",
        read.number(1, 600),
        "30",
    ),
    "keep_days": Variable(
        "VERL_E2E_KEEP_DAYS",
        "Days after which deliveries, written replies, targets that nothing happened to and run folders are removed. "
        "Commands, approvals, overrides, runs and their verdicts stay. GitHub delivers again for 3 days, GitHub "
        "Enterprise Server for 7.",
        read.number(4, 3650),
        "14",
    ),
    "log_level": Variable("VERL_E2E_LOG_LEVEL", f"`{'`, `'.join(_LEVELS)}`.", read.one_of(*_LEVELS), "info"),
}
