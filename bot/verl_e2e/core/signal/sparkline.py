"""A series as one short line of block characters."""

import math
from collections.abc import Sequence
from statistics import median

_BLOCKS = "▁▂▃▄▅▆▇█"
# A value that is not a number.
GAP = "×"


def sparkline(values: Sequence[float], width: int = 20) -> str:
    """At most `width` blocks between the lowest and the highest finite value; a series longer than that is binned.

    A block stands for the median of its bin, and `×` for a bin with NaN or infinity in it.
    """
    size = -(-len(values) // width) or 1
    bins = [values[at : at + size] for at in range(0, len(values), size)]
    points = [median(item) if all(map(math.isfinite, item)) else math.nan for item in bins]
    finite = [point for point in points if math.isfinite(point)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_block(point, low, high) for point in points)


def _block(point: float, low: float, high: float) -> str:
    if not math.isfinite(point):
        return GAP
    # Divided before it is subtracted, so that values near the largest float do not overflow.
    share = 0.5 if high == low else (point / 2 - low / 2) / (high / 2 - low / 2)
    return _BLOCKS[min(int(share * len(_BLOCKS)), len(_BLOCKS) - 1)]
