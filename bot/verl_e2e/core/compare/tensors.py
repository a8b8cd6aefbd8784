"""Compare fingerprints of tensors: what kind of difference two of them show, and whether figures add up.

Equal `bits` of equal shape and type are equal tensors. Where the layout differs, sums are compared, and each bound
follows from how far a sum in double precision can be from the true one.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from verl_e2e.core.model.fingerprints import Tensor

# The unit roundoff of double precision, in which the sums were made, and of the types that weights have.
_DOUBLE = 2.0**-53
_UNIT = {"float64": _DOUBLE, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Types of one range of exponents: a conversion between them rounds, and neither overflows nor underflows.
_ONE_RANGE = frozenset({"float32", "bfloat16"})
# The mean square of the weights of `position`, which are spread evenly over [-0.5, 0.5).
_WEIGHT_SQUARE = 1 / 12
# Rounding errors of many elements are independent: beyond so many standard deviations it is another tensor.
_DEVIATIONS = 6.0


class Difference(StrEnum):
    """How one tensor differs from the one that was expected."""

    SHAPE = "another shape"
    DTYPE = "another type"
    NOT_FINITE = "NaN or infinite values"
    ZERO = "all zero"
    STALE = "a stale copy: the values of an earlier point"
    ORDER = "a permutation or transposition: the same values in another order"
    SCALE = "a scale"
    ROUNDED = "nearly equal values, as after another rounding"
    OTHER = "other values"


@dataclass(frozen=True, slots=True)
class Found:
    """The kind of a difference, with the factor of a scale."""

    kind: Difference
    factor: float = 1.0

    def __str__(self) -> str:
        return f"{self.kind} by {self.factor:.4g}" if self.kind is Difference.SCALE else str(self.kind)


def same(first: Tensor, second: Tensor) -> bool:
    """Whether two fingerprints are of equal tensors."""
    return (first.bits, first.shape, first.dtype) == (second.bits, second.shape, second.dtype)


def count(tensor: Tensor) -> int:
    """How many elements a tensor has."""
    return math.prod(tensor.shape)


def is_constant(tensor: Tensor) -> bool:
    """Whether all elements have one value: only then does the inequality of Cauchy and Schwarz hold with equality."""
    whole = count(tensor) * tensor.square
    return not math.isfinite(whole) or abs(tensor.sum**2 - whole) <= 4 * _growth(count(tensor) + 2) * whole


def difference(expected: Tensor, found: Tensor, *, earlier: Iterable[Tensor] = ()) -> Found | None:
    """How `found` differs from `expected`, None where it does not; `earlier` are states that it may be a copy of."""
    if same(expected, found):
        return None
    if any(same(state, found) for state in earlier):
        return Found(Difference.STALE)
    if count(expected) != count(found):
        return Found(Difference.SHAPE)
    if not _finite(found) and _finite(expected):
        return Found(Difference.NOT_FINITE)
    if found.square == 0 and expected.square != 0:
        return Found(Difference.ZERO)
    if adds_up([expected], [found]):
        return Found(_of_equal_sums(expected, found))
    return _scale(expected, found) or Found(Difference.OTHER)


def converts(expected: Tensor, found: Tensor) -> bool:
    """Whether a conversion between the types of two tensors does no more than round, so that sums can be compared."""
    return {expected.dtype, found.dtype} <= _ONE_RANGE


def difference_but_rounding(expected: Tensor, found: Tensor) -> Found | None:
    """How `found` differs from `expected` of another type, None where by no more than rounding to the narrower one."""
    if _is_rounding(expected, found):
        return None
    narrow = max((expected.dtype, found.dtype), key=lambda dtype: _UNIT[dtype])
    kind = difference(*(tensor.model_copy(update={"dtype": narrow}) for tensor in (expected, found)))
    return kind if kind and kind.kind is not Difference.ROUNDED else Found(Difference.OTHER)


def _is_rounding(expected: Tensor, found: Tensor) -> bool:
    """Whether all sums are within what rounding each element once can make of them.

    Its error is at most u times the element, and equal elements have equal errors: so `sum` gets the bound of the worst
    case, while the weights of `position` have nothing to do with the errors, which then add up like independent ones.
    """
    if not (_finite(expected) and _finite(found)):
        return _finite(expected) == _finite(found)
    number, square = count(expected), max(expected.square, found.square)
    unit = max(_UNIT[expected.dtype], _UNIT[found.dtype])
    bounds = (
        unit * math.sqrt(number * square) + 2 * rounding(number, square),
        unit * (2 + unit) * square + 2 * _growth(number + 1) * square,
        _DEVIATIONS * unit * math.sqrt(_WEIGHT_SQUARE * square) + 2 * rounding(number, square),
    )
    pairs = ((getattr(expected, name), getattr(found, name)) for name in ("sum", "square", "position"))
    return all(abs(one - two) <= bound for (one, two), bound in zip(pairs, bounds, strict=True))


def _of_equal_sums(expected: Tensor, found: Tensor) -> Difference:
    """Sums do not depend on the order, so equal ones leave an order, a shape or a type to differ."""
    bound = rounding(count(expected), expected.square) + rounding(count(found), found.square)
    placed = abs(expected.position - found.position) <= bound
    if expected.dtype != found.dtype:
        return Difference.DTYPE
    if placed:
        return Difference.SHAPE if expected.shape != found.shape else Difference.OTHER
    return Difference.ORDER


def _scale(expected: Tensor, found: Tensor) -> Found | None:
    """One factor in all sums: k in `sum` and `position`, k squared in `square`, but for the type's own rounding."""
    if not (_finite(expected) and _finite(found) and expected.square > 0):
        return None
    size = math.sqrt(found.square / expected.square)
    unit = max(_UNIT.get(expected.dtype, 0.0), _UNIT.get(found.dtype, 0.0), _DOUBLE * count(found))
    bound = _DEVIATIONS * unit * size * math.sqrt(expected.square)
    for factor in (size, -size):
        sums = (found.sum - factor * expected.sum, found.position - factor * expected.position)
        if all(abs(left) <= bound for left in sums):
            near = abs(factor - 1) <= _DEVIATIONS * unit
            return Found(Difference.ROUNDED) if near else Found(Difference.SCALE, factor)
    return None


