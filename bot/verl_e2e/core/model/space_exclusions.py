"""Whether settings can be in one job: the rules of the table, and those that take more than a pair of values."""

from verl_e2e.core.model.settings import DEFAULTS
from verl_e2e.core.model.space_rules import (
    EXCLUSIONS,
    NO_ADAPTER,
    OUTER_RANK,
    SPLIT_TARGETS,
    Exclusion,
    Refused,
    Settings,
    Trait,
    names_any,
)
from verl_e2e.core.model.wants import Axis

# Of fused modules, whose parts alone canonical_lora knows.
_FUSED_TARGETS = ("linear_qkv", "linear_fc1")


def exclusion_of(settings: Settings, features: frozenset[str]) -> Exclusion | None:
    """The first rule that these settings break on a model with these features."""
    broken = (exclusion for exclusion in EXCLUSIONS if exclusion.holds(settings))
    return (
        next(broken, None) or _wrong_targets(settings) or _unmerged_experts(settings, features) or _odd_rank(settings)
    )


def merges_experts(settings: Settings, features: frozenset[str]) -> bool:
    """Whether adapters are merged only because the model has experts."""
    return "moe" in features and Trait(Axis.ADAPTER_MERGE).holds(settings)


def _unmerged_experts(settings: Settings, features: frozenset[str]) -> Exclusion | None:
    """The rule about adapters of experts that leave by themselves."""
    unmerged = Trait(Axis.ADAPTER_MERGE, value=False)
    if "moe" not in features or NO_ADAPTER.holds(settings) or not unmerged.holds(settings):
        return None
    reason = (
        "with adapters of their own on experts vLLM 0.24.0 computes other probabilities than the trainer at the first"
        " step (correlation 0.385 to 0.730, merged 0.998), although both hold the same weights"
    )
    return Exclusion((unmerged,), Refused.IGNORED, reason, "docs/space.md: adapters of experts")


def _odd_rank(settings: Settings) -> Exclusion | None:
    """The rule about the rank of adapters that experts share on the outside."""
    rank = settings.get(Axis.ADAPTER_RANK, DEFAULTS[Axis.ADAPTER_RANK])
    outer = Trait(Axis.ADAPTER_SHARING, "outer")
    if not outer.holds(settings) or not isinstance(rank, int) or rank % OUTER_RANK == 0:
        return None
    reason = f"torch's grouped matrix product takes bfloat16 matrices of a multiple of {OUTER_RANK} alone"
    source = "Megatron-Bridge: PackedPerExpertLinear.forward (torch._grouped_mm)"
    return Exclusion((outer, Trait(Axis.ADAPTER_RANK, rank)), Refused.ERROR, reason, source)


def _wrong_targets(settings: Settings) -> Exclusion | None:
    """The rule about names of modules that the adapter's type does not have."""
    adapter = settings.get(Axis.ADAPTER, DEFAULTS[Axis.ADAPTER])
    targets = settings.get(Axis.ADAPTER_TARGETS, DEFAULTS[Axis.ADAPTER_TARGETS])
    traits = (Trait(Axis.ADAPTER, adapter), Trait(Axis.ADAPTER_TARGETS, targets))
    if adapter == "canonical_lora" and names_any(targets, _FUSED_TARGETS):
        source = "Megatron-Bridge: CanonicalLoRA._init_target_match_state"
        return Exclusion(traits, Refused.ERROR, "it adapts the parts of a fused module, by their names", source)
    if adapter not in ("canonical_lora", "none") and names_any(targets, SPLIT_TARGETS):
        source = "Megatron-Bridge: ModuleMatcher.match"
        return Exclusion(traits, Refused.IGNORED, "only canonical_lora knows the parts of a fused module", source)
    return None
