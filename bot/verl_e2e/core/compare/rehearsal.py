"""A rehearsal: what a change does to the cells that ran on a CPU, head against base, and the verdict on it.

A cell is judged in two ways. Its oracles say what must hold whatever the change is; one that fails at the base too
says nothing about the change. And every quantity of the cell is compared with the base's: two runs of one commit are
equal in every bit, so any difference is the change's. Whether it was meant is for a person to say.

Whether the cells would notice a fault is tried at the head: faults are put into each changed function that cells
entered, one at a time, and the cheapest of these cells run again. A function in which no fault is noticed was entered
and is not observed: that its cells are equal says nothing about it.

What a record or a trial says is the word of the code under test, so their documents are bounded.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from verl_e2e.core.model.document import Document
from verl_e2e.core.model.execution import ChangedFunction, Side

MOST_TRIALS = 5_000
# The quantity that holds the warnings of a rank.
WARNINGS = "warnings"
_TrialName = Annotated[str, Field(max_length=500)]


@dataclass(frozen=True, slots=True)
class ObserveLimits:
    """How much is tried."""

    # How many functions; 0: nothing is tried.
    functions: int = 20
    # How many faults in each function.
    faults: int = 6
    # Seconds for all of them together; what was not tried by then is named.
    seconds: float = 90.0

    @property
    def described(self) -> str:
        """The limits in words."""
        return f"at most {self.faults} in each of {self.functions} functions, within {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class FaultTargets:
    """What faults are put into."""

    # The changed lines of each function, by `path:qualified name`.
    functions: Mapping[str, tuple[int, ...]]
    limits: ObserveLimits


@dataclass(frozen=True, slots=True)
class RehearsedCommit:
    """A commit of Bridge with the one of Megatron-LM that it pins, each in a repository of this host."""

    bridge: str
    commit: str
    megatron_lm: str
    megatron_lm_commit: str


# Both contents of each file that is not the same at the base and at the head, by its path; None for one that is not
# there, cannot be read, or is a link.
DifferingFiles = Mapping[str, tuple[bytes | None, bytes | None]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to run over a tree."""

    # The names of the cells.
    cells: tuple[str, ...]
    # How the models of each family are made, by its name.
    recipes: Mapping[str, object]
    # What a consumer imports: each a `module`, its `attribute` or None, and whether the place is `guarded`.
    imports: tuple[Mapping[str, object], ...] = ()
    # None: no faults are tried.
    faults: FaultTargets | None = None
    # Of a head: what differs from its base.
    differing: DifferingFiles | None = None


# What runs over the base, and what over the head.
RehearsedPair = tuple[tuple[RehearsedCommit, Wanted], tuple[RehearsedCommit, Wanted]]


class Trial(Document):
    """One fault in one function, in one cell."""

    # The function, as `path:qualified name`.
    function: _TrialName
    # The fault, in a few words.
    fault: _TrialName
    # The cell that ran with it.
    cell: _TrialName
    # The oracles that fail with the fault and hold without it.
    oracles: Annotated[tuple[_TrialName, ...], Field(max_length=100)] = ()
    # The first quantities that differ.
    differing: Annotated[tuple[_TrialName, ...], Field(max_length=10)] = ()
    # The type of the error that the cell ended with; empty where it ran to its end.
    error: _TrialName = ""

    @property
    def noticed(self) -> bool:
        """Whether anything of the cell shows the fault."""
        return bool(self.oracles or self.differing or self.error)

    @property
    def measured(self) -> bool:
        """Whether an oracle or a quantity shows it, not a warning or an error alone."""
        return bool(self.oracles) or any(not name.startswith(WARNINGS) for name in self.differing)


class Observed(Document):
    """What the driver tried at the head."""

    # The faults that were put in, in the order in which they were tried.
    trials: Annotated[tuple[Trial, ...], Field(max_length=MOST_TRIALS)] = ()
    # Why nothing is said of a function, by `path:qualified name`.
    unjudged: dict[_TrialName, _TrialName] = Field(default_factory=dict)