def adds_up(parts: Sequence[Tensor], whole: Sequence[Tensor], *, times: int = 1) -> bool:
    """Whether the sums and squares of the parts add up to `times` those of the whole, within rounding.

    Sums that are NaN or infinite add up to the same kind of sum only.
    """
    for figure, bound in ((_sum, _bound_of_sum), (_square, _bound_of_square)):
        added, wanted = sum(map(figure, parts)), times * sum(map(figure, whole))
        if not (math.isfinite(added) and math.isfinite(wanted)):
            return repr(added) == repr(wanted)
        adding = _growth(len(parts) + len(whole)) * (
            sum(abs(figure(tensor)) for tensor in parts) + times * sum(abs(figure(tensor)) for tensor in whole)
        )
        if abs(added - wanted) > adding + sum(map(bound, parts)) + times * sum(map(bound, whole)):
            return False
    return True


def rounding(number: int, square: float) -> float:
    """How far a sum of so many elements can be from the true one.

    That is `n u / (1 - n u)` times the sum of the absolute values, which is at most `sqrt(n * square)`.
    """
    return _growth(number) * math.sqrt(number * square)


def _sum(tensor: Tensor) -> float:
    return tensor.sum


def _square(tensor: Tensor) -> float:
    return tensor.square


def _bound_of_sum(tensor: Tensor) -> float:
    return rounding(count(tensor), tensor.square)


def _bound_of_square(tensor: Tensor) -> float:
    """Each square is rounded once before it is added."""
    return _growth(count(tensor) + 1) * tensor.square


def _growth(number: int) -> float:
    return number * _DOUBLE / (1 - number * _DOUBLE)


def _finite(tensor: Tensor) -> bool:
    return all(map(math.isfinite, (tensor.sum, tensor.square, tensor.position)))
