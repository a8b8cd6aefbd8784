"""From measured places to jobs: few GPU minutes by which runs do what cells and jobs did that entered each place.

A place that a planned job enters needs nothing. The others are taken in turn, those that the fewest cells enter first,
each into the job that costs least more: one that was made for another place, with what this one needs besides, or one
of its own. A job whose places others enter too goes. What no job can have, and what the budget leaves out, is named.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from verl_e2e.core.compare.cell_map import NO_CELLS, CellMap
from verl_e2e.core.compare.rehearsal import CellOutcome
from verl_e2e.core.model.change import readable
from verl_e2e.core.model.execution import NO_MAPS, ChangedFunction, ExecutionMaps, Purpose, Side, purpose_of
from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.levels import Level, Variant
from verl_e2e.core.model.settings import Axis, FieldValue, Takes, Value
from verl_e2e.core.model.space import (
    PARALLEL,
    POINTS,
    VARIANTS,
    Conflict,
    JobPoint,
    ModelWant,
    Want,
    merges_experts,
    misfits,
)
from verl_e2e.core.plan.cell_settings import CELL_AXES, CellTable, Standing, standing_wants
from verl_e2e.core.plan.job_models import job_on_model, shows, unread
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
    cells = measured.cells
    paths = dict.fromkeys((function.path, before.path if before else function.path))
    inside = NO_CELLS.union(*(cells.of_function(name, function.symbol) for name in paths))
    ran = frozenset(item.variant for name in paths for item in measured.jobs.entered_by(name, function.symbol))
    if not inside:
        known = bool(ran) or before is not None or function.side is Side.MERGE_BASE or measured.of_head
        why = "" if ran else NOT_ENTERED if known else NEW
        yield Place(function, function.lines, NO_CELLS, variants=ran, problem=why)
        return
    groups = _groups(function, before, lines, measured)
    if not groups:
        yield from _judged(Place(function, (), inside, variants=ran, inside=inside), measured)
    for entered, own in groups.items():
        if not entered:
            yield Place(function, tuple(own), NO_CELLS, inside=inside, problem=NOT_ENTERED)
        # Who enters less enters the rest as well.
        elif not any(other and other < entered for other in groups):
            yield from _judged(Place(function, tuple(own), entered, inside=inside), measured)


def _groups(
    function: ChangedFunction, before: ChangedFunction | None, lines: CarriedLines, measured: Measured
) -> dict[frozenset[int], list[int]]:
    """The changed lines of which anything is known, by the cells that enter them."""
    near = lines.base.get if function.side is Side.MERGE_BASE else lines.near
    pairs = [(line, near(line), function.path) for line in function.lines]
    gone = () if before is None or measured.of_head else before.lines
    pairs += [(0, lines.base.get(line), before.path if before else "") for line in gone]
    found: dict[frozenset[int], list[int]] = {}
    for line, known, path in pairs:
        if known is not None:
            entered = found.setdefault(measured.cells.of_line(path, known), [])
            entered += [line] if line else []
    return found


def _judged(place: Place, measured: Measured) -> Iterator[Place]:
    """The place; where the cells ran the change, with those of them that failed, or else moved, if any did.

    Nothing where cells were compared and are equal; where none was compared, the place as any other.
    """
    cells = measured.cells
    if not measured.of_head or not place.cells & cells.judged(CellOutcome.FAIL, CellOutcome.CHANGED, CellOutcome.EQUAL):
        yield place
        return
    moved = place.cells & cells.judged(CellOutcome.FAIL) or place.cells & cells.judged(CellOutcome.CHANGED)
    if moved:
        yield replace(place, cells=moved, moved=moved != place.cells, variants=frozenset())


@dataclass(frozen=True, slots=True)
class Draft:
    """The settings of one job."""

    point: JobPoint

    def joined(self, want: Want) -> "Draft | str":
        """The draft that gives what the want asks for as well, or why there is none, a clause."""
        found = self.point.joined(want)
        return found.reason if isinstance(found, Conflict) else Draft(found)

    def holds(self, want: Want) -> bool:
        """Whether a run with these settings, open ones at their defaults, gives what is wanted but the model."""
        return all(
            self.point.size(axis) >= (value if isinstance(value, int) else 1)
            if axis.is_size
            else self.point[axis] == value
            for axis, value in want.axes.items()
        )

    @property
    def differing(self) -> dict[Axis, Value]:
        """The settings that differ from those of level 0, without what every job on a model with experts has."""
        settings, merged = self.point.settings, merges_experts(self.point.settings, self.point.model.features)
        differing = {axis: value for axis, value in settings.items() if value != axis.default}
        return {axis: value for axis, value in differing.items() if not (merged and axis is Axis.ADAPTER_MERGE)}

    @property
    def level(self) -> Level | None:
        """The level of a job that is there for these settings alone; None where no level has such a job."""
        found = next((level for level, meant in self._meanings() if meant), Level.SMOKE)
        return found if found in self.point.levels else None

    def _meanings(self) -> tuple[tuple[Level, bool], ...]:
        """What makes a job one of a level, the strongest first; fields of a model alone leave no trace in a run."""
        point, model = self.point, self.point.model
        return (
            (Level.SAVE_RESUME, point[Axis.RESUME] is True),
            (Level.MEGATRON_FSDP, point[Axis.FSDP] is True),
            (Level.PARALLELISM, any(point.size(axis) > 1 for axis in PARALLEL)),
            (Level.LEARNING_SIGNAL, Level.LEARNING_SIGNAL in point.levels),
            (Level.FEATURE, bool(model.family or model.features)),
        )


MOST_CHARACTERS = 48
_DIGEST = 6

# Fields of a model's configuration that a name can say in a word.
_OF_MODEL: Mapping[tuple[str, object], str] = {
    ("tie_word_embeddings", True): "tied",
    ("tie_word_embeddings", False): "untied",
}
# A level whose own purpose no setting names.
_OF_LEVEL = {Level.FEATURE: ("feature",), Level.LEARNING_SIGNAL: ("signal",)}
# What always comes with another setting.
_IMPLIED: Mapping[Level, Mapping[Axis, Value]] = {
    Level.SAVE_RESUME: {Axis.STEPS: 2},
    Level.MEGATRON_FSDP: {Axis.FUSION: False},
    Level.LEARNING_SIGNAL: {Axis.STEPS: 20},
}


def name_of(level: Level, draft: Draft, model: str = "") -> str:
    """The name of a derived job without its level, never empty; `model` names one that the settings do not."""
    implied = _IMPLIED.get(level, {})
    settings = {axis: value for axis, value in draft.differing.items() if implied.get(axis) != value}
    words = [*_OF_LEVEL.get(level, ()), *_words(settings), *_rest(draft), *([_plain(model)] if model else [])]
    name = "-".join(words) or "plain"
    if len(name) <= MOST_CHARACTERS:
        return name
    return f"{name[: MOST_CHARACTERS - _DIGEST - 1].rstrip('-')}-{_digest(name)}"


def _words(settings: dict[Axis, Value]) -> Iterator[str]:
    for axis in Axis:
        if axis not in settings:
            continue
        value = settings[axis]
        row = axis.row
        if row.takes is Takes.SWITCH:
            yield row.short if value else row.short_off
        elif not row.short or isinstance(value, int | float):
            yield f"{row.short}{_plain(value)}"
        else:
            yield f"{row.short}-{_plain(value)}"


def _rest(draft: Draft) -> Iterator[str]:
    """What no axis has, mostly by a digest: it may be any text of the code."""
    fields = dict(draft.point.model.fields)
    for (key, value), word in _OF_MODEL.items():
        if fields.get(key) is value:
            del fields[key]
            yield word
    if fields:
        yield f"model-{_digest(repr(sorted(fields.items(), key=str)))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]


def _plain(value: Value) -> str:
    """A value in the letters of a name; dashes in place of all others."""
    letters = (letter if letter.isascii() and letter.isalnum() else "-" for letter in str(value).lower())
    return "-".join(part for part in "".join(letters).split("-") if part) or _digest(str(value))


# What no level has a job for is run as a save and a resume, which are judged on any settings.
_RESUMED = Want(axes={Axis.RESUME: True})
_NOTHING = Want()
# What takes the place of something that a planned job shows.
_REPLACING = (Axis.ADAPTER, Axis.ADAPTER_TARGETS, Axis.ADAPTER_SHARING, Axis.ADAPTER_MERGE, Axis.ADAPTER_B_START)
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
    # What a job must have in addition, whatever enters them; any one will do.
    standing: tuple[Want, ...] = (_NOTHING,)


@dataclass(frozen=True, slots=True)
class _Made:
    """A new job and what it is there for."""

    draft: Draft
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


@dataclass(frozen=True)
class JobMaker:
    """Makes the jobs of one plan."""

    policy: Policy
    # The checkpoint of a new job for which any model will do.
    checkpoint: Checkpoint | None
    table: CellTable
    _known: dict[str, tuple[tuple[Draft, JobOutline], ...] | str] = field(default_factory=dict)

    def covers(self, job: JobOutline, need: Need) -> bool:
        """Whether a run of the job does what the places need."""
        draft, families = point_of(job), self._families(job)
        made = job.checkpoint.synthetic if job.checkpoint else None
        fields = dict(made.wanted) if made else {}
        held = (draft.holds(want) and shows(job, want.model, self.policy) for want in need.standing)
        if job.obstacles or not any(held):
            return False
        if job.variant.job_id in need.variants:
            return True
        like = self._like(draft, fields, families, need.cells) if need.cells else frozenset()
        if like:
            return not need.cells.isdisjoint(like)
        return any(draft.holds(want) and self._is_on(job, families, want, need.cells) for want in need.ways)

    def _families(self, job: JobOutline) -> frozenset[str]:
        """The families that the job's model is one of."""
        made = job.checkpoint.synthetic if job.checkpoint else None
        named = frozenset(filter(None, (job.family, made.family if made else "")))
        checkpoints = self.table.checkpoints
        return named | {name for name, found in checkpoints.items() if found and found == job.checkpoint}

    def _like(
        self, draft: Draft, fields: Mapping[str, FieldValue], families: frozenset[str], entered: frozenset[int]
    ) -> frozenset[int]:
        """The cells with the job's settings: on its own model, else on one for which it stands."""
        axes = {axis: value for axis, value in draft.differing.items() if axis in CELL_AXES}
        # A cell that raised says nothing about what it did not get to.
        equal = {
            at: item.family
            for at, item in enumerate(self.table.settings)
            if item.possible and item.axes == axes and item.fields == fields
            if at in entered or self.table.keeps_out(at, entered)
        }
        own = frozenset(at for at, family in equal.items() if family in families)
        others = {self.table.settings[at].family for at in entered}
        return own or frozenset(
            at for at, family in equal.items() if family in others and self._stands(families, family, entered)
        )

    def _stands(self, families: Iterable[str], for_family: str, entered: frozenset[int]) -> bool:
        return any(self.table.stands_in(family, for_family, entered) for family in families)

    def _is_on(self, job: JobOutline, families: frozenset[str], want: Want, entered: frozenset[int]) -> bool:
        """Whether the job's model is one that the want is about."""
        if shows(job, want.model, self.policy):
            return True
        plain = replace(want.model, family="")
        return bool(entered) and shows(job, plain, self.policy) and self._stands(families, want.model.family, entered)

    def made(self, before: Draft, want: Want) -> tuple[tuple[Draft, JobOutline], ...] | str:
        """The jobs of a draft with one want more, a named one first, or why there is none, a clause."""
        key = repr((before, want.axes, want.model))
        if key not in self._known:
            self._known[key] = self._made(before, want)
        return self._known[key]

    def _made(self, before: Draft, want: Want) -> tuple[tuple[Draft, JobOutline], ...] | str:
        if want.model.family == self.table.usual_family:
            want = replace(want, model=replace(want.model, family=""))
        draft = before.joined(want)
        if isinstance(draft, Draft) and draft.level is None:
            draft = draft.joined(_RESUMED)
        if isinstance(draft, str):
            return draft
        found = [self._job(draft, variant) for variant in _variants(draft)]
        jobs = tuple((draft, job) for job in found if not isinstance(job, str))
        return jobs or next(job for job in found if isinstance(job, str))

    def _job(self, draft: Draft, variant: Variant) -> JobOutline | str:
        """The job of a variant on the model that the draft needs, or why there is none, a clause."""
        job = job_on_model(variant, draft.point.model, self.policy, self.checkpoint)
        if isinstance(job, str):
            return job
        job = job if job.variant in VARIANTS else replace(job, settings=draft.differing)
        return _misfit(job) or unread(job, draft.point[Axis.CONTENT], self.policy) or job


