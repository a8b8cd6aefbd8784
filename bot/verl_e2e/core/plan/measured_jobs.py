"""From measured places to jobs: few GPU minutes by which runs do what cells and jobs did that entered each place.

A place that a planned job enters needs nothing. The others are taken in turn, those that the fewest cells enter first,
each into the job that costs least more: one that was made for another place, with what this one needs besides, or one
of its own. What no job can have, and what the budget leaves out, is named.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from verl_e2e.core.compare.cell_map import NO_CELLS, CellMap
from verl_e2e.core.compare.rehearsal import CellOutcome
from verl_e2e.core.consumer.consumers import VARIANTS, variant_of, variants_of
from verl_e2e.core.model.change import readable
from verl_e2e.core.model.execution import NO_MAPS, ChangedFunction, ExecutionMaps, Purpose, Side, purpose_of
from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import Axis
from verl_e2e.core.model.space import POINTS, JobPoint, ModelWant, Want, misfits, name_of
from verl_e2e.core.plan.cell_settings import CELL_AXES, CellTable, Standing, standing_wants
from verl_e2e.core.plan.job_models import job_on_model, shows
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.reach.carried import CarriedLines
from verl_e2e.core.reach.changed_functions import TouchedFunction

NOT_ENTERED = "no cell of the rehearsal and no measured job enters it"
_MOST_LINES = 8
_NO_WORDS: Mapping[tuple[str, str], frozenset[str]] = MappingProxyType({})
NEW = "it is new, so that only a rehearsal of this head tells what enters it"


@dataclass(frozen=True)
class Measured:
    """What is known of a change by measurement."""

    # What cells entered, of the head, of the merge base or of an older commit.
    cells: CellMap
    # What jobs entered on GPUs.
    jobs: ExecutionMaps = NO_MAPS
    # Whether the cells ran the head itself, so that what became of them is the change's.
    of_head: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Lines of a changed function that the same cells enter."""

    function: ChangedFunction
    # The changed lines; empty for the whole function.
    lines: tuple[int, ...]
    # The cells that a job must be like, by their places in the map.
    cells: frozenset[int]
    # Whether these are those in which something moved, of more that entered it.
    moved: bool = False
    # The ids of the variants of measured jobs that entered the function.
    variants: frozenset[str] = frozenset()
    # The cells that entered the function at all.
    inside: frozenset[int] = NO_CELLS
    # Why nothing is known to enter it, a clause; empty where something is.
    problem: str = ""
    # The identifiers of the changed statements of its function.
    words: frozenset[str] = frozenset()

    def __str__(self) -> str:
        lines = f", lines {', '.join(map(str, self.lines[:_MOST_LINES]))}" if self.lines else ""
        more = f" and {len(self.lines) - _MOST_LINES} more" if len(self.lines) > _MOST_LINES else ""
        return f"{readable(self.function.path)}:{self.function.symbol}{lines}{more}"


def measured_places(
    functions: Iterable[TouchedFunction],
    measured: Measured,
    lines: Mapping[str, CarriedLines],
    words: Mapping[tuple[str, str], frozenset[str]] = _NO_WORDS,
) -> tuple[Place, ...]:
    """The places of the functions that a run must enter, each with what enters it.

    `lines` are the measured lines of the changed files, by the path at the head, `words` the identifiers of the changed
    statements by the path and the symbol of their effect.
    """
    touched = list(functions)
    earlier = {(item.path, item.function.symbol): item.function for item in touched if item.earlier}
    found: list[Place] = []
    for item in touched:
        function = item.function
        if not item.earlier and function.reached and function.demanded and function.symbol:
            before = earlier.get((item.path, function.symbol))
            own = words.get((item.path, item.symbol), frozenset())
            made = _places(function, before, lines.get(item.path, CarriedLines()), measured)
            found += (replace(place, words=own) for place in made)
    return tuple(found)


