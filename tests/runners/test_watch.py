"""The watch: why and when it ends a run. Hand-moved time where only time matters, real processes elsewhere."""

import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from tests.runners.watched import watched
from verl_e2e.core.log.scan import LogScanner, scan
from verl_e2e.core.model.facts import Excerpt, LoggedError
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import EVENTS_FILE, LOG_FILE, EndReason, Event, Gpu
from verl_e2e.core.text.redact import redactor
from verl_e2e_runner.folder.recorder import Recorder
from verl_e2e_runner.process.processes import (
    Ended,
    HostClock,
    MonotonicClock,
    Survivor,
    WrapperProcess,
    received_signals,
    start,
)
from verl_e2e_runner.reporting import ProgressLine
from verl_e2e_runner.samplers import Bound, Device, Devices, GpuSampler, MemorySampler, open_memory_sampler
from verl_e2e_runner.watch import ImportLines, WatchLimits, watch

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LIMITS = WatchLimits(time_limit_s=1800, stall_s={"default": 600, "rollout_engine": 900}, hang_grace_s=8, end_grace_s=10)


class SignScanner:
    """Reads the signs `stage NAME`, `step N`, `fatal`, `late fatal`, `unrecoverable`; keeps all that it was fed."""

    def __init__(self) -> None:
        self.text = b""
        self.stage: Stage | None = None
        self.step: int | None = None
        self.marker: object = 0
        self.fatal: LoggedError | None = None
        self.unrecoverable: Excerpt | None = None
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        self.text += chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._read(line.decode().split())

    def _read(self, words: list[str]) -> None:
        match words:
            case ["stage", name]:
                self.stage = Stage(name)
            case ["step", number]:
                self.step = int(number)
            case ["bar", number]:
                self.marker = number
            case ["fatal"] | ["late", "fatal"]:
                place = Excerpt(7, "RuntimeError: boom")
                self.fatal = LoggedError(
                    place, "RuntimeError", "boom", "", None, self.stage or Stage.DATA, words[0] == "late"
                )
            case ["unrecoverable"]:
                self.unrecoverable = Excerpt(9, "Adapter parameters: 0")
            case _:
                pass


