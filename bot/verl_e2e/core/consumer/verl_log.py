"""What verl prints on its console, and how it is read: trainer/main_ppo, trainer/ppo, workers, utils."""

import re

from verl_e2e.core.consumer.consumer import (
    MAX_KEYS,
    ROLLOUT_FROM_FILE,
    ConfigForm,
    Literal,
    LogForms,
    LogMark,
    checkpoint_literal,
    opening_literal,
    parse_number,
    read_dict,
    sign_literal,
    stage_literal,
)
from verl_e2e.core.model.outcome import Stage

# Variables of the wrapper that say what is run, and those that say from where; literals of the scan nominate each.
_VARIABLES = re.compile(
    r"(?:(?:COMMON|TRAIN|INFER|ACTOR|REF|CRITIC|ROLLOUT)_(?:TP|PP|VPP|CP|EP|ETP))|(?:CRITIC_)?LORA_RANK"
    r"|(?:DUMMY_)?MODEL_PATH|(?:VALUE_)?VANILLA_MBRIDGE|USE_MBRIDGE|USE_MEGATRON_FSDP|USE_DUMMY_MODEL|ENGINE|ADV_ESTIMATOR|NUM_GPUS"
    r"|MAX_(?:PROMPT|RESPONSE)_LENGTH|TOTAL_TRAIN_STEPS|SAVE_FREQ|TEST_FREQ|RESUME_MODE|VAL_BEFORE_TRAIN"
    r"|PYTHONPATH|(?:[A-Z]+_)?BRIDGE(?:_(?:ROOT|PATH|DIR|SRC|HOME|REPO))?"
)

_STEP = re.compile(r"^step:\s?(\d{1,12}) - ")


def read_step(text: str) -> tuple[int, dict[str, float]] | None:
    """The step number and its metrics, or None when `text` is not a metric line.

    A value that is not a number is left out; the first occurrence of a name counts.
    """
    match = _STEP.match(text)
    if match is None:
        return None
    values: dict[str, float] = {}
    for piece in text[match.end() :].split(" - "):
        name, colon, shown = piece.rpartition(":")
        head, bracket, rest = piece.partition("(")
        if rest.endswith(")") and ":" in head:
            # A constructor may hold colons itself, as `tensor(nan, device='cuda:0')`.
            name, colon, begun = head.rpartition(":")
            shown = begun + bracket + rest
        value = parse_number(shown) if colon else None
        if value is not None and name and len(values) < MAX_KEYS:
            values.setdefault(name.strip(), value)
    return int(match[1]), values


_START = "{'actor_rollout_ref':"
# The dict may be cut into lines anywhere between two tokens.
_CONTINUES = re.compile(r"""\s*(?:$|[][(){},:'"<]|-?[\d.]|(?:None|True|False|nan|-?inf|np\.|torch\.|numpy\.)\b)""")

# Of the table of parameters that Bridge's adapters are summed up in.
ADAPTER_LINE = "Adapter parameters:"
_PROGRESS = "Training Progress:"
_BAR = r"\s*(\d{1,3})%\|[^|]{0,200}\|\s*(\d{1,12})/(\d{1,12})"
# A backend of verl, as a configuration or an override names it.
_STRATEGY = (
    r"\bstrategy['\"]?\s*[:=]\s*[\\'\"]*((?:fsdp|megatron|mindspeed)\w*|torchtitan|veomni|automodel|deepspeed)\b"
)
_STRATEGY_TEXTS = ("strategy'", 'strategy"', "strategy: ", "strategy=")
_SAVE, _LOAD = Stage.CHECKPOINT_SAVE, Stage.CHECKPOINT_LOAD

