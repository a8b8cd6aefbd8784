"""What a program of a run gets from the host: variables, the Hugging Face cache, and caches of compiled kernels.

The code under test is a pull request of anyone, so no secret is handed to it: what `verl_e2e.core.text.redact`
knows, which is what the redactor hides. The lists name what is dropped and keep the rest: the stack reads hundreds of
variables of CUDA, NCCL, UCX, Triton, vLLM and the site's fabric, and a list of the kept ones would silently weaken a
site that sets one more.

Each of the caches that an operator may fill finds an entry by the content that it was compiled from, so an entry of
other sources is never used. Caches that compare the times of files instead (FlashInfer's and PyTorch's extensions,
which ninja builds) are not among them: a kernel of other sources could be taken for that of the change.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from stat import S_ISDIR, S_ISLNK, S_ISREG

from verl_e2e.core.text.redact import is_secret

_YES = frozenset({"1", "ON", "YES", "TRUE"})


def hub_home(variables: Mapping[str, str]) -> Path:
    """HF_HOME as the libraries work it out."""
    home = Path(variables.get("HOME", "/"))
    cache = Path(variables.get("XDG_CACHE_HOME") or home / ".cache")
    return Path(variables.get("HF_HOME") or cache / "huggingface").expanduser()


def hub_cache(variables: Mapping[str, str]) -> Path:
    """The folder of the downloaded models."""
    given = variables.get("HF_HUB_CACHE") or variables.get("HUGGINGFACE_HUB_CACHE")
    return Path(given).expanduser() if given else hub_home(variables) / "hub"


def synthetic_folder(variables: Mapping[str, str]) -> Path:
    """Where the runner keeps the models and pictures that it makes: a run can read it, and cannot change it."""
    return hub_cache(variables) / "verl-e2e-synthetic"


def is_offline(variables: Mapping[str, str]) -> bool:
    """Whether a variable forbids the libraries to use the network."""
    return any(variables.get(name, "").upper() in _YES for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def cached_snapshot(model_id: str, variables: Mapping[str, str]) -> Path | None:
    """The snapshot of a hub model's main branch in the cache, with its configuration; None when none can be read."""
    folder = hub_cache(variables) / f"models--{model_id.replace('/', '--')}"
    try:
        snapshot = folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
        return snapshot if (snapshot / "config.json").is_file() else None
    except OSError:
        return None


# The variable that says where a cache lies, and its folder below the folder of all of them.
KERNEL_CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "VLLM_CACHE_ROOT": "vllm",
    "CUDA_CACHE_PATH": "cuda",
}

# A folder that was named by mistake does not fill the disk.
MOST_FILES = 200_000
MOST_BYTES = 8 << 30
MOST_DEEP = 100
_PART_BYTES = 1 << 20

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe opened so does not wait for its other end.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
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

    def copy(self, source: int, name: str, target: Path) -> None:
        """Copy the folder `name` of the open folder `source` to `target`, a path that does not exist."""
        self._folder(source, name, target, PurePath(name))

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

    def _folder(self, above: int, name: str, target: Path, path: PurePath) -> None:
        if len(path.parts) > MOST_DEEP:
            raise CacheRefusedError(f"its folders lie more than {MOST_DEEP} deep")
        target.mkdir(mode=0o755)
        with open_folder(name, above) as folder:
            self.check(path, os.fstat(folder))
            with os.scandir(folder) as entries:
                found = sorted((entry.name, entry.stat(follow_symlinks=False)) for entry in entries)
            for entry, status in found:
                if self.owners is None and not S_ISDIR(status.st_mode) and not S_ISREG(status.st_mode):
                    continue
                self.check(path / entry, status)
                if S_ISDIR(status.st_mode):
                    self._folder(folder, entry, target / entry, path / entry)
                else:
                    self._file(folder, entry, target / entry, path / entry)

    def _file(self, folder: int, name: str, target: Path, path: PurePath) -> None:
        with os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb") as file:
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
            target.write_bytes(self._moved(target.read_bytes(), path))
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _moved(self, content: bytes, path: PurePath) -> bytes:
        """Triton's list of files with the paths of the copy: it does not find the kernel by the earlier ones."""
        try:
            group = json.loads(content)
            moved = {name: str(self.seen_at / path.parent / name) for name in group["child_paths"]}
        except (ValueError, TypeError, KeyError, RecursionError):
            return content
        return json.dumps({**group, "child_paths": moved}).encode()


@contextmanager
def open_folder(path: str | Path, above: int | None = None) -> Iterator[int]:
    """An open folder, below the open folder `above` if there is one; OSError when it is a link or not a folder."""
    descriptor = os.open(path, _FOLDER, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# What belongs to the machine's services and to this service: none of a run's business, and no secret by itself.
_OF_A_SERVICE = (
    "GITHUB_", "GH_", "GITLAB_", "ACTIONS_", "RUNNER_", "CI_", "SSH_", "GPG_", "DOCKER_", "KUBERNETES_", "PG", "DBOS_",
    "VERL_E2E_",
)  # fmt: skip

# These would change how bash, Python or Ray start, whatever the job says.
_INTERFERING = frozenset(
    {
        *("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "CDPATH", "GLOBIGNORE", "POSIXLY_CORRECT", "IFS"),
        *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONSAFEPATH", "PYTHONINSPECT", "PYTHONPYCACHEPREFIX"),
        *("RAY_ADDRESS", "RAY_TMPDIR", "RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_JOB_CONFIG_JSON_ENV_VAR"),
        *("PYTEST_ADDOPTS", "OLDPWD", "PWD", "SHLVL", "_"),
    }
)
_INTERFERING_PREFIXES = ("BASH_FUNC_", "GIT_")

# A wrapper may read these too; they belong to the host and stay.
_OF_THE_HOST = frozenset(
    {"HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "TZ", "HOSTNAME", "LD_LIBRARY_PATH", "LD_PRELOAD"}
)
_PREFIXES_OF_THE_HOST = ("CUDA_", "NVIDIA_", "NCCL_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "LC_", "UCX_", "XDG_")


def inherited(base: Mapping[str, str], *, wrapper_reads: Iterable[str] = ()) -> dict[str, str]:
    """The part of `base` that a run inherits.

    Dropped are secrets, what belongs to the machine's services, what would change how bash, Python or Ray start, and
    the variables that the wrapper reads (a stray COMMON_TP in the runner's shell must not alter a job), but for those
    of the host.
    """
    shadowed = {
        name for name in wrapper_reads if name not in _OF_THE_HOST and not name.startswith(_PREFIXES_OF_THE_HOST)
    }
    return {
        name: value
        for name, value in base.items()
        if name not in _INTERFERING
        and name not in shadowed
        and not name.startswith((*_INTERFERING_PREFIXES, *_OF_A_SERVICE))
        and not is_secret(name, value)
    }
