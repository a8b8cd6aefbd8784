"""Files that GitHub keeps elsewhere: streamed with a cap."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import requests
from github.GithubException import GithubException

from verl_e2e.adapters.github.requester import USER_AGENT, ApiRequester
from verl_e2e.adapters.github.retry import Trouble, as_forge_error, holds_all_s, is_limit, persist
from verl_e2e.adapters.github.session import GitHub
from verl_e2e.ports import ForgeError

_CHUNK = 1 << 16
_MOST_REDIRECTS = 3
# Of what a refusal says.
_MOST_SAID = 4096
_AGAIN = frozenset({Trouble.LIMITED, Trouble.UNCERTAIN})


def download(github: GitHub, repository: str, path: str, file: Path, *, limit: int) -> None:
    """Write what lies at a path of the API into a file; ForgeError when it is longer than `limit` bytes."""

    def attempt() -> None:
        with file.open("wb") as out:
            for chunk in _chunks(github, repository, path, limit, cut=False):
                out.write(chunk)

    try:
        persist(attempt, again=_AGAIN, retry_policy=github.retry_policy)
    except (GithubException, requests.RequestException) as error:
        raise as_forge_error(error, f"GET {path}") from error


def stream(github: GitHub, repository: str, path: str, *, limit: int) -> Iterator[bytes]:
    """The first `limit` bytes of what lies at a path of the API; tried once."""
    try:
        yield from _chunks(github, repository, path, limit, cut=True)
    except (GithubException, requests.RequestException) as error:
        raise as_forge_error(error, f"GET {path}") from error


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
    requester = github.requester(repository)
    requester.pace.wait_while_held(github.retry_policy.total_s)
    auth = requester.auth
    if auth is not None:
        auth.authentication(headers)
    # Else a .netrc file would add what we do not send.
    session.auth = ApiRequester.noopAuth
    url, api = f"{github.api_url}{path}", urlsplit(github.api_url)
    for _ in range(_MOST_REDIRECTS + 1):
        github.calls.count("GET")
        response = session.get(url, headers=headers, timeout=github.timeout_s, allow_redirects=False, stream=True)
        said = (
            next(response.iter_content(_MOST_SAID), b"").decode("utf-8", "replace")
            if response.status_code == 403
            else ""
        )
        limited = is_limit(response.status_code, response.headers, said)
        owner = repository.partition("/")[0]
        github.calls.answered(owner, "GET", response.status_code, response.headers, limited=limited)
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
        message = {name.lower(): value for name, value in response.headers.items()}
        text = said if limited else f"status {response.status_code}"
        error = GithubException(response.status_code, None, message, text)
        requester.pace.hold(holds_all_s(error))
        raise error
    return response
