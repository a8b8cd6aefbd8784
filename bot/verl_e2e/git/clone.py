"""One bare clone on disk: two processes never write to it at once, and a damaged one is made again."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from verl_e2e.core.model.errors import ForgeError
from verl_e2e.git.program import (
    OBJECT_SIZES,
    FetchFailure,
    Finished,
    Git,
    GitLimits,
    Remote,
    cause_of,
    fetch_error,
    id_lines,
    object_sizes,
    unknown_object,
)
from verl_e2e.git.repository import GitError, GitRepository

_LOCK_POLL_S = 0.05
_MAX_REFUSED = 5
_GIT_LIMITS = GitLimits(time_s=600.0, memory_bytes=4 << 30)
# Given to single commands and never written down: without them a clone is one that no git would try to complete.
_PARTIAL = {"remote.origin.promisor": "true", "remote.origin.partialCloneFilter": "blob:none"}
_FETCH = ("fetch", "--no-tags", "--no-write-fetch-head", "--quiet")
_NO_CONTENTS, _NO_HISTORY = "--filter=blob:none", "--depth=1"


class Brings(Enum):
    """What a clone brings of its commits: how git is asked for it. Contents that are left out come when asked for."""

    HISTORY = (_NO_CONTENTS,)
    """The history and all trees."""
    TREES = (_NO_HISTORY, _NO_CONTENTS)
    """Their trees alone."""
    FILES = (_NO_HISTORY,)
    """All their files."""


class DamagedError(GitError):
    """The clone cannot be read; `Clone.renew` repairs it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a clone may take: the author of a change decides how much a small pack unpacks to."""

    git: GitLimits = _GIT_LIMITS
    """What one git command may take, and what is read at once."""
    lock_s: float = 900.0
    """Seconds of waiting for another process."""
    fetch_bytes: int = 1 << 30
    """What one fetch may bring, packed."""
    disk_bytes: int = 4 << 30
    """Packs on disk; a larger clone is made again."""
    packs: int = 40
    """Packs on disk before they are put together."""


@dataclass(frozen=True, slots=True)
class WantedCommit:
    """A commit to have."""

    name: str
    """The ref that keeps it here."""
    sha: str
    """Its full SHA."""
    spare: str
    """A ref of the origin that may lead to it."""


class Clone:
    """A clone in the folder `place`, made when first needed.

    It is fetched from `url`; `token` is asked for before each fetch and gives None for no token, and `credential` is
    the variable that a person sets for one. Of `environ` git gets PATH, proxies and certificates.
    """

    def __init__(
        self,
        place: Path,
        bounds: Bounds,
        *,
        url: str = "",
        token: Callable[[], str | None] = lambda: None,
        environ: Mapping[str, str] | None = None,
        credential: str = "GITHUB_TOKEN",
        brings: Brings = Brings.HISTORY,
    ) -> None:
        self.place = place
        self._url = url
        self._token = token
        self._credential = credential
        self._brings = brings
        self._settings: Mapping[str, str] = _PARTIAL if _NO_CONTENTS in brings.value else {}
        self._bounds = bounds
        # The descriptor of the lock that was taken last; used only while it is held.
        self._lock = -1
        self._git = Git(place, environ=environ or {}, limits=bounds.git)

    def bring_commits(self, wanted: Collection[WantedCommit]) -> None:
        """See that commits are here with their history and trees, each kept by a ref of ours; ForgeError."""
        shas = [commit.sha for commit in wanted]
        if not self._missing(shas):
            return
        with self._locked():
            if not self._missing(shas):
                return
            if not (self.place / "HEAD").is_file() or _pack_bytes(self.place, "*") > self._bounds.disk_bytes:
                self._remake()
            finished = self._fetch_kept(wanted)
            if finished.code and cause_of(finished) is FetchFailure.DAMAGE:
                self._remake()
                finished = self._fetch_kept(wanted)
            if finished.code and cause_of(finished) is FetchFailure.UNKNOWN_OBJECT:
                for commit in wanted:
                    self._look_in_spare(commit)
            elif finished.code != 0:
                raise self._error(finished)
            self._put_together()

    def bring_contents(self, ids: Collection[str]) -> frozenset[str]:
        """See that contents are here, in one fetch; gives the ids that the origin does not have.

        Raises ForgeError, and DamagedError where what was fetched cannot be read.
        """
        with self._locked():
            absent: set[str] = set()
            while missing := self._missing(set(ids) - absent):
                arguments = (_NO_CONTENTS, "--recurse-submodules=no", "--stdin", "origin")
                finished = self._fetch(*arguments, stdin=id_lines(sorted(missing)), negotiation="noop")
                if finished.code == 0:
                    self._put_together()
                    if self._missing(missing):
                        raise DamagedError("what was fetched cannot be read")
                    break
                if cause_of(finished) is not FetchFailure.UNKNOWN_OBJECT:
                    raise self._error(finished)
                # The one that the origin reports, all where it names none or too many one after the other.
                refused = unknown_object(finished) or ""
                absent |= missing if refused not in missing or len(absent) == _MAX_REFUSED else {refused}
            return frozenset(absent)

    def sizes(self, ids: Collection[str]) -> dict[str, int]:
        """The unpacked bytes of the objects that are here."""
        if not ids or not (self.place / "HEAD").is_file():
            return {}
        return object_sizes(self._git.run(*OBJECT_SIZES, stdin=id_lines(ids)).output)

    def open(self) -> GitRepository:
        """The clone for reading; GitError where it is damaged."""
        return GitRepository(self.place, environ=self._git.environ, limits=self._git.limits)

    def generation(self) -> int:
        """A number that is another one after the clone was made again."""
        try:
            return self.place.stat().st_ino
        except FileNotFoundError:
            return 0

    def renew(self, generation: int) -> None:
        """Remove the clone that was found damaged, unless another one has taken its place; the next call fills it."""
        with self._locked():
            if self.generation() == generation:
                self._remake()

    def _fetch_kept(self, wanted: Collection[WantedCommit]) -> Finished:
        return self._fetch(
            *self._brings.value, "origin", *(f"+{commit.sha}:refs/kept/{commit.name}" for commit in wanted)
        )

    def _look_in_spare(self, commit: WantedCommit) -> None:
        """Fetch a commit alone, or else the ref of the origin that may still lead to it."""
        if self._missing([commit.sha]) and (finished := self._fetch_kept([commit])).code != 0:
            if cause_of(finished) is FetchFailure.UNKNOWN_OBJECT:
                finished = self._fetch(*self._brings.value, "origin", f"+{commit.spare}:refs/spare/{commit.name}")
            if finished.code != 0:
                raise self._error(finished)
        if self._missing([commit.sha]):
            lost = f"{commit.spare} does not lead to commit {commit.sha[:12]} any more"
            raise ForgeError(f"{self._url}: {lost}: it was pushed over; ask again")
        self._git.run("update-ref", f"refs/kept/{commit.name}", commit.sha)

    def _fetch(self, *arguments: str, stdin: bytes = b"", negotiation: str = "default") -> Finished:
        # What a fetch that was killed left, git's own locks too: no one else fetches while we hold ours.
        packs, refs = self.place / "objects" / "pack", self.place / "refs"
        for left in (*packs.glob("tmp_*"), *packs.glob("*.lock"), *self.place.glob("*.lock"), *refs.rglob("*.lock")):
            left.unlink(missing_ok=True)
        limit = self._bounds.fetch_bytes

        def excess() -> str:
            """Why the fetch may not go on, empty when it may."""
            return f"brought more than {limit >> 20} MiB" if _pack_bytes(self.place, "tmp_*") > limit else ""

        return replace(self._git, own_session=True).run(
            *_FETCH,
            *arguments,
            stdin=stdin,
            settings={**self._settings, "fetch.negotiationAlgorithm": negotiation},
            remote=Remote(self._url, self._token()),
            excess=excess,
            # The git that fetches holds our lock too, so that it is held until the last of them has ended.
            keep_open=(self._lock,),
        )

    def _error(self, finished: Finished) -> ForgeError:
        return fetch_error(finished, self._url, self._credential)

    def _missing(self, ids: Collection[str]) -> frozenset[str]:
        """The objects that are not in the clone; all of them without a clone that git can read."""
        return frozenset(ids) - self.sizes(ids).keys()

    def _remake(self) -> None:
        """An empty clone in the place of whatever is there."""
        aside = self.place.with_name(f"{self.place.name}.old")
        shutil.rmtree(aside, ignore_errors=True)
        with suppress(FileNotFoundError):
            self.place.rename(aside)
        made = self.place.with_name(f"{self.place.name}.new")
        shutil.rmtree(made, ignore_errors=True)
        made.parent.mkdir(parents=True, exist_ok=True)
        finished = replace(self._git, git_dir=made).run("init", "--quiet", "--bare", "--template=")
        if finished.code != 0:
            raise self._error(finished)
        made.rename(self.place)
        # Only now: a folder that is still there keeps its inode, so no two generations can be taken for one.
        shutil.rmtree(aside, ignore_errors=True)

    def _put_together(self) -> None:
        """Every fetch leaves a pack, and reading slows with their number. A failure costs time, nothing else."""
        if len(list((self.place / "objects" / "pack").glob("*.pack"))) > self._bounds.packs:
            git = replace(self._git, own_session=True)
            git.run("repack", "-a", "-d", "-q", "--no-write-bitmap-index", settings=self._settings)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the clone against other threads and processes; the lock ends with its holder, however that ends."""
        self.place.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.place.with_name(f"{self.place.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            ends = time.monotonic() + self._bounds.lock_s
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if time.monotonic() > ends:
                    message = f"Another process has been fetching into {self.place} for {self._bounds.lock_s:g} s"
                    raise ForgeError(message, passing=True)
                time.sleep(_LOCK_POLL_S)
            self._lock = descriptor
            yield
        finally:
            os.close(descriptor)


def _pack_bytes(place: Path, names: str) -> int:
    """The bytes of the files in a clone's pack folder; `tmp_*` are packs that are not complete yet."""
    total = 0
    for path in (place / "objects" / "pack").glob(names):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
