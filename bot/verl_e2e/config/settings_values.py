"""The types of settings, each read from the text of a variable: a value, or UnfitError with the fix."""

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import AfterValidator, BeforeValidator

from verl_e2e.config.validation import suggest
from verl_e2e.core.model.document import UnfitError
from verl_e2e.core.pulls.queue import Pool

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_REPOSITORY = r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+"
# Of `sbatch`: the options that choose nodes and accounts.
_OPTIONS = (
    *("account", "constraint", "cpus-per-task", "exclude", "licenses", "mem", "nice", "nodelist", "partition", "qos"),
    *("reservation", "wckey"),
)
_POOL = re.compile(r"(fork:)?(all|[1-9][0-9]{0,3}(?:,[1-9][0-9]{0,3})*)=([1-9][0-9]{0,4})(gpus)?")
_HEADER = re.compile(r"([A-Za-z0-9-]+):[ \t]*([\x21-\x7e][\x20-\x7e]*)")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def form(pattern: str, what: str, fix: str) -> BeforeValidator:
    """A reader of texts of one form; `what` says what another text is not."""

    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise UnfitError(f"{_quoted(text)} {what}", fix)
        return text

    return BeforeValidator(read)


def words(pattern: str, what: str, fix: str) -> BeforeValidator:
    """A reader of words of one form, with white space between them."""

    def read(text: str) -> tuple[str, ...]:
        for word in text.split():
            if not re.fullmatch(pattern, word):
                raise UnfitError(f"{_quoted(word)} {what}", fix)
        return tuple(text.split())

    return BeforeValidator(read)