class Hand:
    """A clock moved by waiting; before each wait it plays what the script holds for that moment."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.script: list[tuple[float, Callable[[], None]]] = []

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        self.script.append((1000.0 + seconds, act))

    def monotonic(self) -> float:
        return self.now

    def wait(self, fd: int | None, timeout_s: float) -> bool:
        until = self.now + max(timeout_s, 0.0)
        for moment, act in sorted(self.script, key=lambda entry: entry[0]):
            if moment <= until:
                self.now = max(self.now, moment)
                self.script.remove((moment, act))
                act()
                return fd is not None and HostClock().wait(fd, 0)
        if fd is not None and HostClock().wait(fd, 0):
            return True
        self.now = until
        return False


@dataclass
class ScriptedProcess:
    """A process whose output and end are written by the test; it dies at once when ended."""

    output: int
    pipe: int
    code: int | None = None
    ended_with: list[tuple[float, float]] = field(default_factory=list)
    leftovers: tuple[Survivor, ...] = ()
    observed: int = 0

    def say(self, text: str) -> None:
        os.write(self.pipe, text.encode())

    def exit(self, code: int) -> None:
        self.code = code
        self.hang_up()

    def hang_up(self) -> None:
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1

    def poll(self) -> int | None:
        return self.code

    def observe(self) -> None:
        self.observed += 1

    def alive(self) -> tuple[Survivor, ...]:
        return () if self.code is not None else (Survivor(1, "bash", ""),)

    def end(
        self, *, grace_s: float, clock: MonotonicClock, wait: Callable[[float], object], hurry: Callable[[], bool]
    ) -> tuple[Survivor, ...]:
        self.ended_with.append((clock.monotonic(), grace_s))
        wait(0.0 if hurry() else 0.1)
        if self.code is None:
            self.say("*** SIGTERM received\n")
            self.exit(-15)
        return self.leftovers


@dataclass
class Scene:
    """A watch ready to run on scripted time."""

    folder: Path
    clock: Hand
    process: ScriptedProcess
    scanner: SignScanner
    recorder: Recorder
    imports_file: Path
    roots: dict[str, str] = field(default_factory=dict)
    gpu: GpuSampler = field(default_factory=lambda: GpuSampler(Devices))
    memory: MemorySampler = field(default_factory=lambda: open_memory_sampler(frozenset, lambda: 0, None, read=tuple))
    screen: io.StringIO = field(default_factory=io.StringIO)

    def at(self, seconds: float, text: str) -> None:
        self.clock.at(seconds, lambda: self.process.say(text))

    def exits(self, seconds: float, code: int = 0) -> None:
        self.clock.at(seconds, lambda: self.process.exit(code))

    def run(self, limits: WatchLimits = LIMITS) -> Ended:
        return watch(
            cast("Any", self.process),
            cast("Any", self.scanner),
            self.recorder,
            limits=limits,
            imports_file=self.imports_file,
            expected_roots=self.roots,
            gpu_sampler=self.gpu,
            memory_sampler=self.memory,
            clock=self.clock,
            progress=ProgressLine(self.screen, self.clock.monotonic, moving=False),
            total_steps=2,
        )

    def lines(self, kind: str) -> list[Event]:
        lines = (self.folder / EVENTS_FILE).read_text().splitlines()
        return [event for event in map(Event.model_validate_json, lines) if event.kind == kind]

    def events(self, kind: str) -> list[dict[str, object]]:
        return [event.data for event in self.lines(kind)]

    def elapsed(self) -> float:
        return self.clock.now - 1000.0


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    clock = Hand()
    output, pipe = os.pipe()
    process = ScriptedProcess(output, pipe)
    names = redactor(paths=[("/home/ada", "$HOME")])
    with Recorder(tmp_path / "run", redactor=names, monotonic=clock.monotonic) as recorder:
        yield Scene(tmp_path / "run", clock, process, SignScanner(), recorder, tmp_path / "probe.jsonl")
    process.hang_up()
    os.close(output)


def test_a_run_that_exits_by_itself_is_left_alone(scene: Scene) -> None:
    scene.at(1, "stage ray\nfrom /home/ada/x\n")
    scene.at(10, "stage train_step\n")
    scene.at(20, "step 1\nstage export_weight_sync\nstage train_step\n")
    scene.at(30, "step 2\nlate fatal\nno line end")
    scene.exits(60)
    ended = scene.run()
    assert (ended.reason, ended.exit_code, ended.note, ended.survivors) == (EndReason.EXITED, 0, "", ())
    assert 60 <= scene.elapsed() < 62
    assert [event["step"] for event in scene.events("step")] == [1, 2]
    assert [(event.data["stage"], round(event.t_s)) for event in scene.lines("stage")] == [
        ("ray", 1),
        ("train_step", 10),
    ]
    assert b"from $HOME/x\n" in scene.scanner.text
    assert scene.scanner.text.endswith(b"no line end")
    assert "step 2/2" in scene.screen.getvalue()
    assert scene.process.observed >= 10


@pytest.mark.parametrize("code", [1, -9, 143])
def test_the_exit_code_is_kept(scene: Scene, code: int) -> None:
    scene.at(1, "fatal\n")
    scene.exits(5, code)
    ended = scene.run()
    assert (ended.reason, ended.exit_code) == (EndReason.EXITED, code)


def test_processes_that_hang_after_a_fatal_error_are_ended_after_the_grace(scene: Scene) -> None:
    scene.at(3, "fatal\n")
    scene.at(6, "more of the traceback\n")
    ended = scene.run()
    assert ended.reason is EndReason.FATAL_ERROR_HANG
    assert ended.exit_code is None
    assert ended.note == "Line 7: RuntimeError: boom; no exit within 8 s."
    assert 11 <= scene.elapsed() < 13
    assert scene.events("fatal") == [{"line": 7, "kind": "RuntimeError", "excerpt": "RuntimeError: boom"}]
    assert scene.events("ending") == [{"reason": "fatal_error_hang", "note": ended.note}]
    assert scene.scanner.text.endswith(b"*** SIGTERM received\n")
    assert "Ending the run" in scene.screen.getvalue()


def test_an_error_after_completion_is_no_reason(scene: Scene) -> None:
    scene.at(3, "stage shutdown\nlate fatal\n")
    scene.exits(100)
    assert scene.run().reason is EndReason.EXITED


def test_an_unrecoverable_fact_ends_the_run_at_once(scene: Scene) -> None:
    scene.at(3, "stage peft\nunrecoverable\n")
    ended = scene.run()
    assert (ended.reason, ended.note) == (EndReason.UNRECOVERABLE, "Line 9: Adapter parameters: 0")
    assert scene.elapsed() < 4


def test_a_stage_without_progress_is_ended_after_its_own_time(scene: Scene) -> None:
    scene.at(5, "stage rollout_engine\n")
    for minute in range(1, 60):
        scene.at(60 * minute, "the same warning again\n")
    ended = scene.run()
    assert (ended.reason, ended.note) == (EndReason.STALLED, "No progress for 900 s in stage rollout_engine.")
    assert 905 <= scene.elapsed() < 908


def test_a_run_that_says_nothing_at_all_stalls(scene: Scene) -> None:
    assert scene.run().note == "No progress for 600 s in stage environment."


@pytest.mark.parametrize("sign", ["bar {}", "step {}"])
def test_progress_within_a_stage_counts(scene: Scene, sign: str) -> None:
    scene.at(5, "stage train_step\n")
    for number in range(1, 4):
        scene.at(500 * number, sign.format(number) + "\n")
    scene.exits(1700)
    assert scene.run().reason is EndReason.EXITED


def test_the_time_limit_ends_even_a_run_that_gets_on(scene: Scene) -> None:
    for number in range(1, 40):
        scene.at(100 * number, f"stage train_step\nstep {number}\n")
    ended = scene.run()
    assert (ended.reason, ended.note) == (EndReason.TIME_LIMIT, "Time limit of 1800 s reached in stage train_step.")
    assert 1800 <= scene.elapsed() < 1802


def test_a_wrong_import_ends_the_run_at_once(scene: Scene, tmp_path: Path) -> None:
    good, wrong = tmp_path / "bridge" / "src", "/usr/lib/site-packages/megatron/bridge/__init__.py"
    scene.roots = {"megatron.bridge": str(good)}
    line = {"module": "megatron.bridge", "file": f"{good}/megatron/bridge/__init__.py", "pid": 5, "process": "p"}
    other = {"module": "torch", "file": wrong, "pid": 5}

    def probe() -> None:
        text = "\n".join(json.dumps(entry) for entry in (line, other, line | {"file": wrong, "pid": 6}))
        scene.imports_file.write_text(text + "\n")

    scene.clock.at(7, probe)
    ended = scene.run()
    assert ended.reason is EndReason.WRONG_IMPORT
    assert ended.note == f"megatron.bridge was imported from {wrong}, not from {good} (process 6)."
    assert scene.elapsed() < 9


def test_import_lines_are_read_as_they_grow_and_links_are_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    (real / "verl").mkdir(parents=True)
    (tmp_path / "link").symlink_to(real)
    probe = tmp_path / "probe.jsonl"
    lines = ImportLines(probe, {"verl": str(tmp_path / "link"), "megatron.core": str(real)})
    assert lines.wrong() == ""
    probe.write_text(
        json.dumps({"module": "verl", "file": str(real / "verl")}) + "\nnot json\n[]\n{}\n" + "[" * 100_000 + "\n"
    )
    assert lines.wrong() == ""
    half = json.dumps({"module": "megatron.core", "file": f"{real}-other/core.py", "pid": 3})
    with probe.open("a") as file:
        file.write(half[:20])
        file.flush()
        assert lines.wrong() == ""
        file.write(half[20:] + "\n")
    assert lines.wrong().startswith(f"megatron.core was imported from {real}-other/core.py")
    assert lines.wrong() == ""


def test_what_could_not_be_ended_comes_back(scene: Scene) -> None:
    scene.process.leftovers = (Survivor(42, "raylet", "raylet --x"),)
    scene.exits(1)
    assert scene.run().survivors == scene.process.leftovers


def test_gpu_samples_become_events_and_a_lost_gpu_is_said_once(scene: Scene) -> None:
    scene.gpu = GpuSampler(lambda: Devices(problem="GPU is lost"))
    scene.exits(60)
    scene.run()
    assert scene.events("gpu") == [{"problem": "GPU memory is not sampled: GPU is lost"}]
    assert scene.screen.getvalue().count("GPU is lost") == 1


def test_the_gpu_peak_closes_the_samples(scene: Scene) -> None:
    memory = iter([100, 900, 300])

    def read() -> Devices:
        gpu = Gpu(index=0, name="G", memory_total_mib=1000, memory_used_mib=next(memory, 1))
        return Devices((Device(gpu, "GPU-0", utilization=50),))

    scene.gpu = GpuSampler(read)
    scene.exits(22)
    scene.run()
    *samples, last = scene.events("gpu")
    assert samples[:3] == [
        {"gpus": [{"index": 0, "memory_used_mib": mib, "utilization": 50}]} for mib in (100, 900, 300)
    ]
    assert last == {"peak": [{"index": 0, "memory_used_mib": 900, "utilization": 50}], "readings": len(samples)}


def test_the_memory_peak_closes_the_samples(scene: Scene) -> None:
    left = iter([60.0, 30.0, 40.0])
    scene.memory = MemorySampler(lambda: (Bound(126.0, 50.0),), lambda **_: next(left, 1.0), lambda: 2, None)
    scene.exits(12)
    scene.run()
    *samples, last = scene.events("memory")
    assert samples == [{"held_mib": round(gib * 1024), "available_mib": 51200, "other_runs": 2} for gib in (60, 30, 40)]
    assert last == {"peak": {"held_mib": 61440, "available_mib": 51200, "other_runs": 2}, "readings": 3}


def test_a_run_above_its_need_leaves_a_host_without_memory_and_soon(scene: Scene) -> None:
    scene.memory = MemorySampler(
        lambda: (Bound(126.0, 60.0 if scene.elapsed() < 20 else 1.0),), lambda **_: 15.0, lambda: 0, 14.0
    )
    scene.at(1, "stage train_step\n")
    ended = scene.run()
    assert (ended.reason, ended.exit_code) == (EndReason.HOST_MEMORY, None)
    assert ended.note.startswith("The host has 1.0 of 126.0 GiB of memory left, and the run holds 15.0 GiB")
    assert scene.events("ending") == [{"reason": "host_memory", "note": ended.note}]
    ((ended_at, grace),) = scene.process.ended_with
    assert 20 <= ended_at - 1000 < 22
    assert grace == LIMITS.memory_grace_s < LIMITS.end_grace_s


def test_limits_come_from_the_job_and_its_site() -> None:
    limits = WatchLimits(1800, {"default": 300, "rollout_engine": 900})
    assert [limits.stall(stage) for stage in (Stage.RAY, Stage.ROLLOUT_ENGINE)] == [300, 900]
    assert WatchLimits(1800, {}).stall(Stage.RAY) == 600


def test_a_daemon_that_holds_the_pipe_does_not_keep_us(scene: Scene) -> None:
    scene.clock.at(4, lambda: setattr(scene.process, "code", 0))
    ended = scene.run()
    assert (ended.reason, ended.exit_code) == (EndReason.EXITED, 0)
    assert scene.elapsed() < 12


def test_an_error_of_our_own_ends_the_run_before_it_is_raised(scene: Scene) -> None:
    def broken(_: bytes) -> None:
        raise MemoryError

    setattr(scene.scanner, "feed", broken)  # noqa: B010 - a method of the fake gives way for this test
    scene.at(1, "x\n")
    with pytest.raises(MemoryError):
        scene.run()
    assert scene.process.ended_with


def test_both_interruptions_leave_a_whole_folder(scene: Scene) -> None:
    scene.at(1, "stage ray\n")
    scene.clock.at(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    ended = scene.run()
    assert (ended.reason, ended.note, ended.exit_code) == (EndReason.INTERRUPTED, "Interrupted by SIGTERM.", None)
    assert signal.getsignal(signal.SIGTERM) is before
    assert scene.scanner.text == b"stage ray\n*** SIGTERM received\n"


def test_a_wrapper_that_dies_of_our_interruption_was_interrupted(scene: Scene) -> None:
    def both() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        scene.process.exit(-2)

    scene.clock.at(2, both)
    assert scene.run().reason is EndReason.INTERRUPTED


def test_outside_the_main_thread_signals_stay_with_it() -> None:
    got: list[list[str]] = []

    def take() -> None:
        with received_signals() as signals:
            got.append(signals)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert got == [[]]


REAL_LIMITS = WatchLimits(time_limit_s=20, stall_s={"default": 20}, hang_grace_s=0.3, end_grace_s=1, linger_s=0.2)
ENVIRONMENT = {"PATH": os.environ["PATH"], "LC_ALL": "C"}


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Callable[..., tuple[Ended, SignScanner, WrapperProcess]]]:
    """Runs a shell script under the watch with the machine's own clock."""
    started: list[WrapperProcess] = []

    def run(
        script: str,
        limits: WatchLimits = REAL_LIMITS,
        *,
        need_gib: float | None = None,
        read: Callable[[], Sequence[Bound]] = tuple,
    ) -> tuple[Ended, SignScanner, WrapperProcess]:
        scanner = SignScanner()
        process = start(
            ["sh", "-c", script], env=ENVIRONMENT, cwd=tmp_path, nonce=f"watch-{os.getpid()}-{tmp_path.name}"
        )
        started.append(process)
        ended = watched(process, scanner, tmp_path, limits, need_gib=need_gib, read=read)
        return ended, scanner, process

    yield run
    for process in started:
        process.close()


