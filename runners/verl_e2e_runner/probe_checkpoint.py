"""Makes a probe checkpoint: random weights in which a fault of rope, QKV or MLP shows, and which can learn.

    python -m verl_e2e_runner.probe_checkpoint SOURCE DESTINATION [--scale S] [--rope-theta T] [--head-scale H]

At an initializer range of 0.02 attention is nearly uniform, so that a lost rope setting moves no probability. With
the matrices of attention and MLP scaled up, and a rope base unlike the default, it does. An output layer of that
range bounds every logit so tightly that no reward can rise, whatever the adapters do: level 5 needs it scaled up too.
Scaling further costs agreement between healthy implementations. `probe.json` says what the probe was made from.

Tensors are scaled in their own format (https://github.com/huggingface/safetensors), so no GPU stack is needed; a
power of two is exact.
"""

import argparse
import hashlib
import json
import math
import re
import shutil
import struct
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DEFAULT_SCALE = 2.0
DEFAULT_ROPE_THETA = 500_000.0
DEFAULT_HEAD_SCALE = 1.0

_MATRIX = re.compile(r"\.(?:[qkvo]_proj|qkv_proj|gate_proj|up_proj|gate_up_proj|down_proj)\.weight$")
_HEAD = "lm_head.weight"

# Copied beside the weights: what a tokenizer and a generation need. Everything else of SOURCE is named and left out.
_COPIED = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "*.jinja", "*.model"),
    *("generation_config.json", "*.safetensors.index.json"),
)
_MADE = ("config.json", "*.safetensors", "probe.json")
_RECORD = "probe.json"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What sets a probe apart from its source: factors for the inner matrices and the output layer, the rope base."""

    scale: float = DEFAULT_SCALE
    rope_theta: float = DEFAULT_ROPE_THETA
    head_scale: float = DEFAULT_HEAD_SCALE

    def factor(self, tensor: str) -> float:
        """The factor of a tensor, by its name."""
        if tensor == _HEAD:
            return self.head_scale
        return self.scale if _MATRIX.search(tensor) else 1.0


class ProbeError(Exception):
    """The probe cannot be made from this source; the message says what to change."""


def main(argv: Sequence[str] | None = None) -> int:
    """Make the probe that the command line asks for; exit code 2 and one line for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m verl_e2e_runner.probe_checkpoint", description=__doc__.split("\n")[0]
    )
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a checkpoint folder with safetensors")
    parser.add_argument("destination", type=Path, metavar="DESTINATION", help="a folder that does not exist yet")
    parser.add_argument("--scale", type=float, default=DEFAULT_SCALE, help="default: %(default)g")
    parser.add_argument("--rope-theta", type=float, default=DEFAULT_ROPE_THETA, help="default: %(default)g")
    parser.add_argument("--head-scale", type=float, default=DEFAULT_HEAD_SCALE, help="default: %(default)g")
    asked = parser.parse_args(argv)
    recipe = Recipe(asked.scale, asked.rope_theta, asked.head_scale)
    try:
        record = make_probe(asked.source, asked.destination, recipe)
    except (ProbeError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    left_out = ", ".join(record["left_out"]) or "nothing"
    sys.stdout.write(f"{asked.destination}: {len(record['scaled'])} tensors scaled; left out: {left_out}\n")
    return 0


def make_probe(source: Path, destination: Path, recipe: Recipe) -> dict[str, Any]:
    """Write the probe to `destination`, which appears only when it is whole, and give its record."""
    for name, value in asdict(recipe).items():
        if not (math.isfinite(value) and value > 0):
            raise ProbeError(f"--{name.replace('_', '-')} {value:g} is not a positive number")
    if destination.exists():
        raise ProbeError(f"{destination} exists already; name a new folder")
    weights = sorted(source.glob("*.safetensors"))
    if not weights:
        raise ProbeError(f"{source} holds no *.safetensors")
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
    scaled: list[str] = []
    for path in weights:
        content, names = scale_tensors(path.read_bytes(), recipe, path)
        (folder / path.name).write_bytes(content)
        scaled += names
    if recipe.scale != 1 and not any(_MATRIX.search(name) for name in scaled):
        raise ProbeError(f"{source} has no matrix of attention or MLP by the name of {_MATRIX.pattern}")
    if recipe.head_scale != 1 and _HEAD not in scaled:
        raise ProbeError(f"{source} has no {_HEAD}, its output layer is the embedding: leave --head-scale at 1")
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
        raise ProbeError("config.json names no rope_theta, neither at its top nor in rope_parameters")
    if "rope_theta" in config:
        changed["rope_theta"] = rope_theta
    return changed


def scale_tensors(content: bytes, recipe: Recipe, path: Path) -> tuple[bytes, tuple[str, ...]]:
    """A safetensors file scaled by the recipe, and the names of what was scaled; all else byte for byte."""
    header, start = _header(content, path)
    changed = bytearray(content)
    names = []
    for name, entry in header.items():
        scale = recipe.factor(name)
        if scale == 1:
            continue
        kind = entry["dtype"]
        if kind not in _SCALERS:
            raise ProbeError(f"{path}: {name} is {kind}; only {', '.join(_SCALERS)} can be scaled")
        begin, end = (start + offset for offset in entry["data_offsets"])
        try:
            changed[begin:end] = _SCALERS[kind](content[begin:end], scale)
        except (OverflowError, ValueError) as error:
            raise ProbeError(f"{path}: {name} cannot be scaled by {scale:g}: {error}") from error
        names.append(name)
    return bytes(changed), tuple(names)


def _header(content: bytes, path: Path) -> tuple[dict[str, Any], int]:
    """The entries by tensor name, and where the data start."""
    try:
        (length,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8 : 8 + length])
        header.pop("__metadata__", None)
        ends = [entry["data_offsets"][1] for entry in header.values()]
    except (struct.error, ValueError, AttributeError, KeyError, TypeError) as error:
        raise ProbeError(f"{path} is no safetensors file: {error}") from error
    if 8 + length + max(ends, default=0) != len(content):
        raise ProbeError(f"{path} is cut short: {len(content)} bytes")
    return header, 8 + length


