"""The small models of the cells: made once for both trees by the scripts that make the models of GPU jobs.

Weights are in single precision and have numbers that half of it cannot hold, so that a cast on the way shows.
"""

import copy
import functools
import hashlib
import json
import shutil
import sys
from pathlib import Path

import cells
import torch
from safetensors.torch import load_file, save_file

_MAKERS = Path(__file__).resolve().parents[2] / "models" / "host_python"
RECIPE = "recipe.json"
SEQUENCES, TOKENS = 8, 24
# Other weights, adapters and data for another number: by several of them the bounds of the oracles were found.
SEED = 0
# Fills the bits of a number that bfloat16 does not have.
_FINER = 1 + 2**-10 + 2**-13


def folder_of(cell, recipe, work):
    """Where the model of a cell lies."""
    digest = hashlib.sha256(json.dumps(asked_recipe(cell, recipe), sort_keys=True).encode()).hexdigest()[:16]
    return Path(work, f"{cell.family}-{digest}")


def asked_recipe(cell, recipe):
    """The family's recipe with the cell's fields and sizes."""
    layers = recipe["least_layers"] if cell.family in cells.DEEPER else cells.SIZES["layers"]
    sizes = {**cells.SIZES, "head_size": recipe["head_size"], "layers": layers, **cell.sizes}
    own = {name: value for name, value in recipe.items() if name != "switched"}
    wanted = {**recipe.get("wanted", {}), **recipe.get("switched", {}).get(cell.feature, {}), **cell.fields}
    return {**own, "seed": recipe["seed"] + SEED, "wanted": wanted, "sizes": sizes}


def make(cell, recipe, work):
    """Make the model of a cell unless it is there; its folder appears when it is whole."""
    folder = folder_of(cell, recipe, work)
    if folder.exists():
        return folder
    sys.path.insert(0, str(_MAKERS))
    import verl_e2e_small_processor
    from verl_e2e_make_model import write_model

    # No cell sees an image or hears a sound, and the processors need more libraries.
    verl_e2e_small_processor.write_processor = lambda *_values: None
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    write_model(asked_recipe(cell, recipe), unfinished)
    for file in unfinished.glob("*.safetensors"):
        tensors = {
            name: (tensor.float() * _FINER if tensor.is_floating_point() else tensor)
            for name, tensor in load_file(file).items()
        }
        save_file(tensors, file, metadata={"format": "pt"})

    def single(fields):
        """The same with single precision wherever it names one."""
        named = {name for name in ("dtype", "torch_dtype") if fields.get(name)}
        return {**fields, **dict.fromkeys(named, "float32")}

    config = json.loads((unfinished / "config.json").read_text(), object_hook=single)
    (unfinished / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True))
    (unfinished / RECIPE).write_text(json.dumps(recipe))
    unfinished.rename(folder)
    return folder


def batch(vocabulary):
    """Tokens, those after them, the weight of each one's loss, and positions: other data for every sequence."""
    generator = torch.Generator().manual_seed(20_260 + SEED)
    tokens = torch.randint(4, vocabulary - 40, (SEQUENCES, TOKENS), generator=generator)
    weights = torch.rand((SEQUENCES, TOKENS), generator=generator) + 0.5
    lengths = torch.randint(TOKENS // 2, TOKENS + 1, (SEQUENCES, 1), generator=generator)
    weights *= (torch.arange(TOKENS)[None] < lengths - 1).float()
    # The last token has none after it; no length is so long that it had a weight.
    positions = torch.arange(TOKENS).expand(SEQUENCES, TOKENS)
    return {"tokens": tokens, "next": tokens.roll(-1, 1), "weights": weights, "positions": positions}


@functools.cache
def config_of(folder):
    """The configuration of a model's folder."""
    import transformers

    return transformers.AutoConfig.from_pretrained(folder)


def reference_model(folder, tensors=None):
    """The family's model in transformers, with the weights of the folder or with others of the same names."""
    import transformers

    config = copy.deepcopy(config_of(folder))
    family = getattr(transformers, config.architectures[0])
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    given = {"config": config, "state_dict": tensors} if tensors else {}
    model = family.from_pretrained(None if tensors else folder, **given, **options).eval()
    # The part of a model that speaks, too, which reads and writes text.
    return getattr(model, "thinker", model)


def reference(model, data, gradient=False):
    """Logits of the first two sequences, the loss of all, and the norm of its gradient where it is asked for.

    A step trains on all sequences, whatever their order.
    """
    with torch.set_grad_enabled(gradient):
        logits = model(input_ids=data["tokens"], use_cache=False).logits.float()
        lost = torch.nn.functional.cross_entropy(logits.transpose(1, 2), data["next"], reduction="none")
        loss = (lost * data["weights"]).sum() / data["weights"].sum()
    found = {"logits": logits[:2].detach(), "loss": float(loss.detach())}
    if gradient:
        loss.backward()
        squares = sum(float(p.grad.double().pow(2).sum()) for p in model.parameters() if p.grad is not None)
        found["grad_norm"] = squares**0.5
    return found
