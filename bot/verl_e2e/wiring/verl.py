"""verl as the service reads it: a clone on this machine, or single files and names through GitHub's API."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from verl_e2e.adapters.github.pulls import GithubPulls
from verl_e2e.adapters.github.session import GitHub, anonymously
from verl_e2e.core.model.change import Change
from verl_e2e.core.pulls.pull_address import api_of
from verl_e2e.git.repository import GitRepository
from verl_e2e.ports import ForgeError, Revisions

_CONTENTS = 64


def verl_at(place: str) -> Revisions:
    """The verl repository of a folder or of an address, `https://HOST/OWNER/NAME`."""
    if not place.startswith(("https://", "http://")):
        return GitRepository(Path(place))
    web, _, name = place.rpartition("/")
    web, _, owner = web.rpartition("/")
    return _PublicRepository(anonymously(api_url=api_of(web)), f"{owner}/{name.removesuffix('.git')}")


def verl_source(place: str) -> Callable[[str], Revisions]:
    """The verl repository of a place for whatever revision; it is opened with the first."""
    opened = lru_cache(1)(verl_at)
    return lambda _: opened(place)


class _PublicRepository:
    """A public repository, read without a token: what a full SHA names never changes and is asked for once."""

    def __init__(self, github: GitHub, name: str) -> None:
        self._github, self._name = github, name
        self._pulls = GithubPulls(github)
        self._content = lru_cache(_CONTENTS)(self._read)

    def resolve(self, revision: str) -> str:
        """The full SHA that a branch, tag or SHA names; ForgeError."""
        found = self._github.requester(self._name).ask("GET", f"/repos/{self._name}/commits/{revision}")
        sha = found.get("sha") if isinstance(found, dict) else None
        if not isinstance(sha, str):
            raise ForgeError(f"{self._name}: {revision[:60]!r} names no commit")
        return sha

    def read_blob(self, revision: str, path: str) -> bytes | None:
        """A file's content at a revision, None when it is not there; ForgeError."""
        return self._content(revision, path)

    def change(self, base: str, head: str) -> Change:
        """No one compares revisions of verl by way of the API."""
        raise ForgeError(f"{self._name}: {base[:12]}..{head[:12]} can be compared in a clone only")

    def _read(self, revision: str, path: str) -> bytes | None:
        return self._pulls.file_at(self._name, revision, path)
