"""The repositories of a job that names addresses: fetched at the exact commits into bare clones that runs share.

Each host has clones of its own, also where hosts share the disk, so that a lock of this host's kernel is enough. A
credential goes to the host of the repository under test and to no other one.
"""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from verl_e2e.core.model.errors import ForgeError
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.pulls.job_order import TOKEN_VARIABLE, takes_token
from verl_e2e.git.clone import Bounds, Clone, Wanted
from verl_e2e.git.program import Limits
from verl_e2e.git.repository import GitError
from verl_e2e_runner.trees.repositories import RepositoryError

Name = Literal["bridge", "megatron_lm", "verl"]
SUBMODULE = "3rdparty/Megatron-LM"
_BOUNDS = Bounds(
    git=Limits(time_s=1800.0, memory_bytes=4 << 30), lock_s=1800.0, fetch_bytes=4 << 30, disk_bytes=64 << 30
)
_FIX = f"see that this host reaches it, and that {TOKEN_VARIABLE} names a token where it is private; then rerun"


def with_clones(job: Job, folder: Path) -> Job:
    """The job with this host's clones below a folder in the place of the names of repositories that have an address.

    A repository that the job names by its place is the user's own: nothing is fetched into it.
    """
    own = folder.resolve() / "repositories" / (platform.node() or "host")
    repositories = {"bridge": job.bridge, "verl": job.verl}
    clones: dict[str, object] = {
        name: repository.model_copy(update={"path": str(own / _folder_of(job.origins[name].url))})
        for name, repository in repositories.items()
        if name in job.origins and not Path(repository.path).is_absolute()
    }
    # Bridge's clone holds the one of Megatron-LM.
    fetched = clones.keys() | ({"megatron_lm"} if "bridge" in clones else set())
    origins = {name: origin for name, origin in job.origins.items() if name in fetched}
    return job.model_copy(update={**clones, "origins": origins})


def fetch(job: Job, name: Name, commit: str, *, base: Mapping[str, str]) -> None:
    """See that a clone has a commit, from the job's address for it; nothing without one. RepositoryError."""
    _fetch(job, name, commit, renewed=False, base=base)


def fetch_again(job: Job, name: Name, commit: str, *, base: Mapping[str, str]) -> bool:
    """Make a clone that was found damaged again and fetch the commit; false where it is the user's. RepositoryError."""
    return _fetch(job, name, commit, renewed=True, base=base)


def _fetch(job: Job, name: Name, commit: str, *, renewed: bool, base: Mapping[str, str]) -> bool:
    origin = job.origins.get(name)
    if origin is None:
        return False
    # Where git itself keeps a submodule, so that it is found as in any other Bridge repository.
    places = {"bridge": job.bridge.path, "verl": job.verl.path, "megatron_lm": f"{job.bridge.path}/modules/{SUBMODULE}"}
    wanted = Wanted(commit, commit, origin.ref or commit)
    clone = Clone(
        Path(places[name]),
        _BOUNDS,
        url=origin.url,
        token=lambda: _token(job, origin.url, base),
        environ=base,
        credential=TOKEN_VARIABLE,
        shallow=True,
    )
    try:
        if renewed:
            clone.renew(clone.generation())
        clone.bring_commits([wanted])
    except (ForgeError, GitError, OSError, ValueError) as error:
        raise RepositoryError(f"commit {commit} could not be fetched from {origin.url}: {error}", _FIX) from error
    return True


def fetch_baseline(job: Job, commit: str, *, base: Mapping[str, str]) -> str:
    """Fetch what a comparison with another commit of Bridge reads; why that failed, empty where it did not."""
    try:
        fetch(job, "verl", job.verl.commit, base=base)
        fetch(job, "bridge", job.bridge.commit, base=base)
        fetch(job, "bridge", commit, base=base)
    except RepositoryError as error:
        return str(error)
    return ""


def _folder_of(url: str) -> str:
    """The folder of an address's clone: hosts take the names of repositories in any case for the same one."""
    parts = urlsplit(url)
    return f"{parts.netloc.replace(':', '_')}/{parts.path.strip('/').removesuffix('.git').lower()}.git"


def _token(job: Job, url: str, base: Mapping[str, str]) -> str | None:
    """What the owner of this host keeps for fetching; OSError, ValueError."""
    file = base.get(TOKEN_VARIABLE, "")
    return (
        Path(file).read_text(encoding="ascii").strip() if file and takes_token(url, job.origins.get("bridge")) else None
    )
