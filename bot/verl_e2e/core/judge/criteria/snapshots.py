"""What the criteria on fingerprints share: the snapshots of a run in order, what is expected of them, and findings.

Code under test writes the snapshots, so they find faults and no forgery: hostile code can write any of them.

Compare a parameter that ranks hold in parts at one point, and whole at another.

Megatron-FSDP leaves each data-parallel rank a part of every parameter when the model is built, which may be nothing of
it, and the whole from the first training step on (measured on two GPUs). Neither has changed then.

Warnings that the checkpoint has no output layer, where the model needs none: no weight was lost.

The checkpoint of a model with tied embeddings holds no output layer. verl gives a critic a head of its own in that
place, one row that no checkpoint holds, and no longer ties it, so Bridge looks for the output layer, warns
(`build_conversion_tasks` in `model_bridge.py`) and leaves the head as it was made. The words of the warning excuse
nothing: an untied model whose checkpoint is incomplete gets the same ones. The recorded weights tell the two apart.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from verl_e2e.core.compare.steps import FoundDifference, TensorDifference, adds_up, count, difference, is_constant, same
from verl_e2e.core.judge.case import Case, planned_phases
from verl_e2e.core.judge.criteria.health import trained_models
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.fingerprints import FINGERPRINTS_FILE, Point, Ranks, Snapshot, Tensor, TensorKind
from verl_e2e.core.model.outcome import Stage

NOT_RECORDED = (
    "no state fingerprints are in the folder: what was resumed, replicated, frozen, trained and sent to the rollout "
    "was not compared tensor by tensor"
)
ROLLOUT = "rollout"
_SHOWN, _SHOWN_NAME = 5, 120
# Code under test decides what they are about.
_MOST_NOTES = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """What one criterion found: its evidence, the stage of a fault, and what it could not compare."""

    evidence: Evidence
    stage: Stage | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorFault:
    """One tensor that is not what it should be."""

    # Its name.
    name: str
    # What is wrong with it.
    what: str
    # What was expected and what was found, None where one of them is not there.
    expected: Tensor | None = None
    found: Tensor | None = None
    # Whether it has what it had at an earlier point.
    stale: bool = False

    @classmethod
    def differs(cls, expected: Tensor, found: Tensor, kind: FoundDifference) -> "TensorFault":
        """A tensor that differs from the expected one in this way."""
        return cls(found.name, str(kind), expected, found, kind.kind is TensorDifference.STALE)


def tensors(snapshot: Snapshot, *kinds: TensorKind) -> dict[str, Tensor]:
    """The tensors of these kinds by name, those of parameters where none is given."""
    wanted = kinds or (TensorKind.PARAMETER,)
    return {tensor.name: tensor for tensor in snapshot.tensors if tensor.kind in wanted}


def snapshots(case: Case, *points: Point, model: str = "", phase: str | None = None) -> tuple[Snapshot, ...]:
    """The snapshots at these points, in the order of time; of one model and one phase where they are given."""
    found = case.record.fingerprints
    return tuple(
        snapshot
        for snapshot in (found.snapshots if found else ())
        if snapshot.point in points
        and (not model or snapshot.model == model)
        and (phase is None or snapshot.phase == phase)
        and (snapshot.tensors or not snapshot.problem)
    )


def by_process(found: Iterable[Snapshot]) -> dict[tuple[str, str, int], list[Snapshot]]:
    """The snapshots of each phase, model and process."""
    groups: dict[tuple[str, str, int], list[Snapshot]] = {}
    for snapshot in found:
        groups.setdefault((snapshot.phase, snapshot.model, snapshot.pid), []).append(snapshot)
    return groups


def phases(case: Case) -> tuple[str, ...]:
    """The names of the job's phases."""
    return tuple(phase.name for phase in planned_phases(case.job))


def gap(case: Case, model: str, phase: str, *points: Point) -> str:
    """The first of these points at which a rank of the model left no snapshot in the phase, empty where none is."""
    for point in points:
        seen = {snapshot.ranks.rank for snapshot in snapshots(case, point, model=model, phase=phase)}
        absent = sorted(set(range(case.job.gpu_count)) - seen)
        if absent:
            of = f" of rank {', '.join(map(str, absent[:_SHOWN]))}" if seen else ""
            return f"no fingerprint '{point}' of the {model} in the {phase} phase{of}{hook_problems(case)}"
    return ""


def uneven_notes(case: Case, model: str, phase: str, *points: Point) -> Iterator[str]:
    """Which snapshots are missing at points that a process passes equally often, together with every other process."""
    seen = {point: snapshots(case, point, model=model, phase=phase) for point in points}
    ranks = {snapshot.pid: snapshot.ranks.rank for taken in seen.values() for snapshot in taken}
    count = max((snapshot.number + 1 for taken in seen.values() for snapshot in taken), default=0)
    for point, taken in seen.items():
        there = {(snapshot.pid, snapshot.number) for snapshot in taken}
        absent = [(pid, number) for number in range(count) for pid in ranks if (pid, number) not in there]
        if absent:
            (pid, number), more = absent[0], f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
            of = f"{number + 1} of the {model} on rank {ranks[pid]} in the {phase} phase"
            yield f"There is no fingerprint '{point}' {of}{more}: nothing was compared there"


