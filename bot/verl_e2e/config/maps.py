"""Maps files: packaged, and in a JSON file of the user, packed with gzip where its name ends in `.gz`."""

import gzip
from functools import cache
from importlib.resources import files
from pathlib import Path

from verl_e2e.config.packed import bounded_content, packed_document
from verl_e2e.core.model.execution_maps import MOST_MAPS_BYTES, ExecutionMaps, merged_maps

_PACKAGED = "policy/execution-maps.json.gz"
_GZIP = b"\x1f\x8b"
_FIX = "name a file that `verl-e2e maps add` wrote"


@cache
def packaged_maps() -> ExecutionMaps:
    """The maps that come with the program."""
    return load_maps(files("verl_e2e").joinpath(_PACKAGED).read_bytes(), f"packaged maps ({_PACKAGED})")


def load_maps(content: bytes, source: str) -> ExecutionMaps:
    """Read a maps file; `source` names it in errors. UserError."""
    packed = content.startswith(_GZIP)
    return packed_document(content, ExecutionMaps, MOST_MAPS_BYTES, (source, _FIX), packed=packed)


def read_maps(path: Path) -> ExecutionMaps:
    """Read a maps file on disk; UserError where it cannot be read."""
    return load_maps(bounded_content(path, MOST_MAPS_BYTES, _FIX), str(path))


def known_maps(own: Path | None = None) -> ExecutionMaps:
    """The packaged maps, with those of a file on disk in addition; of one job that file's counts. UserError."""
    return packaged_maps() if own is None else merged_maps(packaged_maps(), read_maps(own))


def maps_content(maps: ExecutionMaps, name: str) -> bytes:
    """The content of a maps file of this name; the same maps always give the same bytes."""
    packed = name.endswith(".gz")
    text = maps.model_dump_json(indent=None if packed else 1).encode() + b"\n"
    return gzip.compress(text, mtime=0) if packed else text
