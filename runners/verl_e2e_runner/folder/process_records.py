"""What the instrumentation left in each process of a run: `executed.json` and `fingerprints.jsonl` come from it.

The code under test may have written anything there. What a process is for follows from what it called itself: Ray and
vLLM set the titles of their processes.
"""

import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, RootModel, StringConstraints, TypeAdapter, ValidationError

from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.model.execution import (
    MEGATRON_LM_FOLDER,
    MOST_EXECUTED_FILES,
    MOST_FUNCTIONS_OF_FILE,
    MOST_LINES_OF_FILE,
    MOST_PROCESSES,
    ChangedCode,
    Executed,
    ExecutedFile,
    ExecutedFunction,
    ExecutedProcess,
    ProcessRole,
)
from verl_e2e.core.model.fingerprints import FINGERPRINTS_FILE, MOST_SNAPSHOTS, HookState, ModelInputs, Snapshot
from verl_e2e_runner.folder.recorder import Recorder, plain
from verl_e2e_runner.process.cage import Cage, names_below, read_below
from verl_e2e_runner.process.processes import hand_path_over
from verl_e2e_runner.trees import Trees

_IDLE = "ray::IDLE"


def role_of(titles: Sequence[str]) -> tuple[ProcessRole, str]:
    """The role of a process with the title that tells it: the last one that is known, else the last that says anything.

    Ray calls a worker idle before its first task and after its last.
    """
    for title in reversed(titles):
        for role, pattern in chain.from_iterable(consumer.roles for consumer in CONSUMERS.values()):
            if pattern.match(title):
                return role, title
    said = [title for title in titles if title and title != _IDLE]
    return ProcessRole.OTHER, (said or list(titles) or [""])[-1]


# The instrumentation stops at 8 MiB, and its last line may lie beyond that.
MOST_PROCESS_BYTES = 9 << 20
_LONGEST_LINE = 8_192

_Path = Annotated[str, StringConstraints(min_length=1, max_length=1_000)]
_Text = Annotated[str, StringConstraints(max_length=200)]
_Symbol = Annotated[str, StringConstraints(min_length=1, max_length=500)]
_Number = Annotated[int, Field(ge=1, le=10_000_000)]
_Pid = Annotated[int, Field(ge=0, le=2**31)]
_Seconds = Annotated[float, Field(allow_inf_nan=False)]

# As the docstring of `instrumentation/verl_e2e_executed.py` describes them.
_Process = tuple[Literal["process"], _Pid, _Text, _Text, _Text, _Text, _Seconds]
_Title = tuple[Literal["title"], _Text, _Text, _Seconds]
_Function = tuple[Literal["function"], _Path, _Number, _Symbol, _Seconds]
_Module = tuple[Literal["module"], _Path, _Seconds]
_Line = tuple[Literal["line"], _Path, _Number, _Seconds]
_Full = tuple[Literal["full"], _Seconds]
_Known = _Function | _Module | _Line | _Title | _Process | _Full
_ENTRY: TypeAdapter[_Known] = TypeAdapter(Annotated[_Known, Field(union_mode="left_to_right")])


@dataclass(slots=True)
class ProcessRecord:
    """What one process left; its paths and times are its own word."""

    # Its process id, and the version of its Python.
    pid: int
    python: str
    # Why it recorded nothing, empty where it did.
    problem: str
    # When its record began, on the monotonic clock.
    began: float
    # What it called itself, in order, each with its rank as a text.
    titles: list[tuple[str, str]]
    # Path, first line and qualified name of each function that ran, with when that was first.
    functions: dict[tuple[str, int, str], float] = field(default_factory=dict)
    # Path of each module that was imported.
    modules: set[str] = field(default_factory=set)
    # Path and line of each line that ran.
    lines: set[tuple[str, int]] = field(default_factory=set)
    # Whether it recorded no more, because it had written its most bytes.
    full: bool = False
    # Lines of its file that are none of these.
    unreadable: int = 0


def read_process(raw: bytes) -> ProcessRecord | None:
    """The record in a process's file, as far as it can be read; None where its first line is not what begins one."""
    first, *rest = raw.split(b"\n")
    begin = _parse(first)
    if begin is None or begin[0] != "process":
        return None
    _, pid, python, title, rank, problem, began = begin
    record = ProcessRecord(pid, python, problem, began, [(title, rank)], full=len(raw) >= MOST_PROCESS_BYTES)
    for entry in map(_parse, filter(None, rest)):
        if entry is None:
            record.unreadable += 1
        elif entry[0] == "function":
            _, path, line, symbol, seconds = entry
            key = (path, line, symbol)
            record.functions[key] = min(seconds, record.functions.get(key, seconds))
        elif entry[0] == "module":
            record.modules.add(entry[1])
        elif entry[0] == "line":
            record.lines.add(entry[1:3])
        elif entry[0] == "title":
            record.titles.append(entry[1:3])
        elif entry[0] == "full":
            record.full = True
        else:
            record.unreadable += 1
    return record


