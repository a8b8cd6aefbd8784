"""The arithmetic of a fingerprint: four sums over the elements of a tensor, in chunks, on the device that holds it.

Every element is multiplied with numbers that depend on its place alone: a hash of its index. So two equal elements in
different places count differently, and a permutation or a transposition, which moves elements to places whose numbers
have nothing to do with each other, changes `position` and `bits`, while `sum` and `square` stay.

- `sum`, `square`: of the elements and of their squares, in double precision.
- `position`: of the elements, each times a weight in [-0.5, 0.5).
- `bits`: of the raw bits as integers, each times an odd number, modulo 2**64. An odd number has an inverse there, so
  one changed bit always changes it.

No random numbers are drawn, nothing is written to a tensor, and no value is waited for before `Sums.take`.
"""

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

    def flat(self, tensor):
        """All elements in order of place; a view where that is possible."""
        return tensor.reshape(-1)

    def length(self, flat):
        """The number of elements."""
        return flat.numel()

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
        flat = operations.flat(tensor)
        device = operations.device(flat)
        length = operations.length(flat)
        totals = None
        for start in range(0, max(length, 1), self._chunk):
            stop = min(start + self._chunk, length)
            part = self._part(operations.moved(flat[start:stop], device), start, stop, device)
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

    def _part(self, values, start, stop, device):
        weights, factors = self._numbers(start, stop, device)
        exact = self._operations.double(values)
        bits = self._operations.bits(values)
        return [exact.sum(), (exact * exact).sum(), (exact * weights).sum(), (bits * factors).sum()]

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
