"""Packaged and user-given documents of measurements: maps of runs and of cells, bands, uses of Bridge, labels."""

import gzip
import io
import zlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from verl_e2e.config.validation import MOST_CONFIG_BYTES, ConfigError, Problem, load_yaml, validate
from verl_e2e.core.compare.cell_map import CellMap
from verl_e2e.core.consumer.consumer import NEVER_RUN
from verl_e2e.core.consumer.nemo_rl import NEMO_RL
from verl_e2e.core.consumer.skyrl import SKYRL
from verl_e2e.core.model.document import NumberedDocument
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.execution import MOST_MAPS_BYTES, ExecutionMaps, merged_maps
from verl_e2e.core.model.jobs import Sha
from verl_e2e.core.model.related import Bands
from verl_e2e.core.plan.backtest import LabelledPull
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.reach.entries import CallSite, Uses
from verl_e2e.core.reach.walk import Entry
from verl_e2e.ports import ChangeSource

_Model = TypeVar("_Model", bound=BaseModel)


def bounded_content(path: Path, most: int, fix: str) -> bytes:
    """The content of a file, no more than a byte beyond `most`; UserError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; {fix}") from None


def packed_document(
    content: bytes, model: type[_Model], most: int, named: tuple[str, str], *, packed: bool = True
) -> _Model:
    """The document in a content, by gzip where it is `packed`, of at most so many bytes.

    `named` are the source, as errors name it, and what to do. UserError.
    """
    source, fix = named
    try:
        if packed:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as unpacked:
                content = unpacked.read(most + 1)
    except (OSError, EOFError, zlib.error):
        raise UserError(f"{source}: it is damaged, so it cannot be unpacked; {fix}") from None
    if len(content) > most:
        raise UserError(f"{source}: it is larger than {most >> 20} MiB; {fix}")
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))[:200]
        raise UserError(f"{source}: {f'{place}: ' if place else ''}{first['msg'][:300]}; {fix}") from None


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


# Its name in the out folder of a rehearsal.
NAME = "cell-map.json.gz"
# Bytes of a map, unpacked.
_MOST_MAP_BYTES = 16 << 20
_FIX_CELLS = "name the out folder of `verl-e2e rehearse`"


@cache
def packaged_cell_map() -> CellMap:
    """The map of the pinned commit of Bridge."""
    return load_cell_map(files("verl_e2e").joinpath(f"policy/{NAME}").read_bytes(), f"the packaged {NAME}")


def read_cell_map(folder: Path) -> CellMap:
    """The map in the out folder of a rehearsal; UserError."""
    return load_cell_map(bounded_content(folder / NAME, _MOST_MAP_BYTES, _FIX_CELLS), str(folder / NAME))


def load_cell_map(content: bytes, source: str) -> CellMap:
    """Read a packed map; `source` names it in errors. UserError."""
    return packed_document(content, CellMap, _MOST_MAP_BYTES, (source, _FIX_CELLS))


def cell_map_content(cells: CellMap) -> bytes:
    """The content of a map's file; the same map always gives the same bytes."""
    return gzip.compress(cells.model_dump_json(exclude_defaults=True).encode() + b"\n", mtime=0)


_PACKAGED_BANDS = "policy/bands.yml"
_HEAD = (
    "# What healthy runs measured, by probe digest. Written by `verl-e2e bands add` and `verl-e2e bands pair`;\n"
    "# read by `judge`, `check` and `parity`. docs/parity.md describes it.\n"
)


@cache
def packaged_bands() -> Bands:
    """The measurements that come with the program."""
    return load_bands(files("verl_e2e").joinpath(_PACKAGED_BANDS).read_bytes(), f"packaged bands ({_PACKAGED})")


def load_bands(text: str | bytes, source: str) -> Bands:
    """Read the text of a bands file; `source` names the file in errors. Raises ConfigError."""
    return validate(load_yaml(text, source), Bands)


def read_bands(path: Path) -> Bands:
    """Read a bands file on disk; raises ConfigError when it cannot be read."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_CONFIG_BYTES + 1)
    except OSError as error:
        fix = "name a file that `verl-e2e bands add` wrote"
        raise ConfigError([Problem(str(path), 0, "", f"cannot be read: {error.strerror}", fix)]) from None
    return load_bands(text, str(path))


def policy_bands(policy: Policy, file: Path | None, changes: ChangeSource, commit: str) -> Bands | None:
    """The bands that a policy names: next to its file on disk, else in the commit that it is from."""
    if not policy.bands:
        return None
    if file is not None:
        return read_bands(file.parent / policy.bands)
    text = changes.read_blob(commit, policy.bands)
    if text is None:
        raise UserError(f"{policy.source}: bands: {policy.bands} is not in the base commit; add it or drop the key")
    return load_bands(text, policy.bands)


def bands_text(bands: Bands) -> str:
    """The text of a bands file with these measurements; the same measurements always give the same text."""
    document = bands.model_dump(mode="json", by_alias=True, exclude_none=True)
    return _HEAD + yaml.safe_dump(document, sort_keys=True, width=120)


# Consumers that a change is followed for beside verl.
OTHER_CONSUMERS = (SKYRL, NEMO_RL)


class _UsesFile(NumberedDocument):
    commit: Sha
    entries: tuple[Entry, ...]
    calls: tuple[CallSite, ...]
    core: tuple[Entry, ...] = ()


def packaged_uses(reason: str = "no verl checkout was given") -> Uses:
    """The uses of the verl commit that the packaged policy pins; `reason` says why no checkout is used."""
    return _packaged_uses("verl", "the packaged list of verl {}, because " + reason)


def _packaged_uses(package: str, source: str) -> Uses:
    text = files("verl_e2e").joinpath(f"policy/{package}-imports.json").read_bytes()
    file = _UsesFile.model_validate_json(text)
    return Uses(file.entries, file.calls, source.format(file.commit[:12]), file.core)


@cache
def other_uses() -> Mapping[str, Uses]:
    """What other consumers use of Megatron-Bridge, by title; `source` has the commit and whether it ran here."""
    named = ("commit {}", f"commit {{}}, {NEVER_RUN}")
    return {item.title: _packaged_uses(item.package, named[item.never_run]) for item in OTHER_CONSUMERS}


def uses_json(uses: Uses, commit: str) -> str:
    """The uses as text in the format of the packaged file."""
    file = _UsesFile(commit=commit, entries=uses.entries, calls=uses.calls, core=uses.core)
    return file.model_dump_json(indent=1, by_alias=True) + "\n"


# Unknown keys are notes for people and are ignored.
_LABELS = TypeAdapter(tuple[LabelledPull, ...])


def load_labels(text: str | bytes, source: str) -> tuple[LabelledPull, ...]:
    """The labelled pull requests of a JSON list; raises ConfigError that names the entry and the key."""
    try:
        return _LABELS.validate_json(text)
    except ValidationError as error:
        problems = [
            Problem(source, 0, "", "not valid JSON", "give a JSON list of labelled changes")
            if detail["type"] == "json_invalid"
            else Problem(source, 0, ".".join(map(str, detail["loc"])), detail["msg"])
            for detail in error.errors(include_url=False)
        ]
        raise ConfigError(problems) from None
