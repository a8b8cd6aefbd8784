"""The plan: which levels a change asks for, which jobs prove them, and the reason for each, path by path."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from verl_e2e.core.compare.cell_map import NO_CELLS
from verl_e2e.core.consumer.consumers import PARITY_VARIANTS, VARIANTS, variant_named, variant_of, variants_of
from verl_e2e.core.model.change import Change, ChangedPath, on_one_line, readable
from verl_e2e.core.model.execution import MEGATRON_LM_FOLDER, NO_CODE, ChangedCode, in_megatron_lm
from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.levels import Level, Variant
from verl_e2e.core.model.space import POINTS, name_of
from verl_e2e.core.plan.bridge_tests import NO_CHOICE, Choice
from verl_e2e.core.plan.cell_settings import CellTable
from verl_e2e.core.plan.classify import MODULE_LEVEL as MODULE_LEVEL
from verl_e2e.core.plan.classify import Classified, classify
from verl_e2e.core.plan.classify import Reason as Reason
from verl_e2e.core.plan.code_plan import CodePlan, Unshown
from verl_e2e.core.plan.defects import with_known_defects
from verl_e2e.core.plan.job_models import feature_jobs, rules_of, variant_model
from verl_e2e.core.plan.measured_jobs import (
    Derived,
    JobMaker,
    Measured,
    NotCovered,
    Place,
    measured_places,
    needs_of,
    with_measured_jobs,
)
from verl_e2e.core.plan.outline import JobOutline as JobOutline
from verl_e2e.core.plan.outline import TimedJob, minutes_to_answer, with_obstacles
from verl_e2e.core.plan.policy import Family, Policy, Rule, SymbolRule
from verl_e2e.core.reach.diff import IMPORT_TIME
from verl_e2e.core.reach.effects import Effect, Effects, LookedAt

_SHOWN_RULES = 12


@dataclass(frozen=True, slots=True)
class NotRequired:
    """Why a level is not required."""

    level: Level
    reason: str


@dataclass(frozen=True, slots=True)
class Exempted:
    """How many changed names an exemption set aside, and why."""

    name: str
    count: int
    reason: str


def not_required(
    levels: tuple[Level, ...],
    exempted: tuple[Exempted, ...],
    counted: tuple[Classified, ...],
    policy: Policy,
    uncovered: Collection[Level | None] = (),
) -> tuple[NotRequired, ...]:
    """The levels that are not among the required ones, each with the reason; `counted` are the paths that count.

    `uncovered` has the level of each place of the change that no job is planned for.
    """
    rest = [level for level in Level if level not in levels]
    if not counted:
        parts = "; ".join(f"{item.count} in {item.name}: {item.reason}" for item in exempted)
        nothing = f"every changed path is set aside ({parts})" if parts else "the change has no files"
        return tuple(NotRequired(level, nothing) for level in rest)
    left = Counter(uncovered)
    found: list[NotRequired] = []
    for level in rest:
        reason, count = _unmatched(level, counted, policy), left[level]
        if count:
            places = "1 place of the change needs" if count == 1 else f"{count} places of the change need"
            reason += f"; {places} a job of this level, and none is planned for {'it' if count == 1 else 'them'}"
        found.append(NotRequired(level, reason))
    return tuple(found)


def _unmatched(level: Level, counted: tuple[Classified, ...], policy: Policy) -> str:
    """What the rules that ask for the level were tried at, and which rules these are."""
    symbols = {(path.path, item.effect.symbol) for path in counted for item in path.effects or ()}
    named = [path for path in counted if path.effects is None]
    looked: list[str] = []
    kinds: list[str] = []
    able: list[Rule | SymbolRule] = []
    if symbols and policy.reach is not None:
        looked.append(f"{len(symbols)} changed symbol{'' if len(symbols) == 1 else 's'} that verl reaches")
        kinds.append("symbols")
        able += policy.reach.rules
    if named:
        one = len(named) == 1
        looked.append("1 path judged by its name" if one else f"{len(named)} paths judged by their names")
        kinds.append("names")
        able += policy.rules
    # Those that ask for the level by themselves or by a variant.
    of_level = {variant.job_id for variant in VARIANTS if variant.level is level}
    rules = [rule.name for rule in able if level in rule.levels or not of_level.isdisjoint(rule.variants)]
    none = f"the policy has no rule for this level that judges {' or '.join(kinds)}"
    names = list(dict.fromkeys(rules))
    more = f" and {len(names) - _SHOWN_RULES} more" if len(names) > _SHOWN_RULES else ""
    matched = f"no rule for this level matches ({', '.join(names[:_SHOWN_RULES])}{more})" if rules else none
    return f"looked at {' and '.join(looked)}; {matched}"


ANY_FAMILY = "any"
NAMES_ALONE = "Planned by the names of the changed paths alone: the sources were not looked into."
NO_MERGE_BASE = (
    "Base and head do not have exactly one merge base, so they were compared with each other: what the base has and the"
    " head does not counts as changed, too. Merge the base into the head once more to plan its own changes alone."
)
_NOT_COMPARED = "what differs in it was not compared, so a level that only this difference needs is not planned."
_BUMP_NOT_COMPARED = (
    "what differs in it was not compared, so every level is planned that a rule of `megatron_lm` names."
)
_SHOWN_REASONS = 3
_ASKED = "requested by hand"
_MEASURED = "no job without it does what was measured: {}"
_VIA = ("what was measured",)
_OFF = "switched off by the policy, though the change asks for it: {}"
_STANDS_IN = "in place of {}, for it takes {} GPUs and a job has {} at most (`most_gpus`): it does not show {}"
_AT_IMPORT = "it runs when verl imports Bridge"
_ONLY_MEASURED = "of the jobs that were measured, only {} entered it"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a change needs. Every level is either in `levels`, with a reason, or in `not_required`."""

    # The commit that the change starts from, in full.
    base: str
    # The commit that holds the change, in full.
    head: str
    # The required levels, ascending.
    levels: tuple[Level, ...]
    # The jobs of the required levels.
    jobs: tuple[JobOutline, ...]
    # Why each level is required, for each path that requires it.
    reasons: tuple[Reason, ...]
    # The other levels, each with the reason.
    not_required: tuple[NotRequired, ...]
    # The model families that the change touches.
    families: tuple[str, ...]
    # The features that the change touches.
    features: tuple[str, ...]
    # Paths that verl does not run, counted by exemption.
    exempted: tuple[Exempted, ...] = ()
    # Sentences about the plan as a whole.
    notes: tuple[str, ...] = ()
    # The notes that say why the plan may not be what the change needs: files that are not known or not read.
    incomplete: tuple[str, ...] = ()
    # Whether one of these may not hold the next time.
    passing: bool = False
    tests: Choice = NO_CHOICE
    # Sentences on levels that the change asks for and the policy has switched off.
    switched_off: tuple[str, ...] = ()
    # How much was looked at; None where names alone were.
    looked_at: LookedAt | None = None
    # The functions that the change touches; each job has those that it is planned to execute.
    changed: ChangedCode = NO_CODE
    # Places that no job is planned for.
    not_covered: tuple[NotCovered, ...] = ()
    # Places that nothing is known to enter, so that a planned job may get there or not.
    not_entered: tuple[Place, ...] = ()
    # What no job of a level can show, because of the models that they run.
    unshown: tuple[Unshown, ...] = ()

    def __post_init__(self) -> None:
        """No GPU time without a reason: ValueError for a job that nothing asks for."""
        others = (job for job in self.jobs if not (job.is_default and job.variant.level in self.levels))
        without = [job.id for job in others if not (job.reason or job.purposes)]
        if without:
            raise ValueError(f"planned without a reason: {', '.join(without)}")

    @property
    def differs_at_import_alone(self) -> bool:
        """Whether level 0 is required, and by nothing but what differs when modules are imported."""
        return self.levels == (Level.SMOKE,) and all(reason.at_import for reason in self.reasons)

    @property
    def gpu_minutes(self) -> int:
        """The expected cost of all jobs together; one that cannot pass is not run and costs nothing."""
        return sum(job.gpu_minutes for job in self.jobs)

    @property
    def minutes_to_answer(self) -> int:
        """Minutes until the last job has ended, if all pass and none has to wait for a machine."""
        run = (job for job in self.jobs if not job.obstacles)
        return minutes_to_answer(TimedJob(job.id, job.requires, job.gpu_minutes, job.gpu_count) for job in run)

    @property
    def blocked_jobs(self) -> tuple[JobOutline, ...]:
        """The jobs that cannot pass as they are planned; their levels cannot turn green without a person."""
        return tuple(job for job in self.jobs if job.obstacles and not job.uncoverable)

    @property
    def uncoverable_jobs(self) -> tuple[JobOutline, ...]:
        """The jobs of families that no host can ever run; the policy decides whether the gate waits for them."""
        return tuple(job for job in self.jobs if job.uncoverable)


