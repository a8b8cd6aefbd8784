"""Step metrics: `step:N - name:value - ...`, as verl's console logger prints them."""

import math
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

MAX_KEYS = 2000

EPOCHS_SHAPE = r"^\s*Epoch (\d{1,6})/(\d{1,6}):\s*(\d{1,3})%\|[^|]{0,200}\|\s*(\d{1,12})/(\d{1,12})"
"""The bar of verl's SFT trainer, which counts the steps of one epoch."""
_STEP = re.compile(r"^step:\s?(\d{1,12}) - ")
# One number in the constructor that numpy or torch shows around it, in brackets when it is an array of one element.
_WRAPPED = re.compile(
    r"^[A-Za-z_][\w.]{0,60}\(\s*(?:(\[{1,4})\s*)?'?(?P<number>[^\s,()\[\]']{1,60})'?(?(1)\s*\]{1,4})\s*(?:,[^()\[\]]{0,200})?\)$"
)
# Families of metrics whose value must be a number, by the words of the name; `std` of one sample may be none.
_FAMILIES = frozenset(
    (
        *("loss", "losses", "reward", "rewards", "score", "scores", "kl", "entropy", "advantage", "advantages"),
        *(
            "return",
            "returns",
            "value",
            "values",
            "vpred",
            "logprob",
            "logprobs",
            "logp",
            "ppl",
            "ratio",
            "clipfrac",
            "lr",
        ),
    )
)
_PAIRS = re.compile(r"grad_norm|log_probs?|probs_diff|reward_kl")
_STEM = re.compile(r"[a-z]+")
# What is measured besides the training: clocks, memory, lengths, counts; validation is watched by its means only.
_BESIDE = re.compile(r"(?:timing|perf|memory|mfu|global_seqlen|response|prompt|num_turns|tool)[\w-]*/|.*/perf/")
_VALIDATION = re.compile(r"val(?:idation)?(?:-\w+)?/")
_VALIDATED = re.compile(r".+/(?:reward|acc|score)/mean@\d+|val(?:idation)?/(?:\w+_)?(?:loss|score|reward)(?:/.+)?")
_SPREAD = re.compile(r"(?:^|[/_])std(?:@\d+)?(?:/\w+)?$|explained_var")
# A perplexity is an exponential: it may overflow to infinity although its logarithm, which is watched, is fine.
_MAY_OVERFLOW = re.compile(r"(?:^|[/_])(?<!log_)ppl$")


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

    def pairs(self) -> Iterable[tuple[str, float]]:
        """Names and values in the order in which they were printed."""
        return zip(self._names, self._values, strict=True)

    def __repr__(self) -> str:
        return f"MetricValues({dict(self)!r})"


def parse_step(text: str) -> tuple[int, dict[str, float]] | None:
    """The step number and its metrics, or None when `text` is not a metric line.

    A value that is not a number is left out; the first occurrence of a name counts.
    """
    match = _STEP.match(text)
    if match is None:
        return None
    values: dict[str, float] = {}
    for piece in text[match.end() :].split(" - "):
        name, colon, shown = _parted(piece) if "(" in piece else piece.rpartition(":")
        value = parse_number(shown) if colon else None
        if value is not None and name and len(values) < MAX_KEYS:
            values.setdefault(name.strip(), value)
    return int(match[1]), values


def _parted(piece: str) -> tuple[str, str, str]:
    """Name, colon and value; a value in a constructor may hold colons itself, as `tensor(nan, device='cuda:0')`."""
    head, bracket, rest = piece.partition("(")
    if not (rest.endswith(")") and ":" in head):
        return piece.rpartition(":")
    name, colon, begun = head.rpartition(":")
    return name, colon, begun + bracket + rest


def parse_number(shown: str) -> float | None:
    """A float from `1.5`, `nan`, `inf`, `np.float64(2.0)`, `np.int64(2)` or `tensor(0.1)`; None otherwise."""
    try:
        return float(shown)
    except ValueError:
        wrapped = _WRAPPED.match(shown.strip())
        if wrapped is None:
            return None
    try:
        return float(wrapped["number"])
    except ValueError:
        return None


def pack(values: Mapping[str, float], shared: dict[tuple[str, ...], tuple[str, ...]]) -> MetricValues:
    """`values` in their compact form; `shared` interns the names of earlier steps (bounded by its caller)."""
    names = tuple(values)
    return MetricValues(shared.setdefault(names, names), array("d", values.values()))


@lru_cache(maxsize=MAX_KEYS)
def watched(name: str) -> bool:
    """Whether a metric must be a number: losses, gradient norms, rewards, KL, entropy, advantages, returns, values,
    log-probabilities and their differences, importance ratios, learning rates."""
    if _SPREAD.search(name):
        return False
    if _VALIDATION.match(name):
        return _VALIDATED.fullmatch(name) is not None
    if _BESIDE.match(name):
        return False
    return name.startswith("rollout_corr/") or bool(
        _PAIRS.search(name) or not _FAMILIES.isdisjoint(_STEM.findall(name))
    )


def not_finite(values: Mapping[str, float]) -> tuple[str, ...]:
    """The watched metrics that are NaN or infinite, in the order in which they were printed."""
    return tuple(name for name, value in pairs(values) if not math.isfinite(value) and _is_fault(name, value))


def _is_fault(name: str, value: float) -> bool:
    return watched(name) and not (math.isinf(value) and _MAY_OVERFLOW.search(name))


def pairs(values: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    """Names and values, without a search for each name."""
    return values.pairs() if isinstance(values, MetricValues) else values.items()
