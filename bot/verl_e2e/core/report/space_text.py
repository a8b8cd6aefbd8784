"""The space of settings as tables in Markdown: axes, what they need, what excludes and what hides what."""

from collections.abc import Iterable

from verl_e2e.core.model.settings import CHOICES, DEFAULTS, setting_of
from verl_e2e.core.model.space_masks import MASKS
from verl_e2e.core.model.space_rules import EXCLUSIONS, IMPLICATIONS, Refused, Trait
from verl_e2e.core.model.wants import SIZES, Axis, Value

_KINDS = {
    Refused.ERROR: "refused",
    Refused.IGNORED: "without effect",
    Refused.UNPROVEN: "not shown to work",
}
# What carries out an axis that is neither a variable nor an override.
_ELSEWHERE = {
    Axis.DATA: "`NUM_GPUS`, with the other sizes",
    Axis.STEPS: "`TOTAL_TRAIN_STEPS`",
    Axis.SYNCS: "one before training and one after each step",
    Axis.CONTENT: "the data of the job",
}


def axes_table() -> str:
    """Each axis with its values and what it is in verl."""
    rows = ((str(axis), _values(axis), _shown(default), _in_verl(axis)) for axis, default in DEFAULTS.items())
    return _table(("axis", "values", "without it", "in verl"), rows)


def implications_table() -> str:
    """What a setting brings with it."""
    rows = []
    for implication in IMPLICATIONS:
        axes = [str(Trait(axis, value)) for axis, value in implication.axes.items()]
        models = [f"a model with `{feature}`" for feature in sorted(implication.features)]
        rows.append((str(implication.trait), ", ".join((*axes, *models)), implication.source))
    return _table(("setting", "needs", "source"), rows)


def exclusions_table() -> str:
    """What is not put into one job."""
    rows = []
    for exclusion in EXCLUSIONS:
        together = " with ".join(map(str, exclusion.traits))
        rows.append((together, _KINDS[exclusion.kind], exclusion.reason, exclusion.source))
    return _table(("settings", "they are", "reason", "source"), rows)


def masks_table() -> str:
    """Which wants are kept in different jobs."""
    rows = ((str(mask.hiding), ", ".join(map(str, mask.hidden)), mask.reason, mask.source) for mask in MASKS)
    return _table(("setting", "not with a want for", "reason", "source"), rows)


def _values(axis: Axis) -> str:
    if axis in SIZES:
        return "a size"
    if isinstance(DEFAULTS[axis], bool):
        return "on, off"
    return ", ".join(CHOICES.get(axis, ("names of modules" if axis is Axis.ADAPTER_TARGETS else "a number",)))


def _in_verl(axis: Axis) -> str:
    value: Value = 2 if axis in SIZES else CHOICES[axis][1] if axis in CHOICES else not DEFAULTS[axis]
    setting = setting_of(axis, value)
    keys = (override.lstrip("+").partition("=")[0] for override in setting.overrides)
    # One of the roles stands for all.
    named = dict.fromkeys(key.removeprefix("critic.").removeprefix("actor_rollout_ref.") for key in keys)
    own = [f"`{name}`" for name in (*setting.wrapper, *dict.fromkeys(_without_role(key) for key in named))]
    return ", ".join(own) or _ELSEWHERE[axis]


def _without_role(key: str) -> str:
    return key.removeprefix("actor.").removeprefix("ref.")


def _shown(value: Value) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |\n" for row in (head, *rows)]
    return "".join((lines[0], f"|{'---|' * len(head)}\n", *lines[1:]))
