"""What a program of a run gets from the host: variables, folders, caches, and the cage that it is started in.

The code under test is a pull request of anyone, so no secret is handed to it: what `verl_e2e.core.text.redact`
knows, which is what the redactor hides. The lists name what is dropped and keep the rest: the stack reads hundreds of
variables of CUDA, NCCL, UCX, Triton, vLLM and the site's fabric, and a list of the kept ones would silently weaken a
site that sets one more.

Each of the caches that an operator may fill finds an entry by the content that it was compiled from, so an entry of
other sources is never used. Caches that compare the times of files instead (FlashInfer's and PyTorch's extensions,
which ninja builds) are not among them: a kernel of other sources could be taken for that of the change.

In the cage, code under test reaches neither the recorder nor anything else of the host. bubblewrap gives it namespaces
of its own (processes, mounts, IPC, host name, by the site also the network) and a root folder of its own that holds the
system, the inputs read-only, and one folder that it may write. Each program before the wrapper has another such folder:
nothing that one leaves, in its home or a cache, is executed by a later one. Where the recorder is root, the code runs
as another user without capabilities; elsewhere in a user namespace. Its first process is bubblewrap's: when that one
ends, the kernel ends all others, whatever they did to hide.

What the code wrote is read as regular files only, never through a link, never more than a stated size. Every folder on
the way is opened by itself, so that none of them can be a link to somewhere else.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePath
from stat import S_ISREG

from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import Network, SiteIsolation
from verl_e2e.core.model.synthetic import Synthetic
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


def model_folder(recipe: Synthetic, variables: Mapping[str, str]) -> Path:
    """Where the model of a recipe lies, or will."""
    text = json.dumps(recipe.model_dump(mode="json"), sort_keys=True)
    name = f"{recipe.family}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "-_") else "-" for char in name)
    return synthetic_folder(variables) / safe


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
    the variables that the wrapper reads (a stray one in the runner's shell must not alter a job), but for those
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


IMPORTS_VARIABLE = "VERL_E2E_IMPORTS"
EXECUTED_VARIABLE = "VERL_E2E_EXECUTED"
FINGERPRINTS_VARIABLE = "VERL_E2E_FINGERPRINTS"
PATH_VARIABLE = "VERL_E2E_PATH"
# Tells the instrumentation that the run joins a Ray cluster which others use.
SHARED_RAY_VARIABLE = "VERL_E2E_SHARED_RAY"

# A unix socket's path has at most 107 bytes, and Ray adds
# `/ray/session_YYYY-MM-DD_hh-mm-ss_uuuuuu_ppppppp/sockets/plasma_store` to its folder.
_LONGEST_RAY_FOLDER = 107 - 69


@dataclass(frozen=True, slots=True)
class Session:
    """What is private to one run on the host."""

    # In the environment of every process of the run.
    nonce: str
    # Ray's temporary folder, the run's own and short: sockets lie in it.
    ray_folder: Path
    # Where the instrumentation writes a line for each import of a module under test.
    imports: Path
    # What the execution record is to hold, a file that the runner writes; None: nothing is recorded.
    executed: Path | None = None
    # The folder into which the instrumentation writes fingerprints, a file for each process; None: it takes none.
    fingerprints: Path | None = None
    # The indices of the run's GPUs, in the order of the bus; None: those that CUDA_VISIBLE_DEVICES shows anyway.
    gpus: tuple[int, ...] | None = None
    # The Ray cluster of the job's nodes, HOST:PORT; empty: verl starts one of its own.
    ray_address: str = ""
    # The folder of the kernel caches, as the code under test sees it; None: where the libraries put them anyway.
    caches: Path | None = None


def ray_folder(nonce: str, *, caged: bool = False) -> Path:
    """Ray's folder of the run with this nonce, a random hex string; in a cage /tmp is its own."""
    folder = Path(tempfile.gettempdir()).resolve() / f"ve-{nonce[:8]}"
    in_tmp = caged or len(str(folder)) > _LONGEST_RAY_FOLDER
    return Path("/tmp") / folder.name if in_tmp else folder  # noqa: S108


RECORD_VARIABLE = "VERL_E2E_RECORD"
EXECUTED, FINGERPRINTS = "executed", "fingerprints"


def wanted_records(environ: Mapping[str, str]) -> frozenset[str]:
    """The records that the runner's variable asks for: both where it is not set, none for `off`; UserError."""
    given = environ.get(RECORD_VARIABLE, "").strip() or f"{EXECUTED},{FINGERPRINTS}"
    names = frozenset[str]() if given == "off" else frozenset(name.strip() for name in given.split(","))
    if unknown := sorted(names - {EXECUTED, FINGERPRINTS}):
        known = f"{EXECUTED}, {FINGERPRINTS}; `off` stands for none"
        raise UserError(f"{RECORD_VARIABLE}={given}: {unknown[0]!r} is not one of {known}")
    return names


# What every program needs of a Linux system. Not among them: homes, /run with its sockets, /var, /mnt.
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/nix", "/sys")
# Here tools lie side by side with services and their work: an entry that holds a folder of the recorder is left out.
_TOOL_FOLDER = Path("/opt")

