"""Jobs that may be planned for wants: what each gives, what it costs, and the same with one want more."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from verl_e2e.core.model.jobs import WRAPPER_SCRIPT, Checkpoint
from verl_e2e.core.model.levels import POINTS, VARIANTS, Level, Variant, variants_of
from verl_e2e.core.model.model_fit import misfits
from verl_e2e.core.model.nodes import MOST_GPUS
from verl_e2e.core.model.space import Point
from verl_e2e.core.model.wants import Axis, ModelWant, Want
from verl_e2e.core.plan.draft import Draft, alone
from verl_e2e.core.plan.job_models import job_on_model, made_model, shows, unread
from verl_e2e.core.plan.job_names import name_of
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.plan.policy import Policy

_SMOKE = variants_of(Level.SMOKE)[0]
# What no level has a job for is run as a save and a resume, which are judged on any settings.
_RESUMED = Want("", "", (), "", {Axis.RESUME: True})
# What takes the place of something that a planned job shows: merged adapters hide faults of their export, other modules
# those of the modules that are left without an adapter.
_REPLACING = (
    *(Axis.ADAPTER, Axis.ADAPTER_TARGETS, Axis.ADAPTER_SHARING, Axis.ADAPTER_MERGE, Axis.ADAPTER_A_START),
    *(Axis.PRECISION, Axis.CONTENT),
)
# The variables by which a job is spread further than its settings say, where its model needs that.
_SPREAD = {Axis.TENSOR: "COMMON_TP", Axis.EXPERT: "COMMON_EP"}


@dataclass(frozen=True, slots=True)
class Demand:
    """Wants that ask for the same settings and the same model."""

    # Its place among the demands of the change.
    number: int
    # The wants, by path, symbol and line.
    wants: tuple[Want, ...] = field(compare=False)
    # The settings for it alone, or why no job can have them.
    draft: Draft | str = field(compare=False)

    @property
    def want(self) -> Want:
        """One of them, as far as the settings go."""
        return self.wants[0]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job with the demands that it was given settings for."""

    draft: Draft
    job: JobOutline
    # The planned job that it is, or takes the place of; None for a new one.
    planned: JobOutline | None
    demands: tuple[Demand, ...] = ()

    @property
    def price(self) -> int:
        """GPU minutes of all its runs."""
        return self.job.gpu_minutes


def demands_of(wants: Iterable[Want]) -> tuple[Demand, ...]:
    """The wants that ask for anything, by what they ask for; their order does not matter."""
    groups: dict[str, list[Want]] = {}
    for want in wants:
        if want.axes or want.limits or want.overrides or not want.model.is_any:
            groups.setdefault(_key(want), []).append(want)
    ordered = (sorted(group, key=_place) for _, group in sorted(groups.items()))
    return tuple(Demand(number, tuple(group), alone(group[0])) for number, group in enumerate(ordered))


def _key(want: Want) -> str:
    parts = (want.axes, want.limits, want.overrides, want.model.fields)
    texts = [repr(sorted((str(name), repr(value)) for name, value in part.items())) for part in parts]
    return repr((texts, want.model.family, sorted(want.model.features), sorted(want.model.absent)))


def _place(want: Want) -> tuple[str, str, tuple[int, ...], str]:
    return want.path, want.symbol, want.lines, want.condition