def with_tests(planned: Plan, tests: Choice) -> Plan:
    """The plan with its Bridge tests, in every job."""
    return replace(planned, jobs=tuple(replace(job, tests=tests) for job in planned.jobs), tests=tests)


def with_parity(planned: Plan, policy: Policy) -> Plan:
    """The plan with every job of parity where it has level 0; the change is for the other jobs to execute."""
    smoke = next((job for job in planned.jobs if job.variant is variants_of(Level.SMOKE)[0]), None)
    if smoke is None:
        return planned
    known, level = {job.id for job in planned.jobs}, Level.PARALLELISM
    bare = replace(smoke, requires=(smoke.id,), changed=NO_CODE, purposes=(), reason=_ASKED)
    added = (
        with_obstacles(replace(bare, variant=item, checkpoint=variant_model(item, policy, smoke.checkpoint)), policy)
        for item in PARITY_VARIANTS
        if item.job_id not in known
    )
    return replace(
        planned,
        levels=tuple(sorted({*planned.levels, level})),
        jobs=(*planned.jobs, *added),
        reasons=planned.reasons if level in planned.levels else (*planned.reasons, Reason(level, None, _ASKED)),
        not_required=tuple(item for item in planned.not_required if item.level is not level),
    )


def plan(
    change: Change,
    policy: Policy,
    asked: Iterable[Level] = (),
    effects: Effects | None = None,
    beyond: Iterable[Reason] = (),
    measured: Measured | None = None,
) -> Plan:
    """Decide the levels of a change by a policy; the order of the paths does not matter.

    `asked` are levels that someone requests in addition to those that the change needs. `effects` say what the change
    does inside its files; a path that they do not cover, and every path without them, is judged by its name. `beyond`
    are reasons that lie beyond the change itself. `measured` says which cells of a rehearsal and which jobs entered it.
    """
    asked = tuple(asked)
    off = {item.level: item.reason for item in policy.switched_off if item.level not in asked}
    of_bump = sorted(path for path in effects.paths if in_megatron_lm(path)) if effects else ()
    paths = tuple(classify(name, policy, effects) for name in (*change.names(), *of_bump))
    bumped = bool(effects and effects.bumped)
    if not bumped and any(MEGATRON_LM_FOLDER in item.names() and _moves(item) for item in change.paths):
        # What was not compared may be anything that a rule names.
        every = policy.megatron_lm.rules
        paths = tuple(
            replace(path, rules=(*path.rules, *every)) if path.path == MEGATRON_LM_FOLDER else path for path in paths
        )
    counted = tuple(path for path in paths if path.exemption is None)
    asking = _reasons(counted, policy, asked, effects, beyond)
    reasons = tuple(reason for reason in asking if reason.level not in off)
    levels = tuple(sorted({reason.level for reason in reasons}))
    jobs = _jobs(levels, counted, policy)
    places = () if effects is None or measured is None or not levels else _places(counted, effects, measured)
    derived = Derived(jobs)
    # Without any job there is nothing to enter.
    if jobs and places and measured is not None:
        table = CellTable(measured.cells.cells, policy)
        maker = JobMaker(policy, _checkpoint(variants_of(Level.SMOKE)[0], counted, policy), table)
        derived = with_measured_jobs(jobs, needs_of(places, table), maker, policy.budget.gpu_minutes)
    lost = {item.level for item in asking} | {job.variant.level for job in derived.jobs}
    off = {level: _OFF.format(reason) for level, reason in off.items() if level in lost}
    derived = _without_levels(derived, off)
    derived = with_known_defects(derived, effects.defects if effects else (), policy)
    reasons = (*reasons, *_reasons_of_places(derived, levels))
    levels = tuple(sorted({reason.level for reason in reasons}))
    exempted = _exempted(paths)
    counting = {path.path for path in counted}
    compared = {MEGATRON_LM_FOLDER} if bumped else set()
    moved = [
        (item.path, item.submodule) for item in change.paths if item.path in counting - compared and item.submodule
    ]
    # Submodules that move and that runs may read.
    uncompared = tuple(
        f"{on_one_line(path)} moves from {(bump.old or 'nothing')[:12]} to {(bump.new or 'nothing')[:12]}: "
        f"{_BUMP_NOT_COMPARED if path == MEGATRON_LM_FOLDER and policy.megatron_lm.rules else _NOT_COMPARED}"
        for path, bump in moved
    )
    code = CodePlan(change, counted, policy, reasons, asked, effects)
    touched = {family.name for path in counted for family in path.families}
    families = tuple(family.name for family in policy.families if family.name in touched)
    tags = {tag for path in counted for rule in rules_of(path) for tag in rule.features}
    tags |= {tag for path in counted for family in path.families for tag in (*family.features, f"model:{family.name}")}
    return Plan(
        base=change.base,
        head=change.head,
        levels=levels,
        jobs=tuple(code.planned(job) for job in derived.jobs),
        reasons=reasons,
        not_required=tuple(
            replace(item, reason=off.get(item.level, item.reason))
            for item in not_required(levels, exempted, counted, policy, [item.level for item in derived.not_covered])
        ),
        switched_off=tuple(f"Level {int(level)} is {reason}." for level, reason in sorted(off.items())),
        families=(*([ANY_FAMILY] if any(not path.families for path in counted) else []), *families),
        features=tuple(sorted(tags)),
        exempted=exempted,
        notes=(
            *([] if change.merge_base else [NO_MERGE_BASE]),
            *(effects.notes if effects else (NAMES_ALONE,)),
        ),
        incomplete=(*uncompared, *(effects.incomplete if effects else ())),
        passing=bool(effects and effects.passing),
        looked_at=effects.looked_at if effects else None,
        changed=code.whole(),
        not_covered=derived.not_covered,
        not_entered=tuple(place for place in places if place.problem),
        unshown=code.unshown(derived.jobs),
    )