class Sight(StrEnum):
    """What is known of a changed function that cells entered."""

    # An oracle or a quantity showed a fault in it, or all its faults ended in errors.
    OBSERVED = "observed"
    # Faults were put in, and nothing showed them, but for errors and warnings of others.
    UNNOTICED = "unnoticed"
    # No fault could be put in, or there was no time for it.
    UNJUDGED = "unjudged"


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known of one changed function that cells entered."""

    # The function, as `path:qualified name`.
    function: str
    sight: Sight
    # What noticed a fault (an oracle, else a quantity, else an error); why it was not judged; empty for the others.
    reason: str
    # The faults that were tried.
    trials: tuple[Trial, ...] = ()


def observable(changed: Iterable[ChangedFunction]) -> tuple[ChangedFunction, ...]:
    """The changed functions into which faults can be put: those of the head, but for what runs at import."""
    return tuple(function for function in changed if function.side is Side.HEAD and not function.at_import)


def observations(
    changed: Iterable[ChangedFunction], entered: frozenset[str], observed: Observed
) -> tuple[Observation, ...]:
    """What is known of each changed function that cells entered, in the order of the change."""
    trials: dict[str, list[Trial]] = {}
    for trial in observed.trials:
        trials.setdefault(trial.function, []).append(trial)
    found = []
    for name in dict.fromkeys(f"{function.path}:{function.symbol}" for function in observable(changed)):
        if name not in entered:
            continue
        tried, problem = tuple(trials.get(name, ())), observed.unjudged.get(name, "")
        # An oracle says more than a difference, and a difference more than an error, which needs no comparison.
        noticed = sorted(
            (trial for trial in tried if trial.noticed), key=lambda trial: (not trial.oracles, not trial.measured)
        )
        shown = {trial.fault for trial in noticed}
        if noticed and (noticed[0].measured or (not problem and all(trial.fault in shown for trial in tried))):
            first = noticed[0]
            sight, reason = Sight.OBSERVED, (*first.oracles, *first.differing, first.error)[0]
        elif tried and not problem:
            sight, reason = Sight.UNNOTICED, ""
        else:
            sight, reason = Sight.UNJUDGED, problem or "nothing is said of it"
        found.append(Observation(name, sight, reason, tried))
    return tuple(found)


# The record of what the process that all cells are forks of did: its imports.
IMPORTS = "import"
# The type of an error of the host alone: it had no process, thread or place for a file left.
EXHAUSTED = "Exhausted"
# A quantity of a rank ends in it and the number of the rank.
RANK = "@"
# More than a record of the largest cell has: its bytes, its quantities, its files with their entered lines.
MOST_RECORD_BYTES, MOST_BYTES_OF_ALL = 4 << 20, 256 << 20
MOST_QUANTITIES, MOST_ENTERED_FILES, _MOST_FUNCTIONS, LAST_LINE = 50_000, 5_000, 100_000, 200_000
# What is kept of the differences of one cell, and of the name of each.
MOST_DIFFERENCES, _MOST_CHARACTERS = 10_000, 500
_Name = Annotated[str, Field(max_length=1_000)]
_Text = Annotated[str, Field(max_length=4_000)]
# An empty module has a line 0.
_Line = Annotated[int, Field(ge=0, le=LAST_LINE)]


class CellError(Document):
    """Why a cell gave nothing."""

    # The type of the exception; `Hang` where the cell took too long, `Died` where a process of it ended without a word.
    type: _Name
    # Its words.
    text: _Text
    # The last line of Bridge or Megatron-LM on the way to it, as `megatron/core/utils.py:10`.
    at: _Name
    # The traceback's lines.
    traceback: Annotated[tuple[_Text, ...], Field(max_length=1_000)] = ()


class OracleFinding(Document):
    """What one oracle found in one cell."""

    # Its name in the table of oracles; of an import, the name that a consumer imports.
    oracle: _Name
    # Whether the deviation is within the oracle's bound.
    passed: bool
    # The largest relative deviation; `inf` where shapes or names differ.
    off: Annotated[float, Field(allow_inf_nan=False)] | Literal["inf"]
    # Where that is.
    where: _Text


class EnteredCode(Document):
    """What of the trees a cell entered."""

    # Lines as pairs of a first and a last one, by path.
    lines: Annotated[dict[_Name, tuple[tuple[_Line, _Line], ...]], Field(max_length=MOST_ENTERED_FILES)] = Field(
        default_factory=dict
    )
    # `path:qualified name` in the order in which they were entered.
    functions: Annotated[tuple[_Name, ...], Field(max_length=_MOST_FUNCTIONS)] = ()

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for path, ranges in self.lines.items():
            ends = [end for pair in ranges for end in pair]
            if any(first > last for first, last in ranges) or ends != sorted(ends):
                raise ValueError(f"the lines of {path} are not in order")
        return self


class TensorSummary(Document):
    """A tensor of a cell, as what is enough to compare it."""

    # Its sizes.
    shape: Annotated[tuple[int, ...], Field(max_length=16)]
    # torch's name of its type.
    dtype: _Name
    # The first 16 digits of the SHA-256 of its bytes.
    digest: Annotated[str, Field(max_length=64)]
    # Its Euclidean norm; None where a number of it is not finite.
    norm: float | None
    # Its products with a few fixed vectors of random signs.
    sketch: Annotated[tuple[float | None, ...], Field(max_length=64)]


# A tensor is read as one before it could be read as any JSON.
CellQuantity = Annotated[TensorSummary | JsonValue, Field(union_mode="left_to_right")]


class CellRecord(Document):
    """What a cell left."""

    # Its name in the table of cells, or `import`.
    cell: _Name
    # Why it gave nothing; None where it gave all.
    error: CellError | None
    # Whether the reason is that the cell's model could not be made, which no tree has a part in.
    no_model: bool = False
    # Whether it is the base's record, because the cell enters nothing that differs and so need not run again.
    carried: bool = False
    # What the oracles found; for the imports, whether each name that a consumer imports is there.
    oracles: Annotated[tuple[OracleFinding, ...], Field(max_length=1_000)] = ()
    # Values and tensors by name, in the order in which they came about.
    quantities: Annotated[dict[_Name, CellQuantity], Field(max_length=MOST_QUANTITIES)] = Field(default_factory=dict)
    # The lines and functions that it entered.
    entered: EnteredCode = EnteredCode()
    # For the imports: the interpreter and the libraries.
    python: _Name = ""
    libraries: Annotated[dict[_Name, _Name], Field(max_length=100)] = Field(default_factory=dict)
    # Wall time, processor time of all its processes, and the largest process in MiB.
    seconds: Annotated[float, Field(ge=0)] = 0.0
    cpu_s: float = 0.0
    mib: int = 0


class RunNote(Document):
    """How the driver of one tree ran, written by who started it; nothing of it is the code's own word."""

    # How it was kept apart from the recorder, or why it was not, as a sentence.
    isolation: str = ""
    # Whether it was kept apart.
    isolated: bool = False
    # Why it was ended early, as a sentence; empty where it ended by itself.
    ended: str = ""
    # The most memory that all its processes held at a time, and the wall time.
    peak_mib: Annotated[int, Field(ge=0)] = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0