def hook_problems(case: Case) -> str:
    """Which hooks were not installed or failed, to explain a fingerprint that is not there."""
    found = case.record.fingerprints
    rows = [
        f"{hook.target}: {hook.problem or 'not installed'}" for hook in (found.hooks if found else ()) if hook.problem
    ]
    rows = list(dict.fromkeys(row[: 2 * _SHOWN_NAME] for row in rows)) or (
        [found.problem] if found and found.problem else []
    )
    return f" ({'; '.join(rows[:_SHOWN])})" if rows else ""


def finding(state: State, summary: str, stage: Stage, notes: Iterable[str] = (), excerpt: str = "") -> Finding:
    """A finding of the file as a whole."""
    evidence = Evidence(state, summary, FINGERPRINTS_FILE, 0, excerpt)
    return Finding(evidence, stage, tuple(dict.fromkeys(notes))[:_MOST_NOTES])


def broken(stage: Stage, summary: str, faults: Sequence[TensorFault], notes: Iterable[str] = ()) -> Finding:
    """A finding of faulty tensors: the first is named in the sentence, a few more with their figures."""
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    sentence = f"{summary}: {first.name[:_SHOWN_NAME]}{more}: {first.what}"
    excerpt = "\n".join(line for fault in faults[:_SHOWN] for line in _shown(fault))
    return finding(State.BROKEN, sentence, stage, notes, excerpt)


def _shown(fault: TensorFault) -> Iterator[str]:
    yield f"{fault.name[:_SHOWN_NAME]}: {fault.what}"
    for word, tensor in (("expected", fault.expected), ("found", fault.found)):
        if tensor is not None:
            shape = "x".join(map(str, tensor.shape[:8]))
            figures = f"sum {tensor.sum!r}, square {tensor.square!r}, position {tensor.position!r}"
            yield f"  {word}: {tensor.dtype[:20]} {shape}, bits {tensor.bits[:16]}, {figures}"


def names(found: Iterable[str]) -> str:
    """A few names, and how many more there are."""
    listed = list(found)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(name[:_SHOWN_NAME] for name in listed[:_SHOWN]) + more


def left_out_note(compared: Iterable[Snapshot]) -> Iterator[str]:
    """How many tensors of a large model were not read, and what could not be read, by model."""
    most: dict[str, int] = {}
    for snapshot in compared:
        most[snapshot.model] = max(most.get(snapshot.model, 0), snapshot.left_out)
    for model, missing in most.items():
        if missing:
            yield f"Fingerprints are of a sample: {missing} tensors of the {model} on each rank were not compared"


_Moment = tuple[str, str, Point, int]


def place_of(ranks: Ranks, tensor: Tensor) -> tuple[int, ...]:
    """Where the ranks lie that hold copies of a tensor, or parts of it over the data-parallel group."""
    if tensor.expert:
        return ranks.pipeline, ranks.expert, ranks.expert_tensor
    return ranks.pipeline, ranks.tensor


class Forms:
    """What all ranks held at each moment, so that the parts of a tensor can be put together."""

    def __init__(self, found: Iterable[Snapshot]) -> None:
        self._groups: dict[_Moment, list[Snapshot]] = {}
        # By the identity of a snapshot, which the groups keep alive.
        self._held: dict[int, dict[str, Tensor]] = {}
        self._not_compared: dict[str, None] = {}
        for snapshot in found:
            self._groups.setdefault(_moment(snapshot), []).append(snapshot)
            self._held[id(snapshot)] = tensors(snapshot)

    def held(self, snapshot: Snapshot) -> dict[str, Tensor]:
        """The parameters of one of the snapshots by name."""
        return self._held[id(snapshot)]

    def difference(self, name: str, first: Snapshot, second: Snapshot) -> FoundDifference | None:
        """How a parameter that both snapshots hold differs in the second; None where it does not, or is unknown.

        A part is compared with the whole by the sums of all parts, and by their bits where one part has all elements.
        """
        before, after = self.held(first)[name], self.held(second)[name]
        if before.sharded == after.sharded:
            return difference(before, after)
        if not self.can_compare(name, first, second):
            self._not_compared[name] = None
            return None
        parts, whole = self._parts_and_whole(name, first, second)
        held = [part for part in parts if count(part)]
        if len(held) == 1:
            return difference(held[0], whole) if before.sharded else difference(whole, held[0])
        return None if adds_up(held, [whole]) else FoundDifference(TensorDifference.OTHER)

    def can_compare(self, name: str, first: Snapshot, second: Snapshot) -> bool:
        """Whether the parts are one whole: all ranks left a fingerprint, and none holds a copy of another's part."""
        before, after = self.held(first)[name], self.held(second)[name]
        if before.sharded == after.sharded:
            return True
        parts, whole = self._parts_and_whole(name, first, second)
        return sum(map(count, parts)) == count(whole)

    def notes(self) -> Iterator[str]:
        """How many parameters could not be compared so far."""
        if self._not_compared:
            first = next(iter(self._not_compared))
            yield (
                f"{len(self._not_compared)} parameters that ranks hold whole at one point and in parts at another were "
                f"not compared, because the parts of all ranks are not one whole: {first[:120]}"
            )

    def _parts_and_whole(self, name: str, first: Snapshot, second: Snapshot) -> tuple[Sequence[Tensor], Tensor]:
        """Of two snapshots, one with parts: the parts of all ranks, and the whole of the other."""
        at, other = (first, second) if self.held(first)[name].sharded else (second, first)
        return self._parts(name, at), self.held(other)[name]

    def _parts(self, name: str, at: Snapshot) -> Sequence[Tensor]:
        own = self.held(at)[name]
        place = place_of(at.ranks, own)
        return [
            held[name]
            for snapshot in self._groups[_moment(at)]
            if name in (held := self.held(snapshot)) and place_of(snapshot.ranks, own) == place
        ]


