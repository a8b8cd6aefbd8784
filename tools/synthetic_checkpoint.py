"""Makes a synthetic checkpoint: random weights in which a fault of rope, QKV or MLP shows, and which can learn.

    python tools/synthetic_checkpoint.py SOURCE DESTINATION [--scale S] [--rope-theta T] [--head-scale H]

It needs numpy, ml-dtypes and safetensors; the environment that `make test` sets up has them.

At an initializer range of 0.02 attention is nearly uniform, so that a lost rope setting moves no probability. With
the matrices of attention and MLP scaled up, and a rope base unlike the default, it does. An output layer of that
range bounds every logit so tightly that no reward can rise, whatever the adapters do: level 5 needs it scaled up too.
Scaling further costs agreement between healthy implementations. `recipe.json` says what the checkpoint was made from.
"""

import argparse
import hashlib
import json
import math
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

DEFAULT_SCALE = 2.0
DEFAULT_ROPE_THETA = 500_000.0
DEFAULT_HEAD_SCALE = 1.0

_MATRIX = re.compile(r"\.(?:[qkvo]_proj|qkv_proj|gate_proj|up_proj|gate_up_proj|down_proj)\.weight$")
_HEAD = "lm_head.weight"
_SCALABLE = tuple(map(np.dtype, (ml_dtypes.bfloat16, np.float16, np.float32)))

# Copied next to the weights: what a tokenizer and a generation need. All other files of SOURCE are listed and left out.
_COPIED = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "*.jinja", "*.model"),
    *("generation_config.json", "*.safetensors.index.json"),
)
_RECORD = "recipe.json"
_MADE = ("config.json", "*.safetensors", _RECORD)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What sets a synthetic checkpoint apart from its source."""

    # The factor for the matrices of attention and MLP.
    scale: float = DEFAULT_SCALE
    rope_theta: float = DEFAULT_ROPE_THETA
    # The factor for the output layer.
    head_scale: float = DEFAULT_HEAD_SCALE

    def factor(self, tensor: str) -> float:
        """The factor of a tensor, by its name."""
        if tensor == _HEAD:
            return self.head_scale
        return self.scale if _MATRIX.search(tensor) else 1.0


class RecipeError(Exception):
    """The checkpoint cannot be made from this source; the message says what to change."""


def main(argv: Sequence[str] | None = None) -> int:
    """Make the checkpoint that the command line asks for; exit code 2 and one line for a user's mistake."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a checkpoint folder with safetensors")
    parser.add_argument("destination", type=Path, metavar="DESTINATION", help="a folder that does not exist yet")
    parser.add_argument("--scale", type=float, default=DEFAULT_SCALE, help="default: %(default)g")
    parser.add_argument("--rope-theta", type=float, default=DEFAULT_ROPE_THETA, help="default: %(default)g")
    parser.add_argument("--head-scale", type=float, default=DEFAULT_HEAD_SCALE, help="default: %(default)g")
    options = parser.parse_args(argv)
    recipe = Recipe(options.scale, options.rope_theta, options.head_scale)
    try:
        record = make_checkpoint(options.source, options.destination, recipe)
    except (RecipeError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    left_out = ", ".join(record["left_out"]) or "nothing"
    sys.stdout.write(f"{options.destination}: {len(record['scaled'])} tensors scaled; left out: {left_out}\n")
    return 0


def make_checkpoint(source: Path, destination: Path, recipe: Recipe) -> dict[str, Any]:
    """Write the checkpoint to `destination`, which appears only when it is whole, and give its record."""
    for name, value in asdict(recipe).items():
        if not (math.isfinite(value) and value > 0):
            raise RecipeError(f"--{name.replace('_', '-')} {value:g} is not a positive number")
    if destination.exists():
        raise RecipeError(f"{destination} exists already; name a new folder")
    weights = sorted(source.glob("*.safetensors"))
    if not weights:
        raise RecipeError(f"{source} holds no *.safetensors")
    config = with_rope_theta(_read_json(source / "config.json"), recipe.rope_theta)
    unfinished = destination.with_name(f"{destination.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        record = asdict(recipe) | _fill(unfinished, source, weights, config, recipe)
        (unfinished / _RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        unfinished.rename(destination)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return record


def _fill(
    folder: Path, source: Path, weights: Sequence[Path], config: Mapping[str, Any], recipe: Recipe
) -> dict[str, Any]:
    scaled = [name for path in weights for name in scale_file(path, folder / path.name, recipe)]
    if recipe.scale != 1 and not any(_MATRIX.search(name) for name in scaled):
        raise RecipeError(f"{source} has no matrix of attention or MLP by the name of {_MATRIX.pattern}")
    if recipe.head_scale != 1 and _HEAD not in scaled:
        raise RecipeError(f"{source} has no {_HEAD}, its output layer is the embedding: leave --head-scale at 1")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    left_out = []
    for path in sorted(source.iterdir()):
        if any(path.match(pattern) for pattern in _COPIED):
            shutil.copyfile(path, folder / path.name)
        elif not any(path.match(pattern) for pattern in _MADE):
            left_out.append(path.name)
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (*weights, source / "config.json")}
    return {"source_sha256": digests, "scaled": sorted(scaled), "left_out": left_out}


def with_rope_theta(config: Mapping[str, Any], rope_theta: float) -> dict[str, Any]:
    """The configuration with this rope base, in each of the two places where one may be written down."""
    changed = dict(config)
    parameters = config.get("rope_parameters")
    if isinstance(parameters, Mapping) and "rope_theta" in parameters:
        changed["rope_parameters"] = {**parameters, "rope_theta": rope_theta}
    elif "rope_theta" not in config:
        raise RecipeError("config.json names no rope_theta, neither at its top nor in rope_parameters")
    if "rope_theta" in config:
        changed["rope_theta"] = rope_theta
    return changed


def scale_file(source: Path, destination: Path, recipe: Recipe) -> tuple[str, ...]:
    """Write the safetensors of `source` scaled by the recipe, and give the names of what was scaled."""
    try:
        with safe_open(source, framework="numpy") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is not a mapping)
    except SafetensorError as error:
        raise RecipeError(f"{source} is not a whole safetensors file: {error}") from error
    scaled = tuple(name for name in tensors if recipe.factor(name) != 1)
    for name in scaled:
        tensor, factor = tensors[name], recipe.factor(name)
        if tensor.dtype not in _SCALABLE:
            known = ", ".join(str(kind) for kind in _SCALABLE)
            raise RecipeError(f"{source}: {name} is {tensor.dtype}; only {known} can be scaled")
        # In double precision, so that the tensor's own format rounds once.
        with np.errstate(over="ignore"):
            tensors[name] = (tensor.astype(np.float64) * factor).astype(tensor.dtype)
        if not np.isfinite(tensors[name]).all():
            raise RecipeError(f"{source}: {name} cannot be scaled by {factor:g}: it holds numbers that are not finite")
    save_file(tensors, destination, metadata)
    return scaled


def _read_json(path: Path) -> dict[str, Any]:
    try:
        answer = json.loads(path.read_text())
    except ValueError as error:
        raise RecipeError(f"{path} is not JSON: {error}") from error
    if not isinstance(answer, dict):
        raise RecipeError(f"{path} does not hold a JSON object")
    return answer


if __name__ == "__main__":
    sys.exit(main())
