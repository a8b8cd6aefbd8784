"""Run jobs on this machine: `verl-e2e run` as a subprocess, its progress is passed through to stderr."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from verl_e2e.adapters.dispatch import COMMAND
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import EVENTS_FILE
from verl_e2e.ports import DispatchError


@dataclass(slots=True)
class _Received:
    """The signals that this process received; each is passed on when the runner has started."""

    numbers: list[int] = field(default_factory=list)
    runner: subprocess.Popen[bytes] | None = None

    def take(self, number: int, _: FrameType | None) -> None:
        self.numbers.append(number)
        if self.runner is not None:
            self.runner.send_signal(number)

    def hand_to(self, runner: subprocess.Popen[bytes]) -> None:
        self.runner = runner
        for number in tuple(self.numbers):
            runner.send_signal(number)


@contextmanager
def _held_signals() -> Iterator[_Received]:
    received = _Received()
    numbers = [
        item for item in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(item) != signal.SIG_IGN
    ]
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, received.take) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class LocalDispatcher:
    """Runs jobs on this machine, one after the other. `work` keeps worktrees and caches between runs."""

    def __init__(self, work: Path | None = None) -> None:
        self._work = work

    def run(self, job: Job, out: Path) -> int:
        """Run a job to its end in the run folder `out`; the file of the job lies next to it. Returns the exit code.

        An interruption is passed to the runner, which ends its run and completes the folder; then
        KeyboardInterrupt is raised. DispatchError when the runner left no folder.
        """
        command = self._command(job, out)
        with _held_signals() as received:
            # Its own process group: Ctrl-C would otherwise reach it twice, and the second one skips the clean end.
            runner = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, process_group=0)
            received.hand_to(runner)
            code = runner.wait()
        if received.numbers:
            raise KeyboardInterrupt
        if not (out / EVENTS_FILE).exists():
            raise DispatchError(f"{out}: the runner left no folder (exit code {code}); see its message above")
        return code

    def _command(self, job: Job, out: Path) -> list[str]:
        out.parent.mkdir(parents=True, exist_ok=True)
        file = out.with_name(f"{out.name}.job.json")
        file.write_text(job.model_dump_json(indent=2) + "\n", encoding="utf-8")
        work = ["--work", str(self._work)] if self._work else []
        return [*COMMAND, "run", "--job", str(file), "--out", str(out), *work]
