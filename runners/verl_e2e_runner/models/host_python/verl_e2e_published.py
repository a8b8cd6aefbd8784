"""What a family's checkpoints have that the class of transformers with the same layers does not.

Names, MTP layers, tensors that are written by name, and a configuration around the one of the text.
"""

import functools
import json
import math
from pathlib import Path

WEIGHTS = "model.safetensors"
# By how checkpoints name MTP layers: the other layers whose tensors one has, by their numbers; where these lie; the
# norms that it has besides, next to the first or the last of these or elsewhere; and the matrix that takes an embedding
# and a hidden state, one after the other.
MTP = {
    "appended": ((-1,), "model.layers.{after}.", ("{0}enorm", "{0}hnorm", "{0}shared_head.norm"), "{0}eh_proj"),
    "appended_final": ((-1,), "model.layers.{after}.", ("{0}enorm", "{0}hnorm", "{0}final_layernorm"), "{0}eh_proj"),
    "mimo": (
        *((-1,), "model.mtp_layers.{flat}."),
        *(("{0}token_layernorm", "{0}hidden_layernorm", "{0}final_layernorm"), "{0}input_proj"),
    ),
    "apart": (
        (-1,),
        "mtp.layers.{flat}.",
        ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"),
        "mtp.fc",
    ),
    # An attention layer and one of experts.
    "hybrid": ((2, 1), "mtp.layers.{flat}.", ("{0}enorm", "{0}hnorm", "{1}final_layernorm"), "{0}eh_proj"),
}
# The same without experts, as the first layer is.
MTP["apart_dense"] = ((0,), *MTP["apart"][1:])
MTP["appended_dense"] = (
    (0,),
    MTP["appended"][1],
    ("{0}enorm", "{0}hnorm", "{0}transformer.shared_head.norm"),
    "{0}eh_proj",
)
# The same with a copy of the embedding and of the output layer in each.
MTP["appended_shared"] = MTP["appended"]
COPIES = {"embed_tokens.weight": "model.embed_tokens.weight", "shared_head.head.weight": "lm_head.weight"}
# What a configuration calls the number of MTP layers, where layers of the text model lie, and a norm as wide as it.
MTP_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
LAYERS = ("model.layers.", "model.language_model.layers.", "backbone.layers.")
NORMS = ("input_layernorm", "post_attention_layernorm", "norm")


def publish(recipe, folder):
    """Give the saved model the family's names and its MTP layers; the number of parameters that were added."""
    import torch
    from safetensors.torch import load_file, save_file
    from verl_e2e_random_weights import new_weight

    file, published = Path(folder, "config.json"), recipe.get("published")
    config = json.loads(file.read_text())
    text = config.get("text_config") or config
    layers = next((text[name] for name in MTP_COUNTS if text.get(name)), 0) if recipe.get("mtp") else 0
    if not published and not layers:
        return 0
    tensors = load_file(Path(folder, WEIGHTS))
    own = sum(tensor.numel() for tensor in tensors.values())
    after = text.get("num_hidden_layers") or len(text.get("layers_block_type") or ())
    for name, (like, widths) in mtp_layers(tensors, recipe["mtp"], layers, after).items():
        other = tensors[like]
        shaped = other.new_empty(len(other), widths * len(other)) if widths == 2 else other
        tensors[name] = new_weight(name, shaped, recipe["seed"]) if widths else other.clone()
    if published:
        gates = head_gates(tensors, published["head_gates"], config.get("num_attention_heads"))
        tensors |= {name: new_weight(name, shape, recipe["seed"]) for name, shape in gates.items()}
        tensors = stacked(with_names(tensors, published, torch.cat), published["stacked"], torch.stack)
        if published["norms_add_one"]:
            tensors = {name: tensor - 1 if name.endswith("norm.weight") else tensor for name, tensor in tensors.items()}
        tensors = kept(tensors, published["left_out"])
        config = with_outer(with_aliases(config, published), published["outer"], recipe.get("tokens") or {})
        for name, (shape, around) in written(config, published["written"]).items():
            tensors[name] = new_weight(name, torch.full(shape, around, dtype=torch.bfloat16), recipe["seed"])
    save_file(dict(sorted(tensors.items())), Path(folder, WEIGHTS), metadata={"format": "pt"})
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return sum(tensor.numel() for tensor in tensors.values()) - own


