"""A program under the watch, with its run folder, on the machine's own clock."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from verl_e2e.core.text.redact import redactor
from verl_e2e_runner.folder.recorder import Recorder
from verl_e2e_runner.process.processes import Ended, HostClock, WrapperProcess
from verl_e2e_runner.reporting import ProgressLine
from verl_e2e_runner.samplers import Bound, Devices, GpuSampler, open_memory_sampler
from verl_e2e_runner.watch import WatchLimits, watch


def watched(
    process: WrapperProcess,
    scanner: Any,
    folder: Path,
    limits: WatchLimits,
    *,
    need_gib: float | None = None,
    read: Callable[[], Sequence[Bound]] = tuple,
) -> Ended:
    """Watch a started program to its end; the run folder is `run` in the folder."""
    clock = HostClock()
    with Recorder(folder / "run", redactor=redactor(), monotonic=clock.monotonic) as recorder:
        return watch(
            process,
            scanner,
            recorder,
            limits=limits,
            imports_file=folder / "imports.jsonl",
            expected_roots={},
            gpu_sampler=GpuSampler(Devices),
            memory_sampler=open_memory_sampler(process.numbers, lambda: 0, need_gib, read=read),
            clock=clock,
            progress=ProgressLine(io.StringIO(), clock.monotonic, moving=False),
        )
