"""Packages, versions and module locations of the job's Python, read without importing anything."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Check, Finding
from verl_e2e.core.model.stages import Stage
from verl_e2e_runner.findings import blocked, good
from verl_e2e_runner.process.confined import with_own_scratch
from verl_e2e_runner.process.program import run
from verl_e2e_runner.process.session import IMPORTS_VARIABLE
from verl_e2e_runner.trees.worktrees import Trees

# Distributions whose versions belong on the record of a run.
DISTRIBUTIONS = (
    *("torch", "triton", "ray", "vllm", "sglang", "transformers", "tokenizers", "huggingface-hub", "datasets"),
    *("transformer-engine", "transformer-engine-torch", "transformer-engine-cu12", "transformer-engine-cu13"),
    *("nvidia-modelopt", "tensordict", "transferqueue", "mbridge", "megatron-bridge", "megatron-core", "verl"),
    *("hydra-core", "omegaconf", "flash-attn", "flashinfer-python", "xgrammar", "peft", "accelerate", "apex"),
    *("numpy", "pyarrow", "pandas", "safetensors", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cublas", "pytest"),
)


_TREE_OF = {"megatron.bridge": "bridge", "megatron.core": "megatron_lm", "verl": "verl"}


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The job's Python."""

    version: str = ""
    # Its path.
    executable: str = ""
    # Versions by distribution.
    versions: Mapping[str, str] = field(default_factory=dict)
    # Distributions that the image did not bring.
    hand_installed: tuple[str, ...] = ()


def ask_interpreter(
    job: Job, trees: Trees, environment: Mapping[str, str], *, timeout_s: float = 60
) -> tuple[Interpreter, tuple[Finding, ...]]:
    """Ask the job's Python under the run's environment; the findings cover packages and import locations."""
    modules = tuple(name for name in trees.import_roots if trees.has(_TREE_OF[name]))
    question = {
        "locate": modules,
        "packages": job.site.required_packages,
        "versions": DISTRIBUTIONS,
        "hand": job.site.python_path,
    }
    quiet = {name: value for name, value in environment.items() if name != IMPORTS_VARIABLE}
    argv = (job.site.python, "-m", "verl_e2e_ask")
    finished = run(
        argv,
        env=quiet,
        cwd=trees.cwd,
        timeout_s=timeout_s,
        stdin=json.dumps(question),
        cage=with_own_scratch(trees.cage, "packages"),
    )
    if finished.code != 0:
        summary = f"site.python = {job.site.python} cannot be used ({finished.ending}): {finished.last_error}"
        return Interpreter(), (
            blocked(Check.PACKAGES, summary, "set `python` of the site profile to the Python of the run"),
        )
    answer = json.loads(finished.stdout.strip().splitlines()[-1])
    interpreter = Interpreter(
        answer["python"], answer["executable"], answer["versions"], tuple(answer["hand_installed"])
    )
    located = [_location(name, answer["located"][name], trees) for name in modules]
    return interpreter, (*_packages(job, answer["missing"]), *(finding for finding in located if finding))


def _packages(job: Job, missing: list[str]) -> tuple[Finding, ...]:
    if not missing:
        names = ", ".join(job.site.required_packages) or "none required"
        return (good(Check.PACKAGES, f"required packages are importable: {names}"),)
    return tuple(
        blocked(
            Check.PACKAGES,
            f"required package {name} cannot be found by {job.site.python} on the run's PYTHONPATH",
            f"install it for that Python or add its folder to `python_path` of site profile {job.site.name}",
        )
        for name in missing
    )


def _location(module: str, file: str | None, trees: Trees) -> Finding | None:
    """A finding when the module would be imported from another place; known before any import runs."""
    root = trees.import_roots[module]
    if file is not None and Path(file).is_relative_to(root):
        return None
    return wrong_place(Check.IMPORT_DRIVER, module, file, root, "the driver")


def wrong_place(check: Check, module: str, file: str | None, root: str, where: str) -> Finding:
    """The finding for a module that is not imported from the tree under test; the run would not be evidence."""
    found = f"comes from {file}" if file else "is not on the path"
    return blocked(
        check,
        f"{module} {found} in {where}, expected below {root}",
        "remove the other copy from PYTHONPATH, the working directory and site-packages, and start the job's PYTHONPATH"
        f" with {root}",
        stage=Stage.IMPORT,
    )
