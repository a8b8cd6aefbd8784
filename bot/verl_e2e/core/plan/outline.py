"""A job before any machine is known: its variant, checkpoint, size, image, and what keeps it from passing."""

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from verl_e2e.core.consumer.consumer import Consumer
from verl_e2e.core.consumer.consumers import CONSUMERS, variants_of
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.judge.criteria.features import can_be_shown
from verl_e2e.core.model.execution import NO_CODE, ChangedCode, Purpose
from verl_e2e.core.model.jobs import DEFAULT_GPU_MEMORY_GIB, Checkpoint, SiteProfile
from verl_e2e.core.model.levels import CostBasis, Level, Variant
from verl_e2e.core.model.needs import MOST_GPUS
from verl_e2e.core.model.settings import PARITY_STEPS, Axis, Value
from verl_e2e.core.plan.bridge_tests import NO_CHOICE, Choice
from verl_e2e.core.plan.policy import UNDECLARED, Family, Feature, Image, ModelFacts, Policy
from verl_e2e.core.signal.report import MIN_STEPS
from verl_e2e.core.text.escape import count_of

# The wrapper gives the rollout engine 0.6 of each GPU, weights and cache; a twentieth is left for activations. The rest
# holds the trainers' weights: the actor's, and as many again where a critic trains. Adapters are too small to count.
TRAINERS_SHARE = 0.35


@dataclass(frozen=True, slots=True)
class Fitted:
    """A variant with the GPUs that its model needs."""

    variant: Variant
    # Where the number of GPUs comes from; empty where it is the variant's own and the model is known to fit.
    reason: str = ""
    # Why no host can run it, empty when one can.
    problem: str = ""
    # The GPUs that it would take then.
    needed: int = 0


