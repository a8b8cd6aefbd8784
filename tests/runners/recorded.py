"""Small trees under test, programs that run their code with the instrumentation loaded, and what was recorded of it."""

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.patience import HANG_S
from verl_e2e.core.model.execution import ChangedCode, ChangedFunction, Executed
from verl_e2e.core.text.redact import redactor
from verl_e2e_runner.folder.process_records import ExecutionRecord, begin_record
from verl_e2e_runner.folder.recorder import Recorder
from verl_e2e_runner.launch.launcher import INSTRUMENTATION
from verl_e2e_runner.process.cage import EXECUTED_VARIABLE
from verl_e2e_runner.trees import Trees

SOURCE = "src/megatron/bridge/peft.py"
MLM = "3rdparty/Megatron-LM/megatron/core/layers.py"
FILES = {
    "src/megatron/bridge/__init__.py": "def version():\n    return 1\n",
    SOURCE: """import functools


def traced(function):
    @functools.wraps(function)
    def inner(*given):
        return function(*given)

    return inner


@traced
@functools.cache
def merged(
    scale,
):
    if (
        scale
        and scale > 5
    ):
        return "large"
    total = sum(
        number
        for number in range(scale)
    )
    return total


class Adapter:
    rank = 4

    @property
    def size(self):
        return self.rank

    async def export(self):
        return 1

    def weights(self):
        double = lambda value: 2 * value
        yield double(1)


def never():
    return "never"
""",
    MLM: "class Linear:\n    def forward(self):\n        return 1\n\n    def backward(self):\n        return 2\n",
}


@dataclass
class Place:
    """Trees under test and their record."""

    root: Path
    # The files that the change touches.
    changed: tuple[str, ...] = ()
    # Megatron-LM in place of the submodule.
    megatron_lm: Path | None = None
    record: ExecutionRecord = field(init=False)

    def __post_init__(self) -> None:
        for name, text in FILES.items():
            path = self.root / "bridge" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        bridge = self.root / "bridge"
        trees = Trees(bridge, self.megatron_lm or bridge / "3rdparty/Megatron-LM", self.root / "verl", self.root)
        functions = tuple(ChangedFunction(path=path, symbol="f", first_line=1, last_line=1) for path in self.changed)
        self.record = begin_record(ChangedCode(functions=functions), trees, self.settings, self.folder)
        self.recorder = Recorder(self.root / "out", redactor=redactor(), monotonic=time.monotonic)

    @property
    def settings(self) -> Path:
        return self.root / "recording.json"

    @property
    def folder(self) -> Path:
        return self.root / "executed"

    def environment(self, **variables: str) -> Mapping[str, str]:
        paths = (INSTRUMENTATION, self.root / "bridge/src", self.root / "bridge/3rdparty/Megatron-LM")
        given = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PATH": os.environ["PATH"], **variables}
        return {**given, EXECUTED_VARIABLE: str(self.settings), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, python: str, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        (self.root / "program.py").write_text(code)
        argv = [python, str(self.root / "program.py")]
        return subprocess.run(
            argv, env=self.environment(**variables), capture_output=True, text=True, check=False, timeout=HANG_S
        )

    def executed(self, phase: str = "train") -> Executed:
        self.record.take(phase, self.recorder)
        return self.record.joined("0" * 40)


def names(executed: Executed, path: str, *, process: int | None = None) -> set[str]:
    """The functions of a file that ran, in one process or in any."""
    functions = [function for file in executed.files if file.path == path for function in file.functions]
    return {function.symbol for function in functions if process is None or process in function.first_s}


def lines(executed: Executed, path: str) -> set[int]:
    """The lines of a file that ran."""
    return {line for file in executed.files if file.path == path for line in file.lines}
