"""Why a planned job can never pass: the plan reports it, so that no GPU time is spent to find out."""

from collections.abc import Iterator
from dataclasses import replace

from verl_e2e.core.judge.criteria.features import can_be_shown
from verl_e2e.core.model.jobs import WRAPPER_SCRIPT
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.nodes import MOST_GPUS
from verl_e2e.core.plan.outline import JobOutline, Missing, Obstacle
from verl_e2e.core.plan.policy import Policy

_LEFT_TO_REVIEW = "only Bridge tests and a review can judge it; `gate.uncoverable` of the policy decides about the gate"


def with_obstacles(job: JobOutline, policy: Policy) -> JobOutline:
    """The job with what the policy declares of its checkpoint and with all that keeps it from passing."""
    known = replace(job, model=policy.facts_of(job.checkpoint), most_gpus=policy.most_gpus)
    return replace(known, obstacles=tuple(_obstacles(known, policy)))


def _obstacles(job: JobOutline, policy: Policy) -> Iterator[Obstacle]:
    unshown = tuple(_without_script(job, policy))
    yield from unshown
    if job.checkpoint is None and not (unshown and not job.family):
        yield _no_checkpoint(job, policy)
    yield from _two_scripts(job)
    if not unshown:
        yield from _absent(job, policy)
    yield from _no_evidence(job)
    fitted = job.fitted()
    if fitted.problem:
        yield Obstacle(Missing.GPUS, fitted.problem, _fewer_gpus(job, fitted.needed))


def _fewer_gpus(job: JobOutline, needed: int) -> str:
    """What makes a job fit: other settings where its own sizes need the GPUs, else another model."""
    more = f"raise `most_gpus:` of the policy to {needed}"
    if needed > MOST_GPUS:
        more += ", with `gpus_per_node:` in the site profile"
    if job.variant.gpu_count > job.most_gpus:
        return f"{more}, or add a smaller job of level {int(job.variant.level)} to `stand_ins:`"
    least = replace(job, model=job.model.model_copy(update={"gpus": 1})).fitted()
    declared = "" if least.problem else ", declare with `gpus:` that its weights need fewer"
    return f"name a smaller checkpoint{declared}, or {more}"


def _own(job: JobOutline, policy: Policy) -> frozenset[str]:
    """The features of the job's family."""
    return frozenset(tag for family in policy.families if family.name == job.family for tag in family.features)


def _without_script(job: JobOutline, policy: Policy) -> Iterator[Obstacle]:
    """The features that verl has no script for, if no feature of the family (or none at all) can be shown.

    Nor is a feature an obstacle that verl reads no data for: no run of verl executes it, so a change cannot harm one.
    """
    own = _own(job, policy)
    lost = [
        feature
        for feature in job.not_shown
        if not job.family or (feature.name in own and feature.is_read_of(job.family))
    ]
    shown = [feature for feature in job.features if not job.family or feature.name in own]
    for feature in lost if not shown else ():
        reason = f"no script of verl shows {feature.name}: {feature.reason}"
        yield Obstacle(
            Missing.SCRIPT, reason, f"set `script:` of the feature {feature.name} in the policy once there is one"
        )


def _no_checkpoint(job: JobOutline, policy: Policy) -> Obstacle:
    """No model: of a family that no host can run, of one that the policy has none for, or with what is asked for."""
    family = next((item for item in policy.families if item.name == job.family), None)
    if family is not None and family.uncoverable:
        reason = f"no host can run a model of the family {family.name}: {family.uncoverable}"
        return Obstacle(Missing.MODEL, reason, _LEFT_TO_REVIEW)
    wanted = job.variant.feature or " and ".join(item.name for item in job.features)
    if family is not None:
        reason = f"the family {family.name} has neither `checkpoint:` nor `synthetic:` in the policy"
    elif job.family:
        reason = f"the policy has no family {job.family}"
    elif wanted:
        reason = f"no family of the policy has both {wanted} and a model"
    else:
        reason = "the change names neither a family nor a feature that a model could be chosen by"
    return Obstacle(Missing.CHECKPOINT, reason, "name a `checkpoint:` or a `synthetic:` of a family in the policy")


def _two_scripts(job: JobOutline) -> Iterator[Obstacle]:
    """One run can be only one script."""
    if len({feature.script for feature in job.features} - {WRAPPER_SCRIPT}) > 1:
        names = ", ".join(f"{feature.name}: {feature.script}" for feature in job.features)
        reason = f"its features ask for different scripts ({names})"
        yield Obstacle(Missing.SCRIPTS_DIFFER, reason, "give them one script in the policy")


def _absent(job: JobOutline, policy: Policy) -> Iterator[Obstacle]:
    """Features that the change asks for, where the checkpoint has none of them."""
    own = _own(job, policy)
    if job.checkpoint is None or not job.absent or any(feature.name in own for feature in job.features):
        return
    reason = f"{job.checkpoint.model_id} has no {' and no '.join(job.absent)}"
    yield Obstacle(
        Missing.FEATURE, reason, f"name a checkpoint that has it as `checkpoint:` of the family {job.family}"
    )


def _no_evidence(job: JobOutline) -> Iterator[Obstacle]:
    """Features that nothing in a run shows: level 4 passes only on a fact for each of them."""
    for feature in job.features:
        if not can_be_shown(feature.name, feature.active_when):
            reason = f"neither the configuration nor the log of a run shows whether {feature.name} was active"
            key = f"`active_when:` of the feature {feature.name}"
            fix = f"set {key} in the policy to what the configuration shows only with it"
            yield Obstacle(Missing.EVIDENCE, reason, fix)
    if job.variant.level is Level.FEATURE and not (job.features or job.family or job.not_shown):
        reason = "it names no feature and no family, so nothing in a run could show it"
        yield Obstacle(Missing.EVIDENCE, reason, "describe the features of the rules under `features:` in the policy")
