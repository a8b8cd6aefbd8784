"""A rehearsal: what a change does to the cells that ran on a CPU, head against base, and the verdict on it.

A cell is judged in two ways. Its oracles say what must hold whatever the change is; one that fails at the base too
says nothing about the change. And every quantity of the cell is compared with the base's: two runs of one commit are
equal in every bit, so any difference is the change's. Whether it was meant is for a person to say.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from verl_e2e.core.model.changed_code import ChangedFunction, Side
from verl_e2e.core.model.document import Document

# The record of what the process that all cells are forks of did: its imports.
IMPORTS = "import"
# A quantity of a rank ends in it and the number of the rank.
RANK = "@"


class CellError(Document):
    """Why a cell gave nothing."""

    # The type of the exception; `Hang` where the cell took too long, `Died` where a process of it ended without a word.
    type: str
    # Its words.
    text: str
    # The last line of Bridge or Megatron-LM on the way to it, as `megatron/core/utils.py:10`.
    at: str
    # The traceback's lines.
    traceback: tuple[str, ...] = ()


class OracleFinding(Document):
    """What one oracle found in one cell."""

    # Its name in the table of oracles.
    oracle: str
    # Whether the deviation is within the oracle's bound.
    passed: bool
    # The largest relative deviation; `inf` where shapes or names differ.
    off: float | Literal["inf"]
    # Where that is.
    where: str


class Entered(Document):
    """What of the trees a cell entered."""

    # Lines as pairs of a first and a last one, by path.
    lines: dict[str, tuple[tuple[int, int], ...]] = Field(default_factory=dict)
    # `path:qualified name` in the order in which they were entered.
    functions: tuple[str, ...] = ()


class TensorSummary(Document):
    """A tensor of a cell, as what is enough to compare it."""

    # Its sizes.
    shape: tuple[int, ...]
    # torch's name of its type.
    dtype: str
    # The first 16 digits of the SHA-256 of its bytes.
    digest: str
    # Its Euclidean norm; None where a number of it is not finite.
    norm: float | None
    # Its products with a few fixed vectors of random signs.
    sketch: tuple[float | None, ...]


# A tensor is read as one before it could be read as any JSON.
Quantity = Annotated[TensorSummary | JsonValue, Field(union_mode="left_to_right")]


class CellRecord(Document):
    """What a cell left."""

    # Its name in the table of cells, or `import`.
    cell: str
    # Why it gave nothing; None where it gave all.
    error: CellError | None
    # Whether the reason is that the cell's model could not be made, which no tree has a part in.
    no_model: bool = False
    # What the oracles found.
    oracles: tuple[OracleFinding, ...] = ()
    # Values and tensors by name, in the order in which they came about.
    quantities: dict[str, Quantity] = Field(default_factory=dict)
    # The lines and functions that it entered.
    entered: Entered = Entered()
    # For the imports: whether each name that newer trees have is there.
    values: dict[str, JsonValue] = Field(default_factory=dict)
    # For the imports: the interpreter and the libraries.
    python: str = ""
    libraries: dict[str, str] = Field(default_factory=dict)
    # Wall time, processor time of all its processes, and the largest process in MiB.
    seconds: Annotated[float, Field(ge=0)] = 0.0
    cpu_s: float = 0.0
    mib: int = 0


class Outcome(StrEnum):
    """What became of a cell, or of the whole rehearsal; the worst first."""

    # An oracle newly fails, or the head raises where the base does not.
    FAIL = "Fail"
    # The base does not run, so nothing can be compared.
    BLOCKED = "Blocked"
    # A quantity differs, or the head runs where the base does not, and no oracle newly fails.
    CHANGED = "Changed"
    # Every quantity is equal in every bit.
    EQUAL = "Equal"


@dataclass(frozen=True, slots=True)
class Difference:
    """One quantity of a cell that is not what it is at the base."""

    # Its name.
    quantity: str
    # What differs, in a few words.
    what: str
    # By how much of its size, where it has one.
    size: float | None = None


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """What the change does in one cell."""

    cell: str
    outcome: Outcome
    # The oracles that fail at the head alone, or what the head raised.
    newly: tuple[OracleFinding, ...] = ()
    # Those that fail on both sides, and those that fail at the base alone.
    before_too: tuple[OracleFinding, ...] = ()
    fixed: tuple[OracleFinding, ...] = ()
    # In the order in which they came about.
    differences: tuple[Difference, ...] = ()
    # Why the head or the base gave nothing.
    head_error: CellError | None = None
    base_error: CellError | None = None
    # The first changed function that the cell entered, as `path:qualified name`; empty where it entered none.
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Unentered:
    """A changed function, with those of its changed lines that no cell entered; empty: the function itself."""

    path: str
    symbol: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The verdict on a change."""

    outcome: Outcome
    cells: tuple[CellVerdict, ...]
    # What is changed and was entered by no cell.
    unentered: tuple[Unentered, ...]
    # How many changed functions there are.
    changed: int
    # The head's interpreter and libraries, in words.
    environment: str = ""

    def of(self, outcome: Outcome) -> tuple[CellVerdict, ...]:
        """The cells with an outcome."""
        return tuple(cell for cell in self.cells if cell.outcome is outcome)


_NO_RECORD = CellError(type="Missing", text="there is no record of it", at="")


