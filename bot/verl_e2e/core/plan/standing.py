"""What a change of some code always wants: settings for what no entered line shows.

An adapter that adds nothing hides what its code does; a model whose embeddings are tied says nothing about one whose
are not. Two heads of keys and values with two query heads each, which a wrong split needs to show, are what the default
model and every synthetic one have.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass

from verl_e2e.core.model.variant import BASE_WRAPPER
from verl_e2e.core.model.wants import Axis, ModelWant, Want

CONVERSION = "/models/conversion/"


@dataclass(frozen=True, slots=True)
class Standing:
    """One row: which changed functions it is for, and what they want."""

    # How reports name the row.
    name: str
    # Parts of paths, one of which the file has.
    paths: tuple[str, ...]
    # Parts of names, one of which the function's has; empty for every function of such a file.
    words: tuple[str, ...]
    # What is wanted, for people.
    condition: str
    # The settings; the first that a job can have will do.
    wants: tuple[Want, ...]
    # Identifiers, one of which a changed statement of any other function of such a file has.
    statements: frozenset[str] = frozenset()

    def is_for(self, path: str, symbol: str, words: Container[str]) -> bool:
        """Whether a function is one of those; `words` are the identifiers of its changed statements."""
        name = symbol.lower()
        named = not self.words or any(word in name for word in self.words)
        said = any(word in words for word in self.statements)
        return (named or said) and any(part in path for part in self.paths)


_CONVERSION = (CONVERSION,)
# Adapters that change what the model computes, so that what is done with them shows, their scale too.
_AMPLIFIED = Want(axes={Axis.ADAPTER_B_START: "xavier", Axis.ADAPTER_ALPHA: 4 * int(BASE_WRAPPER["LORA_RANK"])})
_ADDING = "the adapters change what the model computes"
# What runs only where adapters leave by themselves: in a weight sync that does not merge them (verl:
# MegatronEngine.get_per_tensor_param), as with experts they must be, and in a save (verl:
# MegatronCheckpointManager._save_model_as_hf_via_bridge).
_OWN_EXPORT_WORDS = ("stream_adapter_weights", "stream_shared_outer_adapter", "packed_expert_", "save_hf_adapter")
_ALONE = (Want(axes={Axis.ADAPTER_MERGE: False}), Want(axes={Axis.RESUME: True}))
_TIED_WORDS = (
    *("export", "megatron_to_hf", "stream_", "save_hf"),
    *("hf_to_megatron", "load_weights", "tied", "embedding", "build_conversion_tasks"),
)
# The default model's are tied.
_UNTIED = Want(model=ModelWant(fields={"tie_word_embeddings": False}))
# No cell of a rehearsal packs.
_PACKING = frozenset({"packed_seq_params", "cu_seqlens", "cu_seqlens_q", "qkv_format"})
_PACKED = Want(axes={Axis.PACKING: True})

STANDING: tuple[Standing, ...] = (
    Standing("adapters", ("/peft/", "/peft_bridge.py"), (), _ADDING, (_AMPLIFIED,)),
    Standing("adapters in conversion", _CONVERSION, ("adapter", "lora", "peft"), _ADDING, (_AMPLIFIED,)),
    Standing("own export", _CONVERSION, _OWN_EXPORT_WORDS, "the adapters leave by themselves", _ALONE),
    Standing("untied", _CONVERSION, _TIED_WORDS, "the model's embeddings are untied", (_UNTIED,)),
    Standing("packed", ("/models/",), ("packed_seq", "thd"), "sequences are packed", (_PACKED,), _PACKING),
)


def leaves_by_itself(path: str, symbol: str) -> bool:
    """Whether a function runs only where adapters leave by themselves."""
    return any(row.wants is _ALONE for row in standing_wants(path, symbol))


def standing_wants(path: str, symbol: str, words: Container[str] = ()) -> Iterator[Standing]:
    """The rows that are for a function; `words` are the identifiers of its changed statements."""
    return (row for row in STANDING if row.is_for(path, symbol, words))
