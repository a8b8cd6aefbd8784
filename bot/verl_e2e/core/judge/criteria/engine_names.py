"""Which tensors that arrived make up a parameter of the rollout engine, by vLLM's names."""

import re
from collections.abc import Mapping

from verl_e2e.core.model.fingerprints import Tensor

# A projection of the engine, and those of Hugging Face's format that it computes at once, in this order.
_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
# A module with an adapter is exported under the name of the layer that the adapter wraps.
_STYLES = ("", ".base_layer")
_ADAPTER = re.compile(r"^(?P<module>.+)\.lora_(?P<part>[ab])(?:\[(?P<index>\d{1,2})\])?$")


def is_adapter(name: str) -> bool:
    """Whether the engine's name is that of a registered adapter."""
    return _ADAPTER.match(name) is not None


def sources(name: str, arrived: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The names under which the parts of an engine's parameter arrived; empty where that is not known."""
    adapter = _ADAPTER.match(name)
    if adapter:
        index = int(adapter["index"]) if adapter["index"] else None
        return _of_adapter(adapter["module"], adapter["part"].upper(), index, arrived)
    module, _, last = name.replace(".base_layer.", ".").rpartition(".")
    path, _, projection = module.rpartition(".")
    fused = tuple(f"{path}.{part}" for part in _FUSED.get(projection, ()))
    candidates = [tuple(f"{part}{style}.{last}" for part in parts) for parts in (fused, (module,)) for style in _STYLES]
    return next((parts for parts in candidates if parts and all(part in arrived for part in parts)), ())


def _of_adapter(module: str, part: str, index: int | None, arrived: Mapping[str, Tensor]) -> tuple[str, ...]:
    """An adapter of a fused projection has one entry for each part; any other has no index."""
    path, _, projection = module.rpartition(".")
    parts = _FUSED.get(projection, ())
    if (index is None) == bool(parts) or (index is not None and index >= len(parts)):
        return ()
    adapted = module if index is None else f"{path}.{parts[index]}"
    ending = f".{adapted}.lora_{part}.weight"
    return next(((source,) for source in arrived if f".{source}".endswith(ending)), ())
