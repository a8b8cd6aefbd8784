"""A job that wants ask for, before it has a name and a model: its settings, and what they must not be."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import DEFAULTS
from verl_e2e.core.model.space import Conflict, Point
from verl_e2e.core.model.wants import SIZES, Axis, Value, Want

_PARALLEL = SIZES - {Axis.STEPS, Axis.SYNCS}
# The parts of verl's configuration that a condition in the code under test may set; no path and no command is there.
_OPEN_KEYS = re.compile(
    r"actor_rollout_ref\.(model\.lora|actor\.(optim|megatron(\.override_(transformer|ddp|model)_config)?))\.[A-Za-z_]\w{0,80}"
)
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,80}")
_ACTOR = "actor_rollout_ref.actor.megatron.override_transformer_config."
# The models of one run are built alike.
_ALIKE = ("actor_rollout_ref.ref.megatron.", "critic.megatron.")


@dataclass(frozen=True, slots=True)
class Draft:
    """The settings of one job."""

    point: Point
    # Sizes that must not be larger.
    limits: Mapping[Axis, int] = field(default_factory=dict)
    # Settings that no axis has, by their Hydra key.
    overrides: Mapping[str, Value] = field(default_factory=dict)

    def joined(self, want: Want) -> "Draft | str":
        """The draft that gives what the want asks for as well, or why there is none, a clause."""
        point = self.point.joined(want)
        if isinstance(point, Conflict):
            return point.reason
        limits = {axis: min(most, self.limits.get(axis, most)) for axis, most in want.limits.items()}
        limits = {**self.limits, **limits}
        beyond = next((axis for axis, most in limits.items() if point.size(axis) > most), None)
        if beyond is not None:
            return f"{beyond} of {point.size(beyond)} is more than {limits[beyond]}"
        overrides = dict(self.overrides)
        for key, value in want.overrides.items():
            problem = _problem(key, value)
            if problem or overrides.setdefault(key, value) != value:
                return problem or f"{key} cannot be {overrides[key]!r} and {value!r}"
        return Draft(point, limits, overrides)

    def holds(self, want: Want) -> bool:
        """Whether a run with these settings, open ones at their defaults, gives what is wanted but the model."""
        for axis, value in want.axes.items():
            if self.point.size(axis) < _number(value) if axis in SIZES else self.point[axis] != value:
                return False
        below = all(self.point.size(axis) <= most for axis, most in want.limits.items())
        return below and want.overrides.items() <= self.overrides.items()

    @property
    def differing(self) -> dict[Axis, Value]:
        """The settings that differ from those of level 0."""
        return {axis: value for axis, value in self.point.settings.items() if value != DEFAULTS[axis]}

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for drafts that are the same job on the same model."""
        model = self.point.model
        stated = {axis: value for axis, value in self.point.settings.items() if axis not in SIZES or value != 1}
        parts = (stated, self.limits, self.overrides, model.fields)
        texts = (tuple(sorted((str(name), repr(value)) for name, value in part.items())) for part in parts)
        return (*texts, model.family, tuple(sorted(model.features)))

    @property
    def level(self) -> Level | None:
        """The level of a job that is there for these settings alone; None where no level has such a job."""
        found = next((level for level, meant in self._meanings() if meant), Level.SMOKE)
        return found if found in self.point.levels else None

    def _meanings(self) -> tuple[tuple[Level, bool], ...]:
        """What makes a job one of a level, the strongest first; fields of a model alone leave no trace in a run."""
        point, model = self.point, self.point.model
        return (
            (Level.SAVE_RESUME, point[Axis.RESUME] is True),
            (Level.MEGATRON_FSDP, point[Axis.FSDP] is True),
            (Level.PARALLELISM, any(point.size(axis) > 1 for axis in _PARALLEL)),
            (Level.LEARNING_SIGNAL, Level.LEARNING_SIGNAL in point.levels),
            (Level.FEATURE, bool(model.family or model.features)),
        )

    def override_texts(self) -> tuple[str, ...]:
        """The Hydra overrides of the settings that no axis has."""
        texts: list[str] = []
        for key, value in sorted(self.overrides.items()):
            name = key.removeprefix("actor_rollout_ref.actor.megatron.")
            others = (f"{root}{name}" for root in _ALIKE) if key.startswith(_ACTOR) else ()
            texts.extend(f"++{where}={_text(value)}" for where in (key, *others))
        return tuple(texts)


def alone(want: Want) -> Draft | str:
    """A draft for one want, or why there is none."""
    return Draft(Point.default()).joined(want)


def _problem(key: str, value: Value) -> str:
    """Why a setting may not be written as an override; it comes from the code under test."""
    if not _OPEN_KEYS.fullmatch(key):
        return f"{key[:80]!r} is not a setting of the model, its adapter or its optimizer"
    return "" if not isinstance(value, str) or _WORD.fullmatch(value) else f"{key}: {value[:80]!r} is not one word"


def _text(value: Value) -> str:
    return "null" if value is None else str(value)


def _number(value: Value) -> int:
    return value if isinstance(value, int) else 1
