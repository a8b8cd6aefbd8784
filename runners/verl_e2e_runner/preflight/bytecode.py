"""Byte code of the private trees, compiled once by all cores and kept by commit.

Importing Megatron-Bridge from fresh sources costs every process its own compilation. The compiled files carry
no time stamp (`unchecked-hash`), so an archive of them fits every later tree of the same commit and patches.
"""

import hashlib
import os
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_e2e.core.model.jobs import Job
from verl_e2e_runner.process.program import run
from verl_e2e_runner.trees.worktrees import Trees

_PACKAGES = {"bridge": "src", "megatron_lm": "megatron", "verl": "verl"}
_CACHE = "__pycache__"


@dataclass(frozen=True, slots=True)
class ByteCode:
    """What was compiled, by the names of the trees."""

    # Wall time in all.
    seconds: float
    compiled: tuple[str, ...] = ()
    # Taken from an earlier run's cache.
    cached: tuple[str, ...] = ()
    # Not compiled, or with a file or more that failed.
    incomplete: tuple[str, ...] = ()


def compile_trees(
    job: Job, trees: Trees, environment: Mapping[str, str], *, cache: Path | None, timeout_s: float = 300
) -> ByteCode:
    """Compile the packages of every private tree with the job's Python, or unpack what an earlier run kept.

    A file that does not compile (a template, a syntax of another Python) is left to the import that needs it. So is a
    tree in which a link of the head would have byte code written elsewhere: this runs outside of the cage.
    """
    began = time.monotonic()
    compiled: list[str] = []
    cached: list[str] = []
    incomplete: list[str] = []
    for name, package in _PACKAGES.items():
        folder = trees.root(name) / package
        if name not in trees.private or not folder.is_dir():
            continue
        if _leads_elsewhere(folder):
            incomplete.append(name)
            continue
        archive = cache / f"{_key(name, job, trees)}.tar" if cache is not None else None
        if archive is not None and _unpack(archive, folder):
            cached.append(name)
            continue
        argv = (job.site.python, "-I", "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash")
        finished = run((*argv, str(folder)), env=environment, cwd=trees.root(name), timeout_s=timeout_s)
        compiled.append(name)
        if finished.code != 0:
            incomplete.append(name)
        elif archive is not None:
            _pack(archive, folder)
    return ByteCode(time.monotonic() - began, tuple(compiled), tuple(cached), tuple(incomplete))


def _leads_elsewhere(folder: Path) -> bool:
    """Whether a link on the way to the package, or in the place of a folder of byte code, leads out of the tree."""
    return folder.resolve() != folder or any(Path(root, _CACHE).is_symlink() for root, _, _ in os.walk(folder))


def _key(name: str, job: Job, trees: Trees) -> str:
    """Everything that the byte code depends on: commit, patches, and the Python that compiles."""
    state = next((state for state in trees.states if state.name == name), None)
    patches = [patch.after for patch in job.patches if patch.repository == name]
    python = Path(job.site.python)
    modified = python.stat().st_mtime_ns if python.is_file() else 0
    parts = (state.commit if state else "", *patches, job.site.python, str(modified))
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return f"bytecode-{name}-{digest}"


def _pack(archive: Path, folder: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_suffix(f".{os.getpid()}.part")
    with tarfile.open(partial, "w") as tar:
        for file in sorted(folder.rglob(f"{_CACHE}/*.pyc")):
            if not file.is_symlink():
                tar.add(file, arcname=str(file.relative_to(folder)), recursive=False)
    partial.replace(archive)


def _unpack(archive: Path, folder: Path) -> bool:
    if not archive.is_file():
        return False
    try:
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                _extract(tar, member, folder)
    except (tarfile.TarError, OSError):
        return False
    return True


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """One compiled file, written by hand: tarfile's own `data` filter came only with Python 3.11.4."""
    target = folder / member.name
    content = tar.extractfile(member)
    if content is None or target.suffix != ".pyc" or not target.resolve().is_relative_to(folder.resolve()):
        raise tarfile.TarError(f"{member.name} is not a compiled file of this tree")
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(content.read())
