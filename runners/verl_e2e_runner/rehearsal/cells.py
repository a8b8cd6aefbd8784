"""The cells of a rehearsal: what is built, over which ranks, and what is done with it. Standard library alone.

A row names a family of the policy, the fields of its configuration that differ, parallel sizes, adapters, and what
happens besides a step of training. A cell of several ranks names the one-rank cell that it must agree with.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

CellValues = Mapping[str, object]

# Arithmetic must not coincide: the heads together are wider than the hidden state, three query heads share one of
# keys and values, and no two widths are equal. The window is shorter than the text.
SIZES = {
    "layers": 2,
    "hidden": 96,
    "heads": 6,
    "kv_heads": 2,
    "head_size": 64,
    "ffn": 80,
    "expert_ffn": 48,
    "experts": 4,
    "experts_per_token": 2,
    "positions": 64,
    "vocabulary": 512,
    "window": 8,
}
# Families whose kinds of layer are not all in the first two: they have the layers of their recipe.
DEEPER = frozenset(
    (
        "qwen3_next",
        "qwen3_5",
        "gemma3",
        "gemma4",
        "gemma3_vl",
        "gemma4_vl",
        "exaone",
        "exaone_moe",
        "exaone45",
        "nemotron_h",
    )
)
_ADAPTER = {"rank": 4, "alpha": 12}
_FUSED = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
_APART = ["linear_q", "linear_k", "linear_v", "linear_proj", "linear_fc1_up", "linear_fc1_gate", "linear_fc2"]
LORA: CellValues = {"type": "lora", **_ADAPTER, "target_modules": _FUSED}
CANONICAL: CellValues = {"type": "canonical_lora", **_ADAPTER, "target_modules": _APART}
DORA: CellValues = {**LORA, "type": "dora"}
PER_EXPERT: CellValues = {**LORA, "share_expert_adapters": False}


@dataclass(frozen=True, slots=True)
class Cell:
    """One row."""

    name: str
    family: str
    # Fields of the family's configuration in transformers, by dotted name.
    fields: CellValues = field(default_factory=dict)
    # A feature of which the model gets the fields as well, by the `switched` of the family's recipe.
    feature: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    # Settings of Megatron-LM's configuration, as verl's `override_transformer_config`.
    settings: CellValues = field(default_factory=dict)
    tp: int = 1
    pp: int = 1
    # Virtual stages of a pipeline stage; 0: none.
    vpp: int = 0
    dp: int = 1
    cp: int = 1
    ep: int = 1
    # 0: as tensor parallel.
    etp: int = 0
    sequence_parallel: bool = False
    # Bridge's `create_peft`; empty: every parameter trains.
    adapter: CellValues = field(default_factory=dict)
    # Adapters are merged into one of the exports; else they are exported apart alone.
    merged: bool = True
    # The second matrix of each adapter is drawn; else it is as Bridge initialises it.
    filled: bool = True
    # Whether it computes: where not, it is imported and exported alone.
    trained: bool = True
    # Save, load into a model and an optimizer that were made again, and go on.
    resumed: bool = False
    # What differs of the layout in which the checkpoint is loaded; the model's part of it is loaded alone.
    loaded_in: Mapping[str, int | bool] = field(default_factory=dict)
    # Write the model, and its adapters, to a folder as a consumer does that publishes them.
    written: bool = False
    distributed_optimizer: bool = True
    # Sum the gradients of a bucket as soon as the last micro batch has them.
    overlapped: bool = False
    # The one-rank cell whose loss, gradient norm and weights after a step it must have.
    agrees_with: str = ""

    @property
    def ranks(self) -> int:
        """How many processes train."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def loading(self) -> "Cell":
        """The cell with the layout in which its checkpoint is loaded."""
        changed: dict[str, Any] = dict(self.loaded_in)
        return replace(self, **changed)

    def described(self) -> str:
        """What differs from a plain training on one rank, in words."""
        return ", ".join([self.family, *(f"{name} {value}" for name, value in self.differing.items())])

    @property
    def differing(self) -> dict[str, object]:
        """What differs from a plain training on one rank, by field."""
        usual = Cell(self.name, self.family, agrees_with=self.agrees_with)
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in given.items() if value != getattr(usual, name)}