def beyond_head(merged: Plan, alone: Plan) -> tuple[Reason, ...]:
    """Why a head needs levels only together with what the base has brought since: by its plan as merged, and alone."""
    found = (reason for reason in merged.reasons if reason.level not in alone.levels)
    return tuple(replace(reason, reason=f"merged with {merged.base[:12]}: {reason.reason}") for reason in found)


def _moves(path: ChangedPath) -> bool:
    """Whether a submodule names another commit than before, or lies elsewhere; GitHub's list of names does not say."""
    return path.submodule is None or path.submodule.old != path.submodule.new or path.old_path is not None


def _places(paths: tuple[Classified, ...], effects: Effects, measured: Measured) -> tuple[Place, ...]:
    """The places of the paths that count, with what enters each."""
    counted = {path.path for path in paths}
    words = {
        (path.path, item.effect.symbol): frozenset().union(*item.effect.statements)
        for path in paths
        for item in path.effects or ()
    }
    own = [item for item in effects.functions if item.path in counted and not in_megatron_lm(item.path)]
    # What cells of this very head entered of a bump; nothing else tells which settings enter it.
    entered = measured.cells.of_function if measured.of_head else lambda *_: NO_CELLS
    of_bump = (
        replace(item, function=item.function.model_copy(update={"reached": True}))
        for item in effects.functions
        if in_megatron_lm(item.path) and entered(item.path, item.function.symbol)
    )
    return measured_places((*own, *of_bump), measured, effects.lines, words)


