"""What a rehearsal left on disk: the records of the cells, and the run folder of an ordered one.

Everything in it is untrusted, as in any run folder: what cannot be read, or is more than a rehearsal leaves, is not
there.
"""

from collections.abc import Iterable
from pathlib import Path
from stat import S_ISREG
from typing import TypeVar

from pydantic import ValidationError

from verl_e2e.core.compare.cell_map import AskedCells
from verl_e2e.core.compare.rehearsal import IMPORTS, MOST_BYTES_OF_ALL, MOST_RECORD_BYTES, CellRecord, Observed, RunNote
from verl_e2e.core.model.document import Document
from verl_e2e.core.model.jobs import ASKED_FILE, BASE_RECORDS, HEAD_RECORDS, RehearsalJob
from verl_e2e.core.model.record import JOB_FILE
from verl_e2e.ports import RehearsalFolder

# Files of a folder of records besides those of cells: what was tried at the head, and how the driver ran.
OBSERVED, RUN_NOTE = "observed.json", "run.json"
_Read = TypeVar("_Read", bound=Document)


def read_rehearsal(folder: Path) -> RehearsalFolder:
    """The order and the records of a run folder; what cannot be read is not there."""
    asked = read_document(folder / ASKED_FILE, AskedCells) or AskedCells()
    return RehearsalFolder(
        order=read_document(folder / JOB_FILE, RehearsalJob),
        asked=asked,
        base=read_records(folder / BASE_RECORDS, asked.cells),
        head=read_records(folder / HEAD_RECORDS, asked.cells),
        observed=read_document(folder / HEAD_RECORDS / OBSERVED, Observed),
        note=read_document(folder / HEAD_RECORDS / RUN_NOTE, RunNote),
    )


def read_records(folder: Path, cells: Iterable[str]) -> dict[str, CellRecord]:
    """The records of these cells and of the imports; one that cannot be read, or is another's, is not there."""
    found: dict[str, CellRecord] = {}
    # One side may not be read as the other.
    left = 0 if folder.is_symlink() else MOST_BYTES_OF_ALL
    for name in dict.fromkeys((IMPORTS, *cells)):
        file = folder / f"{name}.json"
        record = read_document(file, CellRecord) if left > 0 else None
        left -= _size(file)
        if record is not None and record.cell == name:
            found[name] = record
    return found


def _size(file: Path) -> int:
    """The bytes that reading a file takes, 0 where there is none."""
    try:
        return min(file.lstat().st_size, MOST_RECORD_BYTES)
    except OSError:
        return 0


def read_document(file: Path, kind: type[_Read]) -> _Read | None:
    """The document in a file; None where there is none of this kind, or one that is too long."""
    try:
        # A pipe or a device would be read for ever, and a link leads out of the folder.
        if not S_ISREG(file.lstat().st_mode):
            return None
        with file.open("rb") as opened:
            data = opened.read(MOST_RECORD_BYTES + 1)
        return None if len(data) > MOST_RECORD_BYTES else kind.model_validate_json(data)
    except (OSError, ValidationError):
        return None
