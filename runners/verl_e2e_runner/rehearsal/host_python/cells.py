"""The cells of a rehearsal: what is built, over which ranks, and what is done with it. Standard library alone.

A row names a family of the policy, the fields of its configuration that differ, parallel sizes, adapters, and what
happens besides a step of training. A cell of several ranks names the one-rank cell that it must agree with.
"""

from dataclasses import asdict, dataclass, field, replace

# Arithmetic must not coincide: the heads together are wider than the hidden state, three query heads share one of
# keys and values, and no two sizes are equal. Two of the text's lengths are longer than the window.
SIZES = {
    "layers": 2,
    "hidden": 64,
    "heads": 6,
    "kv_heads": 2,
    "head_size": 16,
    "ffn": 80,
    "expert_ffn": 48,
    "experts": 4,
    "experts_per_token": 2,
    "positions": 64,
    "vocabulary": 512,
    "window": 8,
}
LORA = {"type": "lora", "rank": 4, "alpha": 12, "target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]}
CANONICAL = {
    "type": "canonical_lora",
    "rank": 4,
    "alpha": 12,
    "target_modules": ["linear_q", "linear_k", "linear_v", "linear_proj", "linear_fc1_up", "linear_fc1_gate", "linear_fc2"],
}
DORA = {**LORA, "type": "dora"}


@dataclass(frozen=True)
class Cell:
    """One row."""

    name: str
    family: str
    # Fields of the family's configuration in transformers, by dotted name.
    fields: dict = field(default_factory=dict)
    sizes: dict = field(default_factory=dict)
    # Settings of Megatron-LM's configuration, as verl's `override_transformer_config`.
    settings: dict = field(default_factory=dict)
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
    adapter: dict = field(default_factory=dict)
    # The second matrix of each adapter is drawn; else it is as Bridge initialises it.
    filled: bool = True
    # Save, load into a model and an optimizer that were made again, and go on.
    resumed: bool = False
    distributed_optimizer: bool = True
    # The cell whose loss, gradient norm and weights after a step it must have.
    agrees_with: str = ""
    # Why transformers is no reference for it; empty where it is one.
    no_reference: str = ""

    @property
    def ranks(self):
        """How many processes train."""
        dense = self.tp * self.pp * self.cp * self.dp
        return dense

    def document(self):
        """The row as JSON."""
        return asdict(self)


def _variants():
    plain = {
        family: Cell(f"{family}-plain", family)
        for family in ("qwen2", "qwen3", "llama", "qwen3_moe", "gemma", "gemma3", "olmoe", "deepseek_v3", "gpt_oss", "glm4")
    }
    for cell in plain.values():
        yield cell
        yield replace(cell, name=f"{cell.family}-lora", adapter=LORA)
    qwen2, qwen3, moe = (plain[family] for family in ("qwen2", "qwen3", "qwen3_moe"))
    tied = replace(qwen3, name="qwen3-tied", fields={"tie_word_embeddings": True})
    yield tied
    yield replace(qwen2, name="qwen2-canonical", adapter=CANONICAL)
    yield replace(qwen3, name="qwen3-canonical", adapter=CANONICAL)
    yield replace(qwen3, name="qwen3-dora", adapter=DORA)
    yield replace(qwen3, name="qwen3-lora-initial", adapter=LORA, filled=False)
    yield replace(qwen3, name="qwen3-lora-unmatched", adapter={**LORA, "target_modules": ["linear_nothing"]})
    yield replace(moe, name="qwen3_moe-lora-initial", adapter=LORA, filled=False)
    yield replace(moe, name="qwen3_moe-lora-per-expert", adapter={**LORA, "share_expert_adapters": False})
    full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    yield replace(qwen3, name="qwen3-recompute", settings=full, agrees_with=qwen3.name)
    yield replace(qwen3, name="qwen3-lora-recompute", adapter=LORA, settings=full, agrees_with="qwen3-lora")
    yield from _parallel(qwen2, "", dp2={"dp": 2}, tp2={"tp": 2})
    yield from _parallel(
        qwen3,
        "",
        dp2={"dp": 2},
        tp2={"tp": 2},
        tp2sp={"tp": 2, "sequence_parallel": True},
        pp2={"pp": 2},
        dp2tp2={"dp": 2, "tp": 2},
        dp2plainopt={"dp": 2, "distributed_optimizer": False},
    )
    yield from _parallel(tied, "", pp2={"pp": 2}, tp2={"tp": 2}, dp2pp2={"dp": 2, "pp": 2})
    lora = replace(qwen3, name="qwen3-lora", adapter=LORA)
    yield from _parallel(lora, "", dp2={"dp": 2}, tp2={"tp": 2}, tp2sp={"tp": 2, "sequence_parallel": True}, pp2={"pp": 2})
    canonical = replace(qwen3, name="qwen3-canonical", adapter=CANONICAL)
    yield from _parallel(canonical, "", tp2={"tp": 2})
    experts = {"ep2": {"dp": 2, "ep": 2}, "tp2ep2": {"tp": 2, "ep": 2, "etp": 1, "sequence_parallel": True}}
    experts |= {"etp2": {"tp": 2, "etp": 2, "sequence_parallel": True}}
    experts |= {"tp2ep2etp2": {"tp": 2, "dp": 2, "ep": 2, "etp": 2, "sequence_parallel": True}}
    yield from _parallel(moe, "", dp2={"dp": 2}, **experts)
    yield from _parallel(replace(moe, name="qwen3_moe-lora", adapter=LORA), "", **experts)
    each = replace(moe, name="qwen3_moe-lora-per-expert", adapter={**LORA, "share_expert_adapters": False})
    yield from _parallel(each, "", **experts)


def _parallel(cell, _kind, **layouts):
    for name, sizes in layouts.items():
        yield replace(cell, name=f"{cell.name}-{name}", agrees_with=cell.name, **sizes)


CELLS = {cell.name: cell for cell in _variants()}