def _scale_words(data: bytes, scale: float, decode: Callable[[int], float], encode: Callable[[float], int]) -> bytes:
    """Scale 16-bit numbers, each different word once: a tensor has far fewer of them than elements."""
    words = array("H", data)
    _to_little_endian(words)
    scaled = {word: encode(decode(word) * scale) for word in set(words)}
    words = array("H", map(scaled.__getitem__, words))
    _to_little_endian(words)
    return words.tobytes()


def _scale_bfloat16(data: bytes, scale: float) -> bytes:
    return _scale_words(data, scale, _from_bfloat16, _to_bfloat16)


def _from_bfloat16(word: int) -> float:
    (number,) = struct.unpack("<f", struct.pack("<I", word << 16))
    return float(number)


def _to_bfloat16(number: float) -> int:
    """The upper half of the single, rounded to nearest, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return int(bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _scale_half(data: bytes, scale: float) -> bytes:
    return _scale_words(data, scale, _from_half, _to_half)


def _from_half(word: int) -> float:
    (number,) = struct.unpack("<e", struct.pack("<H", word))
    return float(number)


def _to_half(number: float) -> int:
    (word,) = struct.unpack("<H", struct.pack("<e", number))
    return int(word)


def _scale_single(data: bytes, scale: float) -> bytes:
    numbers = array("f", data)
    _to_little_endian(numbers)
    numbers = array("f", (number * scale for number in numbers))
    _to_little_endian(numbers)
    return numbers.tobytes()


def _to_little_endian(numbers: "array[Any]") -> None:
    """Between the machine's byte order and the format's; both ways alike."""
    if sys.byteorder == "big":
        numbers.byteswap()


_SCALERS = {"BF16": _scale_bfloat16, "F16": _scale_half, "F32": _scale_single}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        answer = json.loads(path.read_text())
    except ValueError as error:
        raise ProbeError(f"{path} is no JSON: {error}") from error
    if not isinstance(answer, dict):
        raise ProbeError(f"{path} holds no JSON object")
    return answer


if __name__ == "__main__":
    sys.exit(main())
