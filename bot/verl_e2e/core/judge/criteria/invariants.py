"""The engine of the criteria on fingerprints: tensors at one point of a run equal those at another, up to a relation.

A criterion is an `Invariant`. It makes claims in the order in which they decide: the first one with a faulty tensor
breaks it, and an answer ends it. What is said of a tensor, and of what could not be compared, is worded here.

Code under test writes the snapshots, so they find faults and no forgery: hostile code can write any of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from verl_e2e.core.compare.steps import FoundDifference, TensorDifference, adds_up, count, difference
from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.judge.case import Case, trained_models
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.fingerprints import FINGERPRINTS_FILE, Fingerprints, Point, Ranks, Snapshot, Tensor, TensorKind
from verl_e2e.core.model.outcome import Stage

NOT_RECORDED = (
    "no state fingerprints are in the folder: what was resumed, replicated, frozen, trained and sent to the rollout "
    "was not compared tensor by tensor"
)
ROLLOUT_MODEL = "rollout"
_SHOWN, _SHOWN_NAME = 5, 120
# Code under test decides what they are about.
_MOST_NOTES = 10

# Tensors by name; several of one name are its parts, or those of which one has to be found again.
Tensors = Mapping[str, Sequence[Tensor]]
# What is wrong with the tensors found under a name, given those expected; None where nothing is.
Relation = Callable[[str, Sequence[Tensor], Sequence[Tensor]], FoundDifference | str | None]


@dataclass(frozen=True, slots=True)
class CriterionFinding:
    """What one criterion found: its evidence, the stage of a fault, and what it could not compare."""

    evidence: Evidence
    stage: Stage | None
    notes: tuple[str, ...] = ()
    # The first step whose samples a fault may have spoiled; None where that is not known.
    spoils: int | None = None


@dataclass(frozen=True, slots=True)
class TensorFault:
    """One tensor that is not what it should be."""

    name: str
    what: str
    # What was expected and what was found, None where one of them is not there.
    expected: Tensor | None = None
    found: Tensor | None = None
    # Whether it has what it had at an earlier point.
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """That no tensor is at fault; what is said where one is, and the stage of that."""

    text: str
    faults: Iterable[TensorFault]
    stage: Stage
    # As `CriterionFinding.spoils`.
    spoils: int | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """What ends a criterion; its stage where it is not the criterion's own."""

    state: State
    text: str
    stage: Stage | None = None


