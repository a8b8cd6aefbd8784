"""Takes snapshots: reads tensors, and writes one line with the fingerprints of all of them.

Each line is written at once, into a file of this process, up to a limit, in the folder that VERL_E2E_FINGERPRINTS
names. A process that is killed has lost nothing that it wrote.

The files of a Hugging Face checkpoint are read without Bridge: they hold the tensors that an import starts from.
"""

import json
import math
import os
import sys
import threading
import time
from contextlib import contextmanager

import verl_e2e_state
from verl_e2e_state import Held, Sample, Sums, Torch

# More than this is not written by one process.
MOST_BYTES = 32 << 20

_lock = threading.Lock()
_written = {}


def write_line(folder, entry):
    """Append one line; false when the limit of this process is reached."""
    pid = os.getpid()
    line = (json.dumps({**_plain(entry), "pid": pid}, allow_nan=False) + "\n").encode()
    with _lock:
        if _written.get(pid, 0) + len(line) > MOST_BYTES:
            return False
        os.makedirs(folder, mode=0o700, exist_ok=True)
        handle = os.open(os.path.join(folder, f"{pid}.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)
        _written[pid] = _written.get(pid, 0) + len(line)
    return True


def now():
    """The instant, in seconds of the clock that all processes of a host share."""
    return time.monotonic()


def explained(error):
    """An error as one short line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _plain(value):
    """The value in JSON's terms: NaN and the infinities as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value


# A point that a run passes very often is read less often the longer it runs: the first sixteen times, then every
# second, from the thirty-second on every fourth, and so on. Trainer and rollout count alike, so they choose alike.
_ALWAYS_BITS = 4
_DTYPE = "torch."


class Counter:
    """How many times each point was passed in this process."""

    def __init__(self):
        self._passed = {}

    def next(self, model, point):
        """The number of this pass, from 0."""
        number = self._passed.get((model, point), 0)
        self._passed[model, point] = number + 1
        return number


def is_read(number):
    """Whether a pass with this number is read."""
    return number % (1 << max(0, number.bit_length() - _ALWAYS_BITS)) == 0


class Snapshot:
    """The tensors of one model at one point, read as they are added and written by `close`."""

    def __init__(self, torch, sample, chunks=()):
        self._torch = torch
        self._sample = sample
        self._chunks = chunks
        self._sums = Sums(Torch(torch))
        self._entries = []
        self._left_out = 0
        self._problem = ""
        self._cost_s = 0.0

    def add(self, held):
        """Read one tensor, unless the sample leaves it out."""
        if held.name not in self._sample:
            self._left_out += 1
            return
        with self._reading():
            try:
                self._entries.append(self._entry(held))
            except Exception as error:
                self._fail(f"{held.name}: {explained(error)}")

    def add_all(self, tensors):
        """Read tensors that lie on this rank; first wait for the work before, which is not our cost."""
        if self._torch.cuda.is_initialized():
            self._torch.cuda.current_stream().synchronize()
        for held in tensors:
            self.add(held)

    def note(self, problem):
        """Say why something is not in the snapshot; the first reason is kept."""
        self._problem = self._problem or problem

    def close(self, folder, header):
        """Write the snapshot; the reason why not where that failed."""
        with self._reading():
            found = self._sums.take()
        tensors = [
            {**entry, "sum": sums[0], "square": sums[1], "position": sums[2], "bits": sums[3]}
            for entry, sums in zip(self._entries, found, strict=True)
        ]
        line = {"kind": "snapshot", **header, "t_s": now(), "cost_s": round(self._cost_s, 6)}
        line.update(left_out=self._left_out, problem=self._problem[:300], tensors=tensors)
        if write_line(folder, line):
            return ""
        problem = "the limit of what one process writes is reached"
        write_line(folder, {**line, "tensors": [], "left_out": len(tensors), "problem": problem})
        return problem

    def _entry(self, held):
        tensor = held.tensor
        if isinstance(tensor, (int, float)):
            tensor = self._torch.tensor(tensor, dtype=self._torch.float64)
        dtype = str(tensor.dtype).replace(_DTYPE, "")
        readable, reason = verl_e2e_state.local(tensor, self._chunks)
        if readable is None:
            raise ValueError(reason)
        self._sums.add(readable)
        entry = {"name": held.name, "kind": held.kind, "shape": list(readable.shape), "dtype": dtype}
        if held.requires_grad is not None:
            entry["requires_grad"] = held.requires_grad
        if held.tensor_parallel_dim is not None:
            entry["tensor_parallel_dim"] = held.tensor_parallel_dim
        if held.expert:
            entry["expert"] = True
        if verl_e2e_state.is_sharded(tensor):
            entry["sharded"] = True
        return entry

    def _fail(self, problem):
        self._left_out += 1
        self.note(problem)

    @contextmanager
    def _reading(self):
        """Without gradients, and on the clock of what the snapshot costs."""
        began = time.perf_counter()
        with self._torch.no_grad():
            yield
        self._cost_s += time.perf_counter() - began


_INDEX = "model.safetensors.index.json"
_ENDING = ".safetensors"


def write_files(folder, path, header):
    """Take a snapshot of the tensors in the files of a local folder; why not, where there are none."""
    torch = sys.modules["torch"]
    chosen, problem = _files(path)
    total = sum(os.path.getsize(os.path.join(path, file)) for file in chosen)
    sample = Sample(total)
    snapshot = Snapshot(torch, sample)
    snapshot.note(problem)
    try:
        for file, names in sorted(chosen.items()):
            _add_file(snapshot, sample, os.path.join(path, file), names)
    except Exception as error:
        snapshot.note(explained(error))
    snapshot.close(folder, header)


def _files(path):
    """By file the names of the tensors that are taken from it, None for all of them; a reason where there are none.

    As Bridge does: those of the index where there is one, and otherwise all files of the folder.
    """
    if "safetensors" not in sys.modules:
        return {}, "the library safetensors is not loaded"
    if path is None or not os.path.isdir(path):
        return {}, "the checkpoint is not a local folder"
    index = os.path.join(path, _INDEX)
    if os.path.isfile(index):
        return _files_of_index(index)
    found = {file: None for file in os.listdir(path) if file.endswith(_ENDING)}
    return found, "" if found else "the checkpoint's folder holds no safetensors files"


def _files_of_index(index):
    with open(index, encoding="utf-8") as opened:
        listed = json.load(opened)["weight_map"]
    chosen = {}
    for name, file in listed.items():
        if os.path.isabs(file) or ".." in file.split("/") or not file.endswith(_ENDING):
            return {}, f"the index {_INDEX} names what is not a file of the folder"
        chosen.setdefault(file, set()).add(name)
    return chosen, ""


def _add_file(snapshot, sample, file, names):
    """Each tensor is mapped from the file when it is read, and released before the next."""
    with sys.modules["safetensors"].safe_open(file, framework="pt", device="cpu") as opened:
        # A file is a context with names, not a mapping that could be iterated over.
        for name in opened.keys():  # noqa: SIM118
            if names is None or name in names:
                snapshot.add(Held(name, "parameter", opened.get_tensor(name) if name in sample else None))
