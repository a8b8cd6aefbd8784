"""Known defects in a plan: a job that has one is not run, and what can stand for it without the defect is."""

from collections.abc import Iterable
from dataclasses import replace

from verl_e2e.core.consumer.consumers import variant_of
from verl_e2e.core.model.known_defects import KnownDefect
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import Axis
from verl_e2e.core.model.space import JobPoint, name_of
from verl_e2e.core.plan.measured_jobs import Derived, NotCovered, point_of
from verl_e2e.core.plan.outline import JobOutline, Missing, Obstacle, with_obstacles
from verl_e2e.core.plan.policy import Policy


def with_known_defects(derived: Derived, defects: Iterable[KnownDefect], policy: Policy) -> Derived:
    """The jobs of a plan without those that have one of the defects, which the code under test is known to have."""
    held = tuple(defects)
    jobs: dict[str, JobOutline] = {}
    left: list[NotCovered] = []
    for job in derived.jobs:
        made, lost = job, []
        found: KnownDefect | None = None
        # What avoids one defect may have another.
        for defect in (*held, *held):
            if not made.obstacles and has_defect(defect, made, policy):
                made, found = _in_place_of(made, defect, policy), defect
        if found is not None:
            # What stands for the job may not have the settings of a place that the job was there for.
            settings = point_of(made).settings
            lost = [
                item
                for item in job.purposes
                if made.obstacles or any(settings.get(axis, value) != value for axis, value in item.settings.items())
            ]
            left += [NotCovered(item, _sentence(found), job.variant.level) for item in lost]
        made = replace(made, purposes=tuple(item for item in made.purposes if item not in lost))
        known = jobs.get(made.id)
        jobs[made.id] = made if known is None else replace(known, purposes=(*known.purposes, *made.purposes))
    return Derived(tuple(jobs.values()), (*derived.not_covered, *left))


def has_defect(defect: KnownDefect, job: JobOutline, policy: Policy) -> bool:
    """Whether a job with these settings and this model has a defect, by what the policy says of it."""
    if defect.level not in (None, job.variant.level) or not defect.meets(point_of(job).settings):
        return False
    if defect.family is None or job.family == defect.family:
        return True
    family = next((item for item in policy.families if item.name == defect.family), None)
    return family is not None and job.checkpoint is not None and family.has_model(job.checkpoint.model_id)


def _in_place_of(job: JobOutline, defect: KnownDefect, policy: Policy) -> JobOutline:
    """The same job with settings that avoid the defect, or on the usual model; else the job, which is not run."""
    point, level = point_of(job), job.variant.level
    own = {axis: value for axis, value in point.asked.items() if axis not in (*defect.avoid, Axis.ADAPTER_MERGE)}
    other = JobPoint.default().with_axes({**own, **defect.avoid}).with_model(point.model)
    if defect.avoid and not other.conflict and level in other.levels:
        variant = variant_of(other, level, name_of(level, other), feature=job.variant.feature)
        notes = (*job.notes, f"in place of {job.id}: {_sentence(defect)}")
        replaced = job.replaces or job.variant.job_id
        return replace(job, variant=variant, settings=other.differing, replaces=replaced, notes=notes)
    if defect.family is not None and level is not Level.FEATURE and not job.settings:
        note = f"on {policy.checkpoint.model_id} and not on a model of {defect.family}: {_sentence(defect)}"
        usual = with_obstacles(replace(job, checkpoint=policy.checkpoint, notes=(note,)), policy)
        return usual if not usual.obstacles else job
    obstacle = Obstacle(Missing.DEFECT, _sentence(defect), DECLARED.format(defect.name))
    return replace(job, obstacles=(obstacle,), purposes=())


def _sentence(defect: KnownDefect) -> str:
    return f"known defect {defect.name}: {defect.reason} (seen in {defect.evidence})"


DECLARED = (
    "only Bridge tests and a review can judge it until then; the entry {} of `defects:` in the policy ends when one of "
    "its files, the verl commit or the day changes, and `gate.uncoverable` decides about the gate"
)
