"""What a run's own configuration must show, as dotted keys and values, for what a job asked of the wrapper."""

import re
from collections.abc import Iterable, Mapping

Value = bool | int | float | str | None

_ACTOR, _REF, _CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic"
_ROLES = (_ACTOR, _REF, _CRITIC)

# What the wrapper does when a variable is not set. Shown in `expected`, so a changed default breaks the run's
# proof instead of weakening the run.
WRAPPER_DEFAULTS: Mapping[str, str] = {
    "ADV_ESTIMATOR": "gae",
    "COMMON_EP": "1",
    "COMMON_ETP": "1",
    "ENGINE": "vllm",
    "MAX_PROMPT_LENGTH": "512",
    "MAX_RESPONSE_LENGTH": "512",
    "RESUME_MODE": "disable",
}


def _megatron(key: str, roles: Iterable[str] = _ROLES) -> tuple[str, ...]:
    return tuple(f"{role}.megatron.{key}" for role in roles)


# Wrapper variable -> the keys of the resolved configuration that it decides.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "ADV_ESTIMATOR": ("algorithm.adv_estimator",),
    "ENGINE": ("actor_rollout_ref.rollout.name",),
    "MAX_PROMPT_LENGTH": ("data.max_prompt_length", "actor_rollout_ref.rollout.prompt_length"),
    "MAX_RESPONSE_LENGTH": ("data.max_response_length", "actor_rollout_ref.rollout.response_length"),
    "NUM_GPUS": ("trainer.n_gpus_per_node",),
    "USE_MBRIDGE": _megatron("use_mbridge"),
    "VANILLA_MBRIDGE": _megatron("vanilla_mbridge", (_ACTOR, _REF)),
    "VALUE_VANILLA_MBRIDGE": _megatron("vanilla_mbridge", (_CRITIC,)),
    "USE_MEGATRON_FSDP": _megatron("use_megatron_fsdp"),
    "LORA_RANK": ("actor_rollout_ref.model.lora.rank", "critic.model.lora.rank"),
    "LORA_ALPHA": ("actor_rollout_ref.model.lora.alpha", "critic.model.lora.alpha"),
    # The wrapper leaves the critic alone here.
    "LORA_MERGE": ("actor_rollout_ref.model.lora.merge",),
    "USE_REMOVE_PADDING": ("actor_rollout_ref.model.use_remove_padding",),
    "COMMON_TP": _megatron("tensor_model_parallel_size"),
    "COMMON_PP": _megatron("pipeline_model_parallel_size"),
    "COMMON_VPP": _megatron("virtual_pipeline_model_parallel_size"),
    "COMMON_CP": _megatron("context_parallel_size"),
    "COMMON_EP": _megatron("expert_model_parallel_size"),
    "COMMON_ETP": _megatron("expert_tensor_parallel_size"),
    "INFER_TP": ("actor_rollout_ref.rollout.tensor_model_parallel_size",),
    "ALL_OFFLOAD": (
        *_megatron("param_offload"),
        *_megatron("grad_offload", (_ACTOR, _CRITIC)),
        *_megatron("optimizer_offload", (_ACTOR, _CRITIC)),
    ),
    "ROUTING_REPLAY_MODE": (f"{_ACTOR}.megatron.router_replay.mode",),
    "SAVE_FREQ": ("trainer.save_freq",),
    "TEST_FREQ": ("trainer.test_freq",),
    "VAL_BEFORE_TRAIN": ("trainer.val_before_train",),
    "RESUME_MODE": ("trainer.resume_mode",),
    "TOTAL_TRAIN_STEPS": ("trainer.total_training_steps",),
}

# Megatron is what the wrapper is for; a run on another backend would prove nothing.
_ALWAYS: Mapping[str, Value] = {f"{role}.strategy": "megatron" for role in _ROLES}

_OVERRIDE = re.compile(r"\+{0,2}(?P<key>[A-Za-z_][\w.]*)=(?P<value>[^\s\[\]{}()'\"$,]*)")


def expected_config(wrapper: Mapping[str, str], overrides: Iterable[str], *, phases: int = 1) -> dict[str, Value]:
    """Dotted keys and the values that the run must print.

    An override counts when its value is one plain word or number. With several `phases`, what differs between
    them (steps, resume mode) is left to the evidence of the steps themselves.
    """
    asked = {**WRAPPER_DEFAULTS, **wrapper}
    expected = dict(_ALWAYS)
    for name, keys in _KEYS.items():
        if name in asked and not (phases > 1 and name in {"TOTAL_TRAIN_STEPS", "RESUME_MODE"}):
            expected.update(dict.fromkeys(keys, parsed(asked[name])))
    return dict(sorted({**expected, **expected_of_overrides(overrides)}.items()))


def expected_of_overrides(overrides: Iterable[str]) -> dict[str, Value]:
    """What overrides alone decide, as for a script whose variables and defaults are not known here."""
    found = (_OVERRIDE.fullmatch(override) for override in overrides)
    return {match["key"]: parsed(match["value"]) for match in found if match is not None}


def parsed(text: str) -> Value:
    """A word as Hydra reads it: `null`, a truth value, a number, or text."""
    if text.lower() == "null":
        return None
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def same_value(found: object, wanted: Value) -> bool:
    """Equality without Python's True == 1; 1 and 1.0 are the same number."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    return bool(found == wanted)
