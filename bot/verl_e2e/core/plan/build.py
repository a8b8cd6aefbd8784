"""From an outlined job and a site to a complete one, and the declared patches that fit a commit."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from verl_e2e.core.consumer.consumer import Consumer
from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.model.execution import MOST_PURPOSES
from verl_e2e.core.model.jobs import (
    PICTURES,
    Checkpoint,
    ChosenTest,
    Job,
    JobFeature,
    Patch,
    Repository,
    SiteProfile,
)
from verl_e2e.core.model.known_defects import KnownDefect
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.needs import MOST_GPUS, node_count
from verl_e2e.core.model.settings import Axis, expected_of_overrides
from verl_e2e.core.model.synthetic import ModelSizes
from verl_e2e.core.plan.code_plan import Lines, read_overrides, without_touched
from verl_e2e.core.plan.defects import has_defect
from verl_e2e.core.plan.outline import JobOutline
from verl_e2e.core.plan.policy import Policy

# Of a wider head the residual stream holds half: the projections are not square.
_WIDEST = 128
_LEAST_EXPERTS = 8
_VOCABULARY = 2048


class BuildError(Exception):
    """The job cannot be made complete; one sentence with the fix. The user's mistake."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The repositories of a job. Without `megatron_lm` the Bridge commit's own submodule is used."""

    bridge: Repository
    verl: Repository
    megatron_lm: Repository | None = None


@dataclass(frozen=True, slots=True)
class PatchChoice:
    """Which declared patches fit, and one sentence for each that does not."""

    chosen: tuple[Patch, ...]
    left_out: tuple[str, ...]
    # The lines that each chosen patch replaces.
    lines: Mapping[Patch, Lines] = field(default_factory=dict)


NO_PATCHES = PatchChoice((), ())


def select_patches(patches: Iterable[Patch], digest_of: Callable[[Patch], str | None]) -> PatchChoice:
    """Keep the patches whose file, at the job's commit, is byte for byte the one that they were written for.

    `digest_of` gives the SHA-256 of a patch's file in its repository at that commit, None when it is not there.
    """
    chosen: list[Patch] = []
    left_out: list[str] = []
    for patch in patches:
        digest = digest_of(patch)
        if digest == patch.before:
            chosen.append(patch)
            continue
        if digest is None:
            found = "is not there"
        elif digest == patch.after:
            found = "has the change already"
        else:
            found = f"has changed since (SHA-256 {digest[:12]}, written for {patch.before[:12]})"
        left_out.append(f"patch {patch.name} does not apply to {patch.repository}: {patch.file} {found}")
    return PatchChoice(tuple(chosen), tuple(left_out))


def build_job(
    outline: JobOutline,
    *,
    policy: Policy,
    site: SiteProfile,
    sources: Sources,
    patches: PatchChoice = NO_PATCHES,
    require_bridge_checks: bool = False,
    defects: Iterable[KnownDefect] = (),
) -> Job:
    """The complete job: the level's base, then the site, the variant and the features, each over the one before.

    A script that is not the wrapper gets the variables of its feature alone: those of the wrapper mean nothing to
    it. `defects` are those that the code at the job's commit is known to have. Raises BuildError.
    """
    if outline.obstacles:
        raise BuildError(f"job {outline.id} is not run, for it cannot pass: {outline.blocked}")
    fitted = outline.fitted(site.gpu_memory_gib)
    if fitted.problem:
        raise BuildError(f"job {outline.id} is not run: {fitted.problem}")
    # What no run on the site gets through.
    named = {*(outline.model.features or ()), *(feature.name for feature in outline.features)}
    if unable := sorted(named & {*site.cannot_run}):
        reasons = "; ".join(f"site profile {site.name} cannot run {name}: {site.cannot_run[name]}" for name in unable)
        raise BuildError(f"job {outline.id} is not run: {reasons}")
    outline = replace(outline, variant=fitted.variant)
    variant = outline.variant
    if variant.gpu_count > MOST_GPUS and site.gpus_per_node is None:
        what = f"job {outline.id} is not run: it needs {variant.gpu_count} GPUs, and a host has {MOST_GPUS}"
        raise BuildError(f"{what}; for a cluster, add `gpus_per_node:` to the site profile {site.name}")
    nodes = node_count(variant.gpu_count, site.gpus_per_node)
    # A separate environment for the tests has no GPU.
    chosen, beyond = runnable(outline.tests.tests, 0 if site.bridge_python else variant.gpu_count)
    fitting, touched = without_touched(patches.chosen, patches.lines, outline.changed)
    consumer = CONSUMERS[outline.consumer]
    if consumer is not VERL:
        # What a profile sets of a trainer is verl's.
        site = site.model_copy(update={"wrapper": {}, "overrides": ()})
    hidden = (*touched, *read_overrides(site.overrides, outline.changed_words))
    # Another script would not know the variables of the wrapper.
    of_wrapper = outline.script == consumer.script
    left_open = (*site.limitations, *outline.limitations, *beyond, *outline.tests.left_out, *hidden)
    known = {"wrapper": site.wrapper if of_wrapper else {}, "limitations": tuple(dict.fromkeys(left_open))}
    site = site.model_copy(update=known)
    wrapper = {name: value for feature in outline.features for name, value in feature.wrapper.items()}
    if of_wrapper:
        counts = consumer.counts(variant.gpu_count // nodes, variant.steps)
        # Adapters of experts leave merged, whichever level the job is of.
        merged = consumer.setting(Axis.ADAPTER_MERGE, value=True).wrapper if outline.has_experts else {}
        wrapper = {**consumer.base, **site.wrapper, **merged, **variant.wrapper, **wrapper, **counts.wrapper}
    of_features = (item for feature in outline.features for item in feature.overrides)
    # What a level sets is for the wrapper: another script trains in a way of its own.
    of_level = variant.overrides if of_wrapper else ()
    # Each once; the variant's come after the site's, so they win.
    wanted = outline.checkpoint
    if wanted is None:
        raise BuildError(
            f"job {outline.id} has no checkpoint: the policy names none that exercises "
            f"{outline.family or 'this change'}; add `checkpoint:` to the family in the policy file"
        )
    chosen_model = sized(site.checkpoints.get(wanted.model_id, wanted), wrapper, consumer)
    of_model = chosen_model.synthetic.overrides if chosen_model.synthetic and consumer is VERL else ()
    scoring = _reward_model(outline, policy, site, wrapper)
    common = consumer.host(site, reward_model=scoring is not None, gpus_of_node=variant.gpu_count // nodes, nodes=nodes)
    of_pipeline = (*consumer.filling(wrapper), *counts.overrides) if of_wrapper else ()
    given = (*common, *site.overrides, *of_level, *of_pipeline, *of_features, *of_model)
    overrides = tuple(dict.fromkeys(given))
    expected = expected_of_overrides(overrides)
    if of_wrapper:
        phases = 2 if variant.level is Level.SAVE_RESUME else 1
        expected = consumer.expected(wrapper, overrides, phases=phases)
    data = PICTURES if any(item.data == "images" for item in outline.features) else site.data
    if data is None:
        raise BuildError(without_data(site))
    return Job(
        id=outline.id,
        level=variant.level,
        variant=variant.name,
        bridge=sources.bridge,
        megatron_lm=sources.megatron_lm,
        consumer=consumer.name,
        verl=sources.verl,
        script=outline.script,
        gpu_count=variant.gpu_count,
        steps=variant.steps,
        wrapper=wrapper,
        process=dict(site.process),
        overrides=overrides,
        checkpoint=chosen_model,
        data=data,
        reward_model=scoring or False,
        patches=fitting,
        defects=tuple(
            found
            for defect in defects
            if defect.verl == sources.verl.commit and has_defect(defect, outline, policy)
            for found in defect.of_job()
        ),
        not_restored=policy.not_restored if variant.level is Level.SAVE_RESUME else (),
        bridge_tests=tuple(dict.fromkeys((*policy.bridge_tests, *(item.test for item in chosen)))),
        chosen_tests=chosen,
        bridge_tests_limit_s=policy.test_choice.seconds,
        require_bridge_checks=require_bridge_checks,
        performance=policy.performance,
        expected={**expected, **outline.active_when},
        features=tuple(
            JobFeature(name=feature.name, active_when=dict(feature.active_when)) for feature in outline.features
        ),
        family=outline.family,
        time_limit_s=policy.time_limit_s.of(variant.level),
        isolation=policy.isolation,
        changed=outline.changed,
        purposes=outline.purposes[:MOST_PURPOSES],
        settings=dict(outline.settings),
        site=site,
        needs=site.needs_of(variant.gpu_count // nodes),
    )


def _reward_model(
    outline: JobOutline, policy: Policy, site: SiteProfile, wrapper: Mapping[str, str]
) -> Checkpoint | None:
    """The reward model of a job that has one; BuildError where neither policy nor site names it."""
    if not outline.variant.reward_model:
        return None
    found = site.reward_model or policy.reward_model
    if found is None:
        fix = "add `reward_model:` to the policy or to the site profile"
        raise BuildError(f"job {outline.id} is not run: it has no reward model; {fix}")
    return sized(found, wrapper, CONSUMERS[outline.consumer])


def without_data(site: SiteProfile) -> str:
    """What is wrong with a site for which nothing but jobs with pictures can be built."""
    return f"site profile {site.name} names no task data; add `data:` with train_files and val_files to it"


def runnable(tests: Iterable[ChosenTest], gpu_count: int) -> tuple[tuple[ChosenTest, ...], tuple[str, ...]]:
    """The tests that so many GPUs are enough for, and a sentence for each other one."""
    tests = tuple(tests)
    kept = tuple(item for item in tests if item.gpu_count <= gpu_count)
    there = f"and its environment has {gpu_count or 'none'}"
    beyond = (
        f"{item.test} is not run: it needs {item.gpu_count} GPU{'s' if item.gpu_count > 1 else ''}, {there}."
        for item in tests
        if item not in kept
    )
    return kept, tuple(beyond)


def sized(checkpoint: Checkpoint, wrapper: Mapping[str, str], consumer: Consumer = VERL) -> Checkpoint:
    """The checkpoint with the sizes of its synthetic model, by the job's variables; any other as it is."""
    recipe = checkpoint.synthetic
    if recipe is None or recipe.sizes is not None:
        return checkpoint
    fitted = recipe.model_copy(
        update={"sizes": sizes_for(wrapper, consumer, least_layers=recipe.least_layers, head_size=recipe.head_size)}
    )
    return checkpoint.model_copy(update={"synthetic": fitted})


