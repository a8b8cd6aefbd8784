"""Has the job's own Python make exercises about small pictures, for a job whose model sees images.

They lie among the downloaded models, where the cage reads them and code under test cannot change them.
"""

from collections.abc import Mapping
from pathlib import Path

from verl_e2e_runner.models.synthetic import HOST_PYTHON, Made, answer_of, make_shared_folder
from verl_e2e_runner.process.confined import let_everyone_read
from verl_e2e_runner.process.program import run

_SCRIPT = HOST_PYTHON / "verl_e2e_make_images.py"


def make_images(folder: Path, *, python: str, variables: Mapping[str, str], work: Path, timeout_s: float) -> Made:
    """Make both files in `folder` afresh: it takes seconds, so what lies there is never trusted."""
    # The libraries keep what they wrote and read in a folder of their own, which goes away with the run.
    quiet = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(work / "datasets"), "PYTHONDONTWRITEBYTECODE": "1"}
    make_shared_folder(folder.parent)
    finished = run((python, str(_SCRIPT), str(folder)), env={**variables, **quiet}, cwd=work, timeout_s=timeout_s)
    answer = answer_of(finished)
    if finished.code != 0 or "problem" in answer:
        return Made("", str(answer.get("problem") or f"{finished.ending}: {finished.last_error}"))
    let_everyone_read(folder)
    return Made(f"exercises about small pictures, made in {finished.seconds:.0f} s: {folder}")