def _moment(snapshot: Snapshot) -> _Moment:
    return snapshot.phase, snapshot.model, snapshot.point, snapshot.number


_ABSENT = re.compile(r"Can't find (\S{1,200}) in hf_keys$")
# A language model's output layer under the names that Hugging Face gives it.
_OUTPUT_OF_FILES = re.compile(r"(?:^|\.)(?:lm_head|output|output_layer|embed_out)\.weight$")
_EMBEDDING = re.compile(r"(?:^|\.)embedding\.word_embeddings\.weight$")
_OUTPUT = re.compile(r"(?:^|\.)output_layer\.weight$")


def without_needless_warnings(case: Case) -> Case:
    """The case with the warnings set apart that name only an output layer which the recorded weights replace."""
    lost = case.facts.lost_weights
    needless = tuple(line for line in lost if (found := _ABSENT.search(line.text)) and _is_replaced(case, found[1]))
    if not needless:
        return case
    facts = replace(case.facts, lost_weights=tuple(line for line in lost if line not in needless))
    return replace(case, facts=facts, needless_warnings=needless)


def _is_replaced(case: Case, name: str) -> bool:
    """Whether the name is that of an output layer, which in every phase no model takes from the checkpoint."""
    return _OUTPUT_OF_FILES.search(name) is not None and all(_in_phase(case, phase, name) for phase in phases(case))


def _in_phase(case: Case, phase: str, name: str) -> bool:
    files = snapshots(case, Point.CHECKPOINT_FILE, phase=phase)
    if not files or any(snapshot.left_out or snapshot.problem for snapshot in files):
        return False
    if any(tensor.name == name for snapshot in files for tensor in snapshot.tensors):
        return False
    imported = {model: _imported(case, phase, model) for model in trained_models(case)}
    if not all(_is_complete(case, found) for found in imported.values()):
        return False
    heads = _named(imported.get("critic", ()), _OUTPUT)
    there = [*heads, *_named(imported["actor"], _OUTPUT)]
    return bool(there) and _is_tied(imported["actor"]) and all(head.shape[:1] == (1,) for head in heads)


def _imported(case: Case, phase: str, model: str) -> tuple[Snapshot, ...]:
    return snapshots(case, Point.WEIGHTS_IMPORTED, model=model, phase=phase)


def _is_complete(case: Case, found: Iterable[Snapshot]) -> bool:
    """Whether every rank left all its tensors."""
    whole = {snapshot.ranks.rank for snapshot in found if not snapshot.left_out and not snapshot.problem}
    return whole == set(range(case.job.gpu_count))


def _is_tied(found: tuple[Snapshot, ...]) -> bool:
    """Whether each output layer holds the embedding of its tensor rank; a single stage has none of its own then."""
    embeddings = {
        snapshot.ranks.tensor: tensor
        for snapshot in found
        if snapshot.ranks.pipeline == 0
        for tensor in _named((snapshot,), _EMBEDDING)
    }
    outputs = [(snapshot.ranks.tensor, tensor) for snapshot in found for tensor in _named((snapshot,), _OUTPUT)]
    return bool(embeddings) and all(
        place in embeddings and same(embeddings[place], tensor) and not is_constant(tensor) for place, tensor in outputs
    )


def _named(found: Iterable[Snapshot], name: re.Pattern[str]) -> list[Tensor]:
    return [tensor for snapshot in found for tensor in tensors(snapshot).values() if name.search(tensor.name)]
