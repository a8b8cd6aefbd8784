"""What NeMo-RL prints on its console.

It shows four figures of a step, rounded, and no bar. What counts is in TensorBoard files; NeMo-RL's own
`tests/json_dump_tb_logs.py` writes them as `metrics.json`. A launcher would print that file as the lines read here.
"""

import ast
import re
from collections.abc import Mapping
from typing import Any

from verl_e2e.core.consumer.consumer import (
    ConfigForm,
    Literal,
    LogForms,
    LogMark,
    checkpoint_literal,
    opening_literal,
    stage_literal,
)
from verl_e2e.core.consumer.skyrl_log import METRICS_LITERAL, METRICS_MARK, read_metrics
from verl_e2e.core.model.outcome import Stage

_IN_FILE = "[verl-e2e] steps in the file of metrics: "
_SECTIONS = ("policy", "grpo", "cluster", "checkpointing")


def _plain(node: ast.expr) -> Any:
    """A value as Python prints it, where a model of pydantic is the mapping of its fields."""
    match node:
        case ast.Call(args=[], keywords=fields):
            return {str(item.arg): _plain(item.value) for item in fields}
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {ast.literal_eval(key): _plain(value) for key, value in pairs if key is not None}
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_plain(item) for item in items]
        case ast.Name(id="inf" | "nan" as word):
            return float(word)
        case _:
            return ast.literal_eval(node)


def read_master_config(text: str) -> Mapping[str, Any]:
    """The nested mappings of the printed `MasterConfig(...)`; ValueError with the reason where it is cut or broken."""
    try:
        values = _plain(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"the printed configuration cannot be read: {type(error).__name__}") from error
    if not isinstance(values, dict) or (missing := [name for name in _SECTIONS if name not in values]):
        raise ValueError(f"the printed configuration has no {', '.join(missing) if isinstance(values, dict) else text}")
    return values


# Its folder of a step, with the number.
LOADED = r"successfully loaded checkpoint from \S*/step_(\d+)/policy/weights"
_SAVE, _LOAD = Stage.CHECKPOINT_SAVE, Stage.CHECKPOINT_LOAD
_LITERALS = (
    Literal("MasterConfig(", LogMark.CONFIG, Stage.RAY, r"^MasterConfig\(policy=", opens=True),
    Literal("examples/run_grpo.py", LogMark.OPENING, shape=r"^\++ .*\bexamples/run_grpo\.py --config ", opens=True),
    METRICS_LITERAL,
    Literal(
        _IN_FILE, LogMark.PROGRESS, Stage.TRAIN_STEP, rf"^{re.escape(_IN_FILE)}(\d{{1,3}})% (\d{{1,9}})/(\d{{1,9}})$"
    ),
    Literal("Max number of steps has been reached, stopping", LogMark.FINAL, Stage.TRAIN_STEP, "^Max number of steps"),
    Literal("NRL_FORCE_REBUILD_VENVS=", LogMark.VARIABLE),
    opening_literal("Applied CLI overrides", Stage.ENVIRONMENT),
    stage_literal("▶ Setting up compute cluster", Stage.RAY),
    stage_literal("✓ Training dataloader loaded with", Stage.DATA),
    stage_literal("▶ Setting up model and training", Stage.BRIDGE_PROVIDER),
    stage_literal("Reinitializing model parallel after loading model state", Stage.HF_IMPORT),
    stage_literal("Model, optimizer, and learning rate scheduler built", Stage.OPTIMIZER),
    stage_literal("✓ Using vLLM backend for generation with", Stage.ROLLOUT_ENGINE),
    stage_literal("▶ Generating responses for batch of size", Stage.TRAIN_STEP),
    stage_literal("▶ Training policy...", Stage.TRAIN_STEP),
    checkpoint_literal("Saving checkpoint for step ", "saving", _SAVE, r"^Saving checkpoint for step \d+"),
    # Megatron-Bridge's words; what was converted from the files of the model lies elsewhere.
    checkpoint_literal("successfully loaded checkpoint from", "loaded", _LOAD, LOADED),
)

NEMO_RL_LOG = LogForms(
    literals=_LITERALS,
    variables=re.compile(r"PYTHONPATH|NRL_FORCE_REBUILD_VENVS"),
    config=ConfigForm(
        # It is one line.
        belongs=lambda _text: False,
        in_brackets=True,
        read=read_master_config,
    ),
    read_step=read_metrics,
    begins=rf"{re.escape(METRICS_MARK)}\d|{re.escape(_IN_FILE)}",
)
