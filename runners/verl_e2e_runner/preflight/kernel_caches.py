"""Compiled kernels that the operator of the host keeps for its runs: taken before a run, and filled by one.

A run compiles hundreds of kernels before its first step. It may begin with a copy of what a run of trusted code left,
and whatever it writes itself ends with it: no run uses what code under test wrote.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from verl_e2e.core.model.change import readable
from verl_e2e.core.model.jobs import Job, SiteProfile
from verl_e2e.core.model.record import ORIGIN_FILE, CachesOrigin, Check, Finding, Gpu, KernelCaches, RepositoryState
from verl_e2e_runner.clock import utc_now
from verl_e2e_runner.findings import blocked, good, note
from verl_e2e_runner.folder.suspect_files import read_below
from verl_e2e_runner.process.cage import Cage
from verl_e2e_runner.process.confined import hand_file_over, hand_folder_over
from verl_e2e_runner.process.environment import KERNEL_CACHES, CacheCopy, CacheRefusedError, open_folder
from verl_e2e_runner.process.session import Session

# Their versions are part of the keys of the caches, or choose the kernels that are compiled.
_PACKAGES = ("torch", "triton", "vllm", "flashinfer-python", "transformer-engine")
_ORIGIN_BYTES = 1 << 20
# In a folder that is being filled: what is not whole yet, and is taken by no run.
_FILLING = ".filling"
_FILL = "fill a new folder by `verl-e2e run --keep-caches DIR`"
_FIX = f"{_FILL}, or take `kernel_caches` out of the site profile"


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
            _hand_over(self.copy, cage)
        self.target.mkdir(exist_ok=True)
        for name in self.caches.folders:
            place = self.target / name
            # Without a cage, a program before the wrapper may have had the same folder.
            shutil.rmtree(place, ignore_errors=True)
            (self.copy / name).rename(place)


def take_caches(site: SiteProfile, session: Session, work: Path, *, keep: Path | None = None) -> TakenCaches:
    """Copy the kernel caches that the site profile names below `work`, a folder of the recorder's own.

    With `keep` the run fills caches and begins with empty ones.
    """
    if site.kernel_caches is None:
        return TakenCaches()
    if keep is not None:
        summary = "the run begins with empty kernel caches, because its own are kept"
        return TakenCaches((good(Check.KERNEL_CACHES, summary),))
    if session.caches is None:
        summary = "the kernel caches of the site are not used: the workers belong to another Ray cluster"
        return TakenCaches((note(Check.KERNEL_CACHES, summary),))
    copy = work / "kernel-caches"
    try:
        caches, left_out = _copied(site.kernel_caches, copy, session.caches)
    except CacheRefusedError as error:
        refused = blocked(Check.KERNEL_CACHES, readable(f"kernel_caches = {site.kernel_caches}: {error}"), _FIX)
        return TakenCaches((refused,))
    also = readable(f"; not taken: {', '.join(left_out)}") if left_out else ""
    taken = good(Check.KERNEL_CACHES, f"the run begins with a copy of {site.kernel_caches}: {caches.text}{also}")
    return TakenCaches((taken,), caches, copy, session.caches)


def check_fit(caches: KernelCaches | None, versions: Mapping[str, str], gpus: tuple[Gpu, ...]) -> tuple[Finding, ...]:
    """A note where the caches were filled with other packages or on other GPUs: then they are of little use."""
    origin = caches.origin if caches else None
    if origin is None:
        return ()
    differing = [
        f"{name} {origin.packages[name]} (here {versions[name]})"
        for name in _PACKAGES
        if name in origin.packages and name in versions and origin.packages[name] != versions[name]
    ]
    here = sorted({gpu.name for gpu in gpus})
    if here and sorted(set(origin.gpus)) != here:
        differing.append(f"{', '.join(sorted(set(origin.gpus))) or 'no GPU'} (here {', '.join(here)})")
    if not differing:
        return ()
    summary = f"the kernel caches were filled with {', '.join(differing)}: the run compiles its kernels again"
    return (note(Check.KERNEL_CACHES, summary, _FILL),)


def origin_of(
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
        with open_folder(caches) as source:
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


def _copied(given: str, copy: Path, seen_at: Path) -> tuple[KernelCaches, list[str]]:
    """The copy of a folder of caches, and the names of what else lies in the folder."""
    copied = CacheCopy(seen_at, frozenset({0, os.getuid()}))
    if not Path(given).is_absolute():
        raise CacheRefusedError("it is not an absolute path")
    try:
        if Path(given).is_symlink():
            raise CacheRefusedError("it is a link; name the folder itself")
        with open_folder(Path(given)) as folder:
            copied.check(Path(given), os.fstat(folder))
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
        where = f" ({error.filename})" if error.filename and str(error.filename) != given else ""
        raise CacheRefusedError(f"it cannot be copied: {error.strerror}{where}") from error
    origin = _origin(Path(given))
    caches = KernelCaches(
        folders=tuple(known), files=copied.files, size_bytes=copied.size_bytes, digest=copied.digest, origin=origin
    )
    return caches, [name for name in names if name not in known and name != ORIGIN_FILE]


def _origin(folder: Path) -> CachesOrigin | None:
    """What the folder says of the run that filled it; None where it says nothing that can be read."""
    raw = read_below(folder, ORIGIN_FILE, limit=_ORIGIN_BYTES)
    try:
        return CachesOrigin.model_validate_json(raw) if raw else None
    except ValidationError:
        return None


def _hand_over(copy: Path, cage: Cage) -> None:
    """Give the copy to the user of the cage, who may write it."""
    for place, _, files in os.walk(copy):
        hand_folder_over(Path(place), cage)
        for name in files:
            hand_file_over(Path(place, name), cage)
