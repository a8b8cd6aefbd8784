"""The jobs of level 4: which family's checkpoint and which features a change asks for, and what switches them on."""

from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.levels import Level, variants_of
from verl_e2e.core.model.wants import ModelWant
from verl_e2e.core.plan.classify import Classified
from verl_e2e.core.plan.family_models import checkpoint_for
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.plan.policy import Family, Feature, Policy, Rule, SymbolRule


def feature_jobs(asking: tuple[Classified, ...], policy: Policy) -> tuple[JobOutline, ...]:
    """One job for each family touched, then as many as show the features asked for that none of these shows.

    `asking` are the paths that ask for level 4. A feature that families list comes with their checkpoint; any other
    is a setting, which every job takes on. A family promises only what its model has. Never empty.
    """
    tags = frozenset(tag for path in asking for rule in rules_of(path) if _asks(rule) for tag in rule.features)
    settings = tags - {tag for family in policy.families for tag in family.features}
    touched = [family for family in policy.families if any(family in path.families for path in asking)]
    jobs = [_of_family(family, (tags & {*family.features}) | settings, policy) for family in touched]
    open_tags = (
        tags
        - settings
        - {tag for family, job in zip(touched, jobs, strict=True) for tag in _had(family, job.checkpoint, policy)}
    )
    for family in policy.families:
        had = open_tags & {*_had(family, family.checkpoint, policy)} & {*_read(family, policy)}
        if family.checkpoint and had and family not in touched:
            jobs.append(_of_family(family, had | settings, policy))
            open_tags -= had
    return tuple(jobs) or (_of_settings(tags, policy),)


def job_of_model(model: ModelWant, policy: Policy) -> JobOutline:
    """The job of level 4 for a family, or for features, that a condition in the code asks for."""
    named = next((family for family in policy.families if family.name == model.family), None)
    able = (
        item for item in policy.families if item.checkpoint and model.features <= {*_had(item, item.checkpoint, policy)}
    )
    family = named if model.family else next(able, None)
    if family is None or not (model.family or model.features & {*family.features}):
        return _of_settings(model.features, policy)
    return _of_family(family, model.features, policy)


def rules_of(path: Classified) -> tuple[Rule | SymbolRule, ...]:
    """Every rule that a path meets, by its name or by what differs inside."""
    return (*path.rules, *(rule for effect in path.effects or () for rule in effect.rules))


def _asks(rule: Rule | SymbolRule) -> bool:
    return Level.FEATURE in rule.levels


def _had(family: Family, checkpoint: Checkpoint | None, policy: Policy) -> tuple[str, ...]:
    """The features of a family that a checkpoint of it has; all of them where there is none yet."""
    facts = policy.facts_of(checkpoint)
    return tuple(tag for tag in family.features if facts.shows(tag))


def _read(family: Family, policy: Policy) -> tuple[str, ...]:
    """The features of a family whose data verl reads."""
    unread = {feature.name for feature in policy.features if not feature.is_read_of(family.name)}
    return tuple(tag for tag in family.features if tag not in unread)


def _of_family(family: Family, tags: frozenset[str], policy: Policy) -> JobOutline:
    """A family's job: of its own features those asked for, all of them where the change does not tell."""
    own = frozenset(family.features)
    wanted = tags if tags & own else tags | own
    checkpoint = checkpoint_for(family, tags & own, policy)
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
_SMOKE = variants_of(Level.SMOKE)[0].job_id
