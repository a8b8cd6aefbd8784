"""The jobs of another consumer than verl: what its own way through the changed code asks for, in its own words."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from verl_e2e.core.consumer.consumer import NEVER_RUN, Consumer
from verl_e2e.core.consumer.consumers import variant_of
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.model.change import Change
from verl_e2e.core.model.execution import MEGATRON_LM_FOLDER, in_megatron_lm
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.space import POINTS, JobPoint
from verl_e2e.core.plan.classify import MODULE_LEVEL, classify
from verl_e2e.core.plan.measured_jobs import point_of
from verl_e2e.core.plan.outline import JobOutline, Missing, Obstacle, in_order, with_obstacles
from verl_e2e.core.plan.plan import Plan, beyond_head, plan
from verl_e2e.core.plan.policy import Feature, Policy
from verl_e2e.core.reach.effects import UNREACHED, Effect, Effects, Inside
from verl_e2e.core.reach.walk import Entry

_REFUSED = "{} has no {}: {}."
_LEFT_OUT = (
    "{} could run {}, too, beyond the {} GPU minutes of one plan or the {} GPUs of one job (`budget` and `most_gpus` of"
    " the policy)."
)
_OTHER_PIN = "{} {} is followed by the list of {}, and the patches for that commit are not applied."


def differing(effects: Effects, theirs: Iterable[Entry], own: Iterable[Entry]) -> Effects:
    """The effects of a consumer without those that it reaches by an import or attribute that verl uses, too.

    What could not be read stays: it may be anything.
    `theirs` and `own` are what the consumer and verl use of the package.
    """
    if effects.incomplete:
        # Where its way could not be followed, all of it may be its own.
        return effects
    known = {entry.target for entry in own}
    starts = {str(entry) for entry in theirs if entry.target not in known}

    def own_way(found: Iterable[Effect]) -> tuple[Effect, ...]:
        return tuple(effect for effect in found if effect.own or effect.via[0] in starts)

    kept = {
        path: replace(inside, effects=own_way(inside.effects), at_import=own_way(inside.at_import))
        for path, inside in effects.paths.items()
    }
    symbols = {(path, effect.symbol) for path, inside in kept.items() for effect in inside.effects}
    return replace(
        effects,
        paths={
            path: inside if inside.effects or inside.at_import else Inside((), UNREACHED)
            for path, inside in kept.items()
        },
        functions=tuple(item for item in effects.functions if (item.path, item.symbol) in symbols),
        notes=(),
    )


def beside(
    planned: Plan,
    consumer: Consumer,
    policy: Policy,
    changes: Iterable[tuple[Change, Effects | None]],
    asked: Collection[Level] = (),
) -> Plan:
    """The plan with the jobs of a consumer in addition.

    `changes` are the change and, where the base has moved, what the head is to that, each with what it does to what the
    consumer runs, if known. `asked` are levels that someone requests in addition.

    They start after verl's level 0 has passed, where the plan has that: no GPU is spent on a change that breaks it.
    The policy's budget counts all jobs of the plan together; the default of level 0 always stays, and of required jobs
    all of level 0 and the default of each other level.
    """
    rules = policy.consumers[consumer.name]
    narrow = rules.when == "differs" and not asked
    (change, effects), *merged = [(_own_paths(*item, policy) if narrow else item[0], item[1]) for item in changes]
    theirs = plan(change, policy, asked, effects)
    for later, known in merged:
        if beyond := beyond_head(plan(later, policy, (), known), theirs):
            theirs = plan(change, policy, asked, effects, beyond)
    if not theirs.jobs:
        return planned
    theirs = for_consumer(theirs, consumer, policy)
    # Of what differs at import nothing but the definition may run.
    at_import = {MODULE_LEVEL, *(reason.symbol for reason in theirs.reasons if reason.at_import)}
    named = (reason.symbol for reason in theirs.reasons if reason.symbol and reason.symbol not in at_import)
    why = f"{consumer.title} runs {next(named, 'what changed')}"
    refused = [job for job in theirs.jobs if any(item.missing is Missing.CONSUMER for item in job.obstacles)]
    # No gate waits for what cannot be.
    notes = [_REFUSED.format(consumer.title, job.id, job.obstacles[0].reason) for job in refused]
    smoke = tuple(job.id for job in planned.jobs if job.variant.level is Level.SMOKE and job.is_default)
    kept, left, minutes = list[JobOutline](), list[str](), planned.gpu_minutes
    for job in in_order(job for job in theirs.jobs if job not in refused):
        usual = job.is_default and not job.reason
        of_smoke = job.variant.level is Level.SMOKE
        stays = (usual and of_smoke) or (rules.level == "require" and (usual or of_smoke))
        if any(_work(job) == _work(other) for other in kept) or not (usual or _is_asked_for(job, planned)):
            continue
        if not stays and (job.obstacles or minutes + job.gpu_minutes > policy.budget.gpu_minutes):
            left.append(job.id)
        else:
            minutes += job.gpu_minutes
            kept.append(replace(job, reason=job.reason or why, requires=job.requires or smoke))
    if left:
        notes.append(_LEFT_OUT.format(consumer.title, ", ".join(left), policy.budget.gpu_minutes, policy.most_gpus))
    if rules.pin not in (None, consumer.pin):
        notes.append(_OTHER_PIN.format(consumer.title, rules.pin, consumer.pin))
    made = tuple(_without_refused(job, refused, kept) for job in kept)
    return replace(planned, jobs=(*planned.jobs, *made), notes=(*planned.notes, *notes))


def _own_paths(change: Change, effects: Effects | None, policy: Policy) -> Change:
    """The change with the paths alone that have effects on a consumer; all of it where these are not known."""
    if effects is None or effects.incomplete:
        return change
    counted = {path for path, inside in effects.paths.items() if inside.effects or inside.at_import}
    counted |= {*effects.unread, *effects.unknown}
    if any(in_megatron_lm(path) and classify(path, policy, effects).exemption is None for path in counted):
        counted.add(MEGATRON_LM_FOLDER)
    return replace(change, paths=tuple(item for item in change.paths if counted.intersection(item.names())))


def _work(job: JobOutline) -> tuple[object, ...]:
    """What a job does; the stand-in for a job with too many GPUs may do what another one does."""
    return job.variant.level, job.variant.wrapper, job.variant.overrides, job.features, job.checkpoint


def _is_asked_for(job: JobOutline, planned: Plan) -> bool:
    """Whether the change asks for one of a consumer's own jobs of level 4: a job of verl has one of its settings."""
    if job.variant.level is not Level.FEATURE:
        return True
    named = [{**point_of(item).settings, **item.settings} for item in planned.jobs]
    wanted = {pair for settings in named for pair in settings.items()}
    return any(pair in wanted for pair in job.settings.items())