def _variants(draft: Draft) -> Iterator[Variant]:
    """The variants with these settings: a named one that takes no more GPUs, and their own."""
    point, model = draft.point, draft.point.model
    level = Level.SAVE_RESUME if draft.level is None else draft.level
    wanted = Want(axes=point.settings)
    for variant in VARIANTS if not model.fields else ():
        named = Draft(POINTS[variant.job_id])
        same = variant.level is level and named.point.model.features == model.features
        if same and named.differing == draft.differing:
            yield variant
            return
        if same and level is Level.PARALLELISM and named.holds(wanted) and variant.gpu_count <= point.gpu_count:
            yield variant
    implied = JobPoint.default().with_axes(point.settings).model.features
    words = "" if level is Level.FEATURE else model.family or "-".join(sorted(model.features - implied))
    yield point.variant(level, name_of(level, draft, words))


def with_measured_jobs(planned: Sequence[JobOutline], needs: Iterable[Need], maker: JobMaker, budget: int) -> Derived:
    """The planned jobs, some with more settings, and new ones within the budget of GPU minutes; each with its places.

    A job that a rule names besides its level's default one may get more settings where it runs on the same model.
    """
    held: dict[int, list[Purpose]] = {}
    left: list[tuple[Need, str]] = []
    fixed = [job for job in planned if not _may_change(job, maker)]
    made = [_Made(point_of(job), job, planned=job) for job in planned if _may_change(job, maker)]
    for need in sorted(needs, key=lambda need: (len(need.cells) or len(maker.table.rows), repr(need.purposes))):
        holder = next((at for at, job in enumerate(fixed) if maker.covers(job, need)), None)
        if holder is not None:
            held.setdefault(holder, []).extend(need.purposes)
        elif problem := _place(need, made, maker):
            left.append((need, problem))
    kept, beyond = _within(_needed(made, maker), budget - sum(job.gpu_minutes for job in fixed), maker)
    left += [
        (need, f"the plan would take more than the {budget} GPU minutes of the policy's budget") for need in beyond
    ]
    # A level's default job is there for all that any run enters: it needs no place to say so.
    jobs = {
        job.id: replace(job, purposes=() if job.is_default else tuple(held.get(at, ()))) for at, job in enumerate(fixed)
    }
    changed = {item.planned.id: item.outline for item in kept if item.planned is not None}
    new = sorted((item.outline for item in kept if item.planned is None), key=lambda job: (job.variant.level, job.id))
    not_covered = (NotCovered(item, text, _level(need, maker)) for need, text in left for item in need.purposes)
    return Derived((*({**jobs, **changed}[job.id] for job in planned), *new), tuple(not_covered))


