"""Maps of what the cells of a rehearsal entered: packaged for the pins, and of the out folder of a rehearsal."""

import gzip
from functools import cache
from importlib.resources import files
from pathlib import Path

from verl_e2e.config.packed import bounded_content, packed_document
from verl_e2e.core.compare.cell_map import CellMap

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
    return load_cell_map(bounded_content(folder / NAME, MOST_BYTES, _FIX), str(folder / NAME))


def load_cell_map(content: bytes, source: str) -> CellMap:
    """Read a packed map; `source` names it in errors. UserError."""
    return packed_document(content, CellMap, MOST_BYTES, (source, _FIX))


def cell_map_content(cells: CellMap) -> bytes:
    """The content of a map's file; the same map always gives the same bytes."""
    return gzip.compress(cells.model_dump_json(exclude_defaults=True).encode() + b"\n", mtime=0)