def _parse(line: bytes) -> _Known | None:
    try:
        return _ENTRY.validate_json(line[:_LONGEST_LINE], strict=True)
    except ValidationError:
        return None


BRIDGE_TESTS_PHASE = "bridge_tests"
# How the instrumentation names the file of a process that could not write an entry.
_LOST = ".lost"
# All processes together.
_MOST_BYTES_OF_RUN = 256 << 20
# `judge` reads a document of at most 250,000 values. So of the processes of one phase and role each function names
# the first 16, or fewer where there would be too many values.
_MOST_VALUES = 200_000
_MOST_OF_A_KIND = (16, 4, 1)
_SWITCHED_OFF = "the execution record was switched off"
_NOTHING = "no process of the run imported a tree under test with the instrumentation loaded"


@dataclass(slots=True)
class ExecutionRecord:
    """Takes what the processes of each phase left, and joins it at the end; `begin_record` makes it."""

    # The folder that holds the processes' files, a folder of the run's own; None: nothing is recorded.
    folder: Path | None
    trees: Trees
    # The files that the change touches, relative to the Bridge checkout.
    changed: frozenset[str]
    _taken: set[Path] = field(default_factory=set)
    _bytes: int = 0
    _processes: list[ExecutedProcess] = field(default_factory=list)
    _functions: dict[str, dict[tuple[int, str], dict[int, float]]] = field(default_factory=dict)
    _lines: dict[str, dict[int, set[int]]] = field(default_factory=dict)
    _cut: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def take(self, phase: str, recorder: Recorder, cage: Cage | None = None) -> None:
        """Read what the processes of a phase left; call it when all of them have ended.

        `cage` is theirs, where that is not the wrapper's.
        """
        if self.folder is None:
            return
        folder = cage.outside(self.folder) if cage else self.folder
        for name in names_below(folder.parent, folder.name):
            if folder / name not in self._taken:
                self._taken.add(folder / name)
                self._take_file(folder, name, phase, recorder)

    def joined(self, bridge_commit: str) -> Executed:
        """All phases together."""
        if self.folder is None:
            return Executed(bridge_commit=bridge_commit, problem=_SWITCHED_OFF)
        files = self._files()
        problems = [process.problem for process in self._processes if process.problem]
        recorded = bool(files) or len(problems) < len(self._processes)
        return Executed(
            bridge_commit=bridge_commit,
            processes=tuple(self._processes),
            files=files,
            cut=tuple(f"{count:,} {what}" for what, count in sorted(self._cut.items())),
            problem="" if recorded else next(iter(problems), _NOTHING),
        )

    def _take_file(self, folder: Path, name: str, phase: str, recorder: Recorder) -> None:
        if len(self._processes) >= MOST_PROCESSES or self._bytes >= _MOST_BYTES_OF_RUN:
            self._cut["processes left out"] += 1
            return
        raw = read_below(folder.parent, f"{folder.name}/{name}", limit=MOST_PROCESS_BYTES)
        record = None if raw is None else read_process(raw)
        self._bytes += len(raw or b"")
        if record is None:
            self._cut["files of processes that cannot be read"] += 1
            return
        if record.unreadable:
            self._cut["lines of processes that cannot be read"] += record.unreadable
        role, title = role_of([title for title, _ in record.titles])
        ranks = [int(rank) for _, rank in record.titles if rank.isascii() and rank.isdecimal()]
        if phase == BRIDGE_TESTS_PHASE:
            role = ProcessRole.BRIDGE_TEST
        problem = ""
        if record.problem:
            problem = f"Python {record.python}: {record.problem}"
        elif record.full:
            problem = "it ran more than is recorded of one process"
        elif name.endswith(_LOST):
            problem = "some of it could not be written, as on a disk that is full"
        index = len(self._processes)
        self._processes.append(
            ExecutedProcess(
                phase=phase,
                role=role,
                title=title,
                pid=record.pid,
                rank=ranks[-1] if ranks and role is ProcessRole.TRAINER else None,
                python=record.python,
                began_s=_within(recorder, record.began),
                problem=problem,
            )
        )
        for (path, line, symbol), seconds in record.functions.items():
            if (known := self._relative(path)) is None:
                self._cut["functions of files outside of the trees under test"] += 1
            else:
                times = self._functions.setdefault(known, {}).setdefault((line, symbol), {})
                times[index] = _within(recorder, seconds)
        for path in record.modules:
            if (known := self._relative(path)) is None:
                self._cut["modules outside of the trees under test"] += 1
            else:
                self._functions.setdefault(known, {})
        for path, line in record.lines:
            known = self._relative(path)
            if known is None or known not in self.changed:
                self._cut["lines of files that the change does not touch"] += 1
            else:
                self._lines.setdefault(known, {}).setdefault(line, set()).add(index)

    def _relative(self, path: str) -> str | None:
        """A path relative to the Bridge checkout; None for one that is not in the trees under test."""
        if os.path.normpath(path) != path:
            return None
        for root, prefix in ((self.trees.megatron_lm, f"{MEGATRON_LM_FOLDER}/"), (self.trees.bridge, "")):
            if path.startswith(f"{root}/"):
                return prefix + path[len(f"{root}/") :]
        return None

    def _files(self) -> tuple[ExecutedFile, ...]:
        """As much of every file as the document has room for, files that the change touches first."""
        names = sorted({*self._functions, *self._lines}, key=lambda name: (name not in self.changed, name))
        files: list[ExecutedFile] = []
        for most in _MOST_OF_A_KIND:
            files = [self._file(name, most) for name in names[:MOST_EXECUTED_FILES]]
            if sum(map(_values, files)) <= _MOST_VALUES:
                break
        sizes = accumulate(map(_values, files))
        kept = [file for file, size in zip(files, sizes, strict=True) if size <= _MOST_VALUES]
        if len(kept) < len(names):
            self._cut["files left out"] += len(names) - len(kept)
        many_functions = {name for name, found in self._functions.items() if len(found) > MOST_FUNCTIONS_OF_FILE}
        many_lines = {name for name, found in self._lines.items() if len(found) > MOST_LINES_OF_FILE}
        if large := sum(file.path in many_functions | many_lines for file in kept):
            self._cut["files of which functions or lines are left out"] += large
        return tuple(sorted(kept, key=lambda file: file.path))

    def _file(self, name: str, most: int) -> ExecutedFile:
        functions = sorted(self._functions.get(name, {}).items())[:MOST_FUNCTIONS_OF_FILE]
        lines = sorted(self._lines.get(name, {}).items())[:MOST_LINES_OF_FILE]
        return ExecutedFile(
            path=name,
            functions=tuple(
                ExecutedFunction(
                    symbol=symbol, line=line, first_s={index: times[index] for index in self._some(times, most)}
                )
                for (line, symbol), times in functions
            ),
            lines={line: tuple(self._some(processes, most)) for line, processes in lines},
        )

    def _some(self, processes: Mapping[int, float] | set[int], most: int) -> list[int]:
        """Of the processes that ran something those that are named: a few of each phase and role."""
        kinds: defaultdict[tuple[str, ProcessRole], list[int]] = defaultdict(list)
        for index in sorted(processes):
            kinds[self._processes[index].phase, self._processes[index].role].append(index)
        return sorted(index for indices in kinds.values() for index in indices[:most])


