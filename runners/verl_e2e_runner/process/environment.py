"""What a program of a run gets from the host, and what is private to its run: variables, folders, caches.

The code under test is a pull request of anyone, so no secret is handed to it: what `verl_e2e.core.text.redact`
knows, which is what the redactor hides. The lists name what is dropped and keep the rest: the stack reads hundreds of
variables of CUDA, NCCL, UCX, Triton, vLLM and the site's fabric, and a list of the kept ones would silently weaken a
site that sets one more.

Each of the caches that an operator may fill finds an entry by the content that it was compiled from, so an entry of
other sources is never used. Caches that compare the times of files instead (FlashInfer's and PyTorch's extensions,
which ninja builds) are not among them: a kernel of other sources could be taken for that of the change.
"""

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from verl_e2e.core.model.errors import UserError
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


IMPORTS_VARIABLE = "VERL_E2E_IMPORTS"
EXECUTED_VARIABLE = "VERL_E2E_EXECUTED"
FINGERPRINTS_VARIABLE = "VERL_E2E_FINGERPRINTS"
PATH_VARIABLE = "VERL_E2E_PATH"
# Tells the instrumentation that the run joins a Ray cluster which others use.
SHARED_RAY_VARIABLE = "VERL_E2E_SHARED_RAY"

# A unix socket's path has at most 107 bytes, and Ray adds
# `/ray/session_YYYY-MM-DD_hh-mm-ss_uuuuuu_ppppppp/sockets/plasma_store` to its folder.
_LONGEST_RAY_FOLDER = 107 - 69
MARKER_FILE = ".verl-e2e-run"


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


def planned_session(
    nonce: str,
    imports: Path,
    *,
    executed: Path | None = None,
    fingerprints: Path | None = None,
    caged: bool = False,
    ray_address: str = "",
    caches: Path | None = None,
) -> Session:
    """The session of a run; touches nothing. `nonce` must be new, a random hex string. In a cage /tmp is its own."""
    root = Path("/tmp") if caged else Path(tempfile.gettempdir()).resolve()  # noqa: S108
    if len(str(root)) + len("/ve-12345678") > _LONGEST_RAY_FOLDER:
        root = Path("/tmp")  # noqa: S108
    recorded = executed.resolve() if executed else None
    prints = fingerprints.resolve() if fingerprints else None
    folder = root / f"ve-{nonce[:8]}"
    return Session(nonce, folder, imports.resolve(), recorded, prints, ray_address=ray_address, caches=caches)


def open_session(session: Session) -> None:
    """Make the run's Ray folder, so that `close_session` knows it again."""
    session.ray_folder.mkdir(mode=0o700, parents=True)
    (session.ray_folder / MARKER_FILE).write_text(session.nonce)


def close_session(session: Session) -> bool:
    """Remove the run's Ray folder; false, and nothing touched, for a folder that it did not make, and what stays."""
    folder, marker = session.ray_folder, session.ray_folder / MARKER_FILE
    if folder.is_symlink() or not marker.is_file() or marker.read_text() != session.nonce:
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


RECORD_VARIABLE = "VERL_E2E_RECORD"
_OFF = "off"


class Part(StrEnum):
    """A record that can be switched off."""

    EXECUTED = "executed"
    FINGERPRINTS = "fingerprints"


class RecordingError(UserError):
    """The variable has a value that it cannot have; the message names those that it can."""


def recorded_parts(environ: Mapping[str, str]) -> frozenset[Part]:
    """The records that the runner's variable asks for: all of them where it is not set, none for `off`."""
    given = environ.get(RECORD_VARIABLE, "").strip()
    if not given:
        return frozenset(Part)
    if given == _OFF:
        return frozenset()
    names = {name.strip() for name in given.split(",")}
    if unknown := sorted(names - {part.value for part in Part}):
        known = ", ".join(part.value for part in Part)
        raise RecordingError(f"{RECORD_VARIABLE}={given}: {unknown[0]!r} is not one of {known}; `off` stands for none")
    return frozenset(Part(name) for name in names)