def _without_levels(derived: Derived, off: Mapping[Level, str]) -> Derived:
    """The jobs without those of levels that are switched off; the places that they were there for are named."""
    lost = [job for job in derived.jobs if job.variant.level in off]
    left = [NotCovered(item, off[job.variant.level], job.variant.level) for job in lost for item in job.purposes]
    kept = tuple(job for job in derived.jobs if job.variant.level not in off)
    return Derived(kept, (*derived.not_covered, *left))


def _reasons_of_places(derived: Derived, levels: Collection[Level]) -> tuple[Reason, ...]:
    """Why there are levels that nothing but a measured place asks for."""
    found = {
        Reason(job.variant.level, item.path, _MEASURED.format(item.condition), item.symbol or MODULE_LEVEL, _VIA)
        for job in derived.jobs
        if job.variant.level not in levels
        for item in job.purposes
    }
    return tuple(sorted(found, key=lambda item: (item.level, item.path or "", item.symbol or "", item.reason)))


def _reasons(
    paths: tuple[Classified, ...],
    policy: Policy,
    asked: Iterable[Level],
    effects: Effects | None = None,
    beyond: Iterable[Reason] = (),
) -> tuple[Reason, ...]:
    found = {reason for path in paths for reason in _reasons_of(path, policy)} | set(beyond)
    for reason in tuple(found):
        problem = effects.unread.get(reason.path or "") if effects is not None else None
        if problem:
            found.remove(reason)
            found.add(replace(reason, reason=f"{reason.reason}; judged by its name alone, for {problem}"))
    found |= {Reason(level, None, _ASKED) for level in asked}
    found |= set(_beyond_the_bound(paths, policy))
    if found and not any(reason.level is Level.SMOKE for reason in found):
        first = min(reason.level for reason in found)
        found.add(Reason(Level.SMOKE, None, f"level {int(first)} starts only after level 0 passed"))
    return tuple(
        sorted(found, key=lambda item: (item.level, item.path or "", item.symbol or "", item.reason, item.via))
    )


