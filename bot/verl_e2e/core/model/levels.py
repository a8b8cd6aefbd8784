"""The named jobs of each level: points of the space of settings that people know by name.

Source: Megatron-Bridge's guide to verl end-to-end testing; `docs/levels.md` explains each level.
"""

from collections.abc import Iterator

from verl_e2e.core.model.settings import CHOICES, DEFAULTS, SIZES, Axis, Setting, Value, setting_of
from verl_e2e.core.model.space import Point
from verl_e2e.core.model.variant import (
    AMPLIFIED_LORA,
    BASE_WRAPPER,
    DETERMINISTIC,
    DISTINCT_SAMPLES,
    FULL_RECOMPUTE,
    NO_GRADIENT_FUSION,
    PARITY_STEPS,
    PROBE_LEARNING_RATE,
    SHARE_OF_DIGITS,
    TELLING_LEARNING_RATE,
    WITHOUT_CRITIC,
    WITHOUT_CRITIC_OF_COPIES,
    Level,
    Variant,
)

__all__ = [
    "AMPLIFIED_LORA",
    "BASE_WRAPPER",
    "DATA_PARALLEL",
    "DETERMINISTIC",
    "DISTINCT_SAMPLES",
    "FULL_RECOMPUTE",
    "NO_GRADIENT_FUSION",
    "PARITY_STEPS",
    "POINTS",
    "PROBE_LEARNING_RATE",
    "SHARE_OF_DIGITS",
    "TELLING_LEARNING_RATE",
    "VARIANTS",
    "WITHOUT_CRITIC",
    "WITHOUT_CRITIC_OF_COPIES",
    "Level",
    "Variant",
    "variant_named",
    "variants_of",
]


def _point(level: Level, axes: dict[Axis, Value]) -> Point:
    return Point.of_level(level).with_axes(axes)


# By level and name, the default of a level first. With tensor size 1 as well, expert and dense tensor sizes would be
# equal and could be swapped unseen.
_NAMED: dict[tuple[Level, str], dict[Axis, Value]] = {
    (Level.SMOKE, "lora-ddp"): {},
    (Level.SMOKE, "amplified-lora"): {Axis.ADAPTER_B_START: "xavier"},
    (Level.SMOKE, "recompute"): {Axis.RECOMPUTE: "full"},
    (Level.SAVE_RESUME, "resume"): {},
    (Level.PARALLELISM, "dense"): {
        Axis.TENSOR: 2,
        Axis.PIPELINE: 2,
        Axis.VIRTUAL_PIPELINE: 1,
        Axis.CONTEXT: 1,
    },
    (Level.PARALLELISM, "vpp"): {Axis.PIPELINE: 2, Axis.VIRTUAL_PIPELINE: 2},
    (Level.PARALLELISM, "cp"): {Axis.CONTEXT: 2},
    (Level.PARALLELISM, "expert"): {Axis.TENSOR: 2, Axis.EXPERT: 2, Axis.EXPERT_TENSOR: 1},
    (Level.PARALLELISM, "dp"): {Axis.DATA: 4},
    (Level.MEGATRON_FSDP, "fsdp"): {},
    (Level.FEATURE, "feature"): {},
    (Level.LEARNING_SIGNAL, "signal"): {},
}

# A job that joins its level's default one only where the change touches this feature.
_FEATURES = {"expert": "moe"}

# The named jobs as points, by job id.
POINTS: dict[str, Point] = {f"{int(level)}-{name}": _point(level, axes) for (level, name), axes in _NAMED.items()}

VARIANTS: tuple[Variant, ...] = tuple(
    POINTS[f"{int(level)}-{name}"].variant(level, name, feature=_FEATURES.get(name, "")) for level, name in _NAMED
)


def variants_of(level: Level) -> tuple[Variant, ...]:
    """All variants of a level, the default one first."""
    return tuple(variant for variant in VARIANTS if variant.level is level)


def variant_named(job_id: str) -> Variant | None:
    """The variant with this job id, `<level>-<name>`, or None."""
    return next((variant for variant in VARIANTS if variant.job_id == job_id), None)


# Four data-parallel ranks and nothing else: what parity shows and no size does. It joins only when parity is asked.
DATA_PARALLEL = next(variant for variant in VARIANTS if variant.name == "dp")


_OTHERS: dict[Axis, tuple[Value, ...]] = {
    Axis.ADAPTER_TARGETS: ("linear_qkv", "*.layers.0.*.linear_qkv"),
    Axis.ADAPTER_RANK: (8,),
    Axis.ADAPTER_ALPHA: (16,),
    Axis.ADAPTER_DROPOUT: (0.1,),
}


def setting_probes() -> tuple[Variant, ...]:
    """A job for each value that no rule excludes and that is a variable or an override; of a size two."""
    points = ((axis, value, Point.default().with_axes({axis: value})) for axis, value in _values())
    return tuple(
        point.variant(point.levels[0], _name(axis, value)) for axis, value, point in points if point.conflict is None
    )


def _values() -> Iterator[tuple[Axis, Value]]:
    for axis, default in DEFAULTS.items():
        values: tuple[Value, ...] = (2,) if axis in SIZES else _OTHERS.get(axis, CHOICES.get(axis, (not default,)))
        yield from ((axis, value) for value in values if setting_of(axis, value) != Setting())


def _name(axis: Axis, value: Value) -> str:
    words = "".join(character if character.isalnum() else " " for character in f"{axis} {value}".lower()).split()
    return "-".join(words)
