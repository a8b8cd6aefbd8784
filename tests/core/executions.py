"""A change of a few functions, and records of runs that executed some of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.core.builders import BRIDGE, judged, make_job
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.execution import (
    ChangedCode,
    ChangedFunction,
    Executed,
    ExecutedFile,
    ExecutedFunction,
    ExecutedProcess,
    ProcessRole,
    Side,
)
from verl_e2e.core.model.jobs import Job

LORA, MAPPING = "src/megatron/bridge/peft/lora.py", "src/megatron/bridge/models/mapping.py"
TRANSFORM = ChangedFunction(path=LORA, symbol="LoRA.transform", first_line=40, last_line=60, lines=(44, 45, 50))
DROPOUT = ChangedFunction(
    path=LORA, symbol="LoRA.drop", first_line=70, last_line=80, lines=(72,), condition="only with lora_dropout above 0"
)
GATHER = ChangedFunction(path=MAPPING, symbol="gather", first_line=10, last_line=19, lines=(12, 13))
AT_IMPORT = ChangedFunction(path=MAPPING, symbol="", first_line=1, last_line=300, lines=(3, 200))
REMOVED = ChangedFunction(
    path=LORA, symbol="LoRA.old", side=Side.MERGE_BASE, first_line=90, last_line=99, lines=(91, 92)
)

DRIVER = ExecutedProcess(phase="train", role=ProcessRole.DRIVER, title="main", pid=10, python="3.12.3", began_s=1.0)
TRAINER = ExecutedProcess(
    phase="train", role=ProcessRole.TRAINER, title="WorkerDict", pid=11, rank=0, python="3.12.3", began_s=20.0
)
SECOND = TRAINER.model_copy(update={"pid": 12, "rank": 1})
TEST = ExecutedProcess(
    phase="bridge_tests", role=ProcessRole.BRIDGE_TEST, title="pytest", pid=9, python="3.12.3", began_s=0.5
)
PROCESSES = (DRIVER, TRAINER, SECOND, TEST)
# Their indices.
IN_DRIVER, IN_TRAINER, IN_SECOND, IN_TEST = range(len(PROCESSES))


def change(*functions: ChangedFunction, **given: Any) -> ChangedCode:
    """What a job is planned to execute."""
    return ChangedCode(functions=functions, **given)


def ran(
    *functions: ChangedFunction,
    by: tuple[int, ...] = (IN_TRAINER,),
    at: float = 31.5,
    lines: Mapping[str, Mapping[int, tuple[int, ...]]] | None = None,
    **given: Any,
) -> Executed:
    """A record in which these processes entered the functions and ran all their lines; `lines` adds some by path."""
    paths = sorted({*(function.path for function in functions), *(lines or {})})
    files = []
    for path in paths:
        here = [function for function in functions if function.path == path]
        of_file = {line: by for function in here for line in function.lines}
        entries = tuple(
            ExecutedFunction(symbol=function.symbol, line=function.first_line, first_s=dict.fromkeys(by, at))
            for function in here
            if function.symbol
        )
        files.append(ExecutedFile(path=path, functions=entries, lines={**of_file, **(lines or {}).get(path, {})}))
    fields: dict[str, Any] = {"bridge_commit": BRIDGE, "processes": PROCESSES, "files": tuple(files)}
    return Executed(**(fields | given))


def verdict_on(job: Job, executed: Executed | None, **given: Any) -> Verdict:
    """The verdict on a run of the job that is healthy in every other respect, as that of a level 0."""
    smoke = make_job(changed=job.changed)
    return replace(judged(job=smoke, executed=executed, **given), job_id=job.id)
