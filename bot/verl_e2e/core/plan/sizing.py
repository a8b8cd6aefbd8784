"""How many GPUs a job needs for its model, from the size that the policy declares; an unknown size is reported."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from verl_e2e.core.model.jobs import DEFAULT_GPU_MEMORY_GIB, WRAPPER_SCRIPT
from verl_e2e.core.model.levels import BASE_WRAPPER, Variant
from verl_e2e.core.model.nodes import MOST_GPUS
from verl_e2e.core.plan.policy import ModelFacts

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
    script: str = WRAPPER_SCRIPT,
    gpu_memory_gib: float = DEFAULT_GPU_MEMORY_GIB,
    most_gpus: int = MOST_GPUS,
) -> Fitted:
    """The variant on enough GPUs, its parallel sizes raised so that the weights are spread over them.

    `wrapper` are the variables that the job's features set; a script that is not the wrapper takes no sizes from here.
    """
    parts, reason = _parts(facts, wrapper, gpu_memory_gib)
    sizes = {**BASE_WRAPPER, **variant.wrapper}
    sharded = sizes["USE_MEGATRON_FSDP"] == "True"
    spread = variant.gpu_count if sharded else int(sizes["COMMON_TP"]) * int(sizes["COMMON_PP"])
    factor = max(1, parts // spread)
    gpu_count = variant.gpu_count * factor
    if gpu_count > most_gpus:
        why = reason if factor > 1 else "its parallel sizes"
        return Fitted(variant, reason, f"{why}: {gpu_count} GPUs, and a job has {most_gpus} at most", gpu_count)
    if factor == 1:
        return Fitted(variant, "" if parts else reason)
    own = _sizes(sizes, facts, factor, parts, sharded=sharded) if script == WRAPPER_SCRIPT else {}
    return Fitted(replace(variant, gpu_count=gpu_count, wrapper={**variant.wrapper, **own}), reason)


def _parts(facts: ModelFacts, wrapper: Mapping[str, str], gpu_memory_gib: float) -> tuple[int, str]:
    """Over how many GPUs the weights are to be spread, a power of two, and why; 0 where nothing tells."""
    if facts.gpus is not None:
        return facts.gpus, f"the policy asks for {facts.gpus} GPUs for this model"
    if facts.weights_gib is None:
        return 0, "the policy declares no size of this model"
    copies = 2 if wrapper.get("ADV_ESTIMATOR", "gae") == "gae" else 1
    needed = copies * facts.weights_gib / (TRAINERS_SHARE * gpu_memory_gib)
    parts = 1
    while parts < needed:
        parts *= 2
    trainers = "actor and critic" if copies > 1 else "the actor"
    return parts, f"{facts.weights_gib:g} GiB of weights, held by {trainers}, on GPUs of {gpu_memory_gib:g} GiB"


def _sizes(sizes: Mapping[str, str], facts: ModelFacts, factor: int, parts: int, *, sharded: bool) -> dict[str, str]:
    """The wrapper's sizes that spread the weights; experts are spread by their own size, not by the tensor size."""
    rollout = {"INFER_TP": str(max(int(sizes["INFER_TP"]), parts))}
    if sharded:
        return rollout
    experts = {"COMMON_EP": str(int(sizes.get("COMMON_EP", "1")) * factor)} if "moe" in (facts.features or ()) else {}
    return {**rollout, "COMMON_TP": str(int(sizes["COMMON_TP"]) * factor), **experts}
