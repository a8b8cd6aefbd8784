"""Runs the cells over one Bridge commit with its Megatron-LM, in the Python of `make rehearsal-env`.

The trees are private checkouts of what is imported. Records of a commit are kept and used again: they depend on the two
commits, the cells, the scripts and the libraries alone.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from verl_e2e.core.model.errors import UserError
from verl_e2e_runner.process.program import run
from verl_e2e_runner.rehearsal.cells import CELLS
from verl_e2e_runner.trees.repositories import RepositoryError, borrow, check_out, open_repository
from verl_e2e_runner.trees.sources import SUBMODULE

HOST_PYTHON = Path(__file__).resolve().parent / "host_python"
# What the driver's process imports besides Bridge and Megatron-LM, by the name of the module.
NEEDED = (
    *("torch", "transformers", "safetensors", "tokenizers", "numpy", "einops", "omegaconf", "hydra", "accelerate"),
    *("yaml", "pydantic", "typing_extensions"),
)
COMPLETE = "complete.json"
_MAKE = "make rehearsal-env"
_WHOLE_S, _CELL_S = 1_800.0, 120
_LOOK = "import importlib.util, sys; print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rehearsal runs."""

    # The Python with PyTorch and transformers.
    python: Path
    # The folder for models, trees and kept records.
    work: Path
    # The environment of the caller, of which PATH is used.
    environ: Mapping[str, str]
    # How many processes may train at a time.
    workers: int = 2
    # verl's file that describes adapters to the rollout engine; None where verl is not at hand.
    verl: Path | None = None


@dataclass(frozen=True, slots=True)
class Sources:
    """A commit to rehearse."""

    bridge: Path
    commit: str
    megatron_lm: Path
    megatron_lm_commit: str


def chosen_cells(patterns: Sequence[str]) -> tuple[str, ...]:
    """The names of the cells that a pattern names, with those that they must agree with; all without a pattern."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in CELLS):
            raise UserError(f"--only {pattern}: no cell has this name; `verl-e2e rehearse --cells` lists them")
    named = [name for name in CELLS if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]
    wanted = {*named, *(CELLS[name].agrees_with for name in named)}
    return tuple(name for name in CELLS if name in wanted)


def check_environment(place: Place) -> None:
    """Raise UserError where the Python is missing or does not have what a rehearsal imports."""
    if not place.python.exists():
        raise UserError(f"{place.python} does not exist; run `{_MAKE}`, or name a Python by --python")
    asked = run((str(place.python), "-c", _LOOK, *NEEDED), env=_environment(place), cwd=place.work, timeout_s=60)
    if asked.code != 0:
        raise UserError(f"{place.python} cannot be used ({asked.ending}: {asked.last_error}); run `{_MAKE}`")
    if missing := asked.stdout.split():
        raise UserError(f"{place.python} does not have {', '.join(missing)}; run `{_MAKE}`")


def rehearse(sources: Sources, cells: Sequence[str], recipes: Mapping[str, object], place: Place) -> Path:
    """Run the cells and give the folder with their records; UserError where the trees cannot be made."""
    out = place.work / "records" / _digest(sources, cells, recipes, place)
    if (out / COMPLETE).exists():
        return out
    trees = place.work / "trees"
    try:
        bridge = _tree(sources.bridge, sources.commit, "src", trees / f"bridge-{sources.commit}", place)
        megatron = _tree(
            sources.megatron_lm,
            sources.megatron_lm_commit,
            "megatron",
            trees / f"megatron_lm-{sources.megatron_lm_commit}",
            place,
        )
    except RepositoryError as error:
        raise UserError(f"{error.summary}; {error.fix}") from None
    run_driver({bridge / "src": "src/", megatron: f"{SUBMODULE}/"}, cells, recipes, out, place)
    return out


def run_driver(
    roots: Mapping[Path, str], cells: Sequence[str], recipes: Mapping[str, object], out: Path, place: Place
) -> None:
    """Run the cells over source trees that are there: their folders, and what stands for each in the records."""
    for file in out.glob("*.json"):
        file.unlink()
    out.mkdir(parents=True, exist_ok=True)
    request = {
        "cells": list(cells),
        "recipes": dict(recipes),
        "roots": {str(root): short for root, short in roots.items()},
        "models": str(place.work / "models"),
        "out": str(out),
        "workers": place.workers,
        "limit_s": _CELL_S,
        "verl": str(place.verl or ""),
    }
    (out / "request").write_text(json.dumps(request))
    environment = {**_environment(place), "PYTHONPATH": os.pathsep.join(map(str, roots))}
    argv = (str(place.python), str(HOST_PYTHON / "driver.py"), str(out / "request"))
    finished = run(argv, env=environment, cwd=out, timeout_s=_WHOLE_S)
    (out / "driver.log").write_text(f"{finished.stdout}\n{finished.stderr}\n{finished.ending}\n")


def _environment(place: Place) -> dict[str, str]:
    return {"PATH": place.environ.get("PATH", os.defpath), "HOME": str(place.work), "PYTHONDONTWRITEBYTECODE": "1"}


def _tree(source: Path, commit: str, folder: str, target: Path, place: Place) -> Path:
    """One folder of a commit, checked out; a tree that was made before is used again."""
    marker = target / ".git" / "verl-e2e-whole"
    if not marker.exists():
        objects = open_repository(source, base=place.environ).objects_folder()
        check_out(borrow(target, objects, base=place.environ), commit, [f"/{folder}/"])
        marker.touch()
    return target


def _digest(sources: Sources, cells: Sequence[str], recipes: Mapping[str, object], place: Place) -> str:
    """What the records of a commit follow from."""
    files = sorted((*HOST_PYTHON.glob("*.py"), Path(__file__).with_name("cells.py")))
    scripts = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    commits = (sources.commit, sources.megatron_lm_commit)
    verl = place.verl.read_text() if place.verl else ""
    text = json.dumps([commits, list(cells), dict(recipes), scripts, str(place.python.resolve()), verl], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def head_of(sources: Sources, commit: str, megatron_lm_commit: str) -> Sources:
    """The same repositories at another commit."""
    return replace(sources, commit=commit, megatron_lm_commit=megatron_lm_commit)
