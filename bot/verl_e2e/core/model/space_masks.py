"""Which wants are kept in different jobs, because what one of them is for would not show under the other.

Everything else may be combined: recompute, offload, packing, precision and the other sizes change how a run computes
and leave its evidence as it is.
"""

from dataclasses import dataclass

from verl_e2e.core.model.space_rules import Settings, Trait
from verl_e2e.core.model.wants import Axis


@dataclass(frozen=True, slots=True)
class Mask:
    """Settings that two wants may not bring into one job, because what one is for would not show under the other."""

    # The setting that hides.
    hiding: Trait
    # The settings of which one is wanted for what is hidden.
    hidden: tuple[Trait, ...]
    # What would not show, a clause.
    reason: str
    # Where that is decided.
    source: str

    def holds(self, first: Settings, second: Settings) -> bool:
        """Whether one side hides what the other one is for; a side that sets both means it so."""
        return self._hides(first, second) or self._hides(second, first)

    def _hides(self, hiding: Settings, hidden: Settings) -> bool:
        found = any(trait.holds(hidden) for trait in self.hidden)
        return found and self.hiding.holds(hiding) and not self.hiding.holds(hidden)


_OWN_EXPORT = (
    *(Trait(Axis.ADAPTER_B_START, value) for value in ("xavier", "normal", "kaiming")),
    *(Trait(Axis.ADAPTER, value) for value in ("canonical_lora", "dora")),
)

MASKS: tuple[Mask, ...] = (
    Mask(
        Trait(Axis.ADAPTER_MERGE),
        _OWN_EXPORT,
        "a merged adapter leaves as part of the base weights: its own export is not entered and not compared",
        "verl: MegatronEngine.get_per_tensor_param",
    ),
    Mask(
        Trait(Axis.FSDP),
        (Trait(Axis.DATA, 2), Trait(Axis.OVERLAP)),
        "Megatron-FSDP takes the place of Megatron's DDP, whose reduction and gathering are not entered",
        "Megatron-Bridge: model_provider._ddp_wrap",
    ),
    Mask(
        Trait(Axis.RESUME),
        (Trait(Axis.DATA, 2), Trait(Axis.OVERLAP)),
        "with one seed for all samples every rank has the gradient of the whole batch, so one that is never averaged"
        " does not show",
        "docs/parity.md",
    ),
    Mask(
        Trait(Axis.TENSOR, 2),
        (Trait(Axis.EXPERT_TENSOR, 2),),
        "with equal tensor sizes the one of the experts and the one of the other layers could be swapped unseen",
        "Megatron-LM: parallel_state.initialize_model_parallel",
    ),
)


def mask_of(first: Settings, second: Settings) -> Mask | None:
    """The first reason why the settings of two wants should not be in one job."""
    return next((mask for mask in MASKS if mask.holds(first, second)), None)
