"""What a family's checkpoints have that the class of transformers with the same layers does not.

Names, MTP layers, tensors that are written by name, and a configuration around the one of the text.
"""

import functools
import json
import math
from pathlib import Path

WEIGHTS = "model.safetensors"
# By how checkpoints name MTP layers: where a layer lies, the norms that it has besides those of any layer, and the
# matrix that takes an embedding and a hidden state, one after the other.
MTP = {
    "appended": ("model.layers.{after}.", ("enorm", "hnorm", "shared_head.norm"), "eh_proj"),
    "mimo": ("model.mtp_layers.{number}.", ("token_layernorm", "hidden_layernorm", "final_layernorm"), "input_proj"),
}


def publish(recipe, folder):
    """Give the saved model the family's names and its MTP layers; the number of parameters that were added."""
    import torch
    from safetensors.torch import load_file, save_file
    from verl_e2e_random_weights import new_weight

    file, published = Path(folder, "config.json"), recipe.get("published")
    config = json.loads(file.read_text())
    layers = config.get("num_nextn_predict_layers") if recipe.get("mtp") else 0
    if not published and not layers:
        return 0
    tensors = load_file(Path(folder, WEIGHTS))
    own = sum(tensor.numel() for tensor in tensors.values())
    after = config.get("num_hidden_layers", 0)
    for name, (like, widths) in mtp_layers(tensors, recipe["mtp"], layers or 0, after).items():
        other = tensors[like]
        shaped = other if widths == 1 else other.new_empty(len(other), widths * len(other))
        tensors[name] = new_weight(name, shaped, recipe["seed"])
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
    """The tensors of MTP layers, each with the tensor that it is like: as wide, or two of these vectors wide.

    `after` is the number of other layers, whose last one has what an MTP layer has too.
    """
    made = {}
    for number in range(layers):
        place, norms, joint = MTP[style]
        prefix, last = place.format(number=number, after=after + number), f"model.layers.{after - 1}."
        made |= {prefix + name.removeprefix(last): (name, 1) for name in names if name.startswith(last)}
        made |= {f"{prefix}{name}.weight": (f"{last}input_layernorm.weight", 1) for name in norms}
        made[f"{prefix}{joint}.weight"] = (f"{last}input_layernorm.weight", 2)
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
