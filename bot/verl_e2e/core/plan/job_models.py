"""The model of a derived job: whether a planned job's model is what a want needs, and which one the policy has."""

from dataclasses import replace

from verl_e2e.core.model.jobs import Checkpoint
from verl_e2e.core.model.levels import Level, Variant, variants_of
from verl_e2e.core.model.wants import ModelWant
from verl_e2e.core.plan.feature_jobs import job_of_model
from verl_e2e.core.plan.obstacles import with_obstacles
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.plan.policy import Policy

_SMOKE = variants_of(Level.SMOKE)[0].job_id


def shows(job: JobOutline, model: ModelWant, policy: Policy) -> bool:
    """Whether the job's own model is what is needed; what no one declares of a model is not known of it."""
    if model.fields:
        return False
    switched_on = {feature.name for feature in job.features}
    if any(name not in switched_on and not job.model.shows(name) for name in model.features):
        return False
    families = (family for family in policy.families if family.name == model.family)
    return not model.family or job.family == model.family or any(job.checkpoint == item.checkpoint for item in families)


def job_on_model(variant: Variant, model: ModelWant, policy: Policy, checkpoint: Checkpoint | None) -> JobOutline | str:
    """A job on the model that is needed, or why none can pass; `checkpoint` is the one where any model will do."""
    if model.fields:
        shown = ", ".join(f"{name} = {value!r}" for name, value in sorted(model.fields.items()))
        return f"no model is known with {shown}"
    if variant.level is Level.FEATURE:
        job = replace(job_of_model(model, policy), variant=variant)
    else:
        found = _checkpoint(model, policy) if model.family or model.features else checkpoint
        job = JobOutline(variant, (_SMOKE,), found)
    known = with_obstacles(job, policy)
    if known.obstacles:
        return known.blocked
    return known if shows(known, model, policy) else f"no one model has {' and '.join(sorted(model.features))}"


def _checkpoint(model: ModelWant, policy: Policy) -> Checkpoint | None:
    """The first checkpoint of the table that has what is needed."""
    able = (
        family.checkpoint
        for family in policy.families
        if family.checkpoint and model.family in ("", family.name)
        if all(name in family.features and policy.facts_of(family.checkpoint).shows(name) for name in model.features)
    )
    return next(able, None)
