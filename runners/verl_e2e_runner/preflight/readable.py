"""Preflight of what the run reads: the user whom the code under test runs as can read it, found out by trying as him.

A library says of a file that it may not read that it is damaged or missing, minutes later. Permissions alone do not
tell: access lists, folders above, and what is mounted in a cage count too.
"""

import json
import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from verl_e2e.core.log.printed import lookup
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.findings import blocked, good, note
from verl_e2e_runner.preflight.compose import Config
from verl_e2e_runner.preflight.inputs import data_files
from verl_e2e_runner.process.program import run
from verl_e2e_runner.trees.worktrees import Trees

_TRY_S = 120.0
_MOST_NAMED = 3

# Prints each path that is closed: a file that cannot be read, a folder that cannot be listed or entered, a link that
# leads nowhere. Of a place that cannot be reached it is the folder above that stops the way. Byte code that cannot be
# read is made again in memory, and a run needs nothing of git.
_TRY = """
import json, os, sys

def closed(place):
    if os.path.isdir(place):
        return not os.access(place, os.R_OK | os.X_OK)
    return not os.access(place, os.R_OK)

def stopped(place):
    above, part = [], place
    while part != os.path.dirname(part):
        part = os.path.dirname(part)
        above.append(part)
    return next((part for part in reversed(above) if not os.access(part, os.X_OK)), place)

def below(place):
    seen, folders = set(), [place]
    while folders:
        folder = folders.pop()
        try:
            status, entries = os.stat(folder), list(os.scandir(folder))
        except OSError:
            yield folder
            continue
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in entries:
            if entry.name in ("__pycache__", ".git"):
                continue
            if closed(entry.path):
                yield entry.path
            elif entry.is_dir():
                folders.append(entry.path)

def tried(place):
    if closed(place):
        return [stopped(place)]
    return list(below(place)) if os.path.isdir(place) else []

print(json.dumps({name: tried(place) for name, place in json.load(sys.stdin).items()}))
"""


def check_readable(
    job: Job, trees: Trees, variables: Mapping[str, str], config: Config | None, *, model: str | None
) -> tuple[Finding, ...]:
    """Whether the code under test can read its trees, its packages, and the models and data that the job names.

    `model` is the folder of the model, once it is known. What does not exist yet is left to other checks.
    """
    places = {name: place for name, place in _places(job, trees, variables, config, model) if not _is_absent(place)}
    user = trees.cage.uid if trees.cage else os.getuid()
    question = json.dumps({name: str(place) for name, place in places.items()})
    where = trees.cage.scratch if trees.cage else Path("/")
    argv = (job.site.python, "-I", "-S", "-c", _TRY)
    plain = {"PATH": variables.get("PATH", os.defpath)}
    asked = run(argv, env=plain, cwd=where, timeout_s=_TRY_S, stdin=question, cage=trees.cage)
    if asked.timed_out:
        return (note(Check.READABLE, f"whether user {user} can read all that the job names took too long to find out"),)
    try:
        answer = {str(name): [Path(path) for path in paths] for name, paths in json.loads(asked.stdout).items()}
    except (ValueError, AttributeError):
        fix = f"let user {user} read and start it, or name another one as `python` of the site profile"
        summary = f"the job's Python {job.site.python} does not start as user {user} ({asked.ending})"
        return (blocked(Check.READABLE, f"{summary}: {asked.last_error}", fix),)
    found = [
        _closed(name, places[name], closed, user)
        for name, paths in answer.items()
        # A link that leads nowhere is nothing to read for anyone.
        if (closed := [path for path in paths if not _is_absent(path)])
    ]
    return tuple(found) or (good(Check.READABLE, f"user {user} can read all that the job names"),)


def _places(
    job: Job, trees: Trees, variables: Mapping[str, str], config: Config | None, model: str | None
) -> Iterator[tuple[str, Path]]:
    yield "the tree of Megatron-Bridge", trees.bridge
    yield "the tree of Megatron-LM", trees.megatron_lm
    yield "the tree of verl", trees.verl
    for entry in job.site.python_path:
        yield f"python_path {entry}", Path(entry)
    if model is not None:
        yield f"the model {job.checkpoint.model_id}", trees.cwd / Path(model).expanduser()
    if job.checkpoint.dummy_config is not None:
        yield "dummy_config", trees.cwd / job.checkpoint.dummy_config
    for key, files in data_files(job, trees.cwd, variables).items():
        yield from ((f"data.{key} {file}", file) for file in files)
    reward_model = lookup(config, "reward.reward_model.model_path")
    if reward_model and lookup(config, "reward.reward_model.enable"):
        yield "the reward model", trees.cwd / Path(str(reward_model)).expanduser()


def _is_absent(path: Path) -> bool:
    """Whether a path leads nowhere, and not only to where this process may not look."""
    try:
        return not path.exists()
    except PermissionError:
        return False


def _closed(name: str, place: Path, paths: list[Path], user: int) -> Finding:
    what = ", ".join(f"{path} ({_owner_and_mode(path)})" for path in paths[:_MOST_NAMED])
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    summary = f"{name}: the code under test runs as user {user}, who cannot read {what}{more}"
    fix = f"let this user read it: `chmod -R o+rX {place}`, and `chmod o+x` for each folder above"
    return blocked(Check.READABLE, summary, f"{fix}; or give the job a copy")


def _owner_and_mode(path: Path) -> str:
    # A link may lead to where this process may not look.
    status = path.stat() if os.access(path, os.F_OK) else path.lstat()
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = str(status.st_uid)
    target = f"leads to {path.resolve()}, " if path.is_symlink() else ""
    return f"{target}owner {owner}, mode {stat.S_IMODE(status.st_mode):03o}"
