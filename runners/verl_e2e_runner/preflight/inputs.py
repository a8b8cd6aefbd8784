"""Preflight of what the run reads: data, models, and checkpoints that an earlier run left in its way.

What prepares images and sounds must load in the job's Python: verl goes on without it after a warning, and the rollout
engine ends minutes later with an error that names no package.

The user whom the code under test runs as must be able to read it all, which is found out by trying as him. A library
says of a file that it may not read that it is damaged or missing, minutes later. Permissions alone do not tell: access
lists, folders above, and what is mounted in a cage count too.
"""

import json
import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_e2e.core.consumer.consumer import ConfigKey
from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.log.printed import lookup
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.launch.launcher import Config, data_texts
from verl_e2e_runner.models import answer_of, model_there
from verl_e2e_runner.process.cage import cached_snapshot, hub_cache, is_offline
from verl_e2e_runner.process.processes import run_program
from verl_e2e_runner.reporting import blocked, good, note
from verl_e2e_runner.trees import Trees

_PARQUET = b"PAR1"
_SMALLEST_PARQUET = 12


def said_by(job: Job, config: Config | None, key: ConfigKey) -> Any:
    """What a resolved configuration of the job's consumer says of something, None where it says nothing."""
    return lookup(config, consumer_of(job).keys.get(key, ""))


def data_files(job: Job, cwd: Path, variables: Mapping[str, str]) -> dict[str, tuple[Path, ...]]:
    """The parquet files by the job's key; a value may be a Hydra list. Relative paths start at the run's folder."""
    found = {}
    for key, value in data_texts(job, variables).items():
        parts = value.strip().removeprefix("[").removesuffix("]").split(",")
        names = [part.strip().strip("'\"") for part in parts if part.strip()]
        found[key] = tuple(cwd / Path(name).expanduser() for name in names)
    return found


def model_path(job: Job) -> str | None:
    """The local model that the job names, None for a hub model."""
    return {**job.site.wrapper, **job.wrapper}.get("MODEL_PATH") or job.checkpoint.model_path


def found_model(job: Job, variables: Mapping[str, str]) -> str | None:
    """The local folder of a hub model, once it is in the cache, or of a synthetic one: the hub is asked for nothing."""
    if job.checkpoint.synthetic is not None:
        found = model_there(job.checkpoint.synthetic, variables)
    elif model_path(job) is not None:
        return None
    else:
        found = cached_snapshot(job.checkpoint.model_id, variables)
    return str(found) if found else None


def model_place(job: Job, variables: Mapping[str, str]) -> str | None:
    """Where the model lies, as far as it does yet."""
    return found_model(job, variables) or model_path(job)


def check_data(job: Job, cwd: Path, variables: Mapping[str, str], *, prepared: bool) -> tuple[Finding, ...]:
    """Every data file exists and is parquet; before `prepared`, what the runner can make may be absent."""
    findings = []
    for key, file in ((key, file) for key, files in data_files(job, cwd, variables).items() for file in files):
        place = f"data.{key} = {file}"
        if not file.is_file():
            if job.data.prepare != "none" and not prepared:
                maker = f"{consumer_of(job).title}'s GSM8K script" if job.data.prepare == "gsm8k" else "this program"
                findings.append(good(Check.DATA, f"{place} does not exist yet: {maker} will make it"))
            else:
                fix = "give the path of a parquet file, or set data.prepare to gsm8k"
                findings.append(blocked(Check.DATA, f"{place} does not exist", fix, stage=Stage.DATA))
            continue
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(4)
            stream.seek(max(0, size - 4))
            end = stream.read(4)
        if size >= _SMALLEST_PARQUET and start == end == _PARQUET:
            findings.append(good(Check.DATA, f"{place}: parquet, {size} bytes"))
        else:
            what = "is empty" if size == 0 else f"is not a parquet file ({size} bytes, starts with {start!r})"
            fix = "remove it and prepare the data again"
            findings.append(blocked(Check.DATA, f"{place} {what}", fix, stage=Stage.DATA))
    return tuple(findings)


