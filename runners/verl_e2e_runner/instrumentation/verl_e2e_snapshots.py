"""Takes snapshots: reads tensors, and writes one line with the fingerprints of all of them."""

import time
from contextlib import contextmanager

import verl_e2e_lines
import verl_e2e_state
from verl_e2e_sums import Sums, Torch

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
                self._fail(f"{held.name}: {verl_e2e_lines.explained(error)}")

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
        line = {"kind": "snapshot", **header, "t_s": verl_e2e_lines.now(), "cost_s": round(self._cost_s, 6)}
        line.update(left_out=self._left_out, problem=self._problem[:300], tensors=tensors)
        if verl_e2e_lines.write(folder, line):
            return ""
        problem = "the limit of what one process writes is reached"
        verl_e2e_lines.write(folder, {**line, "tensors": [], "left_out": len(tensors), "problem": problem})
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
