"""Preflight of what the run reads: data, models, and checkpoints that an earlier run left in its way."""

from collections.abc import Mapping
from pathlib import Path

from verl_e2e.core.log.printed import lookup
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Check, Finding
from verl_e2e.core.model.stages import Stage
from verl_e2e.core.model.synthetic import Synthetic
from verl_e2e_runner.findings import blocked, good
from verl_e2e_runner.models.synthetic import made_model
from verl_e2e_runner.preflight.compose import Config
from verl_e2e_runner.process.hub import cached_snapshot, hub_cache, is_offline
from verl_e2e_runner.verl_wrapper import data_texts

_PARQUET = b"PAR1"
_SMALLEST_PARQUET = 12


def data_files(job: Job, cwd: Path, variables: Mapping[str, str]) -> dict[str, tuple[Path, ...]]:
    """The parquet files by the job's key; a value may be a Hydra list. Relative paths start at the run's folder."""
    given = data_texts(job, variables)
    return {key: tuple(cwd / Path(part).expanduser() for part in _parts(value)) for key, value in given.items()}


def model_path(job: Job) -> str | None:
    """The local model that the job names, None for a hub model."""
    return {**job.site.wrapper, **job.wrapper}.get("MODEL_PATH") or job.checkpoint.model_path


def check_data(job: Job, cwd: Path, variables: Mapping[str, str], *, prepared: bool) -> tuple[Finding, ...]:
    """Every data file exists and is parquet; before `prepared`, what the runner can make may be absent."""
    given = data_files(job, cwd, variables).items()
    return tuple(_data_file(job, key, file, prepared=prepared) for key, files in given for file in files)


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
    if job.checkpoint.synthetic is not None:
        findings.append(_synthetic_model(job.checkpoint.synthetic, variables, prepared=prepared))
    elif path is not None:
        findings.append(_model_folder(Check.MODEL, "model_path", cwd / Path(path).expanduser(), Stage.MODEL_DOWNLOAD))
    else:
        findings.append(_hub_model(job.checkpoint.model_id, variables, prepared=prepared))
    return tuple(findings)


def check_reward_model(job: Job, cwd: Path, config: Config | None) -> Finding:
    """The reward model, where the composed configuration turns it on, lies at its path."""
    if config is None:
        wanted, path = job.reward_model, None
    else:
        wanted = bool(lookup(config, "reward.reward_model.enable"))
        path = lookup(config, "reward.reward_model.model_path")
    if not wanted:
        return good(Check.REWARD_MODEL, "the reward model is disabled")
    if path is None:
        fix = "set RM_MODEL_PATH in the job's `wrapper` map"
        return blocked(Check.REWARD_MODEL, "the reward model's path is not known", fix, stage=Stage.REWARD_MODEL)
    return _model_folder(Check.REWARD_MODEL, "reward model", cwd / Path(path).expanduser(), Stage.REWARD_MODEL)


def check_stale_checkpoints(cwd: Path, config: Config | None) -> Finding:
    """No earlier run's checkpoints in the folder that the trainer will look into."""
    folder = cwd / str(lookup(config, "trainer.default_local_dir") or "checkpoints")
    stale = sorted(folder.glob("**/global_step_*")) + sorted(folder.glob("**/latest_checkpointed_iteration.txt"))
    if not stale:
        return good(Check.STALE_CHECKPOINTS, f"no checkpoints in {folder}")
    fix = f"move {folder} away, or set trainer.default_local_dir to a new folder; the runner deletes nothing of yours"
    return blocked(
        Check.STALE_CHECKPOINTS, f"an earlier run left checkpoints: {stale[0]}", fix, stage=Stage.CHECKPOINT_LOAD
    )


def _parts(value: str) -> tuple[str, ...]:
    inner = value.strip().removeprefix("[").removesuffix("]")
    return tuple(part.strip().strip("'\"") for part in inner.split(",") if part.strip())


def _data_file(job: Job, key: str, file: Path, *, prepared: bool) -> Finding:
    place = f"data.{key} = {file}"
    if not file.is_file():
        if job.data.prepare != "none" and not prepared:
            maker = "verl's GSM8K script" if job.data.prepare == "gsm8k" else "this program"
            return good(Check.DATA, f"{place} does not exist yet: {maker} will make it")
        fix = "give the path of a parquet file, or set data.prepare to gsm8k"
        return blocked(Check.DATA, f"{place} does not exist", fix, stage=Stage.DATA)
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(4)
        stream.seek(max(0, size - 4))
        end = stream.read(4)
    if size < _SMALLEST_PARQUET or start != _PARQUET or end != _PARQUET:
        what = "is empty" if size == 0 else f"is not a parquet file ({size} bytes, starts with {start!r})"
        return blocked(Check.DATA, f"{place} {what}", "remove it and prepare the data again", stage=Stage.DATA)
    return good(Check.DATA, f"{place}: parquet, {size} bytes")


def _model_folder(check: Check, key: str, folder: Path, stage: Stage) -> Finding:
    if (folder / "config.json").is_file():
        return good(check, f"{key} = {folder}")
    what = "has no config.json" if folder.is_dir() else "does not exist"
    return blocked(check, f"{key} = {folder} {what}", "give the folder of a Hugging Face model", stage=stage)


def _synthetic_model(recipe: Synthetic, variables: Mapping[str, str], *, prepared: bool) -> Finding:
    folder = made_model(recipe, variables)
    if folder is None and prepared:
        summary = f"the synthetic model of {recipe.family} was not made"
        return blocked(Check.MODEL, summary, "see the findings before this one", stage=Stage.MODEL_DOWNLOAD)
    place = folder or "it will be made once"
    return good(Check.MODEL, f"synthetic model of {recipe.family}: {place}")


def _hub_model(model_id: str, variables: Mapping[str, str], *, prepared: bool) -> Finding:
    snapshot = cached_snapshot(model_id, variables)
    if snapshot is not None:
        return good(Check.MODEL, f"model {model_id} is in the cache: {snapshot}")
    cache = hub_cache(variables)
    if not prepared and not is_offline(variables):
        return good(Check.MODEL, f"model {model_id} is not in {cache} yet: it will be downloaded once")
    why = "and the hub is offline (HF_HUB_OFFLINE)" if is_offline(variables) else "after the download"
    fix = f"download it once: hf download {model_id}; or give checkpoint.model_path"
    return blocked(Check.MODEL, f"model {model_id} is not in {cache} {why}", fix, stage=Stage.MODEL_DOWNLOAD)
