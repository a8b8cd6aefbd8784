"""Names of derived jobs: the same settings have the same name in every plan, and people can read it.

A name is lower-case letters, digits and dashes, as in `2-tp2-pp4`, so it is valid as a folder, an artifact, a check and
a word of a command.
"""

import hashlib
from collections.abc import Iterator, Mapping

from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.wants import Axis, Value
from verl_e2e.core.plan.draft import Draft

MOST_CHARACTERS = 48
_DIGEST = 6

_SIZES = {
    Axis.TENSOR: "tp",
    Axis.PIPELINE: "pp",
    Axis.VIRTUAL_PIPELINE: "vpp",
    Axis.CONTEXT: "cp",
    Axis.EXPERT: "ep",
    Axis.EXPERT_TENSOR: "etp",
    Axis.DATA: "dp",
    Axis.STEPS: "steps",
    Axis.SYNCS: "syncs",
}
_SWITCHES = {
    Axis.FSDP: ("fsdp", "ddp"),
    Axis.OFFLOAD: ("offload", "no-offload"),
    Axis.OVERLAP: ("overlap", "no-overlap"),
    Axis.FUSION: ("fusion", "no-fusion"),
    Axis.ADAPTER_MERGE: ("merged", "not-merged"),
    Axis.RESUME: ("resume", "no-resume"),
    Axis.PACKING: ("packed", "not-packed"),
}
_WORDS = {
    Axis.RECOMPUTE: "recompute",
    Axis.ADAPTER: "adapter",
    Axis.ADAPTER_TARGETS: "on",
    Axis.ADAPTER_RANK: "r",
    Axis.ADAPTER_ALPHA: "alpha",
    Axis.ADAPTER_DROPOUT: "drop",
    Axis.ADAPTER_SHARING: "share",
    Axis.ADAPTER_A_START: "a",
    Axis.ADAPTER_B_START: "b",
}
# Fields of a model's configuration that a name can say in a word.
_OF_MODEL: Mapping[tuple[str, object], str] = {
    ("tie_word_embeddings", True): "tied",
    ("tie_word_embeddings", False): "untied",
}
# A level whose own purpose no setting names.
_OF_LEVEL = {Level.FEATURE: ("feature",), Level.LEARNING_SIGNAL: ("signal",)}
# What always comes with another setting.
_IMPLIED: Mapping[Level, Mapping[Axis, Value]] = {
    Level.SAVE_RESUME: {Axis.STEPS: 2},
    Level.MEGATRON_FSDP: {Axis.FUSION: False},
    Level.LEARNING_SIGNAL: {Axis.STEPS: 20},
}


def name_of(level: Level, draft: Draft, model: str = "") -> str:
    """The name of a derived job without its level, never empty; `model` names one that the settings do not."""
    implied = _IMPLIED.get(level, {})
    settings = {axis: value for axis, value in draft.differing.items() if implied.get(axis) != value}
    words = [*_OF_LEVEL.get(level, ()), *_words(settings), *_rest(draft), *([_plain(model)] if model else [])]
    name = "-".join(words) or "plain"
    return name if len(name) <= MOST_CHARACTERS else _cut(name)


def _words(settings: dict[Axis, Value]) -> Iterator[str]:
    for axis in Axis:
        if axis not in settings:
            continue
        value = settings[axis]
        if axis in _SIZES:
            yield f"{_SIZES[axis]}{_plain(value)}"
        elif axis in _SWITCHES:
            yield _SWITCHES[axis][0 if value else 1]
        elif axis in (Axis.PRECISION, Axis.CONTENT):
            yield _plain(value)
        else:
            yield f"{_WORDS[axis]}{'' if isinstance(value, int | float) else '-'}{_plain(value)}"


def _rest(draft: Draft) -> Iterator[str]:
    """What no axis has, mostly by a digest: it may be any text of the code."""
    fields = dict(draft.point.model.fields)
    for (field, value), word in _OF_MODEL.items():
        if fields.get(field) is value:
            del fields[field]
            yield word
    if fields:
        yield f"model-{_digest(repr(sorted(fields.items(), key=str)))}"


def _cut(name: str) -> str:
    return f"{name[: MOST_CHARACTERS - _DIGEST - 1].rstrip('-')}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]


def _plain(value: Value) -> str:
    """A value in the letters of a name; dashes in place of all others."""
    letters = (letter if letter.isascii() and letter.isalnum() else "-" for letter in str(value).lower())
    return "-".join(part for part in "".join(letters).split("-") if part) or _digest(str(value))