def _places(
    function: ChangedFunction, before: ChangedFunction | None, lines: CarriedLines, measured: Measured
) -> Iterator[Place]:
    cells, of_head = measured.cells, measured.of_head
    paths = dict.fromkeys((function.path, before.path if before else function.path))
    inside = NO_CELLS.union(*(cells.of_function(name, function.symbol) for name in paths))
    ran = frozenset(item.variant for name in paths for item in measured.jobs.entered_by(name, function.symbol))
    if not inside:
        known = before is not None or function.side is Side.MERGE_BASE or of_head
        why = "" if ran else NOT_ENTERED if known else NEW
        yield Place(function, function.lines, NO_CELLS, variants=ran, problem=why)
        return
    # The changed lines of which anything is known, by the cells that enter them.
    near = lines.base.get if function.side is Side.MERGE_BASE else lines.near
    pairs = [(line, near(line), function.path) for line in function.lines]
    if before is not None and not of_head:
        pairs += [(0, lines.base.get(line), before.path) for line in before.lines]
    groups: dict[frozenset[int], list[int]] = {}
    for line, known_line, path in pairs:
        if known_line is not None:
            groups.setdefault(cells.of_line(path, known_line), []).extend([line] if line else [])
    compared = cells.judged(CellOutcome.FAIL, CellOutcome.CHANGED, CellOutcome.EQUAL)
    for entered, own in (groups or {inside: []}).items():
        if not entered:
            yield Place(function, tuple(own), NO_CELLS, inside=inside, problem=NOT_ENTERED)
        elif any(other and other < entered for other in groups):
            # Who enters less enters the rest as well.
            continue
        elif not of_head or not entered & compared:
            yield Place(function, tuple(own), entered, variants=frozenset() if groups else ran, inside=inside)
        # Where the cells ran the change, those count that failed, or else moved; where all are equal, none does.
        elif moved := entered & cells.judged(CellOutcome.FAIL) or entered & cells.judged(CellOutcome.CHANGED):
            yield Place(function, tuple(own), moved, moved=moved != entered, inside=inside)


# What no level has a job for is run as a save and a resume, which are judged on any settings.
_RESUMED = Want(axes={Axis.RESUME: True})
_NOTHING = Want()
# What takes the place of something that a planned job shows.
_REPLACING = (Axis.ADAPTER, Axis.ADAPTER_TARGETS, Axis.ADAPTER_SHARING, Axis.ADAPTER_MERGE, Axis.ADAPTER_B_START)
_NO_CELL = "no job has the settings of a cell that enters it"
# The cells that a report names.
_MOST_NAMED = 2


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
    # What a job must have in addition, whatever enters them; any one will do.
    standing: tuple[Want, ...] = (_NOTHING,)


@dataclass(frozen=True, slots=True)
class _Made:
    """A new job and what it is there for."""

    point: JobPoint
    job: JobOutline
    needs: tuple[Need, ...] = ()
    # The planned job that it takes the place of, None for a new one.
    planned: JobOutline | None = None

    @property
    def outline(self) -> JobOutline:
        """The job with its places."""
        purposes = tuple(purpose for need in self.needs for purpose in need.purposes)
        if self.planned is None or self.planned.variant is self.job.variant:
            return replace(self.planned or self.job, purposes=purposes)
        named, reason = self.planned.variant.job_id, self.planned.reason
        return replace(self.job, purposes=purposes, replaces=named, reason=reason)

    def with_need(self, need: Need, point: JobPoint, job: JobOutline) -> "_Made | None":
        """The same for one need more, by a job in its place; None where that does not show what a planned one does."""
        if self.planned is not None:
            same = all(point[axis] == self.point[axis] for axis in _REPLACING) and point.model == self.point.model
            if not same or job.variant.level is not self.job.variant.level:
                return None
        return _Made(point, job, (*self.needs, need), self.planned)