def begin_record(changed: ChangedCode, trees: Trees, settings: Path | None, folder: Path) -> ExecutionRecord:
    """Make the folder for the processes' files, and write for the instrumentation what is to be recorded.

    `settings` is the file that the run's processes are given; None: nothing is recorded.
    """
    paths = frozenset((*(function.path for function in changed.functions), *changed.unread))
    if settings is None:
        return ExecutionRecord(None, trees, paths)
    folder.mkdir(parents=True, exist_ok=True)
    if trees.cage:
        hand_path_over(folder, trees.cage)
    core = f"{MEGATRON_LM_FOLDER}/"
    absolute = [
        trees.megatron_lm / path.removeprefix(core) if path.startswith(core) else trees.bridge / path for path in paths
    ]
    wanted = {
        "folder": str(folder),
        "roots": [str(trees.bridge / "src"), str(trees.megatron_lm)],
        "changed": sorted(str(path) for path in absolute),
    }
    settings.write_text(json.dumps(wanted))
    settings.chmod(0o644)
    return ExecutionRecord(folder, trees, paths)


def _values(file: ExecutedFile) -> int:
    """How many values the document has for a file, brackets and commas counted, as those do who read it."""
    functions = sum(5 + len(function.first_s) for function in file.functions)
    return 8 + functions + sum(2 + len(processes) for processes in file.lines.values())


def _within(recorder: Recorder, monotonic_s: float) -> float:
    """A time of the processes' clock in seconds since the folder was opened, within the time of the run."""
    return min(max(0.0, recorder.since_opened(monotonic_s)), recorder.elapsed())


# One process stops writing at 32 MiB; of all of them together this much is kept.
MOST_FINGERPRINT_FILE_BYTES, MOST_FINGERPRINT_BYTES = 33 << 20, 24 << 20
_MOST_HOOKS = 20_000
_LONGEST, _MOST_DIMENSIONS = 300, 16
_BITS = re.compile(r"[0-9a-f]{16}")
_FingerprintLine = RootModel[Annotated[Snapshot | HookState | ModelInputs, Field(discriminator="kind")]]