def runs(pid_file: Path) -> bool:
    try:
        return psutil.Process(int(pid_file.read_text())).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


RealRun = Callable[..., tuple[Ended, SignScanner, WrapperProcess]]


def test_real_output_arrives_whole_and_in_order(real: RealRun) -> None:
    ended, scanner, _ = real("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo err >&2; exit 7")
    assert (ended.reason, ended.exit_code) == (EndReason.EXITED, 7)
    assert scanner.text == b"".join(b"line %d\n" % number for number in range(20000)) + b"err\n"


def test_a_real_hang_after_a_fatal_error_ends_with_its_daemons(real: RealRun) -> None:
    began = time.monotonic()
    ended, scanner, process = real("( setsid sleep 300 & ); echo fatal; trap 'echo bye; exit 0' TERM; sleep 300 & wait")
    assert (ended.reason, ended.exit_code, ended.survivors) == (EndReason.FATAL_ERROR_HANG, None, ())
    assert scanner.text == b"fatal\nbye\n"
    assert process.alive() == ()
    assert 0.3 <= time.monotonic() - began < 4


_TAKE = "import time; held = bytearray(b'x') * (128 << 20); print('up', flush=True); time.sleep(300)"


@pytest.mark.parametrize(("need_gib", "ends"), [(0.1, True), (1.0, False), (None, False)])
def test_a_real_program_is_ended_where_it_takes_more_than_stated_and_the_host_has_none_left(
    real: RealRun, tmp_path: Path, need_gib: float | None, ends: bool
) -> None:
    limits = WatchLimits(time_limit_s=HANG_S if ends else 3, stall_s={"default": HANG_S}, end_grace_s=1)
    # The host has no memory left as soon as the program has taken its own.
    script = f'( setsid {sys.executable} -c "{_TAKE}" > up & ); while [ ! -s up ]; do sleep 0.05; done; sleep 300'
    full = lambda: (Bound(64.0, 1.0 if (tmp_path / "up").exists() else 60.0),)  # noqa: E731
    ended, _, process = real(script, limits, need_gib=need_gib, read=full)
    assert ended.reason is (EndReason.HOST_MEMORY if ends else EndReason.TIME_LIMIT)
    assert (ended.survivors, process.alive()) == ((), ())