def _may_change(job: JobOutline, maker: JobMaker) -> bool:
    named = job.variant in VARIANTS and not job.is_default and not job.obstacles
    return named and job.variant.level is Level.SMOKE and job.checkpoint == maker.checkpoint


def _within(made: Iterable[_Made], minutes: int, maker: JobMaker) -> tuple[list[_Made], list[Need]]:
    """The jobs that take no more than these GPU minutes, those that enter most for them first; and what is left."""
    order = sorted(made, key=lambda item: (item.planned is None, -len(item.outline.purposes) / item.job.gpu_minutes))
    kept, left = list[_Made](), list[Need]()
    for item in order:
        if item.planned is None and item.job.gpu_minutes > minutes:
            left += item.needs
        else:
            kept.append(item)
            minutes -= item.job.gpu_minutes
    beyond = list[Need]()
    # Where a job for several places takes too much, one for some of them may not.
    for need in left:
        tried = list(kept)
        _place(need, tried, maker)
        more = sum(item.job.gpu_minutes for item in tried) - sum(item.job.gpu_minutes for item in kept)
        if more <= max(minutes, 0):
            kept, minutes = tried, minutes - more
        else:
            beyond.append(need)
    return kept, beyond


def _place(need: Need, made: list[_Made], maker: JobMaker) -> str:
    """Put a need into the job that costs least more; why it is in none, or empty."""
    ways: list[tuple[int, int, int, _Made]] = []
    problems: list[str] = []
    wants = need.ways[:_MOST_WAYS]
    for at, item in enumerate(made):
        for rank, want in enumerate((_NOTHING, *wants)):
            found = maker.made(item.draft, want)
            for draft, job in () if isinstance(found, str) else found:
                larger = _Made(draft, job, (*item.needs, need), item.planned)
                if _stays(item, larger) and all(maker.covers(job, each) for each in larger.needs):
                    ways.append((job.gpu_minutes - item.job.gpu_minutes, rank, at, larger))
    for rank, want in enumerate(wants):
        found = maker.made(Draft(JobPoint.default()), want)
        if isinstance(found, str):
            problems.append(found)
        for draft, job in () if isinstance(found, str) else found:
            if maker.covers(job, need):
                ways.append((job.gpu_minutes, 1 + rank, len(made), _Made(draft, job, (need,))))
    if not ways:
        return next(iter(problems), "no job has the settings of a cell that enters it")
    _, _, at, best = min(ways, key=lambda way: way[:3])
    made[at : at + 1] = [best]
    return ""