def check_model(job: Job, cwd: Path, variables: Mapping[str, str], *, prepared: bool) -> tuple[Finding, ...]:
    """The model is where the run will look for it, or can still be downloaded."""
    findings = []
    if job.checkpoint.dummy_config is not None:
        file = cwd / job.checkpoint.dummy_config
        place = f"dummy_config = {file}"
        if file.is_file() and file.stat().st_size:
            findings.append(good(Check.MODEL, place))
        else:
            fix = "give the path of a Hugging Face config.json"
            findings.append(blocked(Check.MODEL, f"{place} does not exist or is empty", fix))
    path = model_path(job)
    if recipe := job.checkpoint.synthetic:
        made = model_there(recipe, variables)
        found = good(Check.MODEL, f"synthetic model of {recipe.family}: {made or 'it will be made once'}")
        if made is None and prepared:
            summary, fix = f"the synthetic model of {recipe.family} was not made", "see the findings before this one"
            found = blocked(Check.MODEL, summary, fix, stage=Stage.MODEL_DOWNLOAD)
        findings.append(found)
    elif path is not None:
        findings.append(_model_folder(Check.MODEL, "model_path", cwd / Path(path).expanduser(), Stage.MODEL_DOWNLOAD))
    else:
        model_id, cache, offline = job.checkpoint.model_id, hub_cache(variables), is_offline(variables)
        if snapshot := cached_snapshot(model_id, variables):
            findings.append(good(Check.MODEL, f"model {model_id} is in the cache: {snapshot}"))
        elif not prepared and not offline:
            findings.append(good(Check.MODEL, f"model {model_id} is not in {cache} yet: it will be downloaded once"))
        else:
            why = "and the hub is offline (HF_HUB_OFFLINE)" if offline else "after the download"
            fix = f"download it once: hf download {model_id}; or give checkpoint.model_path"
            summary = f"model {model_id} is not in {cache} {why}"
            findings.append(blocked(Check.MODEL, summary, fix, stage=Stage.MODEL_DOWNLOAD))
    return tuple(findings)


def check_reward_model(job: Job, cwd: Path, variables: Mapping[str, str], config: Config | None) -> Finding:
    """The reward model, where the composed configuration turns it on, lies at its path or is still to be prepared."""
    if config is None:
        wanted, path = bool(job.reward_model), None
    else:
        wanted, path = (said_by(job, config, key) for key in (ConfigKey.REWARD_MODEL, ConfigKey.REWARD_MODEL_PATH))
    if not wanted:
        return good(Check.REWARD_MODEL, "the reward model is disabled")
    if path is None:
        fix = "set RM_MODEL_PATH in the job's `wrapper` map"
        return blocked(Check.REWARD_MODEL, "the reward model's path is not known", fix, stage=Stage.REWARD_MODEL)
    chosen = job.reward_model
    if chosen and chosen.model_path is None and (chosen.synthetic or not is_offline(variables)):
        return good(
            Check.REWARD_MODEL, f"reward model {chosen.model_id}: {path}, made or downloaded where it is missing"
        )
    return _model_folder(Check.REWARD_MODEL, "reward model", cwd / Path(path).expanduser(), Stage.REWARD_MODEL)


def check_stale_checkpoints(job: Job, cwd: Path, config: Config | None) -> Finding:
    """No earlier run's checkpoints in the folder that the trainer will look into."""
    folder = cwd / str(said_by(job, config, ConfigKey.CHECKPOINTS) or "checkpoints")
    stale = sorted(folder.glob("**/global_step_*")) + sorted(folder.glob("**/latest_checkpointed_iteration.txt"))
    if not stale:
        return good(Check.STALE_CHECKPOINTS, f"no checkpoints in {folder}")
    key = consumer_of(job).keys[ConfigKey.CHECKPOINTS]
    fix = f"move {folder} away, or set {key} to a new folder; the runner deletes nothing of yours"
    return blocked(
        Check.STALE_CHECKPOINTS, f"an earlier run left checkpoints: {stale[0]}", fix, stage=Stage.CHECKPOINT_LOAD
    )


def _model_folder(check: Check, key: str, folder: Path, stage: Stage) -> Finding:
    if (folder / "config.json").is_file():
        return good(check, f"{key} = {folder}")
    what = "has no config.json" if folder.is_dir() else "does not exist"
    return blocked(check, f"{key} = {folder} {what}", "give the folder of a Hugging Face model", stage=stage)


_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
_LOAD_S = 180.0

# The first error is the cause: transformers itself says only which of its own classes it could not import.
_LOAD = """
import json, sys
answer = {"problem": "", "missing": ""}
try:
    from transformers import AutoProcessor
    AutoProcessor.from_pretrained(sys.argv[1])
except Exception as error:
    errors = [error]
    while errors[-1].__cause__ or errors[-1].__context__:
        errors.append(errors[-1].__cause__ or errors[-1].__context__)
    if any(isinstance(error, ImportError) for error in errors):
        first = errors[-1]
        answer = {"problem": f"{type(first).__name__}: {first}"[:500], "missing": getattr(first, "name", None) or ""}
print()
print(json.dumps(answer))
"""


