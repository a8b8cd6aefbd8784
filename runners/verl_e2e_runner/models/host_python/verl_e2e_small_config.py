"""The rules by which the configuration of a model family becomes a small one. Standard library alone.

A field is a size by its name, wherever it lies in the configuration. Fields that no rule names keep the default of
the family's configuration class, so that a family is small and otherwise itself.

Where a condition asks for a type of rope alone, it gets the settings that the type needs: transformers refuses most
types without their own. The values change what the model says at the few hundred positions of a run, and are none that
a program takes for a default, so that a lost one shows.
"""

# Settings of each type of rope, by the names of transformers.
_SETTINGS = {
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
OF_A_TYPE |= {name for settings in _SETTINGS.values() for name in settings} - {"partial_rotary_factor"}
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
        before = "original_max_position_embeddings"
        lengths = [int(settings["factor"] * settings[before]) for settings in known if before in settings]
        # The length after scaling, which programs compare with the one before.
        whole |= {"max_position_embeddings": max(lengths)} if lengths else {}
    return whole


def _whole(asked, own, values):
    """The settings of one type, as `asked`, without those that only the family's `own` type has."""
    # Some programs read the older key before the newer one.
    kind = asked.get("type") or asked.get("rope_type")
    if kind not in _SETTINGS or kind == own.get("rope_type"):
        return {**asked, "rope_type": kind} if kind else asked
    kept = {name: value for name, value in asked.items() if name not in OF_A_TYPE or own.get(name) != value}
    needed = {**_SETTINGS[kind], **(LATENT_SETTINGS.get(kind, {}) if "kv_lora_rank" in values else {})}
    if kind == "longrope":
        # How much of a head rope turns, the way transformers counts it.
        width = values.get("qk_rope_head_dim") if "kv_lora_rank" in values else values.get("head_dim")
        width = width or values["hidden_size"] // values["num_attention_heads"]
        pairs = int(width * kept.get("partial_rotary_factor", 1.0)) // 2
        needed |= {"short_factor": [1.0] * pairs, "long_factor": [1.0 + place / 2 for place in range(pairs)]}
    return {**needed, **kept, "rope_type": kind}


# Names of fields, by the size that they hold. A recipe states what is different in its family.
TEXT_FIELDS = {
    "layers": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    "hidden": ("hidden_size", "d_model", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "ffn": ("intermediate_size", "ffn_hidden_size", "d_ff", "dense_intermediate_size"),
    "expert_ffn": (
        "moe_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_expert_intermediate_size",
    ),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "experts_per_token": ("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_k", "moe_topk"),
    "positions": ("max_position_embeddings",),
    "vocabulary": ("vocab_size",),
    "window": ("sliding_window", "sliding_window_size"),
}
# What a limit of groups or a run of dense layers is in a model of few experts and layers.
FIXED = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "moe_layer_start_index": 1, "max_window_layers": 0}
# Heads of linear attention and state space: as many as there are of the others.
STATE_FIELDS = {
    "linear_num_key_heads": "kv_heads",
    "linear_num_value_heads": "heads",
    "mamba_num_heads": "heads",
    "mamba_n_heads": "heads",
}
# A tower for images or sounds: two small layers, whose output is as wide as the text model.
TOWER_FIELDS = {
    "depth": 2,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "encoder_layers": 2,
    "hidden_size": 256,
    "embed_dim": 256,
    "d_model": 256,
    "intermediate_size": 512,
    "encoder_ffn_dim": 512,
    "num_heads": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "encoder_attention_heads": 4,
    "num_position_embeddings": 64,
    "fullatt_block_indexes": [1],
    "deepstack_visual_indexes": [0, 1],
}
TOWER_OUTPUTS = ("out_hidden_size", "output_dim", "text_hidden_size")
_TOWERS = ("vision_config", "audio_config")
# Lists with one kind of layer each, which a class derives from the number of layers where they are not given.
KINDS = ("layer_types", "mlp_layer_types", "layers_block_type")
# A base that no program takes for a default, so that a lost setting of rope shows.
ROPE_THETA = 500_000.0
DEFAULT_ROPE_THETA = 10_000.0


def small(defaults, sizes):
    """The fields of a configuration (nested dictionaries) that have to differ from `defaults`, the family's own.

    `sizes` are the sizes of the text model by the keys of TEXT_FIELDS.
    """
    known = {name: sizes[size] for size, found in TEXT_FIELDS.items() if size in sizes for name in found}
    known |= {name: sizes[size] for name, size in STATE_FIELDS.items() if size in sizes}
    return _text({**FIXED, **known}, defaults, sizes)


def stated(recipe):
    """The fields that a recipe states: what a condition asks for wins over what the family needs."""
    sized = {name: recipe["sizes"][size] for name, size in (recipe.get("sized_fields") or {}).items()}
    return {**sized, **recipe["fields"], **recipe["wanted"]}


def _text(known, defaults, sizes):
    changed = {}
    for name, value in defaults.items():
        if name in _TOWERS and isinstance(value, dict):
            tower = {field: size for field, size in TOWER_FIELDS.items() if value.get(field) is not None}
            changed[name] = tower | {field: sizes["hidden"] for field in TOWER_OUTPUTS if value.get(field) is not None}
        elif name in TEXTS and isinstance(value, dict):
            changed[name] = _text(known, value, sizes)
        elif name in known and _holds_size(value):
            changed[name] = known[name]
    if "kv_lora_rank" in defaults and _holds_size(defaults.get("num_key_value_heads")):
        # Latent attention has no groups.
        changed["num_key_value_heads"] = sizes["heads"]
    if "head_dim" in defaults and _holds_size(defaults["head_dim"]):
        changed["head_dim"] = sizes["head_size"]
    rope = with_rope_theta(defaults.get("rope_parameters"))
    if rope is not None:
        changed["rope_parameters"] = rope
    return changed


def _holds_size(value):
    return isinstance(value, int) and not isinstance(value, bool)


def with_rope_theta(parameters):
    """The settings of rope with a base of their own in place of the usual one; None where there is nothing to set."""
    if not isinstance(parameters, dict):
        return None
    if all(isinstance(value, dict) for value in parameters.values()) and parameters:
        inner = {kind: with_rope_theta(value) or value for kind, value in parameters.items()}
        return inner if inner != parameters else None
    if parameters.get("rope_theta") != DEFAULT_ROPE_THETA:
        return None
    return {**parameters, "rope_theta": ROPE_THETA}


def missing_kinds(kinds, wanted):
    """Kinds of layers that a model has in its family's usual size, and not with `kinds`, one for each of its layers."""
    return [kind for kind in dict.fromkeys(wanted or ()) if kind not in (kinds or ())]


def merged(base, over, own=None):
    """`base` with the values of `over`, nested dictionaries joined; a dotted name means a field inside of another.

    Where `base` has no such dictionary, the one of `own` is completed.
    """
    joined = dict(base)
    for name, value in over.items():
        first, dot, rest = name.partition(".")
        if not dot:
            joined[first] = value
            continue
        whole = (own or {}).get(first)
        inner = joined.get(first) or (whole if first not in (*TEXTS, *_TOWERS) else None) or {}
        joined[first] = merged(inner, {rest: value}, whole)
    return joined


def placed(fields, defaults):
    """`fields` with the text model's own ones moved to where the family keeps them: a top field wins."""
    nested = next((name for name in TEXTS if isinstance(defaults.get(name), dict)), None)
    if nested is None:
        return dict(fields)
    inner = placed(dict.fromkeys(fields), defaults[nested])
    moved = {}
    for name, value in fields.items():
        first = name.partition(".")[0]
        inside = first not in defaults and (first in defaults[nested] or name not in inner)
        moved[f"{nested}.{next(key for key in inner if key.endswith(name))}" if inside else name] = value
    return moved