def _stays(item: _Made, larger: _Made) -> bool:
    """Whether a job that takes the place of a planned one shows what that is planned for as well."""
    before, after = item.draft.point, larger.draft.point
    same = all(after[axis] == before[axis] for axis in _REPLACING) and after.model == before.model
    return item.planned is None or (same and larger.job.variant.level is item.job.variant.level)


def _needed(made: Sequence[_Made], maker: JobMaker) -> list[_Made]:
    """The jobs without those whose places others enter as well, the dearest first."""
    kept = sorted(made, key=lambda item: -item.job.gpu_minutes)
    for item in (item for item in tuple(kept) if item.planned is None):
        others = [other for other in kept if other is not item]
        for need in item.needs:
            at = next((at for at, other in enumerate(others) if maker.covers(other.job, need)), None)
            if at is None:
                break
            others[at] = replace(others[at], needs=(*others[at].needs, need))
        else:
            kept = others
    return kept


def _level(need: Need, maker: JobMaker) -> Level | None:
    """The level of the first job that could be made for a need."""
    jobs = (maker.made(Draft(JobPoint.default()), want) for want in need.ways[:_MOST_WAYS])
    return next((found[0][1].variant.level for found in jobs if not isinstance(found, str)), None)


def point_of(job: JobOutline) -> Draft:
    """The settings of a job that is planned, with what its model brings."""
    named = POINTS.get(job.variant.job_id)
    point = named if named is not None else JobPoint.of_level(job.variant.level).with_axes(job.settings)
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
    # What is new in a family's file has no cell, and needs a model of the family.
    new = [] if row is None else [Want(model=ModelWant(name)) for name in owners] or [_NOTHING]
    named = (Want(job_id, POINTS[job_id].settings) for job_id in sorted(first.variants) if job_id in POINTS)
    ways = [*table.wants(first.cells, moved=first.moved)] if first.cells else [*named] or new
    joined = [found for want in standing for way in ways if (found := _joined(way, want)) is not None]
    joined.sort(
        key=lambda way: (
            len(way.axes) + len(way.model.fields),
            way.model.family not in owners,
            way.model.family != table.usual_family,
        )
    )
    condition = _entered_as(first, table) if row is None else row.condition
    settings = joined[0].axes if joined else {}
    purposes = tuple(purpose_of(place.function, place.lines, condition, settings) for place in places)
    return Need(tuple(joined), purposes, first.cells, first.variants, standing)


def _joined(way: Want, standing: Want) -> Want | None:
    """A way with what is wanted besides; None where it has other fields."""
    fields = {**way.model.fields, **standing.model.fields}
    if fields != {**standing.model.fields, **way.model.fields}:
        return None
    return replace(way, axes={**way.axes, **standing.axes}, model=replace(way.model, fields=fields))


def _entered_as(place: Place, table: CellTable) -> str:
    names = [table.rows[at].name for at in sorted(place.cells)] or sorted(place.variants)
    verb = "something differs in" if place.moved else "entered by"
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{verb} {', '.join(names[:_MOST_NAMED])}{more}"