def _level_entered(effect: Effect) -> Level | None:
    """The lowest level whose jobs entered code of Megatron-LM when they were measured; None where none did.

    A level's named jobs tell it, where one of them did: a derived job shows what no job of its level runs as a rule.
    """
    named = [found.level for job in effect.jobs if (found := variant_named(job)) is not None]
    levels = named or [Level(int(job.partition("-")[0])) for job in effect.jobs]
    return min(levels) if levels and effect.sure else None


def _reasons_of_effects(path: Classified, policy: Policy) -> Iterable[Reason]:
    for item in path.effects or ():
        if (lowest := _level_entered(item.effect)) and lowest is not Level.SMOKE:
            why = _ONLY_MEASURED.format(" and ".join(item.effect.jobs))
            yield Reason(lowest, readable(path.path), why, item.effect.symbol or MODULE_LEVEL, item.effect.via)
        symbol = item.effect.symbol or MODULE_LEVEL
        imported = item.effect.kind == IMPORT_TIME
        if not item.rules and not item.effect.jobs:
            reason = _AT_IMPORT if imported else policy.unknown.reason
            place = (policy.unknown.level, readable(path.path), reason, symbol, item.effect.via)
            yield Reason(*place, at_import=imported)
        for rule in item.rules:
            for level in {*rule.levels, *(variant.level for variant in _named_variants(rule))}:
                via = (*item.effect.via, f"rule {rule.name}")
                yield Reason(level, readable(path.path), rule.reason, symbol, via, rule.name, at_import=imported)


def _reasons_of(path: Classified, policy: Policy) -> Iterable[Reason]:
    name = readable(path.path)
    if path.effects is not None:
        yield from _reasons_of_effects(path, policy)
        return
    if path.unknown:
        yield Reason(policy.unknown.level, name, path.unknown, via=("what verl may import and no one can judge",))
    elif not path.rules:
        yield Reason(policy.unknown.level, name, policy.unknown.reason, via=("default for unknown paths",))
    for rule in path.rules:
        asked = {*rule.levels, *(variant.level for variant in _named_variants(rule))}
        for level in asked:
            yield Reason(level, name, rule.reason, via=(f"rule {rule.name}",), rule=rule.name)


def _named_variants(rule: Rule | SymbolRule) -> tuple[Variant, ...]:
    return tuple(variant for variant in VARIANTS if variant.job_id in rule.variants)


def _exempted(paths: Iterable[Classified]) -> tuple[Exempted, ...]:
    by_reason: dict[str, dict[str, int]] = {}
    for path in paths:
        if path.exemption is not None:
            counts = by_reason.setdefault(path.exemption.name, {})
            counts[path.exemption.reason] = counts.get(path.exemption.reason, 0) + 1
    found: list[Exempted] = []
    for name, counts in by_reason.items():
        shown = sorted(counts)[:_SHOWN_REASONS]
        if len(counts) > _SHOWN_REASONS:
            shown.append(f"and {len(counts) - _SHOWN_REASONS} more")
        found.append(Exempted(name, sum(counts.values()), "; ".join(shown)))
    return tuple(sorted(found, key=lambda item: (-item.count, item.name)))


