"""What of a feature of level 4 a run can show at all: its classes of Bridge, lines and metrics, or what it is given.

The criteria (`criteria.features`, `criteria.content`) look for these, and a plan asks whether there is any.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from verl_e2e.core.model.expected import Value, expected_config, same_value
from verl_e2e.core.model.levels import BASE_WRAPPER


@dataclass(frozen=True, slots=True)
class Trace:
    """What a feature leaves in a log; any one of the three is enough.

    `bridges` matches Bridge's classes for models that always have the feature, `signs` are names of the scan's signs,
    `metrics` matches names of step metrics.
    """

    bridges: re.Pattern[str] | None = None
    signs: frozenset[str] = frozenset()
    metrics: re.Pattern[str] | None = None


# A class of Bridge is listed only when every model that it converts has the feature.
TRACES: Mapping[str, Trace] = {
    "moe": Trace(
        bridges=re.compile(
            r"\w*M[oO][eE]\w*Bridge|Qwen3NextBridge|DeepSeekV\dBridge|GPTOSSBridge|KimiK\w*Bridge|MiniMaxM\d\w*Bridge"
            r"|GLM4[57]\w*Bridge|GLM5Bridge|HYV3Bridge|MiMoV2FlashBridge|Qwen3OmniBridge|Step3\dBridge|SarvamMLABridge"
            r"|Ernie45(?:VL)?Bridge"
        ),
        signs=frozenset({"router-layers", "rollout-experts"}),
    ),
    "mla": Trace(bridges=re.compile(r"DeepSeekV[234]Bridge|KimiK2\w*Bridge|GLM5Bridge|GLM47FlashBridge|\w*MLABridge")),
    "ssm": Trace(bridges=re.compile(r"NemotronHBridge|FalconH1Bridge|Qwen3NextBridge|Qwen35(?:MoE)?Bridge")),
    "mtp": Trace(signs=frozenset({"mtp-layers-patched"}), metrics=re.compile(r"(?:^|/)mtp_losses/")),
    "fp8": Trace(signs=frozenset({"fp8-weights-loaded"})),
}


@dataclass(frozen=True, slots=True)
class Content:
    """What a feature's data must hold, and what shows it in a trainer."""

    # What it is, for people.
    name: str
    # Names of arguments of a model's forward.
    inputs: frozenset[str]
    # Words in the names of towers.
    towers: tuple[str, ...]


CONTENTS: Mapping[str, Content] = {
    "vlm": Content(
        "images",
        frozenset({"pixel_values", "pixel_values_videos", "images", "imgs"}),
        ("vision", "visual", "image", "video"),
    ),
    "audio": Content("sound", frozenset({"input_features", "input_audio_features", "sound_clips"}), ("audio", "sound")),
}


def leaves_trace(name: str) -> bool:
    """Whether a log, or what reached the model, can show the feature."""
    if name in CONTENTS:
        return True
    trace = TRACES.get(name)
    return trace is not None and bool(trace.bridges or trace.signs or trace.metrics)


def can_be_shown(name: str, active_when: Mapping[str, Value]) -> bool:
    """Whether any run can show the feature, as the criterion asks for it."""
    return (
        leaves_trace(name)
        if name in TRACES or name in CONTENTS
        else any(not is_dense(key, value) for key, value in active_when.items())
    )


def is_dense(key: str, value: Value) -> bool:
    """Whether the smoke's own configuration has the same value, so that it tells nothing."""
    return key in _DENSE and same_value(_DENSE[key], value)


_DENSE = expected_config(BASE_WRAPPER, ())


def bears_name(bridge: str, family: str) -> bool:
    """Whether a class of Bridge has a family's name in its own, which is how a run shows the family."""
    return _letters_and_digits(family) in _letters_and_digits(bridge)


def _letters_and_digits(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())
