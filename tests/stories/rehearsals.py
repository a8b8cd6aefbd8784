"""The folder that a rehearsal leaves, made up for the order that a story dispatched: two cells on two commits."""

import json
from collections.abc import Mapping

from tests.fakes.github_standin.state import WorkflowRun
from verl_e2e.core.compare.cell_map import AskedCells
from verl_e2e.core.compare.rehearsal import IMPORTS, CellError, CellRecord, EnteredCode, OracleFinding, TensorSummary
from verl_e2e.core.model.jobs import RehearsalJob
from verl_e2e.core.pulls.job_order import nonce_of, unpack_order

Files = Mapping[str, bytes]


def is_rehearsal(run: WorkflowRun) -> bool:
    """Whether a workflow run was dispatched with a rehearsal."""
    return run.inputs["job_id"] == "rehearsal"


def rehearsal_of(run: WorkflowRun) -> RehearsalJob:
    """The rehearsal that a workflow run was dispatched with."""
    found = unpack_order(run.inputs["job"])
    assert isinstance(found, RehearsalJob)
    return found


def cell(name: str, *, loss: float = 1.0, copies: bool = True, error: CellError | None = None) -> CellRecord:
    """The record of a cell with one oracle and one quantity."""
    oracle = OracleFinding(oracle="copies", passed=copies, off=0.0 if copies else 0.5, where="embedding")
    weight = TensorSummary(shape=(2,), dtype="float32", digest="a" * 16, norm=1.0, sketch=(1.0,))
    if error is not None:
        return CellRecord(cell=name, error=error)
    return CellRecord(cell=name, error=None, oracles=(oracle,), quantities={"loss": loss, "weight": weight})


def imports(error: CellError | None = None) -> CellRecord:
    """The record of the imports."""
    return CellRecord(cell=IMPORTS, error=error, python="3.12.3", libraries={"torch": "2.13.0+cpu"})


def entering(record: CellRecord, path: str) -> CellRecord:
    """The record, which also says that the first line of a file was entered."""
    return record.model_copy(update={"entered": EnteredCode(lines={path: ((1, 1),)})})


HEALTHY = (imports(), cell("qwen3-plain"), cell("qwen3-plain-tp2"))
MOVED = (imports(), cell("qwen3-plain"), cell("qwen3-plain-tp2", loss=1.5))
WRONG = (imports(), cell("qwen3-plain"), cell("qwen3-plain-tp2", copies=False))
NO_IMPORT = (imports(CellError(type="ImportError", text="no module named x", at="src/bridge.py:1")),)


def left_by_rehearsal(
    run: WorkflowRun,
    head: tuple[CellRecord, ...] = HEALTHY,
    base: tuple[CellRecord, ...] = HEALTHY,
    *,
    job: RehearsalJob | None = None,
    nonce: str | None = None,
) -> dict[str, bytes]:
    """The files of the run folder."""
    returned = nonce_of(run.inputs["job"]) if nonce is None else nonce
    ended = {"reason": "exited", "exit_code": 0, "note": "", "nonce": returned}
    events = [
        {"t_s": 0.0, "kind": "started", "data": {"job": "rehearsal", "digest": "0" * 64}},
        {"t_s": 1.0, "kind": "ended", "data": ended},
    ]
    files = {
        "job.json": (job or rehearsal_of(run)).model_dump_json().encode(),
        "events.jsonl": "".join(f"{json.dumps(event)}\n" for event in events).encode(),
    }
    names = tuple(dict.fromkeys(record.cell for record in (*base, *head) if record.cell != IMPORTS))
    files["cells.json"] = AskedCells(cells=names, whole=True).model_dump_json().encode()
    for side, records in (("base", base), ("head", head)):
        files |= {f"{side}/{record.cell}.json": record.model_dump_json().encode() for record in records}
    return files
