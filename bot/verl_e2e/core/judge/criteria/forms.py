"""Compare a parameter that ranks hold in parts at one point, and whole at another.

Megatron-FSDP leaves each data-parallel rank a part of every parameter when the model is built, which may be nothing of
it, and the whole from the first training step on (measured on two GPUs). Neither has changed then.
"""

from collections.abc import Iterable, Iterator, Sequence

from verl_e2e.core.compare.tensors import Difference, Found, adds_up, count, difference
from verl_e2e.core.judge.criteria.snapshots import tensors
from verl_e2e.core.model.fingerprints import Point, Ranks, Snapshot, Tensor

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

    def difference(self, name: str, first: Snapshot, second: Snapshot) -> Found | None:
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
        return None if adds_up(held, [whole]) else Found(Difference.OTHER)

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