def _cells() -> Iterator[Cell]:
    plain = {
        family: Cell(
            f"{family}-plain",
            family,
            fields=FIELDS.get(family, {}),
            sizes=WIDER if family in HEADS_FILL_HIDDEN else {},
            settings=_SETTINGS.get(family, {}),
            trained=family not in UNTRAINED,
        )
        for family in FAMILIES
        if family not in NOT_RUN
    }
    for cell in plain.values():
        yield cell
        yield replace(cell, name=f"{cell.family}-lora", adapter=LORA)
    qwen2, qwen3, moe = (plain[family] for family in ("qwen2", "qwen3", "qwen3_moe"))
    tied = replace(qwen3, name="qwen3-tied", fields={"tie_word_embeddings": True})
    lora = replace(qwen3, name="qwen3-lora", adapter=LORA)
    canonical = replace(qwen3, name="qwen3-canonical", adapter=CANONICAL)
    experts = replace(moe, name="qwen3_moe-lora", adapter=LORA)
    per_expert = replace(moe, name="qwen3_moe-lora-per-expert", adapter=PER_EXPERT)
    yield from (tied, canonical, per_expert)
    dora = _resumed(replace(qwen3, name="qwen3-dora", adapter=DORA))
    yield from (dora, *_parallel(dora, tp2=_TP2))
    yield replace(lora, name="qwen3-lora-initial", filled=False)
    yield replace(lora, name="qwen3-lora-unmatched", adapter={**LORA, "target_modules": ["linear_nothing"]})
    yield replace(experts, name="qwen3_moe-lora-initial", filled=False)
    for name, family, given in FAMILY_VARIANTS:
        fields_of = {**plain[family].fields, **given}
        trained = plain[family].trained and f"{family}-{name}" not in UNTRAINED
        changed = replace(plain[family], name=f"{family}-{name}", fields=fields_of, trained=trained)
        yield changed
        if name in VARIANTS_WITH_ADAPTERS:
            yield replace(changed, name=f"{changed.name}-lora", adapter=LORA)
    for feature, families in SWITCHED.items():
        for family in families:
            yield replace(plain[family], name=f"{family}-{feature}", feature=feature)
    for name, widths in SHAPES.items():
        yield replace(qwen3, name=f"qwen3-{name}", sizes=widths)
    # Experts in one tensor, whose adapters Bridge exports in one tensor and cannot merge.
    yield replace(plain["gpt_oss"], name="gpt_oss-lora-apart", adapter=LORA, merged=False)
    for name, wanted in ADAPTERS.items():
        yield replace(qwen3, name=f"qwen3-lora-{name}", adapter={**LORA, **wanted})
    full: CellValues = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    for cell in (lora, moe):
        yield replace(cell, name=f"{cell.name}-recompute", settings=full, agrees_with=cell.name)
    for family, name, layout in FAMILY_LAYOUTS:
        yield from _parallel(plain[family], **{name: layout})
    yield from _layouts(qwen2, qwen3, tied, lora, canonical)
    yield from _expert_layouts(moe, experts, per_expert)


_DP2: Mapping[str, int | bool] = {"dp": 2}
_TP2: Mapping[str, int | bool] = {"tp": 2}
_TP2SP: Mapping[str, int | bool] = {"tp": 2, "sequence_parallel": True}
_PP2: Mapping[str, int | bool] = {"pp": 2}
_CP2: Mapping[str, int | bool] = {"cp": 2}
_EP2: Mapping[str, int | bool] = {"dp": 2, "ep": 2}
_TP2EP2: Mapping[str, int | bool] = {**_TP2SP, "ep": 2, "etp": 1}
_ONE: Mapping[str, int | bool] = {"dp": 1, "tp": 1, "ep": 1, "etp": 0, "sequence_parallel": False}


