"""Preflight of what prepares images and sounds: the job's Python can load it, as verl and the rollout engine will.

verl goes on without it after a warning, and the rollout engine ends minutes later with an error that names no package.
"""

from collections.abc import Mapping
from pathlib import Path

from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.findings import blocked, good, note
from verl_e2e_runner.models.synthetic import answer_of, made_model
from verl_e2e_runner.preflight.inputs import model_path
from verl_e2e_runner.process.hub import cached_snapshot
from verl_e2e_runner.process.program import run

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
    folder = _folder(job, cwd, variables)
    if folder is None or not any((folder / name).is_file() for name in _FILES):
        return ()
    quiet = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    argv = (job.site.python, "-c", _LOAD, str(folder))
    finished = run(argv, env={**variables, **quiet}, cwd=work, timeout_s=_LOAD_S)
    answer, what = answer_of(finished), f"the processor of {job.checkpoint.model_id}"
    if "problem" not in answer:
        return (note(Check.PACKAGES, f"{what} was not loaded ({finished.ending}): {finished.last_error}"),)
    if not answer["problem"]:
        return (good(Check.PACKAGES, f"{what} has the packages that it needs"),)
    name = str(answer.get("missing") or "").partition(".")[0][:100]
    fix = f"install {f'the package {name}' if name else 'what the error names'} for the job's Python"
    return (blocked(Check.PACKAGES, f"{what} cannot be loaded: {answer['problem']}", fix),)


def _folder(job: Job, cwd: Path, variables: Mapping[str, str]) -> Path | None:
    if job.checkpoint.synthetic is not None:
        return made_model(job.checkpoint.synthetic, variables)
    path = model_path(job)
    return cwd / Path(path).expanduser() if path else cached_snapshot(job.checkpoint.model_id, variables)