def mtp_layers(names, style, layers, after):
    """The tensors of MTP layers, each with the tensor that it is like: as wide, twice as wide, or (0) equal.

    `after` is the number of other layers.
    """
    made = {}
    for number in range(layers):
        alike, place, norms, joint = MTP[style]
        start = next(start for start in LAYERS if any(name.startswith(start) for name in names))
        others = [f"{start}{like % after}." for like in alike]
        own = [place.format(after=after + number, flat=number * len(alike) + at) for at in range(len(alike))]
        for other, prefix in zip(others, own, strict=True):
            made |= {prefix + name.removeprefix(other): (name, 1) for name in names if name.startswith(other)}
        wide = next(name for norm in NORMS if (name := f"{others[0]}{norm}.weight") in names)
        made |= {f"{norm.format(own[0], own[-1])}.weight": (wide, 1) for norm in norms}
        made[f"{joint.format(own[0])}.weight"] = (wide, 2)
        if style == "appended_shared":
            made |= {own[0] + name: (other, 0) for name, other in COPIES.items()}
    return made


def with_names(tensors, published, join):
    """The tensors under the family's names, those joined that its checkpoints have as one."""
    renamed = {}
    for name, tensor in tensors.items():
        new = f".{name}."
        for part, other in published["renamed"].items():
            # Whole parts between dots, never a piece of a longer word.
            new = new.replace(f".{part}.", f".{other}.")
        renamed[new[1:-1]] = tensor
    for end, parts in published["joined"].items():
        for name in [name for name in renamed if name.endswith(f".{parts[0]}")]:
            start = name.removesuffix(parts[0])
            renamed[start + end] = join([renamed.pop(start + part) for part in parts])
    return renamed


def head_gates(tensors, end, heads):
    """The matrices with a row for each query head, as empty tensors by name."""
    queries = [name for name in tensors if end and name.endswith(".q_proj.weight")]
    return {
        name.replace(".q_proj.", f".{end}."): tensors[name].new_empty(heads, tensors[name].shape[1]) for name in queries
    }


def stacked(tensors, holders, stack):
    """The tensors, those that differ by the number after a holder alone made one; the number is left out."""
    whole, groups = {}, {}
    for name, tensor in tensors.items():
        holder = next((holder for holder in holders if f".{holder}." in name), None)
        before, _, after = name.partition(f".{holder}.")
        number, _, end = after.partition(".")
        if number.isdecimal():
            groups.setdefault(f"{before}.{holder}.{end}", {})[int(number)] = tensor
        else:
            whole[name] = tensor
    return whole | {name: stack([group[number] for number in sorted(group)]) for name, group in groups.items()}


def with_aliases(config, published):
    """The configuration with the family's architecture and with fields under the names that it has for them."""
    aliases = {name: _inside(config, field) for name, field in published["aliases"].items()}
    lists = {
        name: [kinds[layer % len(kinds)] for layer in range(config["num_hidden_layers"])]
        for name, kinds in published["patterns"].items()
    }
    known = {"model_type": published["model_type"]} if published["model_type"] else {}
    return {**config, **aliases, **lists, **known, "architectures": [published["architecture"]]}


def kept(tensors, parts):
    """The tensors in whose names none of these whole parts is."""
    return {name: tensor for name, tensor in tensors.items() if not any(f".{part}." in f".{name}." for part in parts)}


def with_outer(config, outer, tokens):
    """The configuration inside of the family's own, where the class is one of text alone; ids of tokens move out."""
    if outer is None:
        return config
    moved = {name: value for name, value in config.items() if name in tokens}
    text = {name: value for name, value in config.items() if name not in tokens}
    whole = {"architectures": [outer["architecture"]], "model_type": outer["model_type"], **moved}
    for name, value in outer["fields"].items():
        *holders, last = name.split(".")
        holder = whole
        for part in holders:
            holder = holder.setdefault(part, {})
        holder[last] = value
    # What programs read of any model, whether or not it has a text model inside.
    common = ("dtype", "tie_word_embeddings", "eos_token_id", "pad_token_id", "bos_token_id")
    return {**{name: text[name] for name in common if name in text}, **whole, "text_config": text}


def written(config, tensors):
    """Shapes of tensors by name, and the number that those of one dimension are near to; a later entry wins."""
    shapes = {}

    def field(name):
        """A number, or a field of the configuration or of the text model inside of it."""
        if name.isdecimal():
            return int(name)
        return _inside(config if name.partition(".")[0] in config else config["text_config"], name)

    for tensor in tensors:
        shape = [math.prod(map(field, str(size).split("*"))) for size in tensor["shape"]]
        chosen = field(tensor["among"]) if tensor["among"] else None
        for name in tensor["names"]:
            numbers = range(field(tensor["each"]) if "*" in name else 1)
            own = (number for number in numbers if chosen is None or chosen[number])
            shapes |= {name.replace("*", str(number)): (shape, tensor["around"]) for number in own}
    return shapes


def _inside(config, field):
    return functools.reduce(lambda holder, name: holder[name], field.split("."), config)