@dataclass(frozen=True)
class JobMaker:
    """Makes the jobs of one plan."""

    policy: Policy
    # The checkpoint of a new job for which any model will do.
    checkpoint: Checkpoint | None
    table: CellTable
    _known: dict[str, tuple[JobPoint, JobOutline] | str] = field(default_factory=dict)

    def covers(self, job: JobOutline, need: Need) -> bool:
        """Whether a run of the job does what the places need."""
        point, table, entered = point_of(job), self.table, need.cells
        if job.obstacles or not any(
            point.holds(want) and shows(job, want.model, self.policy) for want in need.standing
        ):
            return False
        if job.variant.job_id in need.variants:
            return True
        made = job.checkpoint.synthetic if job.checkpoint else None
        families = {job.family, made.family if made else ""} - {""}
        families |= {name for name, found in table.checkpoints.items() if found and found == job.checkpoint}
        # The cells with the job's settings; one that raised says nothing about what it did not get to.
        axes = {axis: value for axis, value in point.differing.items() if axis in CELL_AXES}
        fields = dict(made.wanted) if made else {}
        alike = {
            at: item.family
            for at, item in enumerate(table.settings if entered else ())
            if item.possible and item.axes == axes and item.fields == fields
            if at in entered or table.keeps_out(at, entered)
        }

        def stands(for_family: str) -> bool:
            return any(table.stands_in(family, for_family, entered) for family in families)

        # Those on the job's own model count, else those on one for which it stands.
        others = {table.settings[at].family for at in entered}
        own = {at for at, family in alike.items() if family in families}
        own = own or {at for at, family in alike.items() if family in others and stands(family)}
        if own:
            return not own.isdisjoint(entered)
        return any(
            shows(job, want.model, self.policy)
            or (entered and shows(job, replace(want.model, family=""), self.policy) and stands(want.model.family))
            for want in need.ways
            if point.holds(want)
        )

    def made(self, before: JobPoint, want: Want) -> tuple[JobPoint, JobOutline] | str:
        """The job of a point with one want more, or why there is none, a clause."""
        key = repr((before, want.axes, want.model))
        if key not in self._known:
            self._known[key] = self._made(before, want)
        return self._known[key]

    def _made(self, before: JobPoint, want: Want) -> tuple[JobPoint, JobOutline] | str:
        if want.model.family == self.table.usual_family:
            want = replace(want, model=replace(want.model, family=""))
        point = before.joined(want)
        if isinstance(point, JobPoint) and point.own_level is None:
            point = point.joined(_RESUMED)
        if isinstance(point, str):
            return point
        model, level = point.model, Level.SAVE_RESUME if point.own_level is None else point.own_level
        for variant in variants_of(level) if not model.fields else ():
            named = POINTS[variant.job_id]
            if (named.model.features, named.differing) == (model.features, point.differing):
                break
        else:
            implied = JobPoint.default().with_axes(point.settings).model.features
            words = "" if level is Level.FEATURE else model.family or "-".join(sorted(model.features - implied))
            variant = variant_of(point, level, name_of(level, point, words))
        job = job_on_model(variant, model, self.policy, self.checkpoint)
        if isinstance(job, str):
            return job
        job = job if job.variant in VARIANTS else replace(job, settings=point.differing)
        problem = job.fitted().problem
        if not problem and job.model.shape is not None and (reasons := misfits(point_of(job), job.model.shape)):
            problem = f"{' and '.join(reasons)} of {job.checkpoint.model_id if job.checkpoint else 'its model'}"
        return problem or (point, job)


def with_measured_jobs(planned: Sequence[JobOutline], needs: Iterable[Need], maker: JobMaker, budget: int) -> Derived:
    """The planned jobs, some with more settings, and new ones within the budget of GPU minutes; each with its places.

    A job that a rule names besides its level's default one may get more settings where it runs on the same model.
    """

    def may_change(job: JobOutline) -> bool:
        named = job.variant in VARIANTS and not job.is_default and not job.obstacles
        return named and job.variant.level is Level.SMOKE and job.checkpoint == maker.checkpoint

    held: dict[int, list[Purpose]] = {}
    left: list[NotCovered] = []
    fixed = [job for job in planned if not may_change(job)]
    made = [_Made(point_of(job), job, planned=job) for job in planned if may_change(job)]
    for need in sorted(needs, key=lambda need: (len(need.cells) or len(maker.table.rows), repr(need.purposes))):
        holder = next((at for at, job in enumerate(fixed) if maker.covers(job, need)), None)
        if holder is not None:
            held.setdefault(holder, []).extend(need.purposes)
            continue
        minutes = budget - sum(job.gpu_minutes for job in (*fixed, *(item.job for item in made)))
        if not _place(need, made, maker, minutes):
            found = [maker.made(JobPoint.default(), want) for want in need.ways]
            able = next((job.variant.level for _, job in (item for item in found if not isinstance(item, str))), None)
            reason = next((item for item in found if isinstance(item, str)), _NO_CELL)
            if able is not None:
                reason = f"the plan would take more than the {budget} GPU minutes of the policy's budget"
            left += [NotCovered(item, reason, able) for item in need.purposes]
    # A level's default job is there for all that any run enters: it needs no place to say so.
    jobs = {
        job.id: replace(job, purposes=() if job.is_default else tuple(held.get(at, ()))) for at, job in enumerate(fixed)
    }
    jobs |= {item.planned.id: item.outline for item in made if item.planned is not None}
    new = sorted((item.outline for item in made if item.planned is None), key=lambda job: (job.variant.level, job.id))
    return Derived((*(jobs[job.id] for job in planned), *new), tuple(left))


