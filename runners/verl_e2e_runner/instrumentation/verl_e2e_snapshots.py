"""Takes snapshots: reads tensors, and writes one line with the fingerprints of all of them.

A fingerprint is made of tensors under names that are the same in each run, and of four sums over their elements. A
model or its optimizer holds the tensors on this rank. Reading them changes nothing: attributes are looked up, no tensor
is moved, and no other rank is asked. The files of a Hugging Face checkpoint are read without Bridge: they hold the
tensors that an import starts from.

The sums are made in chunks, on the device that holds the tensor. Every element is multiplied with numbers that depend
on its place alone: a hash of its index. So two equal elements in different places count differently, and a permutation
or a transposition, which moves elements to places whose numbers have nothing to do with each other, changes `position`
and `bits`, while `sum` and `square` stay.

- `sum`, `square`: of the elements and of their squares, in double precision.
- `position`: of the elements, each times a weight in [-0.5, 0.5).
- `bits`: of the raw bits as integers, each times an odd number, modulo 2**64. An odd number has an inverse there, so
  one changed bit always changes it.

No random numbers are drawn, nothing is written to a tensor, and no value is waited for before `Sums.take`.

Each line is written at once, into a file of this process, up to a limit, in the folder that VERL_E2E_FINGERPRINTS
names. A process that is killed has lost nothing that it wrote.
"""

import json
import math
import os
import sys
import threading
import time
from collections import namedtuple
from contextlib import contextmanager
from hashlib import blake2b

# One tensor: its name and kind, the tensor itself, and what is known about how ranks share it.
Held = namedtuple("Held", ("name", "kind", "tensor", "requires_grad", "tensor_parallel_dim", "expert"))
Held.__new__.__defaults__ = ("parameter", None, None, None, False)

# Of a larger model about this many bytes of parameters are read.
SAMPLED_BYTES = 2 << 30
_GROUPS = {
    "data": ("data_parallel", {"with_context_parallel": True}),
    "tensor": ("tensor_model_parallel", {}),
    "pipeline": ("pipeline_model_parallel", {}),
    "context": ("context_parallel", {}),
    "expert": ("expert_model_parallel", {}),
    "expert_tensor": ("expert_tensor_parallel", {}),
    "expert_data": ("expert_data_parallel", {}),
}