_GIB = 1 << 30
_DEVICES = re.compile(r"^(nvidia.*|dri|kfd|infiniband|gdrdrv)$")
# Caches that a host may have placed where the code cannot write: variable, and folder below its own cache.
_CACHES = {
    **KERNEL_CACHES,
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "HF_DATASETS_CACHE": "datasets",
    "HF_MODULES_CACHE": "modules",
}
# The variables by which code in a cage finds what is its own; downloaded models are not among it.
OWN_PLACES = frozenset({"HOME", "USER", "LOGNAME", "TMPDIR", "XDG_CACHE_HOME", "HF_HOME", *_CACHES})
USER_NAME = "verl-e2e-suspect"


class _Kind(Enum):
    READ = "read"
    WRITE = "write"
    EMPTY = "empty"
    TEMPORARY = "temporary"


@dataclass(frozen=True, slots=True)
class Tools:
    """The programs that build a cage, as absolute paths; an empty one is not there."""

    # bubblewrap's.
    bwrap: str
    # Both of util-linux.
    setpriv: str = ""
    prlimit: str = ""


@dataclass(frozen=True, slots=True)
class Cage:
    """One run's cage; `command` gives the argument list that starts a program in it."""

    tools: Tools
    # The folder that the code may write, as the code sees it; everything of the run's own lies below it.
    scratch: Path
    # The site's numbers: user, network, sizes.
    site: SiteIsolation
    # The recorder's user, by which the way is chosen: root starts another user, others a user namespace.
    recorder_uid: int
    # Folders and files that the code may read, at the paths at which the recorder sees them.
    reads: tuple[Path, ...] = ()
    # Folders and files of the recorder that stay out of sight even below one of `reads`.
    hidden: tuple[Path, ...] = ()
    # The folder that takes the place of `scratch`, for a program with one of its own; None: `scratch` itself.
    own_scratch: Path | None = None
    # Files that take the place of the system's: path in the cage to path outside.
    replaced: Mapping[Path, Path] = field(default_factory=dict)
    # Further limits of each process, as options of prlimit.
    limits: tuple[str, ...] = ()

    @property
    def other_user(self) -> bool:
        """Whether the code runs under another user number than the recorder."""
        return self.recorder_uid == 0

    @property
    def uid(self) -> int:
        """The user number of the code under test, as the recorder sees it."""
        return self.site.user if self.other_user else self.recorder_uid

    @property
    def outbox(self) -> Path:
        """The folder for files that the code under test writes for us, as the code sees it: import lines, events."""
        return self.scratch / "out"

    def outside(self, path: Path) -> Path:
        """Where the recorder finds what lies at `path` in the cage, a path below `scratch`."""
        return (self.own_scratch or self.scratch) / path.relative_to(self.scratch)

    def command(self, argv: tuple[str, ...], *, env: Mapping[str, str], cwd: Path, info: int) -> tuple[str, ...]:
        """bubblewrap's argument list for `argv`; it writes its process number to file descriptor `info`."""
        words = [self.tools.bwrap, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"]
        words += ["--new-session", "--info-fd", str(info)]
        if self.site.network is Network.NONE:
            # bubblewrap sets the loopback device up; a host name that resolves to it is what Ray and Gloo ask for.
            words += ["--unshare-net", "--hostname", "localhost"]
        if self.other_user:
            words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
        else:
            words += ["--unshare-user", "--disable-userns"]
        words += [*self._mounts(hub=env.get("HF_HUB_CACHE")), "--chdir", str(cwd), "--"]
        if self.tools.prlimit:
            words += [self.tools.prlimit, f"--nproc={self.site.processes}", "--core=0", *self.limits]
        if self.other_user:
            user = str(self.uid)
            words += [self.tools.setpriv, "--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs"]
            words += ["--inh-caps", "-all", "--ambient-caps", "-all", "--bounding-set", "-all"]
        # bubblewrap and setpriv themselves get an empty environment: a loader's variable would reach them as root.
        return (*words, "/usr/bin/env", "-i", *(f"{name}={value}" for name, value in env.items()), *argv)

    def variables(self, given: Mapping[str, str]) -> dict[str, str]:
        """Where the code finds its home and caches instead of where `given` says; downloaded models stay in place."""
        cache = self.scratch / "cache"
        moved = {name: str(cache / folder) for name, folder in _CACHES.items() if name in given}
        if self.site.network is Network.NONE:
            moved |= {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1"}
        packages = Path(given.get("HOME", "/")) / ".local"
        if packages in self.reads and packages.is_dir():
            moved["PYTHONUSERBASE"] = str(packages)
        return {
            "HOME": str(self.scratch / "home"),
            "USER": USER_NAME,
            "LOGNAME": USER_NAME,
            "TMPDIR": "/tmp",  # noqa: S108
            "XDG_CACHE_HOME": str(cache),
            "HF_HOME": str(self.scratch / "huggingface"),
            "HF_HUB_CACHE": str(hub_cache(given)),
            **moved,
        }

    def _mounts(self, hub: str | None) -> tuple[str, ...]:
        words = ["--proc", "/proc", "--dev", "/dev"]
        words += ["--size", str(int(self.site.shm_gib * _GIB)), "--perms", "1777", "--tmpfs", "/dev/shm"]  # noqa: S108
        for device in [str(path) for path in sorted(Path("/dev").iterdir()) if _DEVICES.match(path.name)]:
            words += ["--dev-bind", device, device]
        places = self._places(Path(hub) if hub else None)
        for path in sorted(places):
            under = _nearest(path, places)
            if path.is_symlink() and under is None and len(path.parts) == 2:
                words += ["--symlink", os.readlink(path), str(path)]
                continue
            if under not in (_Kind.READ, _Kind.WRITE):
                # bubblewrap makes folders above a mount private to root; the other user must pass through them.
                above = [parent for parent in reversed(path.parents) if parent != Path("/") and parent not in places]
                words += [word for parent in above for word in ("--perms", "0755", "--dir", str(parent))]
            match places[path]:
                case _Kind.READ:
                    words += ["--ro-bind", str(path), str(path)]
                case _Kind.WRITE:
                    words += ["--bind", str(self.outside(path)), str(path)]
                case _Kind.EMPTY:
                    covered = ("--perms", "0755", "--tmpfs") if path.is_dir() else ("--ro-bind", "/dev/null")
                    words += [*covered, str(path)]
                case _Kind.TEMPORARY:
                    size = str(int(self.site.tmp_gib * _GIB))
                    words += ["--size", size, "--perms", "1777", "--tmpfs", str(path)]
        for inside, outside in self.replaced.items():
            words += ["--ro-bind", str(outside), str(inside)]
        return tuple(words)

    def _places(self, hub: Path | None) -> dict[Path, _Kind]:
        """Every mount by its path; what is deeper is mounted later and so counts more."""
        places = {Path(folder): _Kind.READ for folder in SYSTEM_FOLDERS if os.path.lexists(folder)}
        tools = _TOOL_FOLDER.iterdir() if _TOOL_FOLDER.is_dir() else ()
        shut = {*self.hidden, self.scratch, self.outside(self.scratch)}
        places |= {tool: _Kind.READ for tool in tools if not any(path.is_relative_to(tool) for path in shut)}
        places |= {Path("/tmp"): _Kind.TEMPORARY, Path("/var/tmp"): _Kind.TEMPORARY}  # noqa: S108
        reads = {path for path in (*self.reads, *((hub,) if hub else ())) if path.exists()}
        for path in sorted({*reads, *(path.resolve() for path in reads)}, key=lambda path: len(path.parts)):
            # What is there already may be a link, on which nothing can be mounted; its target is among the paths.
            seen = _nearest(path, places) is _Kind.READ and not any(path.is_relative_to(item) for item in self.hidden)
            if not seen and path != Path("/"):
                places[path] = _Kind.READ
        for path in self.hidden:
            # Below what is not in the cage at all there is nothing to hide.
            if path.exists() and path not in places and _nearest(path, places) is _Kind.READ:
                places[path] = _Kind.EMPTY
        return places | {self.scratch: _Kind.WRITE}


def _nearest(path: Path, places: Mapping[Path, _Kind]) -> _Kind | None:
    """What the nearest mount above a path is."""
    return next((places[parent] for parent in path.parents if parent in places), None)


_MAX_NAMES = 10_000

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe opened so does not wait for its other end.
PLAIN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_below(root: Path, name: str | PurePath, *, limit: int, offset: int = 0) -> bytes | None:
    """At most `limit` bytes of the regular file `name` below `root`; None when there is no such file."""
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        return None
    with suppress(OSError), _folder(root, path.parts[:-1]) as folder:
        descriptor = os.open(path.name, PLAIN_FILE, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            if S_ISREG(os.fstat(descriptor).st_mode):
                file.seek(offset)
                return file.read(limit)
    return None


def names_below(root: Path, folder: str | PurePath = ".") -> tuple[str, ...]:
    """The names of regular files in a folder below `root`, sorted, at most `MAX_NAMES`; nothing for a link."""
    parts = tuple(part for part in PurePath(folder).parts if part != ".")
    found: list[str] = []
    with suppress(OSError), _folder(root, parts) as descriptor, os.scandir(descriptor) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                found.append(entry.name)
            if len(found) >= _MAX_NAMES:
                break
    return tuple(sorted(found))


def is_folder_below(root: Path, path: Path) -> bool:
    """Whether `path` is a folder below `root` and no part of the way between them is a link."""
    with suppress(OSError, ValueError), _folder(root, path.relative_to(root).parts):
        return True
    return False


@contextmanager
def open_plain_folder(path: str | Path, above: int | None = None) -> Iterator[int]:
    """An open folder, below the open folder `above` if there is one; OSError when it is a link or not a folder."""
    descriptor = os.open(path, _FOLDER, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _folder(root: Path, parts: tuple[str, ...]) -> Iterator[int]:
    with ExitStack() as stack:
        descriptor = stack.enter_context(open_plain_folder(root))
        for part in parts:
            descriptor = stack.enter_context(open_plain_folder(part, descriptor))
        yield descriptor
