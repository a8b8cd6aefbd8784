"""Why levels are not required: what no changed path touches, and what verl does not run."""

from dataclasses import dataclass

from verl_e2e.core.model.levels import Level


@dataclass(frozen=True, slots=True)
class NotRequired:
    """Why a level is not required."""

    level: Level
    reason: str


@dataclass(frozen=True, slots=True)
class Exempted:
    """How many changed names an exemption set aside, and why."""

    name: str
    count: int
    reason: str


_UNTOUCHED = {
    Level.SMOKE: "no changed path is code that verl's Megatron backend runs",
    Level.SAVE_RESUME: "no changed path is in PEFT, checkpointing, export or resume as verl uses them",
    Level.PARALLELISM: "no changed path is in parallel settings, provider finalization or sharded weight mapping",
    Level.MEGATRON_FSDP: "never by default, and no changed path is in the Megatron-FSDP integration",
    Level.FEATURE: "no changed path needs a run-time feature that the dense text-only smoke leaves idle",
    Level.LEARNING_SIGNAL: "no changed path is in loss, optimizer, gradient flow or PEFT trainability in verl's use",
}


def not_required(levels: tuple[Level, ...], exempted: tuple[Exempted, ...]) -> tuple[NotRequired, ...]:
    """The levels that are not among the required ones, each with the reason."""
    if levels:
        return tuple(NotRequired(level, _UNTOUCHED[level]) for level in Level if level not in levels)
    nothing = _nothing_reason(exempted)
    return tuple(NotRequired(level, nothing) for level in Level)


def _nothing_reason(exempted: tuple[Exempted, ...]) -> str:
    if not exempted:
        return "the change has no files"
    parts = "; ".join(f"{item.count} in {item.name}: {item.reason}" for item in exempted)
    return f"no changed path is run by verl ({parts})"
