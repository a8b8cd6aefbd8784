"""The workflow that runs a job, of this version: a packaged file in a wheel, a file of the repository in a checkout."""

from importlib.resources import files
from pathlib import Path

_IN_WHEEL = "workflows/verl-e2e.yml"
_IN_CHECKOUT = ".github/workflows/verl-e2e.yml"


def workflow_text() -> bytes:
    """The text of the workflow file."""
    packaged = files("verl_e2e").joinpath(_IN_WHEEL)
    if packaged.is_file():
        return packaged.read_bytes()
    return (Path(__file__).resolve().parents[3] / _IN_CHECKOUT).read_bytes()