def number(low: int, high: int) -> BeforeValidator:
    """A reader of whole numbers from `low` to `high`."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text) or not low <= int(text) <= high:
            raise UnfitError(f"{_quoted(text)} is not a whole number from {low} to {high}", "give one")
        return int(text)

    return BeforeValidator(read)


def one_word_of(*known: str) -> BeforeValidator:
    """A reader of one of some words; upper and lower case are the same."""

    def read(text: str) -> str:
        if text.lower() not in known:
            raise UnfitError(f"{_quoted(text)} is not known", suggest(text.lower(), known))
        return text.lower()

    return BeforeValidator(read)


def _absolute_path(of: str) -> BeforeValidator:
    """A reader of an absolute path on another host, which this machine need not have; empty stays empty."""
    return form(r"(/[\s\S]*)?", "is not an absolute path", f"write the path of {of} have")


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise UnfitError("it is not an address of the form https://HOST/PATH", "check the host and the port") from None
    return parts


def _url(text: str) -> str:
    parts = _split(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UnfitError("it is not an address of the form https://HOST/PATH", "give one without a query")
    if parts.username or parts.password:
        raise UnfitError("it contains a user name or a password", "give the address without them")
    return text.rstrip("/")


def _api_url(text: str) -> str:
    address = _url(text)
    if address.startswith("http:") and _split(address).hostname not in _LOOPBACK:
        raise UnfitError(f"{address} would send the App's tokens unencrypted", "use https")
    return address


def _place(text: str) -> str:
    if "://" in text:
        return _url(text)
    if text and not os.path.isdir(text):
        raise UnfitError(f"{_quoted(text)} is not a folder", "name a folder that exists")
    return str(Path(text).absolute()) if text else ""


def _private_key(text: str) -> str:
    # Many secret stores keep only one line.
    whole = text.replace("\\n", "\n") + "\n"
    try:
        load_pem_private_key(whole.encode(), password=None)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        kind = "an encrypted key, a public key, a certificate, or damaged" if "-----BEGIN" in text else "not PEM text"
        fix = "give the whole private key file that you downloaded from GitHub (.pem)"
        raise UnfitError(f"it is {kind}", fix) from None
    return whole


def _secret(text: str) -> str:
    if len(text) < 16:
        raise UnfitError(f"it has {len(text)} characters", "use at least 16 random characters")
    return text


def _database_url(text: str) -> str:
    # Many hosts give the first form, and SQLAlchemy does not accept it.
    url = re.sub(r"^postgres://", "postgresql://", text)
    if url and not re.match(r"(sqlite|postgresql)://", url):
        raise UnfitError("this kind of database is not supported", "write sqlite:///FILE or postgresql://...")
    if url in ("sqlite://", "sqlite:///", "sqlite:///:memory:"):
        raise UnfitError("a database in memory loses everything at each restart", "write sqlite:///FILE")
    return url


def _tool(text: str) -> tuple[str, str]:
    if text and not re.fullmatch(rf"{_REPOSITORY}@[0-9a-f]{{40}}", text):
        raise UnfitError(f"{_quoted(text)} is not a commit of a repository", "write owner/name@SHA with all 40 digits")
    name, _, sha = text.partition("@")
    return name, sha


def _tool_or_tag(text: str) -> tuple[str, str]:
    if re.fullmatch(rf"{_REPOSITORY}@v[0-9]{{1,6}}(\.[0-9]{{1,6}}){{0,2}}", text):
        name, _, tag = text.partition("@")
        return name, tag
    return _tool(text)


def _runners(text: str) -> dict[int, tuple[str, ...]]:
    sizes = {}
    for word in text.split():
        found = re.fullmatch(r"([1-9][0-9]{0,3})=([\w.-]+(?:,[\w.-]+)*)", word, re.ASCII)
        if found is None:
            what = f"{_quoted(word)} does not have the form GPUS=LABEL,LABEL"
            raise UnfitError(what, "write for example 1=self-hosted,gpu-x1")
        sizes[int(found[1])] = tuple(found[2].split(","))
    return sizes


def name_values(given: str | Iterable[str]) -> dict[str, str]:
    """Names with their values: a list of `name=value`, or a text with white space between them."""
    found = {}
    for word in given.split() if isinstance(given, str) else given:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise UnfitError(f"{_quoted(word)} does not have the form name=value", "write for example kit=/opt/kit")
        found[name] = value
    return found


def _payload(file: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(file).read_bytes())
    except (OSError, ValueError, RecursionError):
        what = f"{_quoted(file)} is not an event that can be read"
        raise UnfitError(what, "run this as a step of a workflow") from None
    return found if isinstance(found, dict) else {}


def _listening(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    found = re.fullmatch(r"(?:\[([A-Za-z0-9_.:-]+)\]|([A-Za-z0-9_.-]+)):([0-9]{1,5})", text)
    if found is None:
        raise UnfitError(f"{_quoted(text)} is not an address to listen on", "write HOST:PORT, as 127.0.0.1:9464")
    if int(found[3]) > 65535:
        raise UnfitError(f"{found[3]} is not a port", "write one from 0 to 65535")
    return found[1] or found[2], int(found[3])


def _slots(text: str) -> tuple[Pool, ...]:
    pools: list[Pool] = []
    for word in text.split():
        found = _POOL.fullmatch(word)
        if found is None:
            fix = "write GPUS=RUNS as in 1=4 2,4=2, all=8, or GPUS=Ngpus as in all=16gpus; fork: in front for forks"
            raise UnfitError(f"{_quoted(word)} does not have the form GPUS=RUNS", fix)
        fork, sizes, limit, gpus = found.groups()
        numbers = frozenset() if sizes == "all" else frozenset(map(int, sizes.split(",")))
        pool = Pool(f"{fork or ''}{sizes}", int(limit), numbers, counts_gpus=bool(gpus), for_forks=bool(fork))
        largest = max(numbers, default=0)
        if pool.counts_gpus and largest > pool.limit:
            raise UnfitError(f"{_quoted(word)} is less than one job of {largest} GPUs", "raise the number of GPUs")
        alike = [other.sizes for other in pools if other.for_forks == pool.for_forks]
        if any(not other or not numbers or other & numbers for other in alike):
            raise UnfitError(f"{_quoted(word)} names a number of GPUs that a word before it names", "name each once")
        pools.append(pool)
    return tuple(pools)


def _command(text: str) -> tuple[str, ...]:
    try:
        found = tuple(shlex.split(text))
    except ValueError as error:
        raise UnfitError(f"{_quoted(text)}: {error}", "write it as in a shell") from None
    if not found:
        raise UnfitError("it names no command", "write verl-e2e, or the path of one")
    return found


def _shared_folder(text: str) -> Path | None:
    if text and not (os.path.isabs(text) and os.path.isdir(text)):
        what = f"{_quoted(text)} is not an absolute path of a folder"
        raise UnfitError(what, "create one that the nodes see at the same path")
    return Path(text) if text else None


def _headers(text: str) -> Mapping[str, str]:
    """One `NAME: VALUE` on each line. No message shows a value."""
    found = {}
    for position, line in enumerate(filter(None, map(str.strip, text.splitlines())), 1):
        header = _HEADER.fullmatch(line)
        if header is None:
            raise UnfitError(f"line {position} is not a header", "write NAME: VALUE on each line")
        found[header[1]] = header[2].rstrip()
    return found


def _verify(text: str) -> bool | str:
    if text.lower() in ("yes", "no"):
        return text.lower() == "yes"
    if not (os.path.isabs(text) and os.path.exists(text)):
        raise UnfitError("it is not yes, no or the path of a file", "write yes, no, or the path of a PEM file")
    return text


def _resources(text: str) -> Mapping[str, float]:
    found = {}
    for word in text.split():
        amount = re.fullmatch(r"([A-Za-z0-9_.:-]+)=([0-9]{1,6}(?:\.[0-9]{1,4})?)", word)
        # Ray has arguments of their own for these.
        if amount is None or amount[1] in ("CPU", "GPU", "memory", "object_store_memory"):
            what = f"{word[:40]!r} is not an amount of one of the cluster's own resources"
            raise UnfitError(what, "write NAME=AMOUNT as on the nodes; GPUs, CPUs and memory are asked for anyway")
        found[amount[1]] = float(amount[2])
    return found


# An address without user, password, query or fragment; a slash at the end is removed.
Url = Annotated[str, BeforeValidator(_url)]
OptionalUrl = Annotated[str, BeforeValidator(lambda text: _url(text) if text else "")]
# The same, and http is accepted for this machine only.
ApiUrl = Annotated[str, BeforeValidator(_api_url)]
# The address of a repository, or an existing folder.
RepositoryPlace = Annotated[str, BeforeValidator(_place)]
PrivateKey = Annotated[str, BeforeValidator(_private_key)]
Secret = Annotated[str, BeforeValidator(_secret)]
OptionalSecret = Annotated[str, BeforeValidator(lambda text: _secret(text) if text else "")]
DatabaseUrl = Annotated[str, BeforeValidator(_database_url)]
Repositories = Annotated[
    tuple[str, ...],
    words(_REPOSITORY, "is not a repository", "write owner/name, several separated by spaces"),
    BeforeValidator(lambda text: text.replace(",", " ")),
]
Workflow = Annotated[
    str,
    form(r"[A-Za-z0-9_.-]+\.ya?ml", "is not the name of a workflow file", "write it without a folder: verl-e2e.yml"),
]
# A repository and a full commit in it; two empty texts for none.
Tool = Annotated[tuple[str, str], BeforeValidator(_tool)]
# The same, or with the tag of a release for the commit.
ToolOrTag = Annotated[tuple[str, str], BeforeValidator(_tool_or_tag)]
# Labels by number of GPUs.
Runners = Annotated[Mapping[int, tuple[str, ...]], BeforeValidator(_runners)]
Pairs = Annotated[Mapping[str, str], BeforeValidator(name_values)]
# What is in a file that GitHub wrote.
Payload = Annotated[dict[str, Any], BeforeValidator(_payload)]
ListeningHost = Annotated[
    str, form(r"[A-Za-z0-9_.:-]+", "is not an address to listen on", "write 127.0.0.1, 0.0.0.0 or a host name")
]
Listening = Annotated[tuple[str, int] | None, BeforeValidator(_listening)]
# An absolute path; `~` is the home folder.
Folder = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
OptionalFile = Annotated[
    Path | None, BeforeValidator(lambda text: Path(text).expanduser().absolute() if text else None)
]
Slots = Annotated[tuple[Pool, ...], BeforeValidator(_slots)]
# A folder that is here and on the nodes, at the same path.
SharedFolder = Annotated[Path | None, BeforeValidator(_shared_folder)]
NodeCommand = Annotated[tuple[str, ...], BeforeValidator(_command)]
NodeScript = Annotated[str, _absolute_path("a script that the nodes")]
HostFile = Annotated[str, _absolute_path("a file that the hosts")]
# As ssh takes it: `user@host`, or a name of the user's configuration; never an option.
SshHost = Annotated[
    str,
    form(
        r"(([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_][A-Za-z0-9_.-]*)?",
        "is not a host",
        "write HOST, USER@HOST or a name of ~/.ssh/config",
    ),
]
SlurmGpus = Annotated[
    str,
    form(
        r"(?a:--(gpus|gpus-per-node|gpus-per-task)=([\w-]+:)?N|--gres=gpu:([\w-]+:)?N)",
        "does not ask for N GPUs",
        "write an option of sbatch: --gpus-per-node=N, --gpus=N or --gres=gpu:TYPE:N",
    ),
]
SlurmOptions = Annotated[
    tuple[str, ...],
    words(
        rf"--({'|'.join(_OPTIONS)})=[A-Za-z0-9_.,:@+*&|()\[\]/-]+|--exclusive",
        "is not an option that may be set",
        f"write --NAME=VALUE with {', '.join(f'--{name}' for name in _OPTIONS)}",
    ),
]
Mounts = Annotated[
    tuple[str, ...],
    words(r"/[^\s:,]*:/[^\s:,]*(:[a-z+-]+)?", "is not a mount", "write /SOURCE:/TARGET with two absolute paths"),
]
Headers = Annotated[Mapping[str, str], BeforeValidator(_headers)]
Verify = Annotated[bool | str, BeforeValidator(_verify)]
Resources = Annotated[Mapping[str, float], BeforeValidator(_resources)]
