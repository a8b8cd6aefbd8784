"""The models of jobs: of derived ones, and of those of level 4 with the features that a change asks for."""

from dataclasses import replace

from verl_e2e.core.consumer.consumers import VARIANTS, variants_of
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.levels import Level, Variant
from verl_e2e.core.model.space import POINTS, ModelWant
from verl_e2e.core.plan.classify import Classified
from verl_e2e.core.plan.outline import JobOutline, with_obstacles
from verl_e2e.core.plan.policy import Family, Feature, Policy, Rule, SymbolRule

_SMOKE = variants_of(Level.SMOKE)[0].job_id


def shows(job: JobOutline, model: ModelWant, policy: Policy) -> bool:
    """Whether the job's own model is what is needed; what no one declares of a model is not known of it."""
    made = job.checkpoint.synthetic if job.checkpoint else None
    if model.fields and (made is None or {**made.wanted, **model.fields} != made.wanted):
        return False
    switched_on = {feature.name for feature in job.features}
    if any(name not in switched_on and not job.model.shows(name) for name in model.features):
        return False
    families = (family for family in policy.families if family.name == model.family)
    return model.family in ("", job.family) or any(is_on_family(job, family) for family in families)


def is_on_family(job: JobOutline, family: Family) -> bool:
    """Whether a job's model is one of a family."""
    made = job.checkpoint.synthetic if job.checkpoint else None
    named = job.checkpoint is not None and family.checkpoint == job.checkpoint
    return named or family.name in (job.family, made.family if made else "")


def job_on_model(variant: Variant, model: ModelWant, policy: Policy, checkpoint: Checkpoint | None) -> JobOutline | str:
    """A job on the model that is needed, or why none can pass; `checkpoint` is the one where any model will do."""
    if model.family and not any(family.name == model.family for family in policy.families):
        return f"the policy has no family {model.family}"
    made = made_model(model, policy) if model.fields else None
    if model.fields and made is None:
        shown = ", ".join(f"{name} = {value!r}" for name, value in sorted(model.fields.items()))
        return f"no model can be made with {shown}: {_why_no_recipe(model, policy)}"
    known = {feature.name for feature in policy.features}.union(*(family.features for family in policy.families))
    strange = sorted(model.features - known)
    if strange:
        return f"the policy knows neither a model nor a setting with {' and '.join(strange)}"
    if variant.level is Level.FEATURE:
        job = replace(job_of_model(model, policy), variant=variant)
    else:
        own = bool(model.family or model.features)
        found = _checkpoint(model, policy) if own else checkpoint
        if own and found is None and made is None:
            family = next((family for family in policy.families if family.name == model.family), None)
            if family is not None and family.uncoverable:
                return f"no host can run a model of the family {family.name}: {family.uncoverable}"
            whose = f"model of the family {family.name}" if family else "known model"
            return f"no {whose}{' has ' if model.features else ' is known'}{' and '.join(sorted(model.features))}"
        if own and variant not in VARIANTS:
            # As a job of level 4 trains: not every family can have a critic.
            able = VERL.any_model(variant.overrides)
            overrides = (*variant.overrides, *able.overrides)
            variant = replace(variant, wrapper={**variant.wrapper, **able.wrapper}, overrides=overrides)
        job = JobOutline(variant, (_SMOKE,), found)
    planned = with_obstacles(replace(job, checkpoint=made) if made else job, policy)
    if planned.obstacles:
        return planned.blocked
    return planned if shows(planned, model, policy) else f"no one model has {' and '.join(sorted(model.features))}"


