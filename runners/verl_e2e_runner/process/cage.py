"""The cage: how code under test is started so that it reaches neither the recorder nor anything else of the host.

bubblewrap gives it namespaces of its own (processes, mounts, IPC, host name, by the site also the network) and a root
folder of its own that holds the system, the inputs read-only, and one folder that it may write. Each program before the
wrapper has another such folder: nothing that one leaves, in its home or a cache, is executed by a later one. Where the
recorder is root, the code runs as another user without capabilities; elsewhere in a user namespace. Its first process
is bubblewrap's: when that one ends, the kernel ends all others, whatever they did to hide.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from verl_e2e.core.model.jobs import Network, SiteIsolation
from verl_e2e_runner.process.environment import KERNEL_CACHES, hub_cache

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
        mounts = self._mounts(hub=env.get("HF_HUB_CACHE"))
        return (self.tools.bwrap, *self._namespaces(info), *mounts, "--chdir", str(cwd), "--", *self._inside(argv, env))

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

    def _namespaces(self, info: int) -> tuple[str, ...]:
        words = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session"]
        words += ["--info-fd", str(info)]
        if self.site.network is Network.NONE:
            # bubblewrap sets the loopback device up; a host name that resolves to it is what Ray and Gloo ask for.
            words += ["--unshare-net", "--hostname", "localhost"]
        if self.other_user:
            words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
        else:
            words += ["--unshare-user", "--disable-userns"]
        return tuple(words)

    def _inside(self, argv: tuple[str, ...], env: Mapping[str, str]) -> tuple[str, ...]:
        limits = [f"--nproc={self.site.processes}", "--core=0", *self.limits]
        words = [self.tools.prlimit, *limits] if self.tools.prlimit else []
        if self.other_user:
            user = str(self.uid)
            words += [self.tools.setpriv, "--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs"]
            words += ["--inh-caps", "-all", "--ambient-caps", "-all", "--bounding-set", "-all"]
        # bubblewrap and setpriv themselves get an empty environment: a loader's variable would reach them as root.
        return (*words, "/usr/bin/env", "-i", *(f"{name}={value}" for name, value in env.items()), *argv)

    def _mounts(self, hub: str | None) -> tuple[str, ...]:
        words = ["--proc", "/proc", "--dev", "/dev"]
        words += ["--size", str(int(self.site.shm_gib * _GIB)), "--perms", "1777", "--tmpfs", "/dev/shm"]  # noqa: S108
        for device in [str(path) for path in sorted(Path("/dev").iterdir()) if _DEVICES.match(path.name)]:
            words += ["--dev-bind", device, device]
        places = self._places(Path(hub) if hub else None)
        for path in sorted(places):
            words += self._mount(path, places[path], places)
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

    def _mount(self, path: Path, kind: _Kind, places: Mapping[Path, _Kind]) -> list[str]:
        under = _nearest(path, places)
        words: list[str] = []
        if path.is_symlink() and under is None and len(path.parts) == 2:
            return ["--symlink", os.readlink(path), str(path)]
        if under not in (_Kind.READ, _Kind.WRITE):
            # bubblewrap makes folders above a mount private to root; the other user must pass through them.
            above = [parent for parent in reversed(path.parents) if parent != Path("/") and parent not in places]
            words += [word for parent in above for word in ("--perms", "0755", "--dir", str(parent))]
        match kind:
            case _Kind.READ:
                return [*words, "--ro-bind", str(path), str(path)]
            case _Kind.WRITE:
                return [*words, "--bind", str(self.outside(path)), str(path)]
            case _Kind.EMPTY:
                covered = ("--perms", "0755", "--tmpfs") if path.is_dir() else ("--ro-bind", "/dev/null")
                return [*words, *covered, str(path)]
            case _Kind.TEMPORARY:
                size = str(int(self.site.tmp_gib * _GIB))
                return [*words, "--size", size, "--perms", "1777", "--tmpfs", str(path)]


def _nearest(path: Path, places: Mapping[Path, _Kind]) -> _Kind | None:
    """What the nearest mount above a path is."""
    return next((places[parent] for parent in path.parents if parent in places), None)
