"""Step metrics: `step:N - name:value - ...`, as verl's console logger prints them."""

import math
import re
from array import array
from collections.abc import Iterator, Mapping

MAX_KEYS = 2000

_STEP = re.compile(r"^step:\s?(\d{1,12}) - ")
_WRAPPED = re.compile(r"^(?:np|numpy|torch)\.\w+\(\s*([^\s,()]+)[^()]*\)$|^tensor\(\s*([^\s,()]+)[^()]*\)$")


class MetricValues(Mapping[str, float]):
    """An immutable mapping from metric name to value, small enough to keep many thousands of steps.

    `names` is shared between steps that print the same metrics; eight bytes a value.
    """

    __slots__ = ("_names", "_values")

    def __init__(self, names: tuple[str, ...], values: "array[float]") -> None:
        self._names = names
        self._values = values

    def __getitem__(self, name: str) -> float:
        try:
            return self._values[self._names.index(name)]
        except ValueError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"MetricValues({dict(self)!r})"


def parse_step(text: str) -> tuple[int, dict[str, float]] | None:
    """The step number and its metrics, or None when `text` is no metric line.

    A value that is no number is left out; the first occurrence of a name counts.
    """
    match = _STEP.match(text)
    if match is None:
        return None
    values: dict[str, float] = {}
    for piece in text[match.end() :].split(" - "):
        name, colon, shown = piece.rpartition(":")
        value = parse_number(shown.strip()) if colon else None
        if value is not None and name and len(values) < MAX_KEYS:
            values.setdefault(name.strip(), value)
    return int(match[1]), values


def parse_number(shown: str) -> float | None:
    """A float from `1.5`, `nan`, `inf`, `np.float64(2.0)`, `np.int64(2)` or `tensor(0.1)`; None otherwise."""
    try:
        return float(shown)
    except ValueError:
        wrapped = _WRAPPED.match(shown)
        if wrapped is None:
            return None
    try:
        return float(wrapped[1] or wrapped[2])
    except ValueError:
        return None


def pack(values: Mapping[str, float], shared: dict[tuple[str, ...], tuple[str, ...]]) -> MetricValues:
    """`values` in their compact form; `shared` interns the names of earlier steps (bounded by its caller)."""
    names = tuple(values)
    return MetricValues(shared.setdefault(names, names), array("d", values.values()))


def not_finite(values: Mapping[str, float], names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `names` that are present and NaN or infinite."""
    return tuple(name for name in names if name in values and not math.isfinite(values[name]))