def _layouts(qwen2: Cell, qwen3: Cell, tied: Cell, lora: Cell, canonical: Cell) -> Iterator[Cell]:
    """Dense models over several ranks."""
    whole = {"dp": 2, "distributed_optimizer": False}
    overlapped = {"dp": 2, "overlapped": True}
    yield from _parallel(qwen2, tp2=_TP2)
    yield from _parallel(
        qwen3, dp2=_DP2, tp2=_TP2, tp2sp=_TP2SP, pp2=_PP2, cp2=_CP2, dp2whole=whole, dp2overlapped=overlapped
    )
    yield from _parallel(tied, pp2=_PP2, tp2={**_TP2, "written": True})
    yield from _parallel(lora, tp2={**_TP2, "written": True}, tp2pp2={**_TP2, **_PP2}, cp2=_CP2)
    yield from _parallel(canonical, tp2=_TP2)
    deep = replace(qwen3, name="qwen3-deep", sizes={"layers": 4})
    yield deep
    vpp2: Mapping[str, int | bool] = {"pp": 2, "vpp": 2}
    yield from _parallel(deep, pp4={"pp": 4}, pp2vpp2=vpp2)
    tied_deep = replace(tied, name="qwen3-tied-deep", sizes=deep.sizes)
    yield from (tied_deep, *_parallel(tied_deep, pp2vpp2=vpp2))
    saved = (*_parallel(qwen3, tp2sp=_TP2SP, dp2=_DP2), *_parallel(tied, pp2=_PP2), *_parallel(lora, tp2sp=_TP2SP))
    for cell in (qwen3, lora, canonical, *saved):
        yield _resumed(cell)
    for cell in _parallel(lora, tp2sp=_TP2SP):
        yield _loaded_in(cell, "pp2", {"tp": 1, "sequence_parallel": False, "pp": 2})
    for cell in _parallel(lora, dp2=_DP2, tp2sp=_TP2SP):
        yield _initial(cell)


def _expert_layouts(moe: Cell, experts: Cell, per_expert: Cell) -> Iterator[Cell]:
    """Models with experts over several ranks."""
    etp2 = {**_TP2SP, "etp": 2}
    yield from _parallel(moe, ep2=_EP2, tp2ep2etp2={**_TP2SP, "dp": 2, "ep": 2, "etp": 2})
    for cell in (experts, per_expert):
        yield from _parallel(cell, tp2ep2=_TP2EP2, etp2=etp2)
    for cell in (moe, experts, per_expert):
        for saved in _parallel(cell, ep2=_EP2):
            yield _resumed(saved)
    per_rank = (*_parallel(experts, ep2=_EP2), *_parallel(per_expert, ep2=_EP2))
    for cell in (*_parallel(moe, tp2ep2=_TP2EP2), *per_rank):
        yield _loaded_in(cell, "one", _ONE)
    for cell in per_rank:
        yield _initial(cell)


def _resumed(cell: Cell) -> Cell:
    return replace(cell, name=f"{cell.name}-resume", resumed=True)


def _loaded_in(cell: Cell, name: str, layout: Mapping[str, int | bool]) -> Cell:
    return replace(cell, name=f"{cell.name}-to-{name}", resumed=True, loaded_in=layout)


def _initial(cell: Cell) -> Cell:
    """A cell by Bridge's own initialisation, which draws other numbers in every layout."""
    return replace(cell, name=f"{cell.name}-initial", filled=False, agrees_with="")


_SLIDING, _WHOLE = "sliding_attention", "full_attention"
# Configurations of a family that take another way.
FAMILY_VARIANTS: tuple[tuple[str, str, CellValues], ...] = (
    ("llama3-rope", "llama", {"rope_parameters.rope_type": "llama3", "rope_parameters.factor": 8.0}),
    ("yarn", "qwen3", {"rope_parameters.rope_type": "yarn", "rope_parameters.factor": 4.0}),
    ("window", "mistral", {"sliding_window": 8}),
    ("no-window", "mistral", {"sliding_window": None}),
    # Kinds of layers in no cycle.
    ("no-cycle", "gemma4", {"layer_types": [_WHOLE, _SLIDING, _SLIDING, _WHOLE]}),
    ("bias", "llama", {"attention_bias": True, "mlp_bias": True}),
    ("normalised", "qwen3_moe", {"norm_topk_prob": True}),
    ("direct-q", "deepseek_v2", {"q_lora_rank": None}),
    ("mtp", "exaone45", {"text_config.num_nextn_predict_layers": 1}),
    ("tied", "llama", {"tie_word_embeddings": True}),
    # Checkpoints say so, and mean the approximation by tanh.
    ("gelu", "gemma", {"hidden_act": "gelu", "hidden_activation": None}),
)
# Those of them that adapters have a part in.
VARIANTS_WITH_ADAPTERS = frozenset({"direct-q", "tied"})
# Features that a family's model has with fields of its recipe alone.
SWITCHED: Mapping[str, tuple[str, ...]] = {
    "mtp": (
        *("qwen3_next", "qwen3_5", "deepseek_v3", "nemotron_h", "glm47_flash", "glm4"),
        *("mimo_v2_flash", "exaone_moe", "step35", "hy_v3", "bailing_moe"),
    )
}
# Families with code of their own for parts of a model, and the layout that takes it there.
FAMILY_LAYOUTS: tuple[tuple[str, str, Mapping[str, int | bool]], ...] = (
    # Linear attention, norms over all heads, latent attention: cut over ranks.
    ("qwen3_next", "tp2sp", _TP2SP),
    ("minimax_m2", "tp2ep2", _TP2EP2),
    ("step35", "tp2ep2", _TP2EP2),
    ("deepseek_v3", "tp2ep2", _TP2EP2),
    ("gemma3", "tp2", _TP2),
    ("glm4", "tp2sp", _TP2SP),
    # Experts in one tensor.
    ("gpt_oss", "ep2", _EP2),
    # A model class of Bridge's own, in stages.
    ("gemma", "pp2", _PP2),
    ("qwen2_audio", "pp2", _PP2),
    ("ministral3", "pp2", _PP2),
)
# Widths at which arithmetic coincides, and such at which it does not divide as usual.
SHAPES: Mapping[str, Mapping[str, int]] = {"square": {"hidden": 384, "ffn": 384}, "no-groups": {"kv_heads": 6}}
# What the adapters of a dense model are asked for.
ADAPTERS: Mapping[str, CellValues] = {
    "mlp": {"target_modules": ["linear_fc1", "linear_fc2"]},
    "first-layer": {"target_modules": ["*.layers.0.*.linear_qkv", "*.layers.0.*.linear_proj"]},
}


