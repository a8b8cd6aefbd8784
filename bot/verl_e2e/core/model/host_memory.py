"""Memory of a host that runs share: how much of it one more run may have, and when a run must give way."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# Below the larger of these the kernel soon ends processes, and not only those of the run that took the memory.
SHORT_GIB = 2.0
SHORT_PART = 0.03
# An engine may limit a run to exactly its need, and the runner itself takes some of that.
ENOUGH_OF_GROUP = 0.9

Gib = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Bound:
    """One limit of memory, that of the host or of a control group, and what is left below it."""

    # GiB below the limit, used or not.
    total_gib: float
    # GiB that processes can still have, without swap.
    available_gib: float
    # The number of the control group that has the limit; 0: the host itself.
    group: int = 0

    @property
    def short(self) -> bool:
        """Whether it is nearly used up."""
        return self.available_gib < max(SHORT_GIB, SHORT_PART * self.total_gib)


class Claim(BaseModel):
    """What a run may have of the host's memory, as it says itself; keys of a later version are left out."""

    model_config = ConfigDict(frozen=True, strict=True)

    # GiB that it may have in all.
    need_gib: Gib
    # GiB that it holds now.
    held_gib: Gib
    # The control groups with a limit that it runs in.
    groups: tuple[int, ...] = ()

    @property
    def open_gib(self) -> float:
        """GiB that it may still take."""
        return max(0.0, self.need_gib - self.held_gib)

    def is_below(self, bound: Bound) -> bool:
        """Whether what it takes counts for that limit."""
        return bound.group == 0 or bound.group in self.groups


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """What one more run may have below a limit."""

    bound: Bound
    # GiB that runs which began before may still take below it.
    promised_gib: float
    # How many runs these are.
    runs: int

    @property
    def free_gib(self) -> float:
        """GiB that are available and promised to no one."""
        return max(0.0, self.bound.available_gib - self.promised_gib)

    def missing_gib(self, need_gib: float) -> float:
        """GiB that a run with that need would miss; at most 0 where there is enough for it."""
        return need_gib * (ENOUGH_OF_GROUP if self.bound.group else 1) - self.free_gib


def least_free(bounds: Sequence[Bound], claims: Iterable[Claim], need_gib: float) -> FreeMemory:
    """What is free below the limit where a run with that need would miss most.

    `claims` are those of the other runs, `bounds` at least that of the host.
    """
    others = tuple(claims)
    return max((_free(bound, others) for bound in bounds), key=lambda free: free.missing_gib(need_gib))


def _free(bound: Bound, claims: Sequence[Claim]) -> FreeMemory:
    below = [claim for claim in claims if claim.is_below(bound)]
    return FreeMemory(bound, sum(claim.open_gib for claim in below), len(below))


def exhausted_bound(bounds: Iterable[Bound], *, held_gib: float, need_gib: float | None) -> Bound | None:
    """The limit for which a run must end now: it is nearly used up, and the run holds more than it states as its need.

    None where all is well, and for a run that states no need.
    """
    if need_gib is None or held_gib <= need_gib:
        return None
    return next((bound for bound in bounds if bound.short), None)
