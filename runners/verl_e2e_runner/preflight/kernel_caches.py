"""Compiled kernels that the operator of the host keeps for its runs: taken before a run, and filled by one.

A run compiles hundreds of kernels before its first step. It may begin with a copy of what a run of trusted code left,
and whatever it writes itself ends with it: no run uses what code under test wrote.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from stat import S_ISDIR, S_ISLNK, S_ISREG

from pydantic import ValidationError

from verl_e2e.core.model.change import readable
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import ORIGIN_FILE, CachesOrigin, Check, Finding, Gpu, KernelCaches, RepositoryState
from verl_e2e_runner.process.cage import KERNEL_CACHES, PLAIN_FILE, Cage, Session, open_plain_folder, read_below
from verl_e2e_runner.process.processes import hand_path_over, utc_now
from verl_e2e_runner.reporting import blocked, good, note

# Their versions are part of the keys of the caches, or choose the kernels that are compiled.
_PACKAGES = ("torch", "triton", "vllm", "flashinfer-python", "transformer-engine")
_ORIGIN_BYTES = 1 << 20
# In a folder that is being filled: what is not whole yet, and is taken by no run.
_FILLING = ".filling"
_FIX = "fill a new folder by `verl-e2e run --keep-caches DIR`, or take `kernel_caches` out of the site profile"
# A folder that was named by mistake does not fill the disk.
MOST_FILES = 200_000
MOST_BYTES = 8 << 30
MOST_DEEP = 100
_PART_BYTES = 1 << 20

# Of a mode that another run takes, also where new files are otherwise writable by a group.
_COPY = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
# Written by others than the owner.
_OTHERS_WRITE = 0o022
# Triton's list of the files of one kernel, which names each by its absolute path.
_GROUP = ("__grp__", ".json")


class CacheRefusedError(Exception):
    """Something in a folder of caches that is not to be used; the message says what, and why."""


@dataclass(slots=True)
class CacheCopy:
    """Copies folders of caches, and adds up what it copied.

    Where `owners` are given, a link, a special file, and what someone else owns or may write are refused. Else links
    and special files are left out.
    """

    # The folder of all caches, as the programs that use the copy will see it.
    seen_at: PurePath
    # The users that may own what is copied; None: it is not asked for.
    owners: frozenset[int] | None
    files: int = 0
    size_bytes: int = 0
    _entries: list[tuple[str, str]] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """SHA-256 of the names and contents of all files, whatever the order in which they were copied."""
        return hashlib.sha256(json.dumps(sorted(self._entries)).encode("utf-8", "surrogateescape")).hexdigest()

    def check(self, path: PurePath, status: os.stat_result) -> None:
        """Refuse what is not to be copied."""
        if S_ISLNK(status.st_mode):
            raise CacheRefusedError(f"{path} is a link")
        if not S_ISDIR(status.st_mode) and not S_ISREG(status.st_mode):
            raise CacheRefusedError(f"{path} is neither a file nor a folder")
        if self.owners is None:
            return
        if status.st_uid not in self.owners:
            raise CacheRefusedError(f"{path} belongs to user {status.st_uid}, and not to root or the runner's user")
        if status.st_mode & _OTHERS_WRITE:
            raise CacheRefusedError(f"others than its owner may write {path}")

    def copy(self, above: int, name: str, target: Path, path: PurePath | None = None) -> None:
        """Copy the folder `name` of the open folder `above` to `target`, which does not exist; `path` is its name."""
        path = path or PurePath(name)
        if len(path.parts) > MOST_DEEP:
            raise CacheRefusedError(f"its folders lie more than {MOST_DEEP} deep")
        target.mkdir(mode=0o755)
        with open_plain_folder(name, above) as folder:
            self.check(path, os.fstat(folder))
            with os.scandir(folder) as entries:
                found = sorted((entry.name, entry.stat(follow_symlinks=False)) for entry in entries)
            for entry, status in found:
                if self.owners is None and not S_ISDIR(status.st_mode) and not S_ISREG(status.st_mode):
                    continue
                self.check(path / entry, status)
                copy = self.copy if S_ISDIR(status.st_mode) else self._file
                copy(folder, entry, target / entry, path / entry)

    def _file(self, folder: int, name: str, target: Path, path: PurePath) -> None:
        with os.fdopen(os.open(name, PLAIN_FILE, dir_fd=folder), "rb") as file:
            status = os.fstat(file.fileno())
            # What was looked at may be another file by now.
            self.check(path, status)
            self.files += 1
            self.size_bytes += status.st_size
            if self.files > MOST_FILES or self.size_bytes > MOST_BYTES:
                raise CacheRefusedError(f"it has more than {MOST_FILES} files or {MOST_BYTES >> 30} GiB")
            digest = hashlib.sha256()
            with os.fdopen(os.open(target, _COPY, 0o644), "wb") as copy:
                while part := file.read(min(_PART_BYTES, status.st_size - copy.tell())):
                    digest.update(part)
                    copy.write(part)
            after = os.fstat(file.fileno())
        if (after.st_size, after.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
            raise CacheRefusedError(f"{path} was changed while it was copied")
        self._entries.append((str(path), digest.hexdigest()))
        if status.st_size <= _PART_BYTES and path.name.startswith(_GROUP[0]) and path.name.endswith(_GROUP[1]):
            # Triton does not find the kernel by the earlier paths.
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                group = json.loads(target.read_bytes())
                moved = {name: str(self.seen_at / path.parent / name) for name in group["child_paths"]}
                target.write_bytes(json.dumps({**group, "child_paths": moved}).encode())
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


@dataclass(frozen=True, slots=True)
class TakenCaches:
    """What a run takes of its operator's kernel caches, copied and not yet where the run looks for it."""

    # What preflight says of it; none where no caches are asked for.
    findings: tuple[Finding, ...] = ()
    # None: the run begins with empty caches.
    caches: KernelCaches | None = None
    # The copy, out of reach of the code under test.
    copy: Path = Path()
    # Where the run looks for its caches.
    target: Path = Path()

    def give(self, cage: Cage | None) -> None:
        """Put the copy where the wrapper finds it. Every program before it had empty caches of its own."""
        if self.caches is None:
            return
        if cage is not None:
            for folder, _, files in os.walk(self.copy):
                hand_path_over(Path(folder), cage)
                for file in files:
                    hand_path_over(Path(folder, file), cage)
        self.target.mkdir(exist_ok=True)
        for name in self.caches.folders:
            place = self.target / name
            # Without a cage, a program before the wrapper may have had the same folder.
            shutil.rmtree(place, ignore_errors=True)
            (self.copy / name).rename(place)