def test_a_real_natural_exit_within_the_grace_is_preferred(real: RealRun) -> None:
    limits = WatchLimits(time_limit_s=20, stall_s={"default": 20}, hang_grace_s=5)
    ended, _, _ = real("echo fatal; sleep 0.2; exit 1", limits)
    assert (ended.reason, ended.exit_code) == (EndReason.EXITED, 1)


def test_a_real_daemon_left_by_a_natural_exit_is_swept(real: RealRun, tmp_path: Path) -> None:
    ended, _, process = real("( setsid sh -c 'echo $$ > pid; exec sleep 300' & ); while [ ! -s pid ]; do :; done")
    assert (ended.reason, ended.exit_code, ended.survivors) == (EndReason.EXITED, 0, ())
    assert not runs(tmp_path / "pid")
    assert process.alive() == ()


SHORT_LOG = """\
\x1b[36m(TaskRunnerV1 pid=6726)\x1b[0m all initialize finished, ready to fit, token {token}
\x1b[36m(TaskRunnerV1 pid=6726)\x1b[0m step:1 - actor/grad_norm:0.5 - training/global_step:1
\rTraining Progress: 100%|##########| 1/1 [00:09<00:00,  9.69s/it]
"""


def test_the_real_scanner_reads_what_a_judge_will_read(tmp_path: Path) -> None:
    scanner = LogScanner()
    log = tmp_path / "log"
    log.write_text(SHORT_LOG.format(token="ghp_" + "a1B2" * 9))
    process = start(["cat", str(log)], env=ENVIRONMENT, cwd=tmp_path, nonce="real-scanner")
    watched(process, scanner, tmp_path, REAL_LIMITS)
    process.close()
    with zstd.open(tmp_path / "run" / LOG_FILE) as file:
        written = file.read()
    assert b"token <redacted:github_token>\n" in written
    assert scanner.finish() == scan([written])
    assert [step.values["actor/grad_norm"] for step in scanner.facts().steps] == [0.5]


