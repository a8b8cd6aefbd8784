"""What the code under test may read: the trees, the job's Python, and every path that the job or its site names."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from verl_e2e.core.model.jobs import Job
from verl_e2e_runner.process.hub import hub_cache
from verl_e2e_runner.trees.worktrees import Trees
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