class CellOutcome(StrEnum):
    """What became of a cell, or of the whole rehearsal; the worst first."""

    # An oracle newly fails, or the head raises where the base does not.
    FAIL = "Fail"
    # Nothing can be compared: the base does not run, or the host had nothing left for one side.
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
    # Whether one of the sides has no such entry in the mapping that the quantity is.
    one_sided: bool = False


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """What the change does in one cell."""

    cell: str
    outcome: CellOutcome
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
    # The changed function that the cell entered and that is the likeliest cause, as `path:qualified name`; empty where
    # it entered none.
    cause: str = ""
    # Whether the cell's model could not be made.
    no_model: bool = False

    @property
    def host_error(self) -> CellError | None:
        """Why a side gave nothing that it may give another time: the host's error, or a record that is missing."""
        if self.outcome is not CellOutcome.BLOCKED:
            return None
        errors = [error for error in (self.base_error, self.head_error) if error is not None]
        missing = len(errors) == 1 or any(error.type == _NO_RECORD.type for error in errors)
        return next((error for error in errors if error.type == EXHAUSTED), errors[0] if missing else None)

    @property
    def raises_at_base(self) -> bool:
        """Whether both sides gave nothing by an exception, and not for want of a record, a model, time or memory."""
        errors = self.base_error, self.head_error
        return not self.no_model and all(error is not None and error.type not in OF_THE_HOST for error in errors)