@dataclass(slots=True)
class FingerprintLines:
    """The lines of a run so far; `take` after each of its phases, `write` at its end."""

    # Where the processes write; None: this run takes no fingerprints, and its folder gets no such file.
    folder: Path | None
    # The snapshots as they lay there, with the instant and the phase of each.
    _snapshots: list[tuple[float, str, bytes]] = field(default_factory=list)
    # What models were given besides text, likewise.
    _inputs: list[tuple[float, str, bytes]] = field(default_factory=list)
    # The last state of each hook, by phase, process and method.
    _hooks: dict[tuple[str, int, str], HookState] = field(default_factory=dict)
    # How much of each file was taken.
    _taken: dict[str, int] = field(default_factory=dict)
    _bytes: int = 0
    # Lines that could not be read, and those that were too many.
    unreadable: int = 0
    left_out: int = 0

    def take(self, phase: str) -> None:
        """Read what was written since the last call: lines of this phase, all of whose processes have ended."""
        if self.folder is None:
            return
        for name in names_below(self.folder):
            offset = self._taken.get(name, 0)
            raw = read_below(self.folder, name, limit=MOST_FINGERPRINT_FILE_BYTES, offset=offset) or b""
            self._taken[name] = offset + len(raw)
            for line in filter(bytes.strip, raw.split(b"\n")):
                read = _parsed(line)
                if read is None:
                    self.unreadable += 1
                    continue
                if isinstance(read, HookState):
                    key = (phase, read.pid, read.target)
                    if key in self._hooks or len(self._hooks) < _MOST_HOOKS:
                        self._hooks[key] = read.model_copy(update={"phase": phase})
                    else:
                        self.left_out += 1
                    continue
                kept = self._snapshots if isinstance(read, Snapshot) else self._inputs
                if len(kept) >= MOST_SNAPSHOTS or self._bytes + len(line) > MOST_FINGERPRINT_BYTES:
                    self.left_out += 1
                    continue
                self._bytes += len(line)
                kept.append((read.t_s, phase, line))

    def write(self, recorder: Recorder) -> None:
        """Write `fingerprints.jsonl`: the hooks, then the snapshots in the order of time; and an event about them."""
        if self.folder is None:
            return

        def documents() -> Iterator[dict[str, object]]:
            """Each line again with its phase, parsed only now: all of them together take much memory."""
            read: Snapshot | HookState | ModelInputs | None
            for read in self._hooks.values():
                yield _short(read)
            for instant, phase, line in sorted((*self._snapshots, *self._inputs), key=lambda entry: entry[0]):
                read = _parsed(line)
                if isinstance(read, Snapshot | ModelInputs):
                    yield _short(read.model_copy(update={"phase": phase, "t_s": recorder.since_opened(instant)}))

        recorder.redacted_lines(FINGERPRINTS_FILE, map(recorder.redacted_line, documents()))
        recorder.event(
            "fingerprints",
            snapshots=len(self._snapshots),
            hooks=len(self._hooks),
            unreadable=self.unreadable,
            left_out=self.left_out,
        )


def _short(line: Snapshot | HookState | ModelInputs) -> dict[str, object]:
    """The document in few characters: what is as the model has it by default is not written."""
    return {"kind": line.kind, **{key: plain(value) for key, value in line.model_dump(exclude_defaults=True).items()}}


def _parsed(line: bytes) -> Snapshot | HookState | ModelInputs | None:
    """The line, None where it is not one that the instrumentation writes."""
    try:
        read = _FingerprintLine.model_validate_json(line).root
    except ValidationError:
        return None
    numbers: list[float] = []
    shapes: list[tuple[int, ...]] = []
    match read:
        case HookState():
            texts = [read.target, read.problem]
        case ModelInputs():
            numbers, shapes = [read.t_s], [item.shape for item in read.inputs]
            texts = [read.model, *(item.name for item in read.inputs), *(use.name for use in read.schedules)]
            texts += [text for tower in read.towers for text in (tower.name, tower.type)]
        case Snapshot():
            numbers, shapes = [read.t_s, read.cost_s], [tensor.shape for tensor in read.tensors]
            texts = [read.model, read.problem]
            for tensor in read.tensors:
                texts += [tensor.name, tensor.dtype]
                if not _BITS.fullmatch(tensor.bits):
                    return None
    short = max(map(len, texts)) <= _LONGEST and all(len(shape) <= _MOST_DIMENSIONS for shape in shapes)
    return read if short and all(map(math.isfinite, numbers)) else None
