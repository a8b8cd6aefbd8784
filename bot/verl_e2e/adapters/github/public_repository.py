"""A public repository, named by its address, as GitHub's interface shows it."""

from functools import lru_cache
from urllib.parse import quote, urlsplit

from verl_e2e.adapters.github.pulls import GithubPulls
from verl_e2e.adapters.github.retry import RefusedError
from verl_e2e.adapters.github.session import GitHub, anonymously
from verl_e2e.core.model.change import Change
from verl_e2e.core.pulls.pull_address import api_of
from verl_e2e.ports import ForgeError

_CONTENTS = 64
_UNPROCESSABLE = 422


def named_by(address: str) -> tuple[str, str]:
    """The interface and the `owner/name` of the repository at `https://HOST/OWNER/NAME`; ForgeError."""
    parts = urlsplit(address)
    name = parts.path.strip("/").removesuffix(".git")
    if name.count("/") != 1:
        raise ForgeError(f"{address} is not the address of a repository; fix verl.repository in the policy")
    return api_of(f"{parts.scheme}://{parts.netloc}"), name


def has_commit(github: GitHub, repository: str, address: str, commit: str) -> bool:
    """Whether the repository at an address has a commit: seen by our App, or by anyone where it is on another site."""
    api_url, name = named_by(address)
    elsewhere = None if api_url == github.api_url else anonymously(api_url=api_url, retry_policy=github.retry_policy)
    try:
        return (
            PublicRepository(elsewhere or github, name, seen_from="" if elsewhere else repository).find(commit)
            is not None
        )
    except ForgeError as error:
        if error.passing:
            raise ForgeError(f"{urlsplit(address).netloc}: {error}", passing=True, wait_s=error.wait_s) from None
        raise
    finally:
        if elsewhere:
            elsewhere.close()


class PublicRepository:
    """A public repository, read without a token: what a full SHA names never changes and is asked for once."""

    def __init__(self, github: GitHub, name: str, *, seen_from: str = "") -> None:
        # Our App sees another repository by its token for one where it is installed.
        self._github, self._name, self._seen_from = github, name, seen_from or name
        self._pulls = GithubPulls(github)
        self._content = lru_cache(_CONTENTS)(self._read)

    def resolve(self, revision: str) -> str:
        """The full SHA that a branch, tag or SHA names; ForgeError."""
        found = self._github.requester(self._seen_from).ask("GET", f"/repos/{self._name}/commits/{quote(revision)}")
        sha = found.get("sha") if isinstance(found, dict) else None
        if not isinstance(sha, str):
            raise ForgeError(f"{self._name}: {revision[:60]!r} names no commit")
        return sha

    def find(self, revision: str) -> str | None:
        """The full SHA that a revision names, None when there is none; ForgeError where that is not known."""
        try:
            return self.resolve(revision)
        except RefusedError as error:
            # 422 is GitHub's word for a SHA that no commit has.
            if error.absent or error.status == _UNPROCESSABLE:
                return None
            raise

    def read_blob(self, revision: str, path: str) -> bytes | None:
        """A file's content at a revision, None when it is not there; ForgeError."""
        return self._content(revision, path)

    def change(self, base: str, head: str) -> Change:
        """No one compares revisions of verl by way of the API."""
        raise ForgeError(f"{self._name}: {base[:12]}..{head[:12]} can be compared in a clone only")

    def _read(self, revision: str, path: str) -> bytes | None:
        return self._pulls.file_at(self._name, revision, path)
