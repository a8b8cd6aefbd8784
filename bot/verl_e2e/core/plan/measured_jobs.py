"""From measured places to jobs: few GPU minutes by which runs do what cells and jobs did that entered each place.

A place that a planned job enters needs nothing. The others are taken in turn, those that the fewest cells enter first,
each into the job that costs least more: one that was made for another place, with what this one needs besides, or one
of its own. A job whose places others enter too goes. What no job can have, and what the budget leaves out, is named.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.levels import POINTS, VARIANTS, Level, Variant
from verl_e2e.core.model.model_fit import misfits
from verl_e2e.core.model.purposes import Purpose, purpose_of
from verl_e2e.core.model.space import Point
from verl_e2e.core.model.wants import Axis, Want
from verl_e2e.core.plan.cell_settings import CELL_AXES, CellTable
from verl_e2e.core.plan.draft import Draft
from verl_e2e.core.plan.job_models import is_on_family, job_on_model, shows, unread
from verl_e2e.core.plan.job_names import name_of
from verl_e2e.core.plan.measured_places import Place
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.plan.standing import Standing, standing_wants

# What no level has a job for is run as a save and a resume, which are judged on any settings.
_RESUMED = Want(axes={Axis.RESUME: True})
_NOTHING = Want()
# The ways to enter one place of which a job is made, and the cells that a report names.
_MOST_WAYS, _MOST_NAMED = 8, 2


@dataclass(frozen=True, slots=True)
class NotCovered:
    """A place that no job is planned for."""

    purpose: Purpose
    # Why no job is planned for it, a clause.
    reason: str
    # The level of a job for it; None where no job can be one.
    level: Level | None = None


@dataclass(frozen=True, slots=True)
class Derived:
    """The jobs of a plan after the places of its change were considered."""

    # The planned jobs in their order, then the new ones.
    jobs: tuple[JobOutline, ...]
    # What no job is planned for.
    not_covered: tuple[NotCovered, ...] = ()


@dataclass(frozen=True, slots=True)
class Need:
    """What some places need of a job alike."""

    # The ways to have it, the best first; any one will do.
    ways: tuple[Want, ...]
    # The places.
    purposes: tuple[Purpose, ...]
    # The cells that enter them, by their places in the map.
    cells: frozenset[int] = frozenset()
    # The ids of the variants of measured jobs that entered them.
    variants: frozenset[str] = frozenset()
    # What a job must have besides, whoever enters them.
    standing: Want = _NOTHING


@dataclass(frozen=True, slots=True)
class _Made:
    """A new job and what it is there for."""

    draft: Draft
    job: JobOutline
    needs: tuple[Need, ...]


@dataclass(frozen=True)
class JobMaker:
    """Makes the jobs of one plan."""

    policy: Policy
    # The checkpoint of a new job for which any model will do.
    checkpoint: Checkpoint | None
    table: CellTable
    _known: dict[str, tuple[Draft, JobOutline] | str] = field(default_factory=dict)

    def covers(self, job: JobOutline, need: Need) -> bool:
        """Whether a run of the job does what the places need."""
        draft, families, standing = point_of(job), self._families(job), need.standing
        if job.obstacles or not (draft.holds(standing) and shows(job, standing.model, self.policy)):
            return False
        if job.variant.job_id in need.variants:
            return True
        like = self._like(draft, families, need.cells) if need.cells else frozenset()
        if like:
            return not need.cells.isdisjoint(like)
        return any(draft.holds(want) and self._is_on(job, families, want, need.cells) for want in need.ways)

    def _families(self, job: JobOutline) -> frozenset[str]:
        """The families that the job's model is one of."""
        return frozenset(family.name for family in self.policy.families if is_on_family(job, family))

    def _like(self, draft: Draft, families: frozenset[str], entered: frozenset[int]) -> frozenset[int]:
        """The cells with the job's settings: on its own model, else on one for which it stands."""
        axes = {axis: value for axis, value in draft.differing.items() if axis in CELL_AXES}
        equal = {at: item.family for at, item in enumerate(self.table.settings) if item.axes == axes and item.is_usual}
        own = frozenset(at for at, family in equal.items() if family in families)
        return own or frozenset(at for at, family in equal.items() if self._stands(families, family, entered))

    def _stands(self, families: Iterable[str], for_family: str, entered: frozenset[int]) -> bool:
        return any(self.table.stands_in(family, for_family, entered) for family in families)

    def _is_on(self, job: JobOutline, families: frozenset[str], want: Want, entered: frozenset[int]) -> bool:
        """Whether the job's model is one that the want is about."""
        if shows(job, want.model, self.policy):
            return True
        plain = replace(want.model, family="")
        return bool(entered) and shows(job, plain, self.policy) and self._stands(families, want.model.family, entered)

    def made(self, before: Draft, want: Want) -> tuple[Draft, JobOutline] | str:
        """The job of a draft with one want more, or why there is none, a clause."""
        key = repr((before, want.axes, want.model))
        if key not in self._known:
            self._known[key] = self._made(before, want)
        return self._known[key]

    def _made(self, before: Draft, want: Want) -> tuple[Draft, JobOutline] | str:
        if want.model.family == self.table.usual_family:
            want = replace(want, model=replace(want.model, family=""))
        draft = before.joined(want)
        if isinstance(draft, Draft) and draft.level is None:
            draft = draft.joined(_RESUMED)
        if isinstance(draft, str):
            return draft
        level = Level.SAVE_RESUME if draft.level is None else draft.level
        job = job_on_model(self._variant(draft, level), draft.point.model, self.policy, self.checkpoint)
        if isinstance(job, str):
            return job
        job = job if job.variant in VARIANTS else replace(job, settings=draft.differing)
        return _misfit(job) or unread(job, draft.point[Axis.CONTENT], self.policy) or (draft, job)

    def _variant(self, draft: Draft, level: Level) -> Variant:
        """The variant of these settings: a named one with them that takes no more GPUs, else their own."""
        point, model = draft.point, draft.point.model
        wanted = Want(axes=point.settings)
        for variant in VARIANTS if not model.fields else ():
            named = Draft(POINTS[variant.job_id])
            larger = level is Level.PARALLELISM and named.holds(wanted) and variant.gpu_count <= point.gpu_count
            if variant.level is level and (larger or named.differing == draft.differing):
                return variant
        implied = Point.default().with_axes(point.settings).model.features
        words = "" if level is Level.FEATURE else model.family or "-".join(sorted(model.features - implied))
        return point.variant(level, name_of(level, draft, words))


