"""Makes the synthetic model of a job before the wrapper starts, and exercises about small pictures for one that sees.

Each is made once for each recipe, among the downloaded models, where the cage reads it like a model of the hub and code
under test cannot change it. The scripts in `host_python` run in the job's own Python, with the libraries of the run and
without the code under test.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_e2e.core.model.synthetic import Synthetic
from verl_e2e_runner.process.cage import model_folder
from verl_e2e_runner.process.processes import FinishedProgram, let_everyone_read, run_program

HOST_PYTHON = Path(__file__).resolve().parent / "host_python"
RECIPE_FILE = "recipe.json"
# A model of some million parameters takes a minute on a busy core.
_MAKE_S = 600.0
_OFFLINE = {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True, slots=True)
class Made:
    """How a model was made, or was there already."""

    # What it is, in words, and where it lies; empty where there is none.
    summary: str
    # Why there is none, empty where there is one.
    problem: str = ""


def model_there(recipe: Synthetic, variables: Mapping[str, str]) -> Path | None:
    """The folder of the model where it has been made."""
    folder = model_folder(recipe, variables)
    return folder if (folder / RECIPE_FILE).is_file() else None


def make_model(recipe: Synthetic, folder: Path, *, python: str, variables: Mapping[str, str], work: Path) -> Made:
    """Make the model in `folder`, unless it lies there as this recipe and these libraries make it."""
    argv = (python, str(HOST_PYTHON / "verl_e2e_make_model.py"))
    # No GPU is taken, and a class that would ask the hub gets nothing: the recipe is all that decides.
    quiet = {**variables, **_OFFLINE, "CUDA_VISIBLE_DEVICES": ""}
    question = json.dumps({"recipe": recipe.model_dump(mode="json"), "folder": str(folder)})
    make_shared_folder(folder.parent)
    answer, problem = _made(run_program(argv, env=quiet, cwd=work, timeout_s=_MAKE_S, stdin=question), folder)
    if problem:
        return Made("", problem)
    lost = answer.get("missing_kinds") or []
    without = f", without layers of the kinds {', '.join(map(str, lost))}" if lost else ""
    parameters = f"{answer.get('parameters', 0) / 1e6:.1f} million parameters"
    return Made(f"{recipe.what}{without}, {parameters}, made in {answer.get('seconds', 0)} s: {folder}")


def make_images(folder: Path, *, python: str, variables: Mapping[str, str], work: Path) -> Made:
    """Make both files in `folder` afresh: it takes seconds, so what lies there is never trusted."""
    argv = (python, str(HOST_PYTHON / "verl_e2e_make_images.py"), str(folder))
    # The libraries keep what they wrote and read in a folder of their own, which goes away with the run.
    quiet = {**variables, **_OFFLINE, "HF_DATASETS_CACHE": str(work / "datasets")}
    make_shared_folder(folder.parent)
    finished = run_program(argv, env=quiet, cwd=work, timeout_s=_MAKE_S)
    _, problem = _made(finished, folder)
    return Made(
        "" if problem else f"exercises about small pictures, made in {finished.seconds:.0f} s: {folder}", problem
    )


def _made(finished: FinishedProgram, folder: Path) -> tuple[dict[str, Any], str]:
    """What a script said, and why there is nothing, empty where there is something."""
    answer = answer_of(finished)
    if finished.code != 0 or "problem" in answer:
        return answer, str(answer.get("problem") or f"{finished.ending}: {finished.last_error}")
    # safetensors writes files for one user.
    let_everyone_read(folder)
    return answer, ""


def make_shared_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for every user to read; an error is left to who writes."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    with suppress(OSError):
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            path.chmod(0o755)


def answer_of(finished: FinishedProgram) -> dict[str, Any]:
    """The last line of the program's output, an empty document where it is none."""
    try:
        answer = json.loads(finished.stdout.strip().rpartition("\n")[2])
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
