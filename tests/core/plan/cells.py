"""A small table of cells, and what is planned where some of them entered a place."""

from collections.abc import Iterable, Mapping
from typing import Any

from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.compare.cell_map import CellMap, CellRow, FileCells
from verl_e2e.core.compare.rehearsal import CellOutcome
from verl_e2e.core.consumer.consumers import variant_named
from verl_e2e.core.plan.cell_settings import CellTable
from verl_e2e.core.plan.outline import JobOutline, with_obstacles
from verl_e2e.core.plan.policy import Budget, Policy

POLICY = packaged_policy().model_copy(update={"budget": Budget(gpu_minutes=500)})
COMMIT = "c" * 40
LORA = {"type": "lora", "rank": 4, "target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]}
PER_EXPERT = {**LORA, "share_expert_adapters": False}
CANONICAL = {"type": "canonical_lora", "target_modules": ["linear_q"]}
TP2EP2 = {"tp": 2, "ep": 2, "etp": 1, "sequence_parallel": True}
RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform"}
# By name the family, and what differs from a plain training on one rank.
CELLS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "qwen2-plain": ("qwen2", {}),
    "qwen2-lora": ("qwen2", {"adapter": LORA}),
    "qwen2-tp2": ("qwen2", {"tp": 2}),
    "qwen3-plain": ("qwen3", {}),
    "qwen3-lora": ("qwen3", {"adapter": LORA}),
    "qwen3-lora-initial": ("qwen3", {"adapter": LORA, "filled": False}),
    "qwen3-canonical": ("qwen3", {"adapter": CANONICAL}),
    "qwen3-tied": ("qwen3", {"fields": {"tie_word_embeddings": True}}),
    "qwen3-square": ("qwen3", {"sizes": {"hidden": 384}}),
    "qwen3-recompute": ("qwen3", {"settings": RECOMPUTE}),
    "qwen3-whole": ("qwen3", {"dp": 2, "distributed_optimizer": False}),
    "qwen3-tp2": ("qwen3", {"tp": 2}),
    "qwen3-lora-tp2": ("qwen3", {"adapter": LORA, "tp": 2, "sequence_parallel": True}),
    "qwen3-pp4": ("qwen3", {"pp": 4, "sizes": {"layers": 4}}),
    "qwen3-resume": ("qwen3", {"resumed": True}),
    "moe-plain": ("qwen3_moe", {}),
    "moe-lora": ("qwen3_moe", {"adapter": LORA}),
    "moe-lora-ep2": ("qwen3_moe", {"adapter": LORA, "dp": 2, "ep": 2}),
    "moe-lora-tp2ep2": ("qwen3_moe", {"adapter": LORA, **TP2EP2}),
    "moe-per-expert": ("qwen3_moe", {"adapter": PER_EXPERT}),
    "moe-per-expert-ep2": ("qwen3_moe", {"adapter": PER_EXPERT, "dp": 2, "ep": 2}),
    "gemma3-plain": ("gemma3", {"settings": {"deterministic_mode": True}}),
    "gemma3-lora": ("gemma3", {"settings": {"deterministic_mode": True}, "adapter": LORA}),
}
NAMES = tuple(CELLS)
ROWS = tuple(CellRow(name=name, family=family, settings=given) for name, (family, given) in CELLS.items())
TABLE = CellTable(ROWS, POLICY)


def places(*names: str) -> frozenset[int]:
    """The places of cells in the table."""
    return frozenset(map(NAMES.index, names))


def entered(
    functions: Mapping[str, Iterable[str]],
    lines: Mapping[int, Iterable[str]] | None = None,
    path: str = "src/a.py",
    outcomes: Mapping[str, CellOutcome] | None = None,
    commit: str = COMMIT,
) -> CellMap:
    """A map in which these cells entered functions and lines of one file."""
    given = [*(tuple(names) for names in functions.values()), *(tuple(names) for names in (lines or {}).values())]
    sets = tuple(dict.fromkeys(sum(1 << at for at in places(*names)) for names in given))
    number = {names: sets.index(sum(1 << at for at in places(*names))) for names in given}
    file = FileCells(
        blob="d" * 40,
        functions={name: number[tuple(names)] for name, names in functions.items()},
        lines=tuple((line, line, number[tuple(names)]) for line, names in (lines or {}).items()),
    )
    rows = tuple(row.model_copy(update={"outcome": (outcomes or {}).get(row.name)}) for row in ROWS)
    return CellMap(commit=commit, cells=rows, sets=tuple(f"{bits:x}" for bits in sets), files={path: file})


def planned(*names: str, policy: Policy = POLICY) -> tuple[JobOutline, ...]:
    """Jobs of the table of levels, as a plan of the packaged policy has them."""
    found = []
    for name in names:
        variant = variant_named(name)
        assert variant is not None
        checkpoint = next(item.checkpoint for item in policy.families if item.name == "qwen3_moe")
        outline = JobOutline(variant, (), checkpoint if variant.feature else policy.checkpoint)
        found.append(with_obstacles(outline, policy))
    return tuple(found)
