"""What the criteria on fingerprints share: the snapshots of a run in order, what is expected of them, and findings.

Code under test writes the snapshots, so they find faults and no forgery: hostile code can write any of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from verl_e2e.core.compare.tensors import Difference, Found
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.phases import planned_phases
from verl_e2e.core.model.evidence import Criterion, Evidence, State
from verl_e2e.core.model.fingerprints import FINGERPRINTS_FILE, Kind, Point, Snapshot, Tensor
from verl_e2e.core.model.stages import Stage

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
    stage: Stage
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
    def differs(cls, expected: Tensor, found: Tensor, kind: Found) -> "TensorFault":
        """A tensor that differs from the expected one in this way."""
        return cls(found.name, str(kind), expected, found, kind.kind is Difference.STALE)


def tensors(snapshot: Snapshot, *kinds: Kind) -> dict[str, Tensor]:
    """The tensors of these kinds by name, those of parameters where none is given."""
    wanted = kinds or (Kind.PARAMETER,)
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


def finding(
    criterion: Criterion, state: State, summary: str, stage: Stage, notes: Iterable[str] = (), excerpt: str = ""
) -> Finding:
    """A finding of the file as a whole."""
    evidence = Evidence(criterion, state, summary, FINGERPRINTS_FILE, 0, excerpt)
    return Finding(evidence, stage, tuple(dict.fromkeys(notes))[:_MOST_NOTES])


def waived(criterion: Criterion, stage: Stage) -> Finding:
    """The finding in a folder without fingerprints."""
    return Finding(Evidence(criterion, State.WAIVED, NOT_RECORDED, FINGERPRINTS_FILE), stage)


def broken(
    criterion: Criterion, stage: Stage, summary: str, faults: Sequence[TensorFault], notes: Iterable[str] = ()
) -> Finding:
    """A finding of faulty tensors: the first is named in the sentence, a few more with their figures."""
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    sentence = f"{summary}: {first.name[:_SHOWN_NAME]}{more}: {first.what}"
    excerpt = "\n".join(line for fault in faults[:_SHOWN] for line in _shown(fault))
    return finding(criterion, State.BROKEN, sentence, stage, notes, excerpt)


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
    for model, count in most.items():
        if count:
            yield f"Fingerprints are of a sample: {count} tensors of the {model} on each rank were not compared"
