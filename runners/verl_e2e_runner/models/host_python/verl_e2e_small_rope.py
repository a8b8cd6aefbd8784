"""The settings of rope that a type needs, where a condition asks for the type alone. Standard library alone.

transformers refuses most types without their own settings. The values change what the model says at the few hundred
positions of a run, and are none that a program takes for a default, so that a lost one shows.
"""

# Settings of each type of rope, by the names of transformers.
SETTINGS = {
    "linear": {"factor": 4.0},
    # It shows beyond `max_position_embeddings` alone, and verl lets no run go there.
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 32.0, "original_max_position_embeddings": 128, "beta_fast": 8.0, "beta_slow": 2.0},
    # Any prompt is longer than 32 tokens. The factors of each frequency follow.
    "longrope": {"factor": 128.0, "original_max_position_embeddings": 32},
    # Megatron-LM takes only the factor from the configuration: the others are the ones that it always has.
    "llama3": {
        "factor": 16.0,
        "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "proportional": {"partial_rotary_factor": 0.25},
    "default": {},
}
# Latent attention scales its scores as well, as that of DeepSeek V2 does, and reads a factor whatever the type.
LATENT_SETTINGS = {"yarn": {"mscale": 0.707, "mscale_all_dim": 0.707}, "proportional": {"factor": 1.0}}
# What one type has and another does not know.
OF_A_TYPE = {"attention_factor", "truncate", "short_factor", "long_factor", *LATENT_SETTINGS["yarn"]}
OF_A_TYPE |= {name for settings in SETTINGS.values() for name in settings} - {"partial_rotary_factor"}
# Where kinds of layers have settings of their own: those that see far, whose settings a family calls its scaling.
FAR_KINDS = ("full_attention", "compress")
# The older name of all settings, and the one that transformers gives them.
OLDER, NEWER = "rope_scaling", "rope_parameters"
TEXTS = ("text_config", "thinker_config", "llm_config")


def with_newer_names(fields, defaults):
    """`fields` by the names that a configuration with `defaults` has for settings of rope."""
    own = _settings(defaults)
    asked = [name for name in fields if {OLDER, NEWER} & set(name.split("."))]
    if own is None and asked:
        raise ValueError(f"the family has no settings of rope, and {asked[0]} is asked for")
    return {_newer(name, own, defaults): value for name, value in fields.items()} if own else dict(fields)


def _newer(name, own, defaults):
    first, dot, rest = name.partition(".")
    if first in TEXTS:
        return f"{first}.{_newer(rest, own, defaults.get(first) or {})}"
    if name == "rope_theta" and name not in defaults:
        rest = name
    elif not dot or first not in (OLDER, NEWER):
        return name
    kinds = [kind for kind, value in own.items() if isinstance(value, dict)]
    far = [kind for kind in FAR_KINDS if kind in kinds and rest.partition(".")[0] not in kinds]
    return ".".join([NEWER, *far[:1], rest])


def _settings(defaults):
    """The settings of the text model, wherever it lies."""
    if isinstance(defaults.get(NEWER), dict):
        return defaults[NEWER]
    inner = (defaults[name] for name in TEXTS if isinstance(defaults.get(name), dict))
    return next((found for nested in inner if (found := _settings(nested))), None)


def with_whole_rope(fields, defaults):
    """`fields` (nested dictionaries) with what the asked type of rope needs, where it is not the one of `defaults`."""
    whole = dict(fields)
    for name in TEXTS:
        if isinstance(fields.get(name), dict) and isinstance(defaults.get(name), dict):
            whole[name] = with_whole_rope(fields[name], defaults[name])
    asked, own = fields.get(NEWER), defaults.get(NEWER)
    if not isinstance(asked, dict) or not isinstance(own, dict):
        return whole
    values = {**defaults, **fields}
    if any(isinstance(value, dict) for value in asked.values()):
        made = {kind: _whole(settings, own.get(kind) or {}, values) for kind, settings in asked.items()}
    else:
        made = _whole(asked, own, values)
    if made != asked:
        whole[NEWER] = made
        known = [made, *(settings for settings in made.values() if isinstance(settings, dict))]
        lengths = [_length(settings) for settings in known if "original_max_position_embeddings" in settings]
        # The length after scaling, which programs compare with the one before.
        whole |= {"max_position_embeddings": max(lengths)} if lengths else {}
    return whole


def _length(settings):
    return int(settings["factor"] * settings["original_max_position_embeddings"])


def _whole(asked, own, values):
    """The settings of one type, as `asked`, without those that only the family's `own` type has."""
    # Some programs read the older key before the newer one.
    kind = asked.get("type") or asked.get("rope_type")
    if kind not in SETTINGS or kind == own.get("rope_type"):
        return {**asked, "rope_type": kind} if kind else asked
    kept = {name: value for name, value in asked.items() if name not in OF_A_TYPE or own.get(name) != value}
    needed = {**SETTINGS[kind], **(LATENT_SETTINGS.get(kind, {}) if "kv_lora_rank" in values else {})}
    if kind == "longrope":
        pairs = _rotated(kept, values) // 2
        needed |= {"short_factor": [1.0] * pairs, "long_factor": [1.0 + place / 2 for place in range(pairs)]}
    return {**needed, **kept, "rope_type": kind}


def _rotated(settings, values):
    """How much of a head rope turns, the way transformers counts it."""
    width = values.get("qk_rope_head_dim") if "kv_lora_rank" in values else values.get("head_dim")
    width = width or values["hidden_size"] // values["num_attention_heads"]
    return int(width * settings.get("partial_rotary_factor", 1.0))