class Snapshots:
    """The snapshots of a case, and what a criterion could not compare of them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        # Sentences about what was not compared.
        self.notes: list[str] = []
        # How many tensors were compared.
        self.count = 0
        self._recorded = case.record.fingerprints or Fingerprints()
        # What was asked for already: code under test decides how many snapshots there are.
        self._found: dict[tuple[tuple[Point, ...], str, str | None], tuple[Snapshot, ...]] = {}
        # By the identity of a snapshot, which the record keeps alive.
        self._held: dict[int, dict[str, Tensor]] = {}
        # What all ranks hold at one moment, so that the parts of a tensor can be put together.
        self._moments: dict[tuple[str, str, Point, int], list[Snapshot]] = {}
        for item in self.at(*Point):
            self._moments.setdefault((item.phase, item.model, item.point, item.number), []).append(item)
        self._not_compared: dict[str, None] = {}

    def at(self, *points: Point, model: str = "", phase: str | None = None) -> tuple[Snapshot, ...]:
        """The snapshots at these points that hold anything, in the order of time; of one model and phase if given."""
        asked = (points, model, phase)
        if asked not in self._found:
            self._found[asked] = tuple(
                snapshot
                for snapshot in self._recorded.snapshots
                if snapshot.point in points
                and (not model or snapshot.model == model)
                and (phase is None or snapshot.phase == phase)
                and (snapshot.tensors or not snapshot.problem)
            )
        return self._found[asked]

    def left(self, phase: str, *points: Point) -> list[Snapshot]:
        """The actor's snapshots at these points, those that say only why nothing could be read included."""
        return [
            item
            for item in self._recorded.snapshots
            if item.point in points and item.model == "actor" and item.phase == phase
        ]

    def held(self, snapshot: Snapshot) -> dict[str, Tensor]:
        """The parameters of a snapshot by name."""
        if id(snapshot) not in self._held:
            self._held[id(snapshot)] = tensors(snapshot)
        return self._held[id(snapshot)]

    @property
    def phases(self) -> tuple[str, ...]:
        """The names of the job's phases."""
        return tuple(phase.name for phase in consumer_of(self.case.job).phases(self.case.job))

    @property
    def trained(self) -> tuple[tuple[str, str], ...]:
        """Each phase with each model that trains."""
        return tuple((phase, model) for phase in self.phases for model in trained_models(self.case))

    def gap(self, model: str, phase: str, *points: Point) -> str:
        """The first of these points at which a rank of the model left no snapshot, empty where every one did."""
        for point in points:
            seen = {snapshot.ranks.rank for snapshot in self.at(point, model=model, phase=phase)}
            absent = sorted(set(range(self.case.job.gpu_count)) - seen)
            if absent:
                of = f" of rank {', '.join(map(str, absent[:_SHOWN]))}" if seen else ""
                return self.absent(point, model, phase, of)
        return ""

    def absent(self, point: Point, model: str, phase: str, of: str = "") -> str:
        """The sentence that a fingerprint is not there, with what is known of why."""
        return f"no fingerprint '{point}' of the {model} in the {phase} phase{of}{hook_problems(self._recorded)}"

    def faults(
        self, expected: Tensors, found: Tensors, differs: Relation, *, absent: str = "", extra: str = ""
    ) -> Iterator[TensorFault]:
        """The tensors found that are not those expected.

        Without `absent` one that is not found is no fault, and without `extra` one that is not expected.
        """
        for name, wanted in expected.items():
            held = found.get(name, ())
            if held:
                self.count += 1
                what = differs(name, wanted, held)
                if what:
                    stale = isinstance(what, FoundDifference) and what.kind is TensorDifference.STALE
                    yield TensorFault(name, str(what), wanted[0], held[0], stale)
            elif absent:
                yield TensorFault(name, absent, wanted[0])
        if extra:
            beyond = (held[0] for name, held in found.items() if name not in expected)
            yield from (TensorFault(tensor.name, extra, None, tensor) for tensor in beyond)

    def difference(self, name: str, first: Snapshot, second: Snapshot) -> FoundDifference | None:
        """How a parameter that both snapshots hold differs in the second; None where it does not, or is unknown.

        Megatron-FSDP leaves each data-parallel rank a part of every parameter when the model is built, which may be
        nothing of it, and the whole from the first training step on (measured on two GPUs). A part is compared with
        the whole by the sums of all parts, and by their bits where one part has all elements.
        """
        before, after = self.held(first)[name], self.held(second)[name]
        if before.sharded == after.sharded:
            return difference(before, after)
        if not self.can_compare(name, first, second):
            self._not_compared[name] = None
            return None
        parts = [part for part in self._parts(name, first if before.sharded else second) if count(part)]
        if len(parts) == 1:
            return difference(parts[0], after) if before.sharded else difference(before, parts[0])
        return (
            None if adds_up(parts, [after if before.sharded else before]) else FoundDifference(TensorDifference.OTHER)
        )

    def can_compare(self, name: str, first: Snapshot, second: Snapshot) -> bool:
        """Whether the parts are one whole: all ranks left a fingerprint, and none holds a copy of another's part."""
        before, after = self.held(first)[name], self.held(second)[name]
        if before.sharded == after.sharded:
            return True
        at, whole = (first, after) if before.sharded else (second, before)
        return sum(map(count, self._parts(name, at))) == count(whole)

    def _parts(self, name: str, at: Snapshot) -> list[Tensor]:
        """The parts of a parameter that the ranks of its place hold at the moment of a snapshot."""
        own = self.held(at)[name]
        return [
            held[name]
            for snapshot in self._moments[at.phase, at.model, at.point, at.number]
            if name in (held := self.held(snapshot))
            and place_of_copies(snapshot.ranks, own) == place_of_copies(at.ranks, own)
        ]

    def note_not_whole(self) -> None:
        """Note how many parameters could not be compared so far because ranks hold parts of them."""
        if self._not_compared:
            first = next(iter(self._not_compared))
            self.notes.append(
                f"{len(self._not_compared)} parameters that ranks hold whole at one point and in parts at another were "
                f"not compared, because the parts of all ranks are not one whole: {first[:120]}"
            )

    def note_left_out(self, compared: Iterable[Snapshot]) -> None:
        """Note how many tensors of a large model were not read, by model."""
        most: dict[str, int] = {}
        for snapshot in compared:
            most[snapshot.model] = max(most.get(snapshot.model, 0), snapshot.left_out)
        self.notes += (
            f"Fingerprints are of a sample: {missing} tensors of the {model} on each rank were not compared"
            for model, missing in most.items()
            if missing
        )

    def note_uneven(self, model: str, phase: str, *points: Point) -> None:
        """Note which snapshots are missing at points that all processes pass equally often."""
        seen = {point: self.at(point, model=model, phase=phase) for point in points}
        ranks = {snapshot.pid: snapshot.ranks.rank for taken in seen.values() for snapshot in taken}
        times = max((snapshot.number + 1 for taken in seen.values() for snapshot in taken), default=0)
        for point, taken in seen.items():
            there = {(snapshot.pid, snapshot.number) for snapshot in taken}
            absent = [(pid, number) for number in range(times) for pid in ranks if (pid, number) not in there]
            if absent:
                (pid, number), more = absent[0], f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
                of = f"{number + 1} of the {model} on rank {ranks[pid]} in the {phase} phase"
                self.notes.append(f"There is no fingerprint '{point}' {of}{more}: nothing was compared there")