def check_processor(job: Job, cwd: Path, variables: Mapping[str, str], work: Path) -> tuple[Finding, ...]:
    """Whether every package is there that the model's processor imports; nothing where the model has none.

    Only a failed import counts: what else a processor objects to depends on how the run will load it.
    """
    place = model_place(job, variables)
    folder = cwd / Path(place).expanduser() if place else None
    if folder is None or not any((folder / name).is_file() for name in _FILES):
        return ()
    quiet = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    argv = (job.site.python, "-c", _LOAD, str(folder))
    finished = run_program(argv, env={**variables, **quiet}, cwd=work, timeout_s=_LOAD_S)
    answer, what = answer_of(finished), f"the processor of {job.checkpoint.model_id}"
    if "problem" not in answer:
        return (note(Check.PACKAGES, f"{what} was not loaded ({finished.ending}): {finished.last_error}"),)
    if not answer["problem"]:
        return (good(Check.PACKAGES, f"{what} has the packages that it needs"),)
    name = str(answer.get("missing") or "").partition(".")[0][:100]
    fix = f"install {f'the package {name}' if name else 'what the error names'} for the job's Python"
    return (blocked(Check.PACKAGES, f"{what} cannot be loaded: {answer['problem']}", fix),)


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
    places = {
        "the tree of Megatron-Bridge": trees.bridge,
        "the tree of Megatron-LM": trees.megatron_lm,
        "the tree of verl": trees.verl,
        **{f"python_path {entry}": Path(entry) for entry in job.site.python_path},
    }
    if model is not None:
        places[f"the model {job.checkpoint.model_id}"] = trees.cwd / Path(model).expanduser()
    if job.checkpoint.dummy_config is not None:
        places["dummy_config"] = trees.cwd / job.checkpoint.dummy_config
    for key, files in data_files(job, trees.cwd, variables).items():
        places |= {f"data.{key} {file}": file for file in files}
    reward_model = said_by(job, config, ConfigKey.REWARD_MODEL_PATH)
    if reward_model and said_by(job, config, ConfigKey.REWARD_MODEL):
        places["the reward model"] = trees.cwd / Path(str(reward_model)).expanduser()
    places = {name: place for name, place in places.items() if not _is_absent(place)}
    user = trees.cage.uid if trees.cage else os.getuid()
    question = json.dumps({name: str(place) for name, place in places.items()})
    where = trees.cage.scratch if trees.cage else Path("/")
    argv = (job.site.python, "-I", "-S", "-c", _TRY)
    plain = {"PATH": variables.get("PATH", os.defpath)}
    asked = run_program(argv, env=plain, cwd=where, timeout_s=_TRY_S, stdin=question, cage=trees.cage)
    if asked.timed_out:
        return (note(Check.READABLE, f"whether user {user} can read all that the job names took too long to find out"),)
    try:
        answer = {str(name): [Path(path) for path in paths] for name, paths in json.loads(asked.stdout).items()}
    except (ValueError, AttributeError):
        fix = f"let user {user} read and start it, or name another one as `python` of the site profile"
        summary = f"the job's Python {job.site.python} does not start as user {user} ({asked.ending})"
        return (blocked(Check.READABLE, f"{summary}: {asked.last_error}", fix),)
    found = []
    for name, paths in answer.items():
        # A link that leads nowhere is nothing to read for anyone.
        if closed := [path for path in paths if not _is_absent(path)]:
            what = ", ".join(f"{path} ({_owner_and_mode(path)})" for path in closed[:_MOST_NAMED])
            more = f" and {len(closed) - _MOST_NAMED} more" if len(closed) > _MOST_NAMED else ""
            summary = f"{name}: the code under test runs as user {user}, who cannot read {what}{more}"
            fix = f"let this user read it: `chmod -R o+rX {places[name]}`, and `chmod o+x` for each folder above"
            found.append(blocked(Check.READABLE, summary, f"{fix}; or give the job a copy"))
    return tuple(found) or (good(Check.READABLE, f"user {user} can read all that the job names"),)


def _is_absent(path: Path) -> bool:
    """Whether a path leads nowhere, and not only to where this process may not look."""
    try:
        return not path.exists()
    except PermissionError:
        return False


def _owner_and_mode(path: Path) -> str:
    # A link may lead to where this process may not look.
    status = path.stat() if os.access(path, os.F_OK) else path.lstat()
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = str(status.st_uid)
    target = f"leads to {path.resolve()}, " if path.is_symlink() else ""
    return f"{target}owner {owner}, mode {stat.S_IMODE(status.st_mode):03o}"
