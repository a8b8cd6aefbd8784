"""Samples the host's memory and what the run holds of it, and says when the run must give way to others."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from verl_e2e_runner.process.memory import Bound, exhausted_bound, held_gib, read_bounds
from verl_e2e_runner.watch.thinning import Thinning

SAMPLE_S = 5.0


class Held(Protocol):
    """Asks how many GiB the processes of the run hold."""

    def __call__(self, *, exact: bool = False) -> float:
        """The GiB now; `exact` takes longer."""
        ...


@dataclass(slots=True)
class MemorySampler:
    """Looks at the host at each call, which is cheap, and at the run's processes every `SAMPLE_S` seconds.

    Where the host has nearly no memory left it looks at the processes at each call.
    """

    # The host's memory first; nothing where it is not sampled.
    read: Callable[[], Sequence[Bound]]
    held: Held
    # GiB that the run states as its need; None: it is never ended for its memory.
    need_gib: float | None = None
    # Why the run must end now, a sentence; else empty.
    loss: str = ""
    _due_at: float = 0.0
    _exact_at: float = 0.0
    _thinning: Thinning = field(default_factory=Thinning)
    _most_held_gib: float = 0.0
    _least_left_gib: float = float("inf")

    def tick(self, now: float) -> dict[str, object] | None:
        """The data of a `memory` event when one is due at `now` (monotonic seconds), else None."""
        bounds, due = self.read(), now >= self._due_at
        if not bounds or not (due or any(bound.short for bound in bounds)):
            return None
        held = self.held()
        self._most_held_gib = max(self._most_held_gib, held)
        self._least_left_gib = min(self._least_left_gib, bounds[0].available_gib)
        if exhausted_bound(bounds, held_gib=held, need_gib=self.need_gib) and now >= self._exact_at:
            self._exact_at = now + SAMPLE_S
            self.loss = self._loss(bounds)
        if not due:
            return None
        self._due_at = now + SAMPLE_S
        return _data(held, bounds[0].available_gib) if self._thinning.keeps_next() else None

    def peak(self) -> dict[str, object] | None:
        """The data of the closing `memory` event: the most that the run held, the least that was left; None without."""
        if not self._thinning.readings:
            return None
        return {"peak": _data(self._most_held_gib, self._least_left_gib), "readings": self._thinning.readings}

    def _loss(self, bounds: Sequence[Bound]) -> str:
        """The reason to end the run, by an exact look at what it holds."""
        held = self.held(exact=True)
        bound = exhausted_bound(bounds, held_gib=held, need_gib=self.need_gib)
        if bound is None or self.need_gib is None:
            return ""
        where = "The control group of the run" if bound.of_group else "The host"
        left = f"{where} has {bound.available_gib:.1f} of {bound.total_gib:.1f} GiB of memory left"
        return f"{left}, and the run holds {held:.1f} GiB, more than the {self.need_gib:g} GiB of its needs.memory_gib."


def open_memory_sampler(
    own: Callable[[], Collection[int]], need_gib: float | None, *, read: Callable[[], Sequence[Bound]] = read_bounds
) -> MemorySampler:
    """A sampler of the run's processes, whose numbers `own` looks for."""

    def held(*, exact: bool = False) -> float:
        return held_gib(own(), exact=exact)

    return MemorySampler(read, held, need_gib)


def _data(held: float, left: float) -> dict[str, object]:
    return {"held_mib": round(held * 1024), "available_mib": round(left * 1024)}