@dataclass(frozen=True, slots=True)
class Invariant:
    """A criterion on fingerprints: its claims, and the stage of what ends it otherwise."""

    stage: Stage
    claims: Callable[[Snapshots], Iterator[Claim | Ending]]

    def __call__(self, case: Case) -> CriterionFinding:
        """The first faulty claim, or the answer; waived where nothing is recorded."""
        if case.record.fingerprints is None:
            return CriterionFinding(Evidence(State.WAIVED, NOT_RECORDED, FINGERPRINTS_FILE), None)
        taken = Snapshots(case)
        claims = self.claims(taken)
        while isinstance(item := next(claims), Claim):
            faults = tuple(item.faults)
            if not faults:
                continue
            # The first tensor is named in the sentence, a few more with their figures.
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            sentence = f"{item.text}: {faults[0].name[:_SHOWN_NAME]}{more}: {faults[0].what}"
            rows = []
            for fault in faults[:_SHOWN]:
                rows.append(f"{fault.name[:_SHOWN_NAME]}: {fault.what}")
                for word, tensor in (("expected", fault.expected), ("found", fault.found)):
                    if tensor is not None:
                        shape = "x".join(map(str, tensor.shape[:8]))
                        figures = f"sum {tensor.sum!r}, square {tensor.square!r}, position {tensor.position!r}"
                        rows.append(f"  {word}: {tensor.dtype[:20]} {shape}, bits {tensor.bits[:16]}, {figures}")
            found = _finding(State.BROKEN, sentence, item.stage, taken, "\n".join(rows))
            return replace(found, spoils=item.spoils)
        return _finding(item.state, item.text, item.stage or self.stage, taken)


def _finding(state: State, summary: str, stage: Stage, taken: Snapshots, excerpt: str = "") -> CriterionFinding:
    notes = tuple(dict.fromkeys(taken.notes))[:_MOST_NOTES]
    return CriterionFinding(Evidence(state, summary, FINGERPRINTS_FILE, 0, excerpt), stage, notes)


def tensors(snapshot: Snapshot, *kinds: TensorKind) -> dict[str, Tensor]:
    """The tensors of these kinds by name, those of parameters where none is given."""
    wanted = kinds or (TensorKind.PARAMETER,)
    return {tensor.name: tensor for tensor in snapshot.tensors if tensor.kind in wanted}


def each(held: Mapping[str, Tensor]) -> Tensors:
    """Whole tensors, as a side of a comparison."""
    return {name: (tensor,) for name, tensor in held.items()}


def by_number(taken: Iterable[Snapshot]) -> dict[int, list[Snapshot]]:
    """The snapshots of each time that their point was passed."""
    groups: dict[int, list[Snapshot]] = {}
    for snapshot in taken:
        groups.setdefault(snapshot.number, []).append(snapshot)
    return groups


def is_whole(*taken: Snapshot) -> bool:
    """Whether all tensors were read."""
    return not any(snapshot.left_out or snapshot.problem for snapshot in taken)


def by_process(taken: Iterable[Snapshot]) -> dict[tuple[str, str, int], list[Snapshot]]:
    """The snapshots of each phase, model and process."""
    groups: dict[tuple[str, str, int], list[Snapshot]] = {}
    for snapshot in taken:
        groups.setdefault((snapshot.phase, snapshot.model, snapshot.pid), []).append(snapshot)
    return groups


def place_of_copies(ranks: Ranks, tensor: Tensor) -> tuple[int, ...]:
    """Where the ranks lie that hold copies of a tensor, or parts of it over the data-parallel group."""
    if tensor.expert:
        return ranks.pipeline, ranks.expert, ranks.expert_tensor
    return ranks.pipeline, ranks.tensor


def names(listed: Iterable[str]) -> str:
    """A few names, each once, and how many more there are."""
    every = list(dict.fromkeys(listed))
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(name[:_SHOWN_NAME] for name in every[:_SHOWN]) + more


def hook_problems(recorded: Fingerprints) -> str:
    """Which hooks were not installed or failed, to explain a fingerprint that is not there."""
    failed = (f"{hook.target}: {hook.problem}" for hook in recorded.hooks if hook.problem)
    rows = list(dict.fromkeys(row[: 2 * _SHOWN_NAME] for row in failed)) or [recorded.problem]
    shown = "; ".join(rows[:_SHOWN])
    return f" ({shown})" if shown else ""