_LITERALS = (
    Literal(_START, LogMark.CONFIG, Stage.RAY, shape=rf"^{_START}", opens=True),
    # What a shell with `set -x` echoes of the wrapper's last command.
    Literal(" -m verl.", LogMark.OPENING, shape=r"^\++ .*\s-m verl\.[\w.]*\bmain_\w+", opens=True),
    Literal("Total parameters:", LogMark.TOTAL, shape=r"^\s*Total parameters:\s+([\d,]{1,30})\s*$"),
    Literal(ADAPTER_LINE, LogMark.ADAPTER, Stage.PEFT, r"^\s*Adapter parameters:\s+([\d,]{1,30})\s*$", builds=True),
    Literal("step:", LogMark.STEP, Stage.TRAIN_STEP, r"^step:\s?(\d{1,12}) - "),
    # Of several bars on a line the last one counts.
    Literal(_PROGRESS, LogMark.PROGRESS, Stage.TRAIN_STEP, rf"^\s*(?:{_PROGRESS}.*)?{_PROGRESS}{_BAR}"),
    # The bar of verl's SFT trainer, which counts the steps of one epoch.
    Literal("Epoch ", LogMark.EPOCHS, Stage.TRAIN_STEP, rf"^\s*Epoch (\d{{1,6}})/(\d{{1,6}}):{_BAR}"),
    # The samples that verl's reward managers print, from the prompt to the score.
    Literal("[prompt]", LogMark.SAMPLE, shape=r"^\[prompt\]", name="begins"),
    Literal("[score]", LogMark.SAMPLE, shape=r"^\[score\]"),
    Literal("Final validation metrics", LogMark.FINAL, Stage.TRAIN_STEP, r"""^\W{0,3}Final validation metrics"""),
    opening_literal("All configuration checks passed", Stage.ENVIRONMENT),
    opening_literal("ray init kwargs:", Stage.ENVIRONMENT),
    stage_literal("Using dataset class", Stage.DATA),
    stage_literal("filter dataset len:", Stage.DATA),
    stage_literal("dataloader initialized", Stage.DATA),
    stage_literal("Total training steps:", Stage.DATA),
    stage_literal("create worker group", Stage.RAY),
    stage_literal("PEFT Adapter Information", Stage.PEFT),
    stage_literal("optimizer config after override", Stage.OPTIMIZER),
    stage_literal("model engine initialized", Stage.OPTIMIZER),
    stage_literal("reward loop manager initialized", Stage.ROLLOUT_ENGINE),
    stage_literal("['serve',", Stage.ROLLOUT_ENGINE),
    stage_literal("building vllm rollout", Stage.ROLLOUT_ENGINE, r"(?i)before building vllm rollout"),
    stage_literal("building rollout", Stage.ROLLOUT_ENGINE, r"(?i)before building"),
    stage_literal("checkpoint engine manager initialized", Stage.ROLLOUT_ENGINE),
    stage_literal("ready to fit", Stage.ROLLOUT_ENGINE),
    stage_literal("LoRA adapter sync", Stage.EXPORT_WEIGHT_SYNC),
    stage_literal("loaded_params:", Stage.EXPORT_WEIGHT_SYNC),
    stage_literal("Initial validation metrics", Stage.TRAIN_STEP),
    sign_literal(
        "MTP layer(s) in any of the actor modules", "mtp-layers-patched", r"^Found and patched [1-9]\d* MTP layer"
    ),
    sign_literal("FP8 weights loaded", "fp8-weights-loaded", r"FP8 weights loaded \(\w+\), loaded_params: [1-9]"),
    # Rollouts that verl read from a file: its engine generated nothing.
    sign_literal("Load generate result at step", ROLLOUT_FROM_FILE, r"^\[Rollout\w*\(\)\] "),
    sign_literal("cached trajectories", ROLLOUT_FROM_FILE, r"^\[Rollout\w*\(\)\] Injected"),
    *(Literal(text, LogMark.STRATEGY, shape=_STRATEGY) for text in _STRATEGY_TEXTS),
    checkpoint_literal("local_global_step_folder:", "saving", _SAVE),
    checkpoint_literal("Checkpoint save completed for", "saved", _SAVE),
    checkpoint_literal("Saved bridge checkpoint to", "saved", _SAVE),
    checkpoint_literal("Saved model to", "saved", _SAVE),
    checkpoint_literal("Resuming from", "resumed", _LOAD, r"Resuming from .*global_step_\d+"),
    checkpoint_literal("Training from scratch", "scratch", _LOAD),
    checkpoint_literal("Checkpoint tracker file does not exist", "scratch", _LOAD),
    checkpoint_literal("Checkpoint does not exist", "scratch", _LOAD),
    *(
        Literal(f"{name}=", LogMark.VARIABLE)
        for name in (
            *("_TP", "_PP", "_VPP", "_CP", "_EP", "_ETP", "LORA_RANK", "MODEL_PATH", "VANILLA_MBRIDGE", "USE_MBRIDGE"),
            *("USE_MEGATRON_FSDP", "USE_DUMMY_MODEL", "ENGINE", "ADV_ESTIMATOR", "NUM_GPUS", "MAX_PROMPT_LENGTH"),
            *("MAX_RESPONSE_LENGTH", "TOTAL_TRAIN_STEPS", "SAVE_FREQ", "TEST_FREQ", "RESUME_MODE", "VAL_BEFORE_TRAIN"),
            *("PYTHONPATH", "BRIDGE", "BRIDGE_ROOT", "BRIDGE_PATH", "BRIDGE_DIR", "BRIDGE_SRC", "BRIDGE_HOME"),
            "BRIDGE_REPO",
        )
    ),
    Literal("main_", LogMark.COMMAND, shape=r"(?:\s-m\s+[\w.]*\bmain_\w+|\bmain_\w+\.py)(?:\s|$)"),
    Literal("Total training steps:", LogMark.PLANNED, shape=r"Total training steps: (\d{1,12})\s*$"),
)

LOG = LogForms(
    literals=_LITERALS,
    variables=_VARIABLES,
    config=ConfigForm(
        belongs=lambda text: _CONTINUES.match(text) is not None,
        in_brackets=True,
        read=read_dict,
    ),
    read_step=read_step,
    begins=rf"(?<![\w/])step:\s?\d{{1,12}} - |{_PROGRESS}",
)
