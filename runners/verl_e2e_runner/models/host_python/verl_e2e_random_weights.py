"""Random weights in which a fault shows: attention is not uniform, probabilities are not, no vector is all ones.

Each tensor gets numbers of its own, from a generator that its name seeds: no tensor depends on the order of others.
"""

import hashlib
import math
import re

import torch

# An embedding that is the output layer too would make every token foretell itself: it is small, and the last norm,
# which nothing but the logits passes, makes up for it.
TIED = 0.25
EXPERT = re.compile(r"\.experts\.\d+\.")
LAST_NORMS = ("norm.weight", "norm_f.weight", "final_layernorm.weight")
# Parts of the names of what lies in a layer, or in another tower than the text's.
LAYERED = ("layers.", "blocks.", "vision", "visual", "audio")
# How far apart the logits of an output layer lie, in standard deviations: natural units, so about 2 nats of 7.6 less.
HEAD = 2.0
# Matrices of attention and MLP, in units of one over the root of their width: more than keeps the scale.
MATRIX = 1.25
# A router's choices must not hang on rounding.
ROUTER = 3.0
VECTOR = 0.05
# What of an expert's matrices is its own; the rest all experts of a layer share. Where two experts are as good as tied
# for a token, rounding decides, and differently in trainer and rollout: that must not look like a fault.
OWN = 0.1
# What a configuration calls the factor of all that routed experts give.
FACTORS = ("routed_scaling_factor", "router_scaling_factor")


def fill(model, seed):
    """Fill all floating-point numbers of the model that are saved, and give their number and one digest of them.

    Not all of them are parameters: no gradient reaches the bias of a router.
    """
    text = getattr(model, "thinker", model)
    # A model that gives a score has a layer for it in the place of the output layer.
    output = (text.get_output_embeddings() or text.score).weight
    entry = text.get_input_embeddings().weight
    tied = output is entry
    gains = _gains(model)
    heads = {id(output): TIED if tied else HEAD, id(entry): TIED if tied else HEAD}
    whole, count = hashlib.sha256(), 0
    with torch.no_grad():
        saved = model.state_dict().keys()
        buffers = [pair for pair in model.named_buffers() if pair[0] in saved]
        for name, tensor in sorted([*model.named_parameters(), *buffers], key=lambda pair: pair[0]):
            if tensor.is_floating_point():
                numbers = _drawn(name, tensor.shape, seed)
                # Ernie stores the bias of its router as a matrix of one row.
                if tensor.dim() < 2 or name.endswith("bias"):
                    tensor.copy_((tensor + numbers * VECTOR) * gains.get(name, 1.0))
                    # The norm before the output layer is the one that lies in no layer.
                    if tied and name.endswith(LAST_NORMS) and not any(part in name for part in LAYERED):
                        # Some families store what is added to one.
                        tensor.copy_(tensor + HEAD / TIED - 1 if tensor.mean() < 0.5 else tensor * (HEAD / TIED))
                else:
                    tensor.copy_(numbers * _scale(name, tensor, heads) * gains.get(name, 1.0))
            count += tensor.numel()
            whole.update(name.encode() + b"\0" + tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return {"parameters": count, "sha256": whole.hexdigest()}


def new_weight(name, like, seed):
    """A weight of the shape of another, which it is near to where that is a vector."""
    numbers = _drawn(name, like.shape, seed)
    if like.dim() < 2:
        return like + (numbers * VECTOR).to(like.dtype)
    return (numbers * _scale(name, like, {})).to(like.dtype)


def _gains(model):
    """Factors of tensors by name, where attention, experts or norms would be many times what they are elsewhere."""
    text = model.config.get_text_config()
    routed = next((float(value) for name in FACTORS if (value := getattr(text, name, None))), 1.0)
    down = (name for name, _ in model.named_parameters() if _is_expert(name) and ".down_proj" in name)
    attention = (pair for pair in model.named_modules() if getattr(pair[1], "scaling", None) == 1.0)
    norms = {f"{name}.q_norm.weight": module for name, module in attention if hasattr(module, "q_norm")}
    # It adds one to its weight, and yet starts with ones.
    doubled = (name for name, module in model.named_modules() if type(module).__name__.endswith("LayerNorm1P"))
    cooled = {name: module.head_dim**-0.5 for name, module in norms.items()}
    return dict.fromkeys(down, 1 / routed) | cooled | {f"{name}.weight": VECTOR for name in doubled}


def _numbers(name, shape, seed):
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.randn(shape, generator=torch.Generator().manual_seed(int.from_bytes(digest[:7], "big")))


def _drawn(name, shape, seed):
    """Random numbers of a tensor; matrices of experts, one or all in one tensor, are alike but for their own part."""
    own = _numbers(name, shape, seed)
    if not _is_expert(name):
        return own
    common = _numbers(EXPERT.sub(".experts.", name) + ":common", shape[-2:], seed)
    return math.sqrt(1 - OWN**2) * common + OWN * own


def _is_expert(name):
    return ".experts." in name and not name.endswith("bias")


def _scale(name, tensor, heads):
    shape = tensor.shape
    if id(tensor) in heads:
        return heads[id(tensor)] / math.sqrt(shape[-1])
    if "expert" in name and tensor.dim() == 3:
        # Some families keep experts' matrices turned round: the mean of both widths serves either.
        return MATRIX / math.sqrt(math.sqrt(shape[-1] * shape[-2]))
    factor = ROUTER if name.rpartition(".weight")[0].endswith((".gate", ".router", ".router.proj")) else MATRIX
    return factor / math.sqrt(math.prod(shape[1:]))
