"""One clone for each repository, below a cache folder."""

import hashlib
import re
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from verl_e2e.adapters.mirror.asking import Ask, AskingClone, answer_for
from verl_e2e.adapters.mirror.clone import Clone, Wanted
from verl_e2e.adapters.mirror.gate import Bounds, Origin
from verl_e2e.adapters.mirror.trees import MirrorTrees, Opener
from verl_e2e.core.pulls.pull import MergeGroup, Pull, Target, repository_of
from verl_e2e.ports import ForgeError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9._-]+")


class Mirrors:
    """The clones of a forge's repositories. Threads and processes may share the folder.

    `web_url` is where the forge's repositories are cloned from (`https://github.com`); `token` gives the token for a
    repository, None for nobody; `opener` opens a clone for reading; `surroundings` is the environment, of which proxies
    and certificates are passed on to git. With `ask` nothing is fetched here: another process is asked to, by its
    `answers`.
    """

    def __init__(
        self,
        folder: Path,
        web_url: str,
        opener: Opener,
        *,
        token: Callable[[str], str | None] = lambda _: None,
        bounds: Bounds | None = None,
        surroundings: Mapping[str, str] | None = None,
        ask: Ask | None = None,
    ) -> None:
        self._folder = folder
        self._web_url = web_url.rstrip("/")
        self._opener = opener
        self._token = token
        self._bounds = bounds or Bounds()
        self._surroundings = surroundings or {}
        self._ask = ask
        self._lock = threading.Lock()
        self._clones: dict[str, Clone] = {}

    @property
    def fetches(self) -> int:
        """How often git went to the forge."""
        with self._lock:
            return sum(clone.fetches for clone in self._clones.values())

    def changes(self, target: Target) -> MirrorTrees:
        """The trees of a pull request or merge group, base and head fetched; ForgeError."""
        clone = self._clone(repository_of(target))
        as_it_stands = isinstance(target, MergeGroup)
        return MirrorTrees(clone, self._opener, _wanted(target), self._bounds, as_it_stands=as_it_stands)

    def answers(self, targets: Collection[Target]) -> Callable[[Any], object]:
        """Answers what the mirrors of another process ask, about these targets of one repository and nothing else."""
        clone = self._clone(repository_of(next(iter(targets))))
        return answer_for(clone, [one for target in targets for one in _wanted(target)])

    def _clone(self, repository: str) -> Clone:
        if not _NAME.fullmatch(repository) or repository.endswith(("/.", "/..")):
            raise ForgeError(f"{repository!r} is no repository: write owner/name")
        with self._lock:
            if repository not in self._clones:
                self._clones[repository] = self._new(repository)
            return self._clones[repository]

    def _new(self, repository: str) -> Clone:
        parts = urlsplit(self._web_url)
        host = f"{parts.hostname}{f'_{parts.port}' if parts.port else ''}"
        # GitHub takes names in any case for the same repository.
        place = self._folder / "mirrors" / host / f"{repository.lower()}.git"
        if self._ask is not None:
            return AskingClone(place, self._bounds, self._ask)
        origin = Origin(f"{self._web_url}/{repository}.git", lambda: self._token(repository))
        return Clone(place, origin, self._bounds, self._surroundings)


def _wanted(target: Target) -> tuple[Wanted, ...]:
    return _base(target.base_branch, target.base_sha), _head(target)


def _base(branch: str, sha: str) -> Wanted:
    # A branch may be called anything, and the name of a ref may not.
    name = hashlib.sha256(branch.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return Wanted(f"base/{name}", sha, f"refs/heads/{branch}")


def _head(target: Target) -> Wanted:
    match target:
        case Pull(ref=ref, head_sha=sha):
            return Wanted(f"pull/{ref.number}", sha, f"refs/pull/{ref.number}/head")
        case MergeGroup(head_sha=sha):
            return Wanted("group", sha, sha)