def _parallel(cell: Cell, **layouts: Mapping[str, int | bool]) -> Iterator[Cell]:
    for name, sizes in layouts.items():
        yield replace(cell, name=f"{cell.name}-{name}", agrees_with=cell.name, **sizes)  # type: ignore[arg-type]


# Fields that a family of such small sizes needs.
FIELDS: Mapping[str, CellValues] = {
    "glm5": {"index_n_heads": 2, "index_head_dim": 64, "index_topk": 64},
    "nemotron_h": {"n_groups": 2, "mamba_head_dim": 32},
}
# Families whose heads have no width of their own, and whose rope needs 128.
HEADS_FILL_HIDDEN = frozenset({"qwen2_5_vl", "qwen25_omni"})
WIDER: Mapping[str, int] = {"heads": 2, "kv_heads": 1, "hidden": 256}
# Settings without which Megatron-LM takes a kernel that no CPU has, and without which it trains on a loss of its own
# besides, of which transformers knows nothing.
_LINEAR: CellValues = {"deterministic_mode": True}
_SETTINGS: Mapping[str, CellValues] = {
    "qwen3_next": _LINEAR,
    "qwen3_5": _LINEAR,
    "qwen35_vl": _LINEAR,
    "exaone_moe": {"moe_z_loss_coeff": None},
}
# Families and cells that are imported and exported alone, and why.
UNTRAINED: Mapping[str, str] = {
    "gemma2": "PyTorch's flexible attention, which Bridge takes for it, has no backward on a CPU",
    "nemotron_h": "its state space layers have no form on a CPU",
    "exaone45-mtp": "the forward of Bridge's model hands its MTP layer no tokens",
}
# Families without a cell, and why.
NOT_RUN: Mapping[str, str] = {"falcon_h1": "its state space layers have no form on a CPU"}
# Why transformers is not a reference for a family, besides those whose checkpoints have other names than its class has.
NO_REFERENCE: Mapping[str, str] = {
    "nemotron_h": "it is not trained",
    "qwen25_omni": "transformers loads it only together with a file of voices",
}
FAMILIES = (
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen35_vl",
    "qwen2_audio",
    "qwen3_asr",
    "qwen3_omni",
    "qwen25_omni",
    "llama",
    "deepseek_v2",
    "deepseek_v3",
    "gemma3",
    "gemma2",
    "gemma4",
    "gemma",
    "gemma3_vl",
    "gemma4_vl",
    "mistral",
    "ministral3",
    "olmoe",
    "gpt_oss",
    "falcon_h1",
    "nemotron",
    "nemotron_h",
    "glm47_flash",
    "glm4",
    "glm5",
    "kimi",
    "minimax_m2",
    "minimax_m3",
    "mimo",
    "mimo_v2_flash",
    "exaone_moe",
    "exaone45",
    "exaone",
    "ernie_45",
    "bailing_moe",
    "hy_v3",
    "sarvam",
    "sarvam_mla",
    "step35",
    "step37",
)
CELLS = {cell.name: cell for cell in _cells()}
