"""From wants to jobs: which jobs the conditions in changed code ask for, besides those of the table of levels.

A want that a planned job gives already needs nothing. The others go, at the least cost in all, into jobs that are
planned anyway or into new ones, within the budget of the policy. What no job can give, and what the budget leaves out,
is named.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.purposes import Purpose, purpose_of
from verl_e2e.core.model.wants import Want
from verl_e2e.core.plan.candidates import Candidate, Demand, JobMaker, demands_of, includes, may_change
from verl_e2e.core.plan.draft import Draft
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.plan.set_cover import Choices, cheapest


@dataclass(frozen=True, slots=True)
class NotCovered:
    """A place that no job is planned for, with the condition that leads into it."""

    purpose: Purpose
    # Why no job is planned for it, a clause.
    reason: str
    # The level of a job with these settings; None where no job can have them all.
    level: Level | None = None


@dataclass(frozen=True, slots=True)
class Derived:
    """The jobs of a plan after its wants were considered."""

    # The planned jobs in their order, some of them with more settings, then the new ones.
    jobs: tuple[JobOutline, ...]
    # What no job is planned for.
    not_covered: tuple[NotCovered, ...] = ()


@dataclass(slots=True)
class _Assignment:
    """Which candidate gives what, while it is being found."""

    candidates: list[Candidate]
    reasons: dict[int, str] = field(default_factory=dict)


def with_derived_jobs(
    jobs: Iterable[JobOutline], wants: Iterable[Want], policy: Policy, checkpoint: Checkpoint | None
) -> Derived:
    """The jobs with the settings that the wants ask for, each with the places that it is there for.

    `checkpoint` is that of a new job for which any model will do.
    """
    planned = tuple(jobs)
    maker = JobMaker(policy, checkpoint)
    demands = demands_of(wants)
    found = _assigned(planned, demands, maker, policy.budget.gpu_minutes)
    purposes: dict[int, list[Purpose]] = {}
    left: list[NotCovered] = []
    for demand in demands:
        holder = _holder(demand, found.candidates, maker)
        own = [purpose_of(want) for want in demand.wants]
        if holder is None:
            level = demand.draft.level if isinstance(demand.draft, Draft) else None
            left.extend(NotCovered(purpose, found.reasons[demand.number], level) for purpose in own)
        else:
            purposes.setdefault(id(holder), []).extend(own)
    made = {id(item): replace(item.job, purposes=tuple(purposes.get(id(item), ()))) for item in found.candidates}
    replaced = {id(item.planned): made[id(item)] for item in found.candidates if item.planned is not None}
    new = [made[id(item)] for item in found.candidates if item.planned is None]
    new.sort(key=lambda job: (job.variant.level, job.id))
    return Derived((*(replaced.get(id(job), job) for job in planned), *new), tuple(left))


def _assigned(planned: tuple[JobOutline, ...], demands: Sequence[Demand], maker: JobMaker, budget: int) -> _Assignment:
    """The candidates after each demand that can be met was given to one, at the least cost within the budget."""
    standing = [item for job in planned if (item := maker.of_planned(job)) is not None]
    changing = [item for item in standing if may_change(item)]
    fixed = [item for item in standing if not may_change(item)]
    found = _Assignment(standing)
    needed: list[Demand] = []
    for demand in demands:
        if any(maker.gives(item, demand) for item in fixed):
            continue
        fits = any(maker.add(item, demand) for item in changing)
        problem = "" if fits else maker.problem(demand)
        found.reasons[demand.number] = problem or _beyond(budget)
        if not problem:
            needed.append(demand)
    minutes = budget - sum(job.gpu_minutes for job in planned) + sum(item.price for item in changing)
    made = changing
    while needed:
        largest = _largest(needed)
        tried, _ = cheapest(made, largest, Choices(maker.add, _price))
        made = _within(tried, minutes, maker)
        # Where a job for more is beyond the budget, one for less may not be.
        needed = [
            demand
            for demand in needed
            if demand not in largest and not any(maker.gives(item, demand) for item in (*fixed, *made))
        ]
    found.candidates = [*fixed, *made]
    return found


def _largest(demands: Sequence[Demand]) -> list[Demand]:
    """The demands whose jobs meet all of them; one stays of those that come to the same."""
    kept = list(demands)
    for demand in demands:
        if any(includes(other, demand) for other in kept):
            kept.remove(demand)
    return kept


def _within(made: Sequence[Candidate], minutes: int, maker: JobMaker) -> list[Candidate]:
    """The candidates without the demands that cost most, until they take no more than these GPU minutes."""
    kept = list(made)
    while sum(item.price for item in kept) > minutes:
        costly = [item for item in kept if item.price > (item.planned.gpu_minutes if item.planned is not None else 0)]
        ways = [(item, _without(item, demand, maker)) for item in costly for demand in item.demands]
        if not ways:
            break
        item, less = max(ways, key=lambda way: way[0].price - (way[1].price if way[1] is not None else 0))
        kept = [*(other for other in kept if other is not item), *([less] if less is not None else [])]
    return kept


def _without(item: Candidate, demand: Demand, maker: JobMaker) -> Candidate | None:
    """The candidate without one of its demands; None for a new job that has no other."""
    found = None if item.planned is None else maker.of_planned(item.planned)
    for other in item.demands:
        if other is not demand:
            found = maker.add(found, other) or found
    return found


def _holder(demand: Demand, candidates: Sequence[Candidate], maker: JobMaker) -> Candidate | None:
    """The candidate that was given the demand, else the cheapest one that meets it."""
    own = (item for item in candidates if demand in item.demands)
    able = [item for item in candidates if maker.gives(item, demand)]
    return next(own, None) or min(able, key=_price, default=None)


def _price(item: Candidate) -> int:
    return item.price


def _beyond(budget: int) -> str:
    return f"the plan would take more than the {budget} GPU minutes of the policy's budget"