def judge_rehearsal(
    base: Mapping[str, CellRecord], head: Mapping[str, CellRecord], changed: Iterable[ChangedFunction]
) -> Rehearsal:
    """Compare the records of two trees, by cell, and judge the change."""
    functions = tuple(changed)
    names = [IMPORTS, *(name for name in head if name != IMPORTS), *(name for name in base if name not in head)]
    cells = tuple(_judge_cell(name, base.get(name), head.get(name), functions) for name in dict.fromkeys(names))
    imported, *others = cells
    # What is blocked in some cells does not hide what others show; where it is all of them, nothing was compared.
    compared = {cell.outcome for cell in others if cell.outcome is not Outcome.BLOCKED}
    shown = compared | ({imported.outcome} - {Outcome.BLOCKED})
    blocked = imported.outcome is Outcome.BLOCKED or not (compared or imported.outcome is Outcome.FAIL)
    outcome = Outcome.BLOCKED if blocked else next(outcome for outcome in Outcome if outcome in shown)
    record = head.get(IMPORTS)
    libraries = "" if record is None else ", ".join(f"{name} {version}" for name, version in record.libraries.items())
    environment = "" if record is None else f"Python {record.python}, {libraries}"
    return Rehearsal(outcome, cells, tuple(_unentered(functions, head.values())), len(functions), environment)


def _judge_cell(
    name: str, base: CellRecord | None, head: CellRecord | None, functions: tuple[ChangedFunction, ...]
) -> CellVerdict:
    base_error = _NO_RECORD if base is None else base.error
    head_error = _NO_RECORD if head is None else head.error
    cause = "" if head is None else _cause(head.entered, functions)
    if base is None or (base_error is not None and head_error is not None):
        # Two errors are never called equal: nothing of the cell was compared.
        return CellVerdict(name, Outcome.BLOCKED, head_error=head_error, base_error=base_error, cause=cause)
    if head_error is not None:
        return CellVerdict(name, Outcome.FAIL, head_error=head_error, cause=cause)
    assert head is not None
    failing = {finding.oracle: finding for finding in head.oracles if not finding.passed}
    if base_error is not None:
        return CellVerdict(
            name, Outcome.CHANGED, before_too=tuple(failing.values()), base_error=base_error, cause=cause
        )
    failed = {finding.oracle: finding for finding in base.oracles if not finding.passed}
    newly = tuple(finding for oracle, finding in failing.items() if oracle not in failed)
    found = tuple(differences(base, head))
    return CellVerdict(
        name,
        Outcome.FAIL if newly else Outcome.CHANGED if found else Outcome.EQUAL,
        newly=newly,
        before_too=tuple(finding for oracle, finding in failing.items() if oracle in failed),
        fixed=tuple(finding for oracle, finding in failed.items() if oracle not in failing),
        differences=found,
        cause=cause,
    )


def differences(base: CellRecord, head: CellRecord) -> Iterator[Difference]:
    """The quantities that differ, in the order in which the head's came about; those that are gone are last."""
    for name, value in {**head.values, **head.quantities}.items():
        earlier = base.quantities[name] if name in base.quantities else base.values.get(name, _NOTHING)
        if earlier is _NOTHING:
            yield Difference(name, "is new")
        else:
            yield from _difference(name, earlier, value)
    for name in [*base.values, *base.quantities]:
        if name not in head.quantities and name not in head.values:
            yield Difference(name, "is gone")


_NOTHING = object()


def _difference(name: str, base: object, head: object) -> Iterator[Difference]:
    match base, head:
        case TensorSummary(), TensorSummary():
            if base.shape != head.shape or base.dtype != head.dtype:
                before, after = (f"{list(side.shape)} {side.dtype}" for side in (base, head))
                yield Difference(name, f"is {after}, was {before}")
            elif base.digest != head.digest:
                yield Difference(name, "differs", _apart(base, head))
        case dict(), dict():
            for key in dict.fromkeys([*base, *head]):
                yield from _difference(f"{name}.{key}", base.get(key, _NOTHING), head.get(key, _NOTHING))
        case _ if base != head:
            size = None
            if isinstance(base, int | float) and isinstance(head, int | float) and base:
                size = abs(head - base) / abs(base)
            yield Difference(name, f"is {_short(head)}, was {_short(base)}", size)
        case _:
            pass


def _apart(base: TensorSummary, head: TensorSummary) -> float:
    """How far two tensors of one shape are apart, as a part of the base's size: by their products with random signs."""
    pairs = list(zip(base.sketch, head.sketch, strict=True))
    if any(one is None or other is None for one, other in pairs) or not base.norm:
        return math.inf
    apart = math.sqrt(sum((other - one) ** 2 for one, other in pairs if one is not None and other is not None))
    # Each product of a tensor with random signs is as large as its norm, on average of the squares.
    return apart / math.sqrt(len(pairs)) / base.norm


def _short(value: object) -> str:
    text = "missing" if value is _NOTHING else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _cause(entered: Entered, functions: Iterable[ChangedFunction]) -> str:
    """The first changed function that a cell entered."""
    changed = {f"{function.path}:{function.symbol}" for function in functions if function.symbol}
    return next((function for function in entered.functions if function in changed), "")


def _unentered(functions: Iterable[ChangedFunction], records: Iterable[CellRecord]) -> Iterator[Unentered]:
    """What of the head's changed functions no cell entered; what a change only removes is nowhere to be entered."""
    entered: dict[str, set[int]] = {}
    for record in records:
        for path, ranges in record.entered.lines.items():
            lines = entered.setdefault(path, set())
            lines.update(line for first, last in ranges for line in range(first, last + 1))
    for function in functions:
        if function.side is not Side.HEAD:
            continue
        seen = entered.get(function.path, set())
        missing = tuple(line for line in function.lines if line not in seen)
        inside = any(function.first_line <= line <= function.last_line for line in seen)
        if missing or (not function.lines and not function.excused and function.symbol and not inside):
            yield Unentered(function.path, function.symbol, missing)