def take_caches(given: str, session: Session, work: Path, *, keep: Path | None = None) -> TakenCaches:
    """Copy the kernel caches that the site profile names below `work`, a folder of the recorder's own.

    With `keep` the run fills caches and begins with empty ones.
    """
    if keep is not None:
        summary = "the run begins with empty kernel caches, because its own are kept"
        return TakenCaches((good(Check.KERNEL_CACHES, summary),))
    if session.caches is None:
        summary = "the kernel caches of the site are not used: the workers belong to another Ray cluster"
        return TakenCaches((note(Check.KERNEL_CACHES, summary),))
    copy = work / "kernel-caches"
    try:
        caches, left_out = _copied(Path(given), copy, session.caches)
    except CacheRefusedError as error:
        refused = readable(f"kernel_caches = {given}: {error}")
        return TakenCaches((blocked(Check.KERNEL_CACHES, refused, _FIX),))
    also = readable(f"; not taken: {', '.join(left_out)}") if left_out else ""
    taken = good(Check.KERNEL_CACHES, f"the run begins with a copy of {given}: {caches.text}{also}")
    return TakenCaches((taken,), caches, copy, session.caches)


def caches_origin(
    job: Job,
    states: tuple[RepositoryState, ...],
    versions: Mapping[str, str],
    gpus: tuple[Gpu, ...],
    *,
    driver: str,
    image: str,
) -> CachesOrigin:
    """What a folder of caches says of the run that fills it."""
    return CachesOrigin(
        filled=utc_now().isoformat(timespec="seconds"),
        job=job.id,
        commits={state.name: state.commit for state in states},
        changed=tuple(state.name for state in states if state.dirty or state.patches),
        packages={name: versions[name] for name in _PACKAGES if name in versions},
        gpus=tuple(gpu.name for gpu in gpus),
        driver=driver,
        image=image,
    )