@dataclass(slots=True)
class JobMaker:
    """Makes candidates; the same question is answered once."""

    policy: Policy
    # The checkpoint of a new job for which any model will do.
    checkpoint: Checkpoint | None
    _made: dict[tuple[str, frozenset[int]], Candidate | str] = field(default_factory=dict)

    def of_planned(self, job: JobOutline) -> Candidate | None:
        """A planned job as a candidate; None where its settings are not those of the wrapper, or it cannot run."""
        point = POINTS.get(job.variant.job_id)
        if point is None or job.obstacles or job.script != WRAPPER_SCRIPT:
            return None
        return Candidate(_on_its_model(Draft(point), job), job, job)

    def gives(self, item: Candidate, demand: Demand) -> bool:
        """Whether the job, as it is, meets a demand."""
        if isinstance(demand.draft, str) or not item.draft.holds(demand.want) or _spread(item.job, demand.want.limits):
            return False
        return shows(item.job, demand.draft.point.model, self.policy)

    def problem(self, demand: Demand) -> str:
        """Why no job of its own can meet a demand, empty when one can."""
        found = self._new((demand,))
        return found if isinstance(found, str) else ""

    def add(self, item: Candidate | None, demand: Demand) -> Candidate | None:
        """The candidate, one that may change, with one demand more, or a new one; None where it does not fit."""
        planned, demands = (item.planned, (*item.demands, demand)) if item is not None else (None, (demand,))
        key = (planned.id if planned is not None else "", frozenset(each.number for each in demands))
        if key not in self._made:
            self._made[key] = self._new(demands) if planned is None else self._larger(planned, demands)
        found = self._made[key]
        return found if isinstance(found, Candidate) else None

    def _new(self, demands: tuple[Demand, ...]) -> Candidate | str:
        """A job for these demands alone, or why there is none."""
        draft = _joined(Draft(Point.default()), demands)
        if isinstance(draft, Draft) and draft.level is None:
            draft = draft.joined(_RESUMED)
        if isinstance(draft, str):
            return draft
        level = Level.SAVE_RESUME if draft.level is None else draft.level
        variant = _variant(draft, level, _model_name(draft, level))
        job = job_on_model(variant, draft.point.model, self.policy, self._any_model(draft.point))
        if isinstance(job, str):
            return job
        whole = _on_its_model(draft, job)
        if whole.point.conflict:
            return whole.point.conflict.reason
        return unread(job, draft.point[Axis.CONTENT], self.policy) or _candidate(whole, job, None, demands)

    def _any_model(self, point: Point) -> Checkpoint | None:
        """The checkpoint where any model will do: a synthetic one where the sizes do not divide the usual one."""
        shape = self.policy.facts_of(self.checkpoint).shape
        made = made_model(ModelWant(), self.policy) if shape is not None and misfits(point, shape) else None
        return made or self.checkpoint

    def _larger(self, planned: JobOutline, demands: tuple[Demand, ...]) -> Candidate | str:
        """A planned job with the settings of these demands, or why there is none."""
        before = _on_its_model(Draft(POINTS[planned.variant.job_id]), planned)
        draft = _joined(before, demands)
        if isinstance(draft, str):
            return draft
        level = planned.variant.level
        # A job of level 0 stays one: sizes, saving and features are what the other levels are for.
        if level not in draft.point.levels or (level is Level.SMOKE and draft.level is not level):
            return f"level {int(level)} has no job with these settings"
        # On another model it would show no more what it is planned for: faults of experts hide those of dense layers.
        if not shows(planned, draft.point.model, self.policy):
            return "the job is there for another model"
        hidden = [axis for axis in _REPLACING if draft.point[axis] != before.point[axis]]
        if hidden or draft.overrides:
            return f"{', '.join(hidden) or 'other settings of verl'} would hide what the job is planned for"
        same = draft.differing == before.differing
        job = planned if same else replace(planned, variant=_variant(draft, level, ""))
        return _candidate(draft, job, planned, demands)


def may_change(item: Candidate) -> bool:
    """Whether a planned job may get more settings: level 0's default one says what works without any."""
    return item.planned is None or item.planned.variant is not _SMOKE


def includes(larger: Demand, smaller: Demand) -> bool:
    """Whether each job that meets the larger demand meets the other one too; false for one and the same."""
    if larger == smaller or isinstance(larger.draft, str):
        return False
    both = larger.draft.joined(smaller.want)
    return isinstance(both, Draft) and both.key == larger.draft.key


def _on_its_model(draft: Draft, job: JobOutline) -> Draft:
    """The draft with what the job's own model brings: adapters are merged where it has experts."""
    model = draft.point.model
    features = model.features | {"moe"} if job.has_experts else model.features
    return Draft(draft.point.with_model(replace(model, features=features)))


def _joined(draft: Draft, demands: Iterable[Demand]) -> Draft | str:
    for demand in demands:
        found = draft.joined(demand.want)
        if isinstance(found, str):
            return found
        draft = found
    return draft


def _variant(draft: Draft, level: Level, model: str) -> Variant:
    """The variant of these settings: the named one where there is one and no model is named."""
    named = (
        variant
        for variant in variants_of(level)
        if not model and not draft.overrides and not draft.point.model.fields
        if Draft(POINTS[variant.job_id]).differing == draft.differing
    )
    return next(named, None) or draft.point.variant(level, name_of(level, draft, model))


def _model_name(draft: Draft, level: Level) -> str:
    """The model as the name of a new job tells it: neither what its level has in the id, nor what its sizes imply."""
    model, settings = draft.point.model, Point.default().with_axes(draft.point.settings)
    if level is Level.FEATURE:
        return ""
    return model.family or "-".join(sorted(model.features - settings.model.features))


def _candidate(
    draft: Draft, job: JobOutline, planned: JobOutline | None, demands: tuple[Demand, ...]
) -> Candidate | str:
    fitted = job.fitted()
    if fitted.problem:
        return fitted.problem
    if job.model.shape is not None and (reasons := misfits(draft.point, job.model.shape)):
        return f"{' and '.join(reasons)} of {job.checkpoint.model_id if job.checkpoint else 'its model'}"
    if _spread(job, draft.point.limits):
        return f"the model does not fit into a job with these settings ({fitted.reason})"
    named = planned is not None and job.variant.job_id == planned.variant.job_id
    settings = {} if job.variant in VARIANTS else draft.differing
    replaces = planned.variant.job_id if planned is not None and not named else ""
    return Candidate(draft, replace(job, settings=settings, replaces=replaces), planned, demands)


def _spread(job: JobOutline, limits: Mapping[Axis, int]) -> bool:
    """Whether the model needs larger sizes than are allowed."""
    wrapper = job.fitted().variant.wrapper if limits else {}
    return any(int(wrapper.get(name, "1")) > limits.get(axis, MOST_GPUS) for axis, name in _SPREAD.items())
