"""Whether this host can keep code under test apart, found out by trying, and the cage of one run.

Code in a cage may read the trees, the job's Python, and every path that the job or its site names.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from verl_e2e.core.model.jobs import Isolation, Job, SiteIsolation
from verl_e2e.core.model.record import Check, Finding, IsolationState, Mode
from verl_e2e.core.pulls.job_order import TOKEN_VARIABLE
from verl_e2e_runner.findings import blocked, good, note
from verl_e2e_runner.folder.recorder import key_file
from verl_e2e_runner.process.cage import USER_NAME, Cage, Tools
from verl_e2e_runner.process.confined import hand_path_over, let_everyone_read, run
from verl_e2e_runner.process.environment import hub_cache
from verl_e2e_runner.trees import Trees
from verl_e2e_runner.verl_wrapper import INSTRUMENTATION, REWARDS

_PATH_IN_TEXT = re.compile(r"(?<![^\s=:,'\"\[\](])/[^\s=:,'\"\[\]()]+")
# Variables of the host that name folders of libraries and tools.
_LISTS = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_HOME", "CUDA_PATH", "NCCL_TOPO_FILE", "NCCL_CONF_FILE")
# What a CI runner keeps of its own: work folders, the files by which steps talk to it, its tools excepted.
_RUNNER_FOLDERS = ("RUNNER_TEMP", "RUNNER_WORKSPACE", "GITHUB_WORKSPACE")
_RUNNER_FILES = (
    "GITHUB_ENV",
    "GITHUB_OUTPUT",
    "GITHUB_PATH",
    "GITHUB_STATE",
    "GITHUB_STEP_SUMMARY",
    "GITHUB_EVENT_PATH",
)


def read_paths(job: Job, trees: Trees, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Every folder and file that the run may read, absolute; some may not exist yet."""
    variables = {**environ, **job.site.process, **job.process}
    found = [trees.bridge, trees.megatron_lm, trees.verl, INSTRUMENTATION, REWARDS, hub_cache(variables)]
    for python in filter(None, (job.site.python, job.site.bridge_python)):
        found += interpreter_folders(python, variables.get("PATH", ""))
    for name in _LISTS:
        found += [Path(part) for part in variables.get(name, "").split(os.pathsep)]
    home = Path(variables.get("HOME", "/"))
    found += [Path(path).expanduser() for path in (*job.site.python_path, *job.site.bridge_python_path)]
    found += [Path(path).expanduser() for path in job.site.isolation.read]
    found += [home / ".local", *_named(job)]
    resolved = Path("/etc/resolv.conf").resolve()
    if not resolved.is_relative_to("/etc"):
        found.append(resolved)
    # A whole home folder is never an input.
    refused = {Path("/"), Path("."), home, home.resolve(), Path("/tmp"), Path("/run"), Path("/var")}  # noqa: S108
    return tuple(dict.fromkeys(path for path in found if path.is_absolute() and path not in refused))