def test_an_interrupted_command_leaves_its_folder_and_nothing_running(tmp_path: Path) -> None:
    root = ROOT
    clock = HostClock()
    program = INTERRUPTED.format(folder=str(tmp_path))
    environment = dict(os.environ) | {"PYTHONPATH": f"{root}/bot:{root}/runners"}
    process = start([sys.executable, "-c", program], env=environment, cwd=tmp_path, nonce="outer")
    output = b""
    while b"ready" not in output and clock.wait(process.output, 20):
        output += os.read(process.output, 4096)
    os.kill(process.pid, signal.SIGINT)
    while clock.wait(process.output, 20) and (chunk := os.read(process.output, 4096)):
        output += chunk
    process.end(grace_s=1, clock=clock)
    process.close()
    assert output.endswith(b"interrupted ()\n")
    events = [Event.model_validate_json(line) for line in (tmp_path / "run" / EVENTS_FILE).read_text().splitlines()]
    assert [event.kind for event in events] == ["ending"]
    assert (tmp_path / "run" / LOG_FILE).stat().st_size > 0
    assert not runs(tmp_path / "pid")


INTERRUPTED = """
import io, sys
from pathlib import Path
from verl_e2e.core.text.redact import redactor
from verl_e2e_runner.process.processes import HostClock
from verl_e2e_runner.samplers import Devices, GpuSampler
from verl_e2e_runner.samplers import open_memory_sampler
from verl_e2e_runner.process.processes import start
from verl_e2e_runner.reporting import ProgressLine
from verl_e2e_runner.folder.recorder import Recorder
from verl_e2e_runner.watch import WatchLimits
from verl_e2e_runner.watch import watch

class Scanner:
    stage = step = fatal = unrecoverable = marker = None
    def feed(self, chunk):
        if b"up" in chunk:
            print("ready", flush=True)

folder, clock = Path("{folder}"), HostClock()
script = "echo $$ > pid; echo up; exec sleep 300"
process = start(["sh", "-c", script], env=dict(PATH="/usr/bin:/bin"), cwd=folder, nonce="inner")
with Recorder(folder / "run", redactor=redactor(), monotonic=clock.monotonic) as recorder:
    ended = watch(
        process, Scanner(), recorder, limits=WatchLimits(60, dict(), end_grace_s=2), imports_file=folder / "probe",
        expected_roots=dict(), gpu_sampler=GpuSampler(Devices),
        memory_sampler=open_memory_sampler(frozenset, lambda: 0, None, read=tuple), clock=clock,
        progress=ProgressLine(io.StringIO(), clock.monotonic, moving=False),
    )
print(ended.reason.value, ended.survivors, flush=True)
"""
