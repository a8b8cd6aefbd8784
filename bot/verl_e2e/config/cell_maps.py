"""Maps of what the cells of a rehearsal entered: packaged for the pins, and of the out folder of a rehearsal."""

import gzip
import io
import zlib
from functools import cache
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from verl_e2e.core.compare.cell_map import CellMap
from verl_e2e.core.model.errors import UserError

# Its name in the out folder of a rehearsal.
NAME = "cell-map.json.gz"
# Bytes of a map, unpacked.
MOST_BYTES = 16 << 20
_FIX = "name the out folder of `verl-e2e rehearse`"


@cache
def packaged_cell_map() -> CellMap:
    """The map of the pinned commit of Bridge."""
    return load_cell_map(files("verl_e2e").joinpath(f"policy/{NAME}").read_bytes(), f"the packaged {NAME}")


def read_cell_map(folder: Path) -> CellMap:
    """The map in the out folder of a rehearsal; UserError."""
    try:
        with (folder / NAME).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"{folder / NAME}: cannot be read: {error.strerror}; {_FIX}") from None
    return load_cell_map(content, str(folder / NAME))


def load_cell_map(content: bytes, source: str) -> CellMap:
    """Read a packed map; `source` names it in errors. UserError."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            text = packed.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error):
        raise UserError(f"{source}: it is damaged, so it cannot be unpacked; {_FIX}") from None
    if len(text) > MOST_BYTES:
        raise UserError(f"{source}: it is larger than {MOST_BYTES >> 20} MiB; {_FIX}")
    try:
        return CellMap.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))[:200]
        raise UserError(f"{source}: {f'{place}: ' if place else ''}{first['msg'][:300]}; {_FIX}") from None


def cell_map_content(cells: CellMap) -> bytes:
    """The content of a map's file; the same map always gives the same bytes."""
    return gzip.compress(cells.model_dump_json(exclude_defaults=True).encode() + b"\n", mtime=0)