def with_measured_jobs(planned: Sequence[JobOutline], needs: Iterable[Need], maker: JobMaker, budget: int) -> Derived:
    """The planned jobs, and new ones within the budget of GPU minutes; each with the places that it is there for."""
    held: dict[int, list[Purpose]] = {}
    left: list[tuple[Need, str]] = []
    made: list[_Made] = []
    for need in sorted(needs, key=lambda need: (len(need.cells) or len(maker.table.rows), repr(need.purposes))):
        holder = next((at for at, job in enumerate(planned) if maker.covers(job, need)), None)
        if holder is not None:
            held.setdefault(holder, []).extend(need.purposes)
        elif problem := _place(need, made, maker):
            left.append((need, problem))
    kept: list[_Made] = []
    spent = sum(job.gpu_minutes for job in planned)
    for item in sorted(_needed(made, maker), key=lambda item: item.job.gpu_minutes):
        if spent + item.job.gpu_minutes <= budget:
            kept.append(item)
            spent += item.job.gpu_minutes
        else:
            why = f"the plan would take more than the {budget} GPU minutes of the policy's budget"
            left += [(need, why) for need in item.needs]
    new = [replace(item.job, purposes=_purposes(item.needs)) for item in kept]
    # A level's default job is there for all that any run enters: it needs no place to say so.
    jobs = [replace(job, purposes=() if job.is_default else tuple(held.get(at, ()))) for at, job in enumerate(planned)]
    not_covered = (NotCovered(item, why, _level(need, maker)) for need, why in left for item in need.purposes)
    return Derived((*jobs, *sorted(new, key=lambda job: (job.variant.level, job.id))), tuple(not_covered))


def _place(need: Need, made: list[_Made], maker: JobMaker) -> str:
    """Put a need into the job that costs least more; why it is in none, or empty."""
    ways: list[tuple[int, int, int, _Made]] = []
    problems: list[str] = []
    for at, item in enumerate(made):
        needs = (*item.needs, need)
        for want in (_NOTHING, *need.ways[:_MOST_WAYS]):
            found = maker.made(item.draft, want)
            if not isinstance(found, str) and all(maker.covers(found[1], each) for each in needs):
                ways.append((found[1].gpu_minutes - item.job.gpu_minutes, 0, at, _Made(*found, needs)))
                break
    for rank, want in enumerate(need.ways[:_MOST_WAYS]):
        found = maker.made(Draft(Point.default()), want)
        if isinstance(found, str):
            problems.append(found)
        elif maker.covers(found[1], need):
            ways.append((found[1].gpu_minutes, 1 + rank, len(made), _Made(*found, (need,))))
    if not ways:
        return next(iter(problems), "no job has the settings of a cell that enters it")
    _, _, at, best = min(ways, key=lambda way: way[:3])
    made[at : at + 1] = [best]
    return ""