def _without_refused(job: JobOutline, refused: Iterable[JobOutline], kept: Iterable[JobOutline]) -> JobOutline:
    """A job of level 0 without the functions that only a refused job enters, on the model of another family."""
    others = {item for other in kept if other.variant.level is not Level.SMOKE for item in other.changed.functions}
    elsewhere = (other for other in refused if other.family and other.checkpoint != job.checkpoint)
    lost = {item for other in elsewhere for item in other.changed.functions} - others
    if job.variant.level is not Level.SMOKE or not lost:
        return job
    functions = tuple(item for item in job.changed.functions if item not in lost)
    return replace(job, changed=job.changed.model_copy(update={"functions": functions}))


def for_consumer(planned: Plan, consumer: Consumer, policy: Policy) -> Plan:
    """The plan with the jobs of a consumer in place of verl's; what it refuses keeps its own words as the reason."""
    jobs = [_of_consumer(job, consumer, policy) for job in planned.jobs]
    for (level, name), axes in consumer.own_jobs.items():
        default = next((job for job in planned.jobs if job.variant.level is level and job.is_default), None)
        smoke = next((job for job in planned.jobs if job.variant.level is Level.SMOKE and job.is_default), default)
        if default is None or smoke is None:
            continue
        point = JobPoint.of_level(level).with_axes(axes)
        first = default.requires or (default.id,)
        named = replace(default, variant=variant_of(point, level, name), requires=first)
        named = replace(named, settings=dict(point.differing or axes))
        shown = consumer.expected(consumer.base, ())
        keys = consumer.expected({**consumer.base, **variant_of(point, level, name, consumer=consumer).wrapper}, ())
        active = {key: value for key, value in keys.items() if shown.get(key) != value}
        if level is Level.FEATURE:
            # One that any model shows; the variant is the level's own, so that the id has the name once.
            feature = Feature(feature=name, reason="a setting of the consumer", active_when=active)
            named = replace(smoke, variant=default.variant, requires=default.requires, settings=named.settings)
            named = replace(named, features=(feature,))
        jobs.append(
            _of_consumer(
                replace(named, reason=f"{consumer.title} has it beside the level's own job"), consumer, policy, point
            )
        )
    return replace(planned, jobs=tuple(jobs))


def _of_consumer(job: JobOutline, consumer: Consumer, policy: Policy, point: JobPoint | None = None) -> JobOutline:
    named = point or POINTS.get(job.variant.job_id) or JobPoint.of_level(job.variant.level).with_axes(job.settings)
    refused = consumer.refused_levels.get(job.variant.level) or next(
        filter(None, (consumer.refused(axis, value) for axis, value in named.settings.items())), None
    )
    # Level 0 of its own comes first.
    job = replace(job, requires=tuple(f"{required}-{consumer.name}" for required in job.requires))
    verls = [item.name for item in job.features if item.wrapper or item.overrides or item.script != VERL.script]
    if refused:
        obstacle = Obstacle(Missing.CONSUMER, refused.reason, f"see {refused.source}")
    elif consumer.never_run:
        obstacle = Obstacle(Missing.CONSUMER, f"{consumer.title} was {NEVER_RUN}", "run it with verl")
    elif verls:
        reason = f"the policy says how verl switches {', '.join(verls)} on, and not how {consumer.title} does"
        obstacle = Obstacle(Missing.CONSUMER, reason, "run it with verl")
    else:
        made = variant_of(named, job.variant.level, job.variant.name, consumer=consumer)
        moved = replace(job, consumer=consumer.name, variant=replace(made, feature=job.variant.feature))
        features = tuple(item.model_copy(update={"script": consumer.script}) for item in job.features)
        return with_obstacles(replace(moved, features=features), policy)
    return replace(job, consumer=consumer.name, obstacles=(obstacle,))