def variant_model(variant: Variant, policy: Policy, usual: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint of a named variant: a synthetic model with the fields that it needs, else the usual one."""
    model = POINTS[variant.job_id].model
    return made_model(model, policy) if model.fields else usual


def made_model(model: ModelWant, policy: Policy) -> Checkpoint | None:
    """The synthetic model of the first family of the table that may be what is wanted; None where there is none."""
    of_models = model.features & frozenset(name for family in policy.families for name in family.features)
    for family in policy.families:
        recipe = family.synthetic if model.family in ("", family.name) else None
        features = {*family.features} - {*recipe.without} if recipe else set()
        if recipe and of_models <= features:
            made = family.made_for(model.features, model.fields)
            return made.checkpoint if made else None
    return None


def _why_no_recipe(model: ModelWant, policy: Policy) -> str:
    """Why no family has a recipe for what is wanted."""
    family = next((family for family in policy.families if family.name == model.family), None)
    if family is not None and family.synthetic is None:
        return family.no_synthetic or f"the family {family.name} has no `synthetic:` in the policy"
    whose = f"the synthetic model of {model.family} has not" if family else "no synthetic model has"
    return f"{whose} {' and '.join(sorted(model.features))}"


def _checkpoint(model: ModelWant, policy: Policy) -> Checkpoint | None:
    """The first checkpoint of the table that has what is needed."""
    able = (
        policy.checkpoint_for(family, model.features)
        for family in policy.families
        if model.family in ("", family.name) and model.features <= {*family.features}
    )
    shown = (item for item in able if item and all(map(policy.facts_of(item).shows, model.features)))
    return next(shown, None)


def feature_jobs(asking: tuple[Classified, ...], policy: Policy) -> tuple[JobOutline, ...]:
    """One job for each family touched, then as many as show the features asked for that none of these shows.

    `asking` are the paths that ask for level 4. A feature that families list comes with their checkpoint; any other
    is a setting, which every job takes on. A family promises only what its model has. Never empty.
    """
    rules = [rule for path in asking for rule in rules_of(path) if Level.FEATURE in rule.levels]
    tags = frozenset(tag for rule in rules for tag in rule.features)
    settings = tags - {tag for family in policy.families for tag in family.features}
    touched = [family for family in policy.families if any(family in path.families for path in asking)]
    jobs = [_of_family(family, (tags & {*family.features}) | settings, policy) for family in touched]
    open_tags = (
        tags
        - settings
        - {tag for family, job in zip(touched, jobs, strict=True) for tag in _had(family, job.checkpoint, policy)}
    )
    for family in policy.families:
        unread = {feature.name for feature in policy.features if not feature.is_read_of(family.name)}
        had = open_tags & {*_had(family, policy.checkpoint_for(family, open_tags), policy)} - unread
        if family.checkpoint and had and family not in touched:
            jobs.append(_of_family(family, had | settings, policy))
            open_tags -= had
    return tuple(jobs) or (_of_settings(tags, policy),)


def job_of_model(model: ModelWant, policy: Policy) -> JobOutline:
    """The job of level 4 for a family, or for features, that a condition in the code asks for."""
    named = next((family for family in policy.families if family.name == model.family), None)
    able = (
        item
        for item in policy.families
        if item.checkpoint and model.features <= {*_had(item, policy.checkpoint_for(item, model.features), policy)}
    )
    family = named if model.family else next(able, None)
    if family is None or not (model.family or model.features & {*family.features}):
        return _of_settings(model.features, policy)
    return _of_family(family, model.features, policy)


def rules_of(path: Classified) -> tuple[Rule | SymbolRule, ...]:
    """Every rule that a path meets, by its name or by what differs inside."""
    return (*path.rules, *(rule for effect in path.effects or () for rule in effect.rules))


def _had(family: Family, checkpoint: Checkpoint | None, policy: Policy) -> tuple[str, ...]:
    """The features of a family that a checkpoint of it has; all of them where there is none yet."""
    facts = policy.facts_of(checkpoint)
    return tuple(tag for tag in family.features if facts.shows(tag))


def _of_family(family: Family, tags: frozenset[str], policy: Policy) -> JobOutline:
    """A family's job: of its own features those asked for, all of them where the change does not tell."""
    own = frozenset(family.features)
    wanted = tags if tags & own else tags | own
    checkpoint = policy.checkpoint_for(family, tags & own)
    absent = wanted & (own - {*_had(family, checkpoint, policy)})
    shown, unscripted = _split(wanted - absent, policy, family.name)
    lost = tuple(tag for tag in family.features if tag in absent)
    return JobOutline(_VARIANT, (_SMOKE,), checkpoint, family.name, shown, unscripted, absent=lost)


def _of_settings(tags: frozenset[str], policy: Policy) -> JobOutline:
    """The job of features that come with no family: by settings of the run, on the policy's own checkpoint."""
    shown, unscripted = _split(tags, policy)
    if not shown:
        return JobOutline(_VARIANT, (_SMOKE,), None, not_shown=unscripted)
    checkpoint = next((text.checkpoint for text in shown if text.checkpoint), policy.checkpoint)
    return JobOutline(_VARIANT, (_SMOKE,), checkpoint, features=shown, not_shown=unscripted)


def _split(tags: frozenset[str], policy: Policy, family: str = "") -> tuple[tuple[Feature, ...], tuple[Feature, ...]]:
    """The features that a run can show, and those that none can, of a family where one is named."""
    named = [feature for feature in policy.features if feature.name in tags]
    able = [bool(feature.script) and feature.is_read_of(family) for feature in named]
    shown = tuple(feature for feature, can in zip(named, able, strict=True) if can)
    return shown, tuple(feature for feature, can in zip(named, able, strict=True) if not can)


_VARIANT = variants_of(Level.FEATURE)[0]