def _needed(made: Sequence[_Made], maker: JobMaker) -> list[_Made]:
    """The jobs without those whose places others enter as well, the dearest first."""
    kept = sorted(made, key=lambda item: -item.job.gpu_minutes)
    for item in tuple(kept):
        others = [other for other in kept if other is not item]
        for need in item.needs:
            at = next((at for at, other in enumerate(others) if maker.covers(other.job, need)), None)
            if at is None:
                break
            others[at] = replace(others[at], needs=(*others[at].needs, need))
        else:
            kept = others
    return kept


def _purposes(needs: Iterable[Need]) -> tuple[Purpose, ...]:
    return tuple(purpose for need in needs for purpose in need.purposes)


def _level(need: Need, maker: JobMaker) -> Level | None:
    """The level of the first job that could be made for a need."""
    jobs = (maker.made(Draft(Point.default()), want) for want in need.ways[:_MOST_WAYS])
    return next((job[1].variant.level for job in jobs if not isinstance(job, str)), None)


def point_of(job: JobOutline) -> Draft:
    """The settings of a job that is planned, with what its model brings."""
    named = POINTS.get(job.variant.job_id)
    point = named if named is not None else Point.of_level(job.variant.level).with_axes(job.settings)
    features = point.model.features | {"moe"} if job.has_experts else point.model.features
    return Draft(point.with_model(replace(point.model, features=features)))


def _misfit(job: JobOutline) -> str:
    """Why the job's model does not fit its settings, a clause; empty where it does."""
    reasons = misfits(point_of(job).point, job.model.shape) if job.model.shape is not None else ()
    model = job.checkpoint.model_id if job.checkpoint else "its model"
    return job.fitted().problem or (f"{' and '.join(reasons)} of {model}" if reasons else "")


def needs_of(places: Iterable[Place], table: CellTable) -> tuple[Need, ...]:
    """What the places need, those of the same cells together; what nothing enters needs no job."""
    groups: dict[tuple[object, ...], list[Place]] = {}
    rows: dict[str, Standing] = {}
    for place in places:
        if not place.problem:
            groups.setdefault(("", place.cells, place.variants, place.moved), []).append(place)
        for row in standing_wants(place.function.path, place.function.symbol):
            rows[row.name] = row
            groups.setdefault((row.name, place.cells, place.variants, place.moved), []).append(place)
    return tuple(_need(own, rows[str(name)].want if name else _NOTHING, table) for (name, *_), own in groups.items())


def _need(places: Sequence[Place], standing: Want, table: CellTable) -> Need:
    first = places[0]
    ways = [*table.wants(first.cells, moved=first.moved)] or [*_of_variants(first.variants)] or [_NOTHING]
    joined = [found for way in ways if (found := _joined(way, standing)) is not None]
    joined.sort(key=lambda way: (len(way.axes) + len(way.model.fields), way.model.family != table.usual_family))
    condition = standing.condition or _entered_as(first, table)
    settings = joined[0].axes if joined else {}
    purposes = tuple(purpose_of(place.function, place.lines, condition, settings) for place in places)
    return Need(tuple(joined), purposes, first.cells, first.variants, standing)


def _joined(way: Want, standing: Want) -> Want | None:
    """A way with what is wanted besides; None where it has other fields."""
    fields = {**way.model.fields, **standing.model.fields}
    if fields != {**standing.model.fields, **way.model.fields}:
        return None
    return replace(way, axes={**way.axes, **standing.axes}, model=replace(way.model, fields=fields))


def _of_variants(variants: Iterable[str]) -> Iterator[Want]:
    """The settings of named jobs."""
    return (Want(job_id, POINTS[job_id].settings) for job_id in sorted(variants) if job_id in POINTS)


def _entered_as(place: Place, table: CellTable) -> str:
    names = [table.rows[at].name for at in sorted(place.cells)] or sorted(place.variants)
    verb = "something differs in" if place.moved else "entered by"
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{verb} {', '.join(names[:_MOST_NAMED])}{more}"