def hidden_paths(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The folders of the CI runner that started us, as far as its variables name them."""
    folders = [Path(environ[name]) for name in _RUNNER_FOLDERS if environ.get(name)]
    folders += [Path(environ[name]).parent for name in _RUNNER_FILES if environ.get(name)]
    return tuple(dict.fromkeys(path for path in folders if path.is_absolute() and len(path.parts) > 2))


def interpreter_folders(python: str, path: str) -> Iterator[Path]:
    """The folders of a Python: its environment's and, where links lead on, those of the one that it is made from."""
    place = Path(shutil.which(python, path=path) or python)
    for _ in range(8):
        if not place.is_absolute():
            return
        prefix = place.parent.parent
        # A program outside of a `bin` folder is not an environment: it may be a script of the site among other things.
        yield prefix if place.parent.name == "bin" and len(prefix.parts) > 2 else place
        if not place.is_symlink():
            return
        place = place.parent / os.readlink(place)
        place = Path(os.path.normpath(place))


def _named(job: Job) -> Iterator[Path]:
    """Absolute paths in the job's own texts: model, data, configuration, whatever an override names."""
    texts = [job.checkpoint.model_path, job.checkpoint.dummy_config, job.data.train_files, job.data.val_files]
    for mapping in (job.site.wrapper, job.wrapper, job.site.process, job.process):
        texts += mapping.values()
    texts += [*job.site.overrides, *job.overrides]
    for text in filter(None, texts):
        yield from (Path(found) for found in _PATH_IN_TEXT.findall(text))
        if text.startswith("~"):
            yield Path(text).expanduser()


_TRIAL_S = 20.0
_UTILITIES = "/usr/bin:/bin:/usr/sbin:/sbin"
ISOLATION_FIX = (
    "install bubblewrap on the host or in the image, and let the runner be root or a user who may make user namespaces"
    " (a container needs --cap-add SYS_ADMIN and a seccomp and AppArmor profile that allow mounts)"
)
# The code's own folders below the scratch folder, made by the recorder.
_FOLDERS = ("out", "home", "huggingface", "cache")


@dataclass(frozen=True, slots=True)
class Host:
    """What this host can do to isolate code under test."""

    # None where it can do nothing.
    tools: Tools | None
    # Why it can do nothing, in one sentence; else empty.
    problem: str = ""


def find_isolation(job: Job, environ: Mapping[str, str]) -> Host:
    """Try a cage around a program that does nothing; no cage of this host holds what runs on other nodes."""
    if job.node_count > 1:
        return Host(None, f"its Ray cluster runs code on {job.node_count} nodes, and a cage holds only one")
    return try_cage(job.site.isolation, environ)


def try_cage(site: SiteIsolation, environ: Mapping[str, str]) -> Host:
    """Try a cage by a site's numbers around a program that does nothing."""
    bwrap = shutil.which("bwrap", path=f"{_UTILITIES}:{environ.get('PATH', '')}")
    if bwrap is None:
        return Host(None, "bubblewrap (bwrap) is not installed")
    setpriv, prlimit = (shutil.which(name, path=_UTILITIES) or "" for name in ("setpriv", "prlimit"))
    if os.getuid() == 0 and not setpriv:
        return Host(None, "setpriv (util-linux) is not installed")
    tools = Tools(bwrap, setpriv, prlimit)
    with tempfile.TemporaryDirectory() as folder:
        cage = Cage(tools, Path(folder).resolve(), site, os.getuid())
        try:
            hand_path_over(cage.scratch, cage)
        except OSError as error:
            return Host(None, f"a folder cannot be given to user {cage.uid}: {error.strerror}")
        tried = run(("/bin/sh", "-c", "exec true"), env={}, cwd=cage.scratch, timeout_s=_TRIAL_S, cage=cage)
    if tried.code != 0:
        return Host(None, f"a trial of bubblewrap gave {tried.ending}: {tried.last_error}")
    return Host(tools)


def open_cage(
    job: Job, trees: Trees, tools: Tools, own: Path, out: Path, environ: Mapping[str, str], *, number: int = 0
) -> Cage:
    """The cage of one run, its scratch folder made below `own`, a folder of the run's own.

    `out` is the run folder, which stays out of sight, as do the places that `environ` names for a CI runner. `number`
    is the run's among those that share the host: it has its own user, whose limits and files no neighbour has.
    """
    token = (Path(environ[TOKEN_VARIABLE]),) if environ.get(TOKEN_VARIABLE) else ()
    kept = (out.resolve(), key_file(environ), *token)
    cage = Cage(
        tools,
        own / "suspect",
        job.site.isolation.model_copy(update={"user": job.site.isolation.user + number}),
        os.getuid(),
        reads=tuple(path for path in read_paths(job, trees, environ) if not _is_kept(path, kept)),
        hidden=(*kept, own, *hidden_paths(environ)),
    )
    for folder in (*(cage.scratch / name for name in _FOLDERS), trees.cwd):
        folder.mkdir(parents=True, exist_ok=True)
        hand_path_over(folder, cage)
    # The code may not put something else in the place of its own folders.
    cage.scratch.chmod(0o755)
    if not cage.other_user:
        return cage
    # A tree whose commit is nowhere was not made, and a finding says so.
    for root in (trees.root(name) for name in trees.private):
        if root.is_dir():
            let_everyone_read(root)
    return with_user(cage, own / "passwd")


def with_user(cage: Cage, users: Path) -> Cage:
    """The cage with a list of users that knows the code's own; it is written to `users`."""
    users.write_text(f"{_system_users()}{USER_NAME}:x:{cage.uid}:{cage.uid}::{cage.scratch / 'home'}:/bin/sh\n")
    users.chmod(0o644)
    return replace(cage, replaced={Path("/etc/passwd"): users})


def state_of(cage: Cage | None, host: Host) -> IsolationState:
    """How the run is isolated, for the record."""
    if cage is None:
        return IsolationState(mode="none", problem=host.problem)
    return IsolationState(mode=mode_of(host), user=cage.uid, network=cage.site.network)


def mode_of(host: Host) -> Mode:
    """How this host isolates: root can start another user, anyone else needs a user namespace."""
    return "none" if host.tools is None else current_mode()


def current_mode() -> Mode:
    """How a cage isolates that this process makes."""
    return "other_user" if os.getuid() == 0 else "user_namespace"


def isolation_finding(job: Job, host: Host) -> Finding:
    """What the card says of the isolation; it blocks where the job requires what the host cannot do."""
    if host.tools is not None:
        return good(Check.ISOLATION, "code under test runs apart from the recorder, in namespaces of its own")
    summary = f"code under test cannot be kept apart from the recorder on this host: {host.problem}"
    if job.isolation is Isolation.REQUIRED:
        return blocked(Check.ISOLATION, f"{summary}; the job requires it", ISOLATION_FIX)
    what = "what the run recorded, and what later runs load here, could have been written by the code itself"
    return note(Check.ISOLATION, f"{summary}; {what}", ISOLATION_FIX)


def _is_kept(path: Path, kept: tuple[Path, ...]) -> bool:
    """Whether a path that the job names leads to what is the recorder's alone."""
    return any(path.is_relative_to(folder) or path.resolve().is_relative_to(folder.resolve()) for folder in kept)


def _system_users() -> str:
    try:
        text = Path("/etc/passwd").read_text()
    except OSError:
        return ""
    return text if text.endswith("\n") or not text else f"{text}\n"
