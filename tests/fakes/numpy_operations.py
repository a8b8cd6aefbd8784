"""NumPy in PyTorch's place, for the arithmetic of fingerprints: CI has no PyTorch. The same operations on the CPU."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class NumPy:
    """What `verl_e2e_snapshots.Torch` does, on arrays."""

    def __init__(self, sums: Any) -> None:
        self._sums = sums

    def places(self, start: int, stop: int, device: str) -> Array:
        assert device == "cpu"
        return np.arange(start, stop, dtype=np.int64)

    def double(self, values: Array) -> Array:
        return values.astype(np.float64)

    def bits(self, values: Array) -> Array:
        unsigned = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}[values.dtype.itemsize]
        bits: Array = values.view(unsigned).astype(np.int64)
        return self._sums.folded(bits) if values.dtype.itemsize == 8 else bits

    def device(self, flat: Array) -> str:
        return "cpu"

    def moved(self, values: Array, device: str) -> Array:
        return values

    def numbers(self, values: Sequence[Any]) -> list[Any]:
        return [value.item() for value in values]