def fit(
    variant: Variant,
    facts: ModelFacts,
    *,
    wrapper: Mapping[str, str],
    consumer: Consumer = VERL,
    script: str = VERL.script,
    gpu_memory_gib: float = DEFAULT_GPU_MEMORY_GIB,
    most_gpus: int = MOST_GPUS,
) -> Fitted:
    """The variant on enough GPUs, its parallel sizes raised so that the weights are spread over them.

    `wrapper` are the variables that the job's features set; a script that is not the wrapper takes no sizes from here.
    """
    parts, reason = _parts(facts, gpu_memory_gib, trains_critic=consumer.trains_critic(wrapper))
    factor = max(1, parts // consumer.shards(variant))
    gpu_count = variant.gpu_count * factor
    if gpu_count > most_gpus:
        why = reason if factor > 1 else "its parallel sizes"
        return Fitted(variant, reason, f"{why}: {gpu_count} GPUs, and a job has {most_gpus} at most", gpu_count)
    if factor == 1:
        return Fitted(variant, "" if parts else reason)
    own: Mapping[str, str] = {}
    if script == consumer.script:
        own = consumer.spread(variant.wrapper, parts=parts, factor=factor, experts="moe" in (facts.features or ()))
    return Fitted(replace(variant, gpu_count=gpu_count, wrapper={**variant.wrapper, **own}), reason)


def _parts(facts: ModelFacts, gpu_memory_gib: float, *, trains_critic: bool) -> tuple[int, str]:
    """Over how many GPUs the weights are to be spread, a power of two, and why; 0 where nothing tells."""
    if facts.gpus is not None:
        return facts.gpus, f"the policy asks for {facts.gpus} GPUs for this model"
    if facts.weights_gib is None:
        return 0, "the policy declares no size of this model"
    copies = 2 if trains_critic else 1
    needed = copies * facts.weights_gib / (TRAINERS_SHARE * gpu_memory_gib)
    parts = 1
    while parts < needed:
        parts *= 2
    trainers = "actor and critic" if copies > 1 else "the actor"
    return parts, f"{facts.weights_gib:g} GiB of weights, held by {trainers}, on GPUs of {gpu_memory_gib:g} GiB"


def site_in_image(site: SiteProfile, image: Image, asked: str = "") -> SiteProfile:
    """The site with the image that the job is ordered in; where policy and site disagree, a limitation says so.

    `asked` is an image that a person named for this job, which wins over both.
    """
    if asked:
        return site.model_copy(update={"image": asked})
    own, tagged = str(image), f"{image.name}:{image.tag}"
    if not site.image or site.image == own:
        return site.model_copy(update={"image": own})
    if not image.digest:
        if site.image == tagged:
            return site
        text = f"The site names the image {site.image}, which was ordered; the policy names {own}, without a digest."
        return site.model_copy(update={"limitations": (*site.limitations, text)})
    text = f"The policy pins the image {own}, which was ordered; the site names {site.image}."
    differs = (text,) if site.image != tagged else ()
    return site.model_copy(update={"image": own, "limitations": (*site.limitations, *differs)})


def with_image(site: SiteProfile, image: str) -> SiteProfile:
    """The site with the image that a setting of the service names; unchanged for an empty one."""
    return site.model_copy(update={"image": image}) if image else site


def refused_image(image: str, policy: Policy) -> str:
    """Why an image may not be named, empty when it may."""
    own = policy.image.name
    if image.partition("@")[0].partition(":")[0] == own:
        return ""
    return f"`image={image}`: only images of {own}, the policy's, may be named"


class Missing(StrEnum):
    """What keeps a job from passing, known when it is planned."""

    CHECKPOINT = "checkpoint"
    # No host can ever run a model of the family.
    MODEL = "model"
    SCRIPT = "script"
    SCRIPTS_DIFFER = "scripts differ"
    FEATURE = "feature"
    EVIDENCE = "evidence"
    GPUS = "gpus"
    # The code under test is known to fail in it, whatever the change does.
    DEFECT = "defect"
    # The consumer itself refuses it.
    CONSUMER = "consumer"


_OF_NO_HOST = frozenset({Missing.MODEL, Missing.DEFECT, Missing.CONSUMER})


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a job cannot pass as it is planned, and what a maintainer can do about it, a clause each."""

    missing: Missing
    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.fix}"


@dataclass(frozen=True, slots=True)
class JobOutline:
    """A job before any machine is known.

    `requires` are ids of jobs that must pass first. `family` is set for one family's job of level 4. `features` are
    switched on by the job, each with a script; `not_shown` are those that verl has no script for.
    """

    variant: Variant
    requires: tuple[str, ...]
    checkpoint: Checkpoint | None
    family: str = ""
    features: tuple[Feature, ...] = ()
    not_shown: tuple[Feature, ...] = ()
    # Why it cannot pass as planned, so that no GPU time is spent on it; empty when it may.
    obstacles: tuple[Obstacle, ...] = ()
    # The Bridge tests that were chosen for the change.
    tests: Choice = NO_CHOICE
    # What the policy declares of the checkpoint.
    model: ModelFacts = UNDECLARED
    # The features of the family, or asked for, that the checkpoint does not have.
    absent: tuple[str, ...] = ()
    # What of the change it is planned to execute.
    changed: ChangedCode = NO_CODE
    # The identifiers of the changed statements in the files of that code.
    changed_words: frozenset[str] = frozenset()
    # The places of the change that it was made for, or that it was given the settings for.
    purposes: tuple[Purpose, ...] = ()
    # The settings of a derived job that differ from those of level 0; empty for a job of the table of levels.
    settings: Mapping[Axis, Value] = field(default_factory=dict)
    # The most GPUs that a job may have, by the policy.
    most_gpus: int = MOST_GPUS
    # The id of the job of the table that a derived job takes the place of, empty where it takes none.
    replaces: str = ""
    # What it does not show because it stands for another job, a clause each.
    notes: tuple[str, ...] = ()
    # The program that trains, by its name in `core/consumer`.
    consumer: str = VERL.name
    # Why it is planned in addition to the default job of its level, a clause; empty for that one, and for a job whose
    # purposes say it.
    reason: str = ""

    @property
    def id(self) -> str:
        """`<level>-<variant>`, then the family or else the features, and a trainer that is not verl: ids differ."""
        named = self.family or "-".join(feature.name for feature in (*self.features, *self.not_shown))
        named = "-".join(filter(None, (named, self.consumer if self.consumer != VERL.name else "")))
        suffix = "".join(c if c.isascii() and c.isalnum() else "-" for c in named.lower())
        return f"{self.variant.job_id}-{suffix}" if suffix else self.variant.job_id

    @property
    def is_default(self) -> bool:
        """Whether it is the job that its level always has, or takes its place: the level's reasons are its own."""
        return (self.replaces or self.variant.job_id) == variants_of(self.variant.level)[0].job_id

    @property
    def has_experts(self) -> bool:
        """Whether its model is known to have experts."""
        named = {self.variant.feature, *(feature.name for feature in self.features)}
        return "moe" in named or "moe" in (self.model.features or ())

    @property
    def blocked(self) -> str:
        """Why the job cannot pass as planned and what to do, empty when it may."""
        return "; ".join(map(str, self.obstacles))

    @property
    def uncoverable(self) -> str:
        """Why no host can run it as long as the code is what it is, empty where one can."""
        return next((item.reason for item in self.obstacles if item.missing in _OF_NO_HOST), "")

    @property
    def gpu_count(self) -> int:
        """The GPUs that it needs where a GPU has the usual memory."""
        return self.fitted().variant.gpu_count

    @property
    def gpu_minutes(self) -> int:
        """GPUs times minutes that all its runs are expected to take; 0 for a job that is not run."""
        return 0 if self.obstacles else self.variant.cost.gpu_minutes(self.gpu_count)

    @property
    def cost_basis(self) -> CostBasis:
        """Where `gpu_minutes` comes from: what was measured holds for verl and the variant's own number of GPUs."""
        as_measured = self.consumer == VERL.name and self.gpu_count == self.variant.gpu_count
        return self.variant.cost.basis if as_measured else CostBasis.ESTIMATE

    def fitted(self, gpu_memory_gib: float = DEFAULT_GPU_MEMORY_GIB) -> Fitted:
        """The variant on as many GPUs as the model needs."""
        wrapper = {name: value for feature in self.features for name, value in feature.wrapper.items()}
        return fit(
            self.variant,
            self.model,
            wrapper=wrapper,
            consumer=CONSUMERS[self.consumer],
            script=self.script,
            gpu_memory_gib=gpu_memory_gib,
            most_gpus=self.most_gpus,
        )

    @property
    def script(self) -> str:
        """What starts the run, in the consumer's checkout: the first script of a feature that is not the usual one."""
        usual = CONSUMERS[self.consumer].script
        others = (feature.script for feature in self.features if feature.script and feature.script != usual)
        return next(others, usual)

    @property
    def active_when(self) -> dict[str, bool | int | float | str | None]:
        """What the run's own configuration must show for the features, by dotted key."""
        return {key: value for feature in self.features for key, value in feature.active_when.items()}

    @property
    def limitations(self) -> tuple[str, ...]:
        """What a run of the job leaves open about its features and its GPUs, a sentence each."""
        unproven = (feature.name for feature in self.features if not can_be_shown(feature.name, feature.active_when))
        model = self.checkpoint.model_id if self.checkpoint else ""
        return (
            *(f"{feature.name}: {feature.limitation}" for feature in self.features if feature.limitation),
            *(f"neither configuration nor log of a run tells whether {name} was active" for name in unproven),
            *(
                f"no script of verl shows {item.name}: {item.reason}"
                if item.is_read_of(self.family)
                else f"no run of verl shows {item.name} of {self.family}: {item.unread}"
                for item in self.not_shown
            ),
            *(f"{name} is not exercised: {model} does not have it" for name in self.absent),
            *self.notes,
        )


def in_order(jobs: Iterable[JobOutline]) -> tuple[JobOutline, ...]:
    """The jobs as they are run, each after what it needs: level 0, then those that need no other, then by cost."""

    def turn(job: JobOutline) -> tuple[bool, bool, int, str]:
        return job.variant.level is not Level.SMOKE, bool(job.requires), job.gpu_minutes, job.id

    left, ordered = sorted(jobs, key=turn), list[JobOutline]()
    while left:
        ids = {job.id for job in left}
        # Jobs that need each other, which no plan makes, stay as they are.
        job = next((job for job in left if not ids.intersection(job.requires)), left[0])
        left.remove(job)
        ordered.append(job)
    return tuple(ordered)


@dataclass(frozen=True, slots=True)
class TimedJob:
    """A job that is still to be run."""

    id: str
    # The ids of jobs that must pass first; one that is not to be run any more counts as done.
    requires: tuple[str, ...]
    # GPUs times minutes of all its runs.
    gpu_minutes: int
    gpu_count: int


def minutes_to_answer(jobs: Iterable[TimedJob], gpus: int | None = None) -> int:
    """Minutes until the last job has ended if all pass, rounded up: each starts when those before it have passed.

    `gpus` are those of all hosts together, on which a job may have to wait in the order given; None: always enough.
    """
    waiting = list(jobs)
    open_ids = {job.id for job in waiting}
    free = math.inf if gpus is None else float(gpus)
    running: list[tuple[float, str, float]] = []
    now = 0.0
    while waiting or running:
        for job in tuple(waiting):
            taken = job.gpu_count if gpus is None else min(job.gpu_count, gpus)
            if taken <= free and not open_ids.intersection(job.requires):
                waiting.remove(job)
                free -= taken
                heapq.heappush(running, (now + job.gpu_minutes / job.gpu_count, job.id, taken))
        if not running:
            # What is left requires itself: it never runs.
            break
        now, ended, released = heapq.heappop(running)
        open_ids.discard(ended)
        free += released
    return math.ceil(now - 1e-9)


_LEFT_TO_REVIEW = "only Bridge tests and a review can judge it; `gate.uncoverable` of the policy decides about the gate"


# The fewest training steps that a level's own criteria decide by, where one is too few.
_LEAST_STEPS = {Level.SAVE_RESUME: 2, Level.LEARNING_SIGNAL: MIN_STEPS}


def as_asked(job: JobOutline, policy: Policy, checkpoint: Checkpoint | None, steps: int) -> JobOutline:
    """The job with the checkpoint and the training steps that a person named, None and 0 for its own."""
    variant = replace(job.variant, steps=steps or job.variant.steps)
    return with_obstacles(replace(job, variant=variant, checkpoint=checkpoint or job.checkpoint), policy)


def with_obstacles(job: JobOutline, policy: Policy) -> JobOutline:
    """The job with what the policy declares of its checkpoint and with all that keeps it from passing."""
    known = replace(job, model=policy.facts_of(job.checkpoint), most_gpus=policy.most_gpus)
    return replace(known, obstacles=tuple(_obstacles(known, policy)))


def _obstacles(job: JobOutline, policy: Policy) -> Iterator[Obstacle]:
    family = next((item for item in policy.families if item.name == job.family), None)
    own = frozenset(family.features if family is not None else ())
    # The features that verl has no script for, if no feature of the family (or none at all) can be shown. One that verl
    # reads no data for is none of them: no run of verl executes it, so a change cannot harm one.
    lost = [item for item in job.not_shown if not job.family or (item.name in own and item.is_read_of(job.family))]
    if any(not job.family or item.name in own for item in job.features):
        lost = []
    for item in lost:
        reason = f"no script of verl shows {item.name}: {item.reason}"
        yield Obstacle(
            Missing.SCRIPT, reason, f"set `script:` of the feature {item.name} in the policy once there is one"
        )
    if job.checkpoint is None and not (lost and not job.family):
        yield _no_checkpoint(job, family)
    # One run can be only one script.
    if len({feature.script for feature in job.features} - {CONSUMERS[job.consumer].script}) > 1:
        names = ", ".join(f"{feature.name}: {feature.script}" for feature in job.features)
        reason = f"its features ask for different scripts ({names})"
        yield Obstacle(Missing.SCRIPTS_DIFFER, reason, "give them one script in the policy")
    # Features that the change asks for, where the checkpoint has none of them.
    has_one = any(feature.name in own for feature in job.features)
    if not lost and job.checkpoint is not None and job.absent and not has_one:
        reason = f"{job.checkpoint.model_id} has no {' and no '.join(job.absent)}"
        fix = f"name a checkpoint that has it as `checkpoint:` of the family {job.family}"
        yield Obstacle(Missing.FEATURE, reason, fix)
    # Features that nothing in a run shows: level 4 passes only on a fact for each of them.
    for feature in job.features:
        if not can_be_shown(feature.name, feature.active_when):
            reason = f"neither the configuration nor the log of a run shows whether {feature.name} was active"
            key = f"`active_when:` of the feature {feature.name}"
            fix = f"set {key} in the policy to what the configuration shows only with it"
            yield Obstacle(Missing.EVIDENCE, reason, fix)
    if job.variant.level is Level.FEATURE and not (job.features or job.family or job.not_shown):
        reason = "it names no feature and no family, so nothing in a run could show it"
        yield Obstacle(Missing.EVIDENCE, reason, "describe the features of the rules under `features:` in the policy")
    least = PARITY_STEPS if job.variant.parity else _LEAST_STEPS.get(job.variant.level, 1)
    if job.variant.steps < least:
        reason = f"{count_of(job.variant.steps, 'training step')} cannot show {job.variant.level.title.lower()}"
        yield Obstacle(Missing.EVIDENCE, reason, f"ask for {least} or more")
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


def _no_checkpoint(job: JobOutline, family: Family | None) -> Obstacle:
    """No model: of a family that no host can run, of one that the policy has none for, or with what is asked for."""
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
