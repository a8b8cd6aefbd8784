"""Byte code of the private trees, compiled once in the cage and kept by commit.

Importing Megatron-Bridge from fresh sources costs every process its own compilation. The compiled files carry
no time stamp (`unchecked-hash`), so an archive of them fits every later tree of the same commit and patches.
"""

import hashlib
import os
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

from verl_e2e.core.model.jobs import Job
from verl_e2e_runner.folder.suspect_files import names_below, read_below
from verl_e2e_runner.process.confined import run, with_own_scratch
from verl_e2e_runner.trees import Trees

_PACKAGES = {"bridge": "src", "megatron_lm": "megatron", "verl": "verl"}
_CACHE = "__pycache__"
# The largest sources of the three trees take a twentieth of it; a small hostile one takes any amount.
_MEMORY_BYTES = 512 << 20
_FILE_BYTES = 64 << 20
_COMPILE = f"""
import compileall, py_compile, resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY_BYTES}, {_MEMORY_BYTES}))
resource.setrlimit(resource.RLIMIT_FSIZE, ({_FILE_BYTES}, {_FILE_BYTES}))
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
sys.exit(not compileall.compile_dir(sys.argv[1], quiet=1, invalidation_mode=mode))
"""


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

    The compiler runs in the cage on one core, with a limit of its memory; `timeout_s` is for all trees together. A file
    that does not compile (a template, a syntax of another Python, one that takes too much) is left to the import that
    needs it. So is a tree in which a link of the head would have byte code written elsewhere.
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
        left_s = timeout_s - (time.monotonic() - began)
        whole = left_s > 0 and _compile(job.site.python, trees, folder, environment, left_s)
        compiled.append(name)
        if not whole:
            incomplete.append(name)
        elif archive is not None:
            _pack(archive, folder)
    return ByteCode(time.monotonic() - began, tuple(compiled), tuple(cached), tuple(incomplete))


def _compile(python: str, trees: Trees, folder: Path, environment: Mapping[str, str], timeout_s: float) -> bool:
    """Compile a package and put the byte code next to its sources; whether all of it compiled."""
    cage = with_own_scratch(trees.cage, "byte-code")
    with TemporaryDirectory() as temporary:
        prefix = Path(temporary) if cage is None else cage.outbox
        argv = (python, "-I", "-X", f"pycache_prefix={prefix}", "-c", _COMPILE, str(folder))
        finished = run(argv, env=environment, cwd=folder.parent, timeout_s=timeout_s, cage=cage)
        made = (prefix if cage is None else cage.outside(prefix)) / folder.relative_to(folder.anchor)
        for place, _, _ in os.walk(made):
            below = PurePath(place).relative_to(made)
            for name in names_below(made, below):
                content = read_below(made, below / name, limit=_FILE_BYTES)
                if content is not None:
                    _put(folder, below / _CACHE / name, content)
    return finished.code == 0


def _put(folder: Path, name: PurePath, content: bytes) -> bool:
    """Write a compiled file into the tree, never through a link; whether it could be put there."""
    target = folder / name
    sources = target.parent.parent
    if target.suffix != ".pyc" or sources.resolve() != sources or not sources.is_relative_to(folder):
        return False
    try:
        target.parent.mkdir(exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_bytes(content)
    except OSError:
        return False
    return True


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
                # By hand: tarfile's own `data` filter came only with Python 3.11.4.
                content = tar.extractfile(member)
                if content is None or not _put(folder, PurePath(member.name), content.read()):
                    return False
    except (tarfile.TarError, OSError):
        return False
    return True