@dataclass(frozen=True, slots=True)
class Unentered:
    """A changed function, with those of its changed lines that no cell entered; empty: the function itself."""

    path: str
    symbol: str
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The verdict on a change."""

    outcome: CellOutcome
    cells: tuple[CellVerdict, ...]
    # What is changed and was entered by no cell.
    unentered: tuple[Unentered, ...]
    # How many changed functions there are.
    changed: int
    # The head's interpreter and libraries, in words.
    environment: str = ""
    # Whether all cells of the table were asked for.
    whole: bool = False
    # What is known of the changed functions that cells entered: whether a fault in them would be noticed.
    observations: tuple[Observation, ...] = ()
    # Within which limits that was tried.
    observe: ObserveLimits = field(default_factory=ObserveLimits)
    # How the head's code ran.
    run: RunNote = field(default_factory=RunNote)
    # How many cells did not run over the head, because they enter nothing that differs.
    carried: int = 0

    @property
    def equal_everywhere(self) -> bool:
        """Whether nothing that this table can show differs: then a change that differs at import alone is harmless.

        True where all cells of the table were asked for, the imports are equal, no cell differs, at least one was
        compared, and every changed line that runs at import was executed. A cell that raises at the base does not
        count: a run on it would have raised before the change, too.
        """
        imported = [cell for cell in self.cells if cell.cell == IMPORTS]
        others = [cell for cell in self.cells if cell.cell != IMPORTS]
        return (
            self.whole
            and self.outcome is CellOutcome.EQUAL
            and all(cell.outcome is CellOutcome.EQUAL for cell in imported)
            and all(cell.outcome is CellOutcome.EQUAL or cell.raises_at_base for cell in others)
            and all(item.symbol for item in self.unentered)
        )

    @property
    def ran(self) -> int:
        """How many cells ran over the head."""
        begun = (cell for cell in self.cells if cell.cell != IMPORTS and not cell.no_model)
        return sum(cell.head_error is None or cell.head_error.type not in _NEVER_RAN for cell in begun) - self.carried

    def of(self, outcome: CellOutcome) -> tuple[CellVerdict, ...]:
        """The cells with an outcome."""
        return tuple(cell for cell in self.cells if cell.outcome is outcome)


# Errors of a cell that no exception of the code stands behind.
OF_THE_HOST = frozenset({"Missing", "Hang", "Died", EXHAUSTED})
_NEVER_RAN = frozenset({"Missing", EXHAUSTED})
_NO_RECORD = CellError(type="Missing", text="there is no record of it", at="")
_NOT_BEGUN = CellError(type=EXHAUSTED, text="the process ended before it imported anything of the head", at="")


def judge_rehearsal(
    base: Mapping[str, CellRecord],
    head: Mapping[str, CellRecord],
    changed: Iterable[ChangedFunction],
    *,
    asked: Collection[str] = (),
    whole: bool = False,
    observed: Observed | None = None,
    observe: ObserveLimits | None = None,
    run: RunNote | None = None,
) -> Rehearsal:
    """Compare the records of two trees, by cell, and judge the change.

    `asked` are the cells that were to run: one without a record is judged, too. `whole` says that these are all of the
    table. `observed` is what the driver tried at the head, within the limits `observe`, and `run` how it ran.
    """
    functions = tuple(changed)
    names = [IMPORTS, *asked, *head, *base]
    # Before it imports the head, a driver leaves a record of that: without one none of the head's code ran.
    absent = _NO_RECORD if IMPORTS in head else _NOT_BEGUN
    judged = [_judge_cell(name, base.get(name), head.get(name), absent) for name in dict.fromkeys(names)]
    cells = tuple(_with_causes(judged, head, functions))
    imported, *others = cells
    # What the base blocks in some cells does not hide what others show; where it is all of them, nothing was compared.
    # What the host blocks may hide a fault.
    compared = {cell.outcome for cell in others if cell.outcome is not CellOutcome.BLOCKED}
    shown = compared | ({imported.outcome} - {CellOutcome.BLOCKED})
    blocked = (
        imported.outcome is CellOutcome.BLOCKED
        or not (compared or imported.outcome is CellOutcome.FAIL)
        or (CellOutcome.FAIL not in shown and any(cell.host_error for cell in others))
    )
    outcome = CellOutcome.BLOCKED if blocked else next(outcome for outcome in CellOutcome if outcome in shown)
    record = head.get(IMPORTS)
    libraries = ", ".join(f"{name} {version}" for name, version in record.libraries.items()) if record else ""
    environment = f"Python {record.python}, {libraries}" if record else ""
    entered = frozenset(
        function for name, cell in head.items() if name != IMPORTS for function in cell.entered.functions
    )
    return Rehearsal(
        outcome,
        cells,
        tuple(_unentered(functions, head.values())),
        len(functions),
        environment,
        whole,
        () if observed is None else observations(functions, entered, observed),
        observe or ObserveLimits(),
        run or RunNote(),
        sum(record.carried for record in head.values()),
    )


def _judge_cell(name: str, base: CellRecord | None, head: CellRecord | None, absent: CellError) -> CellVerdict:
    base_error = _NO_RECORD if base is None else base.error
    head_error = absent if head is None else head.error
    errors = [error.type for error in (base_error, head_error) if error is not None]
    if base is None or len(errors) > 1 or EXHAUSTED in errors:
        # Two errors are never called equal: nothing of the cell was compared.
        no_model = any(side is not None and side.no_model for side in (base, head))
        return CellVerdict(name, CellOutcome.BLOCKED, head_error=head_error, base_error=base_error, no_model=no_model)
    if head_error is not None:
        return CellVerdict(name, CellOutcome.FAIL, head_error=head_error)
    assert head is not None
    failing = {finding.oracle: finding for finding in head.oracles if not finding.passed}
    if base_error is not None:
        return CellVerdict(name, CellOutcome.CHANGED, before_too=tuple(failing.values()), base_error=base_error)
    failed = {finding.oracle: finding for finding in base.oracles if not finding.passed}
    newly = tuple(finding for oracle, finding in failing.items() if oracle not in failed)
    found = tuple(islice(quantity_differences(base, head), MOST_DIFFERENCES))
    return CellVerdict(
        name,
        CellOutcome.FAIL if newly else CellOutcome.CHANGED if found else CellOutcome.EQUAL,
        newly=newly,
        before_too=tuple(finding for oracle, finding in failing.items() if oracle in failed),
        fixed=tuple(finding for oracle, finding in failed.items() if oracle not in failing),
        differences=found,
    )


def quantity_differences(base: CellRecord, head: CellRecord) -> Iterator[Difference]:
    """The quantities that differ, in the order in which the head's came about; those that are gone are last."""
    for name, value in head.quantities.items():
        if name in base.quantities:
            yield from _difference(name, base.quantities[name], value)
        else:
            yield Difference(name, "is new")
    for name in base.quantities:
        if name not in head.quantities:
            yield Difference(name, "is gone")