def keep_caches(caches: Path, folder: Path, origin: CachesOrigin) -> str:
    """Leave a copy of a run's caches in a new folder, with the file that says where they come from.

    No process of the run may be left. The sentence that comes back says what was kept, or why nothing was.
    """
    copied = CacheCopy(folder, owners=None)
    names = [name for name in KERNEL_CACHES.values() if (caches / name).is_dir()]
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        filling = folder / _FILLING
        filling.mkdir()
        with open_plain_folder(caches) as source:
            for name in names:
                copied.copy(source, name, filling / name)
        said = filling / ORIGIN_FILE
        said.write_text(origin.model_dump_json(indent=2) + "\n", encoding="utf-8")
        said.chmod(0o644)
        for name in (*names, ORIGIN_FILE):
            (filling / name).rename(folder / name)
        filling.rmdir()
    except (OSError, CacheRefusedError) as error:
        return f"the kernel caches are not whole, remove {folder}: {error}"
    commits = ", ".join(f"{name} {commit}" for name, commit in origin.commits.items())
    changed = f", with changes in {', '.join(origin.changed)}" if origin.changed else ""
    size = f"{copied.files} files, {copied.size_bytes / (1 << 20):.1f} MiB"
    kept = f"kernel caches kept in {folder}: {', '.join(names) or 'none'}; {size}; filled by {commits}{changed}"
    return f"{kept}. Use them only if you trust this code: every run that begins with them executes what it left"


def _copied(given: Path, copy: Path, seen_at: Path) -> tuple[KernelCaches, list[str]]:
    """The copy of a folder of caches, and the names of what else lies in the folder."""
    copied = CacheCopy(seen_at, frozenset({0, os.getuid()}))
    if not given.is_absolute():
        raise CacheRefusedError("it is not an absolute path")
    try:
        if given.is_symlink():
            raise CacheRefusedError("it is a link; name the folder itself")
        with open_plain_folder(given) as folder:
            copied.check(given, os.fstat(folder))
            names = sorted(os.listdir(folder))
            known = [name for name in KERNEL_CACHES.values() if name in names]
            if not known:
                raise CacheRefusedError(f"it has none of the folders {', '.join(KERNEL_CACHES.values())}")
            if ORIGIN_FILE in names:
                copied.check(Path(ORIGIN_FILE), os.stat(ORIGIN_FILE, dir_fd=folder, follow_symlinks=False))
            copy.mkdir(mode=0o700)
            for name in known:
                copied.copy(folder, name, copy / name)
    except ValueError as error:
        raise CacheRefusedError(f"it is not a path: {error}") from error
    except OSError as error:
        where = f" ({error.filename})" if error.filename and str(error.filename) != str(given) else ""
        raise CacheRefusedError(f"it cannot be copied: {error.strerror}{where}") from error
    origin = None
    with suppress(ValidationError):
        origin = CachesOrigin.model_validate_json(read_below(given, ORIGIN_FILE, limit=_ORIGIN_BYTES) or b"")
    caches = KernelCaches(
        folders=tuple(known), files=copied.files, size_bytes=copied.size_bytes, digest=copied.digest, origin=origin
    )
    return caches, [name for name in names if name not in known and name != ORIGIN_FILE]