class Sample:
    """Which tensors are read: all of a small model; of a large one its adapters and those that a hash chooses.

    The choice depends on the name and on the size of the model alone, so it is the same at each point. A part of a
    parameter, as a moment of it, goes with the parameter, and so does the layer that an adapter wraps.
    """

    def __init__(self, total_bytes, budget=SAMPLED_BYTES):
        self._share = budget / total_bytes if total_bytes > budget else 1.0

    def __contains__(self, name):
        if self._share >= 1.0 or is_adapter(name):
            return True
        whole = name.partition("/")[0].replace(".base_layer.", ".")
        digest = blake2b(whole.encode("utf-8", "replace"), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64 < self._share


def is_adapter(name):
    """Whether the tensor is an adapter's, by its name in Megatron or in Hugging Face's format."""
    return ".adapter." in f".{name}" or "lora_" in name


def size_of(tensors):
    """The bytes of all these tensors together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def held_by_model(chunks):
    """The parameters and persistent buffers of a model's chunks, of which each virtual pipeline stage has one."""
    held = []
    for index, chunk in enumerate(chunks):
        prefix = f"chunk{index}." if len(chunks) > 1 else ""
        for name, parameter in chunk.named_parameters():
            is_split = getattr(parameter, "tensor_model_parallel", False)
            split = getattr(parameter, "partition_dim", None) if is_split else None
            expert = not getattr(parameter, "allreduce", True)
            fields = ("parameter", parameter, bool(parameter.requires_grad), split, expert)
            held.append(Held(prefix + short_name(name), *fields))
        for path, module in chunk.named_modules():
            transient = getattr(module, "_non_persistent_buffers_set", ())
            for name, buffer in module.named_buffers(recurse=False):
                if name not in transient and buffer is not None:
                    held.append(Held(prefix + short_name(f"{path}.{name}" if path else name), "buffer", buffer))
    return held


def short_name(name):
    """The name of a parameter without the wrappers around its model."""
    while name.startswith("module."):
        name = name[len("module.") :]
    return name


def held_by_optimizer(optimizer, parameters):
    """What an optimizer of Megatron holds: the main copy of each parameter, its moments, and the steps made.

    `parameters` are those of the model, as `held_by_model` gives them. Names are `<parameter>/main`,
    `<parameter>/exp_avg` and so on; where this rank holds a part, `/main[START:END]`.
    """
    names = {id(held.tensor): held for held in parameters}
    held = []
    inner = getattr(optimizer, "chained_optimizers", None)
    for number, each in enumerate([optimizer] if inner is None else inner):
        base, label = getattr(each, "optimizer", None), f"optimizer{number}"
        if base is None:
            continue
        for index, group in enumerate(base.param_groups):
            if "step" in group:
                held.append(Held(f"{label}.group{index}/step", "optimizer", group["step"]))
        for order, (parameter, main, part) in enumerate(_pairs(each, base)):
            known = names.get(id(parameter))
            name = known.name if known else f"{label}.parameter{order}"
            place = f"[{part.start}:{part.end}]" if part is not None else ""
            expert = known.expert if known else not getattr(parameter, "allreduce", True)
            split = known.tensor_parallel_dim if known and part is None else None
            # `get`, because looking a missing key up would make it.
            states = {**({"main": main} if main is not parameter else {}), **(base.state.get(main) or {})}
            for key, state in states.items():
                if state is not None:
                    held.append(Held(f"{name}/{key}{place}", "optimizer", state, None, split, expert))
    return held


def _pairs(optimizer, base):
    """Each parameter of the model with what the base optimizer steps in its stead, and its range in a shard."""
    places = getattr(optimizer, "model_param_group_index_map", None)
    if places is not None:
        for parameter, (group, order) in places.items():
            part = optimizer._get_model_param_range_map(parameter)["param"]
            yield parameter, base.param_groups[group]["params"][order], part
        return
    mains = {}
    copies = zip(
        getattr(optimizer, "float16_groups", ()), getattr(optimizer, "fp32_from_float16_groups", ()), strict=True
    )
    for originals, main_group in copies:
        mains.update((id(main), parameter) for parameter, main in zip(originals, main_group, strict=True))
    for group in base.param_groups:
        for main in group["params"]:
            yield mains.get(id(main), main), main, None


def local(tensor, chunks):
    """What this rank holds of a tensor, where it lies; a reason where it cannot be read.

    The part of a distributed tensor; for a parameter whose storage was freed because it was offloaded, its copy.
    """
    tensor = getattr(tensor, "_local_tensor", tensor).detach()
    if hasattr(tensor, "dequantize") and type(tensor).__module__.startswith("transformer_engine"):
        return tensor.dequantize(), ""
    if tensor.numel() == 0 or tensor.untyped_storage().size():
        return tensor, ""
    # Megatron's data-parallel wrapper holds the parameters in such lists; other modules have none.
    lists = (getattr(chunk, name, None) for chunk in chunks for name in ("buffers", "expert_parallel_buffers"))
    for buffers in lists:
        for buffer in buffers if isinstance(buffers, list) else ():
            whole = getattr(buffer, "param_data", None)
            copy = getattr(whole, "cpu_data", None)
            if copy is not None and whole.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
                start = tensor.storage_offset() - whole.storage_offset()
                return copy[start : start + tensor.numel()].view(tensor.shape), ""
    return None, "its storage is freed"


def is_sharded(tensor):
    """Whether the tensor is distributed and this rank holds a part of it."""
    placements = getattr(tensor, "placements", ()) if hasattr(tensor, "_local_tensor") else ()
    return any(placement.is_shard() for placement in placements)


def ranks_of_trainer():
    """Where this process lies in each group of Megatron's, with the sizes of the groups."""
    state = sys.modules.get("megatron.core.parallel_state")
    distributed = sys.modules["torch"].distributed
    if state is None or not distributed.is_initialized() or not state.model_parallel_is_initialized():
        return {}
    ranks = {"rank": distributed.get_rank()}
    for name, (group, options) in _GROUPS.items():
        rank, size = (getattr(state, f"get_{group}_{word}", None) for word in ("rank", "world_size"))
        if rank is not None and size is not None:
            ranks[name], ranks[f"{name}_size"] = rank(**options) or 0, size(**options) or 1
    return ranks


# Elements that are read at once: 16 MiB in double precision.
CHUNK = 1 << 21
# What a compiler would take for the finalizer of SplitMix64, as signed integers.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


class Torch:
    """The operations that PyTorch and NumPy do not spell alike, for PyTorch."""

    def __init__(self, torch):
        self._torch = torch
        self._integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

    def places(self, start, stop, device):
        """The whole numbers from `start` to before `stop`."""
        return self._torch.arange(start, stop, dtype=self._torch.int64, device=device)

    def double(self, values):
        """The values in double precision."""
        return values.to(self._torch.float64)

    def bits(self, values):
        """The raw bits of each value as a whole number."""
        size = values.element_size()
        bits = values.view(self._integers[size]).to(self._torch.int64)
        return folded(bits) if size == 8 else bits

    def device(self, flat):
        """Where the elements are read: large tensors that were offloaded pass through the accelerator in chunks."""
        cuda = self._torch.cuda
        if flat.device.type == "cpu" and flat.numel() > 1 << 16 and cuda.is_initialized():
            return self._torch.device("cuda", cuda.current_device())
        return flat.device

    def moved(self, values, device):
        """The values on that device."""
        return values if values.device == device else values.to(device)

    def numbers(self, values):
        """Numbers of one type as Python's own, with one transfer for each device."""
        found = {}
        by_device = {}
        for index, value in enumerate(values):
            by_device.setdefault(value.device, []).append(index)
        for indices in by_device.values():
            listed = self._torch.stack([values[index] for index in indices]).tolist()
            found.update(zip(indices, listed, strict=True))
        return [found[index] for index in range(len(values))]


class Sums:
    """The sums of many tensors, read by one transfer at the end."""

    def __init__(self, operations, chunk=CHUNK):
        self._operations = operations
        self._chunk = chunk
        self._first = {}
        self._floats = []
        self._integers = []

    def add(self, tensor):
        """Read a tensor; its sums have the number of this call."""
        operations = self._operations
        # All elements in order of place; a view where that is possible.
        flat = tensor.reshape(-1)
        device = operations.device(flat)
        totals = None
        for start in range(0, max(len(flat), 1), self._chunk):
            stop = min(start + self._chunk, len(flat))
            values = operations.moved(flat[start:stop], device)
            weights, factors = self._numbers(start, stop, device)
            exact, bits = operations.double(values), operations.bits(values)
            part = [exact.sum(), (exact * exact).sum(), (exact * weights).sum(), (bits * factors).sum()]
            totals = part if totals is None else [total + more for total, more in zip(totals, part, strict=True)]
        self._floats += totals[:3]
        self._integers.append(totals[3])

    def take(self):
        """For each tensor: sum, square, position and bits, the last as sixteen hexadecimal digits."""
        floats = self._operations.numbers(self._floats) if self._floats else []
        integers = self._operations.numbers(self._integers) if self._integers else []
        self._first.clear()
        return [
            (*floats[3 * index : 3 * index + 3], format(bits % (1 << 64), "016x"))
            for index, bits in enumerate(integers)
        ]

    def _numbers(self, start, stop, device):
        """The weights and the odd factors of these places; those of the first chunk are kept until `take`."""
        if start:
            return numbers_of_places(self._operations, start, stop, device)
        kept = self._first.get(device)
        if kept is None or len(kept[0]) < stop:
            size = min(self._chunk, 1 << max(stop - 1, 0).bit_length())
            kept = self._first[device] = numbers_of_places(self._operations, 0, max(size, stop), device)
        return kept[0][:stop], kept[1][:stop]


def numbers_of_places(operations, start, stop, device):
    """The weight and the odd factor of each place: a hash of its index, by the finalizer of SplitMix64."""
    mixed = (operations.places(start, stop, device) + 1) * _STEP
    mixed = (mixed ^ _shifted(mixed, 30)) * _FIRST
    mixed = (mixed ^ _shifted(mixed, 27)) * _SECOND
    mixed = mixed ^ _shifted(mixed, 31)
    # 32 bits are exact in double precision, and so is the weight.
    weights = operations.double(_shifted(mixed, 32)) / (1 << 32) - 0.5
    return weights, mixed | 1


def folded(bits):
    """The 64 bits of an element, the upper half mixed into the lower one.

    The factors of two places differ by an even number. Without this, two elements that differ in the highest bit
    alone, as a number and its negative, could change places unseen.
    """
    return bits ^ _shifted(bits, 32)


def _shifted(values, count):
    """Shifted right with zeros coming in, which signed integers do not do by themselves."""
    return (values >> count) & ((1 << (64 - count)) - 1)


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
                self._left_out += 1
                self.note(f"{held.name}: {explained(error)}")

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
        readable, reason = local(tensor, self._chunks)
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
        if is_sharded(tensor):
            entry["sharded"] = True
        return entry

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
    chosen, problem = _files(path)
    sample = Sample(sum(os.path.getsize(os.path.join(path, file)) for file in chosen))
    snapshot = Snapshot(sys.modules["torch"], sample)
    snapshot.note(problem)
    try:
        for file, names in sorted(chosen.items()):
            # Each tensor is mapped from the file when it is read, and released before the next.
            whole = os.path.join(path, file)
            with sys.modules["safetensors"].safe_open(whole, framework="pt", device="cpu") as opened:
                # A file is a context with names, not a mapping that could be iterated over.
                for name in opened.keys():  # noqa: SIM118
                    if names is None or name in names:
                        tensor = opened.get_tensor(name) if name in sample else None
                        snapshot.add(Held(name, "parameter", tensor))
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
    if not os.path.isfile(index):
        found = {file: None for file in os.listdir(path) if file.endswith(_ENDING)}
        return found, "" if found else "the checkpoint's folder holds no safetensors files"
    with open(index, encoding="utf-8") as opened:
        listed = json.load(opened)["weight_map"]
    chosen = {}
    for name, file in listed.items():
        if os.path.isabs(file) or ".." in file.split("/") or not file.endswith(_ENDING):
            return {}, f"the index {_INDEX} names what is not a file of the folder"
        chosen.setdefault(file, set()).add(name)
    return chosen, ""