def sizes_for(
    wrapper: Mapping[str, str], consumer: Consumer = VERL, *, least_layers: int = 4, head_size: int = 64
) -> ModelSizes:
    """The smallest sizes that divide by the job's parallel sizes, by its variables.

    Every rank gets at least two heads of keys and values and two query heads for each, so that a wrong split of either
    shows.
    """
    # The rollout splits the same heads; two of each rank's stay where nothing is split, too.
    tensor = max(2, consumer.size(Axis.TENSOR, wrapper))
    stages = consumer.size(Axis.PIPELINE, wrapper) * consumer.size(Axis.VIRTUAL_PIPELINE, wrapper)
    kv_heads, heads = 2 * tensor, 4 * tensor
    hidden = heads * min(head_size, _WIDEST)
    return ModelSizes(
        layers=_multiple(stages, least_layers),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        ffn=2 * hidden,
        expert_ffn=64 * kv_heads,
        experts=_multiple(consumer.size(Axis.EXPERT, wrapper), _LEAST_EXPERTS),
        experts_per_token=2,
        positions=4096,
        vocabulary=_multiple(tensor * 128, _VOCABULARY),
        window=128,
    )


def _multiple(of: int, least: int) -> int:
    """The smallest multiple that is not below `least`."""
    return -(-least // of) * of
