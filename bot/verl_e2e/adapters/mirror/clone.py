"""One bare partial clone on disk: two processes never write to it at once, and a damaged one is made anew."""

import fcntl
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from verl_e2e.adapters.mirror.gate import Bounds, Ended, Gate, Origin, size_of
from verl_e2e.adapters.mirror.refusals import Cause, cause_of, error_of, unknown_object
from verl_e2e.ports import ForgeError, LimitError

_PULSE_S = 0.05
_REFUSED_AT_MOST = 5


class DamagedError(Exception):
    """The clone cannot be read; `Clone.renew` is the mend."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A commit to have: `name` is the ref that keeps it here, `spare` a ref of the origin that may lead to it."""

    name: str
    sha: str
    spare: str


class Clone:
    """A clone in the folder `place`, made when first needed; `fetches` counts how often git went to the origin."""

    def __init__(self, place: Path, origin: Origin, bounds: Bounds, surroundings: Mapping[str, str]) -> None:
        self.place = place
        self.fetches = 0
        self._holding = -1
        self._origin = origin
        self._bounds = bounds
        self._gate = Gate(place, bounds, surroundings)

    def bring_commits(self, wanted: Collection[Wanted]) -> None:
        """See that commits are here with their history and trees, each kept by a ref of ours; ForgeError."""
        if self._lacks([one.sha for one in wanted]):
            with self._locked():
                self._bring_commits(wanted)

    def bring_contents(self, ids: Collection[str]) -> frozenset[str]:
        """See that contents are here, in one fetch; gives the ids that the origin does not have.

        Raises ForgeError, and DamagedError where what was fetched cannot be read.
        """
        with self._locked():
            absent: set[str] = set()
            while lacking := self._lacks(set(ids) - absent):
                refused = self._bring_contents(lacking)
                if refused is None:
                    if self._lacks(lacking):
                        raise DamagedError("what was fetched cannot be read")
                    break
                absent |= lacking if refused not in lacking or len(absent) == _REFUSED_AT_MOST else {refused}
            return frozenset(absent)

    def sizes(self, ids: Collection[str]) -> dict[str, int]:
        """The unpacked bytes of the objects that are here."""
        if not ids or not (self.place / "HEAD").is_file():
            return {}
        given = "".join(f"{one}\n" for one in ids).encode("ascii")
        ended = self._gate.local("cat-file", "--batch-check=%(objectname) %(objectsize)", given=given)
        rows = (line.split(" ") for line in ended.out.decode("ascii", "replace").splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}

    def changed_contents(self, old: str, new: str) -> frozenset[str]:
        """The contents on both sides of all files that differ between two commits; DamagedError."""
        return frozenset(
            _contents(self._read("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", old, new))
        )

    def merge_base(self, one: str, other: str) -> str | None:
        """The best common ancestor, None when there is none; DamagedError."""
        return self._read("merge-base", one, other, without_answer=1).decode("ascii").strip() or None

    def generation(self) -> int:
        """A number that is another one after the clone was made anew."""
        try:
            return self.place.stat().st_ino
        except FileNotFoundError:
            return 0

    def renew(self, generation: int) -> None:
        """Remove the clone that was found damaged, unless another one has taken its place; the next call fills it."""
        with self._locked():
            if self.generation() == generation:
                self._remake()

    def _bring_commits(self, wanted: Collection[Wanted]) -> None:
        if not self._lacks([one.sha for one in wanted]):
            return
        if not (self.place / "HEAD").is_file() or size_of(self.place) > self._bounds.disk_bytes:
            self._remake()
        ended = self._fetch_kept(wanted)
        if ended.code and cause_of(ended) is Cause.DAMAGE:
            self._remake()
            ended = self._fetch_kept(wanted)
        if ended.code and cause_of(ended) is Cause.UNKNOWN_OBJECT:
            for one in wanted:
                self._look_in_spare(one)
        elif ended.code != 0:
            raise error_of(ended, self._origin.url)
        self._put_together()

    def _fetch_kept(self, wanted: Collection[Wanted]) -> Ended:
        return self._fetch("origin", *(f"+{one.sha}:refs/kept/{one.name}" for one in wanted))

    def _look_in_spare(self, one: Wanted) -> None:
        """Fetch a commit alone, or else the ref of the origin that may still lead to it."""
        if self._lacks([one.sha]) and (ended := self._fetch_kept([one])).code != 0:
            if cause_of(ended) is Cause.UNKNOWN_OBJECT:
                ended = self._fetch("origin", f"+{one.spare}:refs/spare/{one.name}")
            if ended.code != 0:
                raise error_of(ended, self._origin.url)
        if self._lacks([one.sha]):
            told = f"{one.spare} does not lead to commit {one.sha[:12]} any more"
            raise ForgeError(f"{self._origin.url}: {told}: it was pushed over; ask again")
        self._gate.local("update-ref", f"refs/kept/{one.name}", one.sha)

    def _bring_contents(self, ids: Collection[str]) -> str | None:
        """Fetch contents in one go; gives an id that the origin says it lacks, empty when it does not say which."""
        given = "".join(f"{one}\n" for one in sorted(ids)).encode("ascii")
        settings = ("fetch.negotiationAlgorithm=noop",)
        ended = self._fetch("--recurse-submodules=no", "--stdin", "origin", given=given, settings=settings)
        if ended.code == 0:
            self._put_together()
            return None
        if cause_of(ended) is Cause.UNKNOWN_OBJECT:
            return unknown_object(ended) or ""
        raise error_of(ended, self._origin.url)

    def _read(self, *arguments: str, without_answer: int = 0) -> bytes:
        ended = self._gate.local(*arguments)
        if ended.code is None or ended.code < 0 or "ut of memory" in ended.stderr:
            # The clone is whole, and what it holds is too much.
            raise LimitError(f"what git {arguments[0]} does with this change", ended.stopped or "what it may take")
        if ended.code not in (0, without_answer):
            raise DamagedError(f"git {arguments[0]}: {ended.stopped or ended.stderr.strip()}")
        return ended.out

    def _fetch(self, *arguments: str, given: bytes = b"", settings: tuple[str, ...] = ()) -> Ended:
        self._sweep()
        self.fetches += 1
        # The git that fetches holds our lock too, so that it is held until the last of them has ended.
        return self._gate.fetch(self._origin, *arguments, given=given, settings=settings, holding=self._holding)

    def _lacks(self, ids: Collection[str]) -> frozenset[str]:
        """Which objects are not here; all of them where there is no clone, or none that git can read."""
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
        ended = self._gate.local("init", "--quiet", "--bare", "--template=", str(made))
        if ended.code != 0:
            raise error_of(ended, self._origin.url)
        made.rename(self.place)
        # Only now: a folder that is still there keeps its inode, so no two generations can be taken for one.
        shutil.rmtree(aside, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what a fetch that was killed left, git's own locks too: nobody else fetches while we hold ours."""
        packs, refs = self.place / "objects" / "pack", self.place / "refs"
        for left in (*packs.glob("tmp_*"), *packs.glob("*.lock"), *self.place.glob("*.lock"), *refs.rglob("*.lock")):
            left.unlink(missing_ok=True)

    def _put_together(self) -> None:
        """Every fetch leaves a pack, and reading slows with their number. A failure costs time, nothing else."""
        if len(list((self.place / "objects" / "pack").glob("*.pack"))) > self._bounds.packs:
            self._gate.tidy("repack", "-a", "-d", "-q", "--no-write-bitmap-index")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the clone against other threads and processes; the lock ends with its holder, however that ends."""
        self.place.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.place.with_name(f"{self.place.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            self._wait_for(descriptor)
            self._holding = descriptor
            yield
        finally:
            os.close(descriptor)

    def _wait_for(self, descriptor: int) -> None:
        ends = time.monotonic() + self._bounds.lock_s
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > ends:
                    told = f"Another process has been fetching into {self.place} for {self._bounds.lock_s:g} s"
                    raise ForgeError(told, passing=True) from None
            time.sleep(_PULSE_S)


def _contents(raw: bytes) -> Iterator[str]:
    """The objects of `diff-tree --raw -z`: modes, objects and status, then a name; no submodules, no empty sides."""
    fields = iter(raw.split(b"\0"))
    for head in fields:
        if not head:
            return
        next(fields)
        old_mode, new_mode, old, new, _ = head.decode("ascii").removeprefix(":").split(" ")
        yield from (sha for mode, sha in ((old_mode, old), (new_mode, new)) if mode.startswith(("100", "120")))
