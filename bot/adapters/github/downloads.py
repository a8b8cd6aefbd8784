"""Files that GitHub keeps elsewhere: streamed with a cap, and archives unpacked without trust in what they say."""

import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from urllib.parse import urljoin, urlsplit

import requests
from github.GithubException import GithubException

from bot.adapters.github.courier import USER_AGENT, Courier
from bot.adapters.github.retry import Trouble, as_forge_error, persist
from bot.adapters.github.session import GitHub
from bot.ports import ForgeError

_CHUNK = 1 << 16
_MOST_FILES = 10_000
_MOST_REDIRECTS = 3
_AGAIN = frozenset({Trouble.LIMITED, Trouble.UNCERTAIN})


def download(github: GitHub, repository: str, path: str, file: Path, *, limit: int) -> None:
    """Write what lies at a path of the API into a file; ForgeError when it is longer than `limit` bytes."""

    def attempt() -> None:
        with file.open("wb") as out:
            for chunk in _chunks(github, repository, path, limit, cut=False):
                out.write(chunk)

    try:
        persist(attempt, again=_AGAIN, patience=github.patience)
    except (GithubException, requests.RequestException) as error:
        raise as_forge_error(error, f"GET {path}") from error


def stream(github: GitHub, repository: str, path: str, *, limit: int) -> Iterator[bytes]:
    """The first `limit` bytes of what lies at a path of the API; tried once."""
    try:
        yield from _chunks(github, repository, path, limit, cut=True)
    except (GithubException, requests.RequestException) as error:
        raise as_forge_error(error, f"GET {path}") from error


def unpack(archive: Path, into: Path, *, limit: int) -> None:
    """Unpack a zip archive into the new folder `into`, whole or not at all; ForgeError for anything odd in it."""
    part = Path(tempfile.mkdtemp(prefix=f".{into.name}.", dir=into.parent))
    try:
        with zipfile.ZipFile(archive) as packed:
            members = [member for member in packed.infolist() if not member.is_dir()]
            _check_members(members, limit)
            left = limit
            for member in members:
                left -= _extract(packed, member, part, left)
        part.rename(into)
    except (zipfile.BadZipFile, zlib.error, LZMAError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise ForgeError(f"The archive cannot be unpacked: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def safe_member(name: str) -> PurePosixPath | None:
    """An archive member's name as a path below the target, None when it could lead out or is no plain name."""
    path = PurePosixPath(name)
    odd = not name or "\\" in name or "\0" in name or not name.isprintable() or ":" in path.parts[0]
    return None if odd or path.is_absolute() or ".." in path.parts else path


def _check_members(members: list[zipfile.ZipInfo], limit: int) -> None:
    names = [member.filename for member in members]
    if len(members) > _MOST_FILES:
        raise ForgeError(f"The archive holds {len(members):,} files; at most {_MOST_FILES:,} are taken")
    if len({name.casefold() for name in names}) != len(names):
        raise ForgeError("The archive holds a file twice")
    if sum(member.file_size for member in members) > limit:
        raise ForgeError(f"The archive unpacks to more than {limit:,} bytes")
    for member in members:
        kind = stat.S_IFMT(member.external_attr >> 16)
        if safe_member(member.filename) is None or kind not in (0, stat.S_IFREG) or member.flag_bits & 1:
            raise ForgeError(f"The archive holds {member.filename!a}, which is no plain file below its folder")


def _extract(packed: zipfile.ZipFile, member: zipfile.ZipInfo, part: Path, left: int) -> int:
    """Write one member and give its size: what it says of its size is not believed."""
    target = part.joinpath(*PurePosixPath(member.filename).parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with packed.open(member) as source, target.open("xb") as out:
        while chunk := source.read(_CHUNK):
            size += len(chunk)
            if size > left:
                raise ForgeError("The archive unpacks to more bytes than it says")
            out.write(chunk)
    return size


def _chunks(github: GitHub, repository: str, path: str, limit: int, *, cut: bool) -> Iterator[bytes]:
    with requests.Session() as session, closing(_opened(github, session, repository, path)) as response:
        left = limit
        for chunk in response.iter_content(_CHUNK):
            if len(chunk) > left:
                if not cut:
                    raise ForgeError(f"{path} is longer than {limit:,} bytes")
                yield chunk[:left]
                return
            left -= len(chunk)
            yield chunk


def _opened(github: GitHub, session: requests.Session, repository: str, path: str) -> requests.Response:
    """The answer at the end of the redirects; our token goes to the API alone."""
    headers = {"User-Agent": USER_AGENT, "Accept": "application/vnd.github+json"}
    auth = github.courier(repository).auth
    if auth is not None:
        auth.authentication(headers)
    # Else a .netrc file would add what we do not send.
    session.auth = Courier.noopAuth
    url, api = f"{github.api_url}{path}", urlsplit(github.api_url)
    for _ in range(_MOST_REDIRECTS + 1):
        github.calls.count("GET")
        response = session.get(url, headers=headers, timeout=github.timeout_s, allow_redirects=False, stream=True)
        if not response.is_redirect:
            break
        url = urljoin(url, response.headers["location"])
        response.close()
        there = urlsplit(url)
        if there.scheme not in ("https", api.scheme):
            raise ForgeError(f"GitHub sends {path} to an address that is not secure")
        # The address itself is the right to what lies there, and storage refuses a second one.
        headers.pop("Authorization", None)
    if response.status_code != 200:
        response.close()
        told = {name.lower(): value for name, value in response.headers.items()}
        raise GithubException(response.status_code, None, told, f"status {response.status_code}")
    return response