def _jobs(levels: tuple[Level, ...], paths: tuple[Classified, ...], policy: Policy) -> tuple[JobOutline, ...]:
    smoke = variants_of(Level.SMOKE)[0]
    found: list[JobOutline] = []
    for level in levels:
        if level is Level.FEATURE:
            found.extend(feature_jobs(_asking(paths, policy) or paths, policy)[: policy.family_jobs])
            continue
        default = variants_of(level)[0]
        for variant in variants_of(level):
            reason = "" if variant is default else _why_variant(variant, paths, policy)
            if variant is default or reason:
                requires = () if variant is smoke else (smoke.job_id,)
                checkpoint = variant_model(variant, policy, _checkpoint(variant, paths, policy))
                job = JobOutline(variant, requires, checkpoint, reason=reason)
                found.append(_small_enough(job, policy) if variant is default else job)
    return tuple(with_obstacles(job, policy) for job in found)


def _small_enough(job: JobOutline, policy: Policy) -> JobOutline:
    """A level's default job, or the first job of the policy that stands for it where it has too many GPUs."""
    level, most = job.variant.level, policy.most_gpus
    able = (item.point for item in policy.stand_ins if item.level is level and item.point.gpu_count <= most)
    point = next(able, None) if job.variant.gpu_count > most else None
    if point is None:
        return job
    settings, whole = point.differing, POINTS[job.variant.job_id].differing
    lost = ", ".join(f"{axis} {value}" for axis, value in whole.items() if settings.get(axis) != value)
    note = _STANDS_IN.format(job.id, job.variant.gpu_count, most, lost)
    variant = variant_of(point, level, name_of(level, point))
    return replace(job, variant=variant, settings=settings, replaces=job.variant.job_id, notes=(note,))


def _why_variant(variant: Variant, paths: tuple[Classified, ...], policy: Policy) -> str:
    """Why a job joins its level's default one, a clause; empty where nothing of the change asks for it.

    A family that lists the feature asks only for a job on a model of its own: another one does not run its files.
    """
    for effect in (item.effect for path in paths for item in path.effects or ()):
        level = _level_entered(effect)
        named = (found for job in effect.jobs if (found := variant_named(job)) and found.level is level)
        if level and level is not Level.SMOKE and variant is next(named, None):
            return f"{_ONLY_MEASURED.format(' and '.join(effect.jobs))}: {effect.symbol or MODULE_LEVEL}"
    for rule in (rule for path in paths for rule in rules_of(path)):
        if variant.job_id in rule.variants or (variant.feature and variant.feature in rule.features):
            return f"rule {rule.name}: {rule.reason}"
    able = _showing(variant, [family for path in paths for family in path.families], policy)
    return f"the family {able[0].name} has {variant.feature}" if able else ""


def _showing(variant: Variant, families: Iterable[Family], policy: Policy) -> list[Family]:
    """The families whose checkpoint shows the feature of a variant."""
    return [
        family
        for family in families
        if family.checkpoint and variant.feature and variant.feature in family.features
        if policy.facts_of(family.checkpoint).shows(variant.feature)
    ]


def _checkpoint(variant: Variant, paths: tuple[Classified, ...], policy: Policy) -> Checkpoint | None:
    """The checkpoint of a variant's feature, else of the only families touched, else the policy's own."""
    touched = [family for family in policy.families if any(family in path.families for path in paths)]
    if variant.feature:
        return next((family.checkpoint for family in _showing(variant, (*touched, *policy.families), policy)), None)
    if all(path.families for path in paths):
        return next((family.checkpoint for family in touched if family.checkpoint), policy.checkpoint)
    return policy.checkpoint


def _asking(paths: tuple[Classified, ...], policy: Policy) -> tuple[Classified, ...]:
    return tuple(path for path in paths if any(reason.level is Level.FEATURE for reason in _reasons_of(path, policy)))


def _beyond_the_bound(paths: tuple[Classified, ...], policy: Policy) -> Iterable[Reason]:
    """The families that the bound on level 4 leaves without a job of their own: said, never silent."""
    asking = _asking(paths, policy)
    left = feature_jobs(asking, policy)[policy.family_jobs :] if asking else ()
    if left:
        names = ", ".join(job.family or job.id for job in left)
        yield Reason(Level.FEATURE, None, f"no job of their own, for family_jobs is {policy.family_jobs}: {names}")