def _place(need: Need, made: list[_Made], maker: JobMaker, minutes: int) -> bool:
    """Put a need into the job that costs least more, and no more than these GPU minutes; whether there is one."""
    best: tuple[tuple[int, int], int, _Made] | None = None
    for at, item in enumerate((*made, None)):
        point, cost = (item.point, item.job.gpu_minutes) if item else (JobPoint.default(), 0)
        # A job that there is as it is, or with more settings; a new one by its best way.
        for rank, want in enumerate((_NOTHING, *need.ways) if item else need.ways, start=0 if item else 1):
            found = maker.made(point, want)
            if isinstance(found, str):
                continue
            larger = _Made(*found, needs=(need,)) if item is None else item.with_need(need, *found)
            if larger is None or not all(maker.covers(larger.job, each) for each in larger.needs):
                continue
            more = larger.job.gpu_minutes - cost
            if more <= max(minutes, 0) and (best is None or (more, rank) < best[0]):
                best = (more, rank), at, larger
            break
    if best is not None:
        _, at, larger = best
        made[at : at + 1] = [larger]
    return best is not None


def point_of(job: JobOutline) -> JobPoint:
    """The settings of a job that is planned, with what its model brings."""
    named = POINTS.get(job.variant.job_id)
    point = named if named is not None else JobPoint.of_level(job.variant.level).with_axes(job.settings)
    features = point.model.features | {"moe"} if job.has_experts else point.model.features
    return point.with_model(replace(point.model, features=features))


def needs_of(places: Iterable[Place], table: CellTable) -> tuple[Need, ...]:
    """What the places need, those of the same cells together; what nothing enters needs no job."""
    groups: dict[tuple[object, ...], list[Place]] = {}
    rows: dict[str, Standing] = {}
    for place in places:
        if not place.problem:
            groups.setdefault(("", place.cells, place.variants, place.moved), []).append(place)
        whole = replace(place, lines=(), cells=place.inside, moved=False, problem="")
        for row in standing_wants(place.function.path, place.function.symbol, place.words):
            rows[row.name] = row
            file = "" if whole.cells else place.function.path
            same = groups.setdefault((row.name, whole.cells, whole.variants, file), [])
            same += [] if whole in same else [whole]
    return tuple(_need(own, rows.get(str(name)), table) for (name, *_), own in groups.items())


def _need(places: Sequence[Place], row: Standing | None, table: CellTable) -> Need:
    first = places[0]
    standing = (_NOTHING,) if row is None else row.wants
    owners = [family.name for family in table.policy.families if family.paths.match(first.function.path)]
    if first.cells:
        ways = [*table.wants(first.cells, moved=first.moved)]
    else:
        ways = [Want(job_id, POINTS[job_id].settings) for job_id in sorted(first.variants) if job_id in POINTS]
        if row is not None and not ways:
            # What is new in a family's file has no cell, and needs a model of the family.
            ways = [Want(model=ModelWant(name)) for name in owners] or [_NOTHING]
    joined = []
    for want in standing:
        for way in ways:
            fields = {**way.model.fields, **want.model.fields}
            if fields == {**want.model.fields, **way.model.fields}:
                model = replace(way.model, fields=fields)
                joined.append(replace(way, axes={**way.axes, **want.axes}, model=model))
    joined.sort(
        key=lambda way: (
            len(way.axes) + len(way.model.fields),
            way.model.family not in owners,
            way.model.family != table.usual_family,
        )
    )
    if row is None:
        names = [table.rows[at].name for at in sorted(first.cells)] or sorted(first.variants)
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        verb = "something differs in" if first.moved else "entered by"
        condition = f"{verb} {', '.join(names[:_MOST_NAMED])}{more}"
    else:
        condition = row.condition
    settings = joined[0].axes if joined else {}
    purposes = tuple(purpose_of(place.function, place.lines, condition, settings) for place in places)
    return Need(tuple(joined), purposes, first.cells, first.variants, standing)
