"""The run folder of a rehearsal on disk: the order, and the records of the cells of both commits.

Everything in it is untrusted, as in any run folder: what cannot be read, or is more than a rehearsal leaves, is not
there.
"""

import json
from pathlib import Path
from stat import S_ISREG

from pydantic import ValidationError

from verl_e2e.core.compare.rehearsal import CellRecord
from verl_e2e.core.model.record import JOB_FILE
from verl_e2e.core.model.rehearsal_job import BASE_RECORDS, HEAD_RECORDS, Order, RehearsalJob, read_order
from verl_e2e.ports import RehearsalFolder

_MOST_CELLS = 2_000
_MOST_RECORD_BYTES, _MOST_BYTES = 8 << 20, 256 << 20


def read_rehearsal(folder: Path) -> RehearsalFolder:
    """The order and the records of a rehearsal; what cannot be read is left out."""
    order = _order(folder / JOB_FILE)
    rehearsal = order if isinstance(order, RehearsalJob) else None
    return RehearsalFolder(rehearsal, _records(folder / BASE_RECORDS), _records(folder / HEAD_RECORDS))


def _order(file: Path) -> Order | None:
    content = _content(file)
    try:
        return None if content is None else read_order(content)
    except ValidationError:
        return None


def _records(folder: Path) -> dict[str, CellRecord]:
    found: dict[str, CellRecord] = {}
    left = _MOST_BYTES
    for file in sorted(folder.glob("*.json"))[:_MOST_CELLS]:
        content = _content(file)
        if content is None or len(content) > left:
            continue
        left -= len(content)
        try:
            record = CellRecord.model_validate(json.loads(content))
        except (ValueError, RecursionError):
            continue
        found[record.cell] = record
    return found


def _content(file: Path) -> bytes | None:
    try:
        found = file.lstat()
        # A pipe or a device would be read for ever, and a link leads out of the folder.
        whole = S_ISREG(found.st_mode) and found.st_size <= _MOST_RECORD_BYTES
        return file.read_bytes() if whole else None
    except OSError:
        return None