_NOTHING = object()


def _difference(given: str, base: object, head: object) -> Iterator[Difference]:
    name = given[:_MOST_CHARACTERS]
    match base, head:
        case TensorSummary(), TensorSummary():
            before, after = (f"{list(side.shape)} {side.dtype}" for side in (base, head))
            if before != after:
                yield Difference(name, f"is {after}, was {before}")
            elif base.digest != head.digest:
                yield Difference(name, "differs", _apart(base, head))
        case dict(), dict():
            for key in dict.fromkeys([*base, *head]):
                yield from _difference(f"{name}.{key}", base.get(key, _NOTHING), head.get(key, _NOTHING))
        case float(), float() if math.isnan(base) and math.isnan(head):
            pass
        case _ if base != head:
            what = f"is {_short(head)}, was {_short(base)}"
            yield Difference(name, what, _relative(base, head), one_sided=_NOTHING in (base, head))
        case _:
            pass


def _relative(base: object, head: object) -> float | None:
    """How far two numbers are apart, as a part of the first; None for what is not a number, and for zero."""
    if not (isinstance(base, int | float) and isinstance(head, int | float) and base):
        return None
    try:
        size = abs(head - base) / abs(base)
    except OverflowError:
        return math.inf
    return math.inf if math.isnan(size) else size


def _apart(base: TensorSummary, head: TensorSummary) -> float:
    """How far two tensors of one shape are apart, as a part of the base's size: by their products with random signs."""
    pairs = list(zip(base.sketch, head.sketch, strict=False))
    finite = [(one, other) for one, other in pairs if one is not None and other is not None]
    if len(base.sketch) != len(head.sketch) or len(finite) < len(pairs) or not pairs or not base.norm:
        return math.inf
    apart = math.hypot(*(other - one for one, other in finite))
    # Each product of a tensor with random signs is as large as its norm, on average of the squares.
    return apart / math.sqrt(len(pairs)) / base.norm


def _short(value: object) -> str:
    text = "missing" if value is _NOTHING else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _with_causes(
    cells: Collection[CellVerdict], head: Mapping[str, CellRecord], functions: Iterable[ChangedFunction]
) -> Iterator[CellVerdict]:
    """The cells, each with the changed function that is the likeliest cause of what differs in it.

    Of the changed functions that it entered, that is the one whose entering goes together best with differing in all
    cells, by Ochiai's coefficient (Abreu, Zoeteweij and van Gemund, "On the accuracy of spectrum-based fault
    localization", 2007); of several the one that was entered first.
    """
    changed = {f"{function.path}:{function.symbol}" for function in functions if function.symbol}
    entered = {
        cell.cell: [function for function in head[cell.cell].entered.functions if function in changed]
        for cell in cells
        if cell.cell in head
    }
    differing = [cell.cell for cell in cells if cell.outcome in (CellOutcome.FAIL, CellOutcome.CHANGED)]
    with_difference = Counter(function for name in differing for function in entered.get(name, ()))
    anywhere = Counter(function for found in entered.values() for function in found)

    def likeliness(function: str) -> float:
        both = with_difference[function]
        return both / math.sqrt(len(differing) * anywhere[function]) if both else 0.0

    for cell in cells:
        yield replace(cell, cause=max(entered.get(cell.cell, ()), key=likeliness, default=""))


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
