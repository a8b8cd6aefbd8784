"""What SkyRL prints on its console, and how it is read.

Its lines are loguru's: `time | LEVEL | module:function:line - text`, in colours and below Ray's prefix. Its own metrics
of a step are a dict over many lines with four decimals, so the instrumentation prints them again, in full, on one line.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from verl_e2e.core.consumer.consumer import (
    MAX_KEYS,
    ConfigForm,
    Literal,
    LogForms,
    LogMark,
    checkpoint_literal,
    opening_literal,
    sign_literal,
    stage_literal,
)
from verl_e2e.core.model.outcome import Stage

# What the hook on its tracker prints: the step and its metrics as JSON.
METRICS_MARK = "[verl-e2e] metrics of step "
_STEP = re.compile(rf"^{re.escape(METRICS_MARK)}(\d{{1,12}}): (\{{.*\}})\s*$")
METRICS_LITERAL = Literal(METRICS_MARK, LogMark.STEP, Stage.TRAIN_STEP, _STEP.pattern)

# Its workers and engines write into files of their own, and nothing of them is in this log.
INFRASTRUCTURE_ELSEWHERE = "infrastructure-elsewhere"


def read_metrics(text: str) -> tuple[int, dict[str, float]] | None:
    """The step number and its metrics, or None when `text` is not a line of them; what is not a number is left out."""
    match = _STEP.match(text)
    if match is None:
        return None
    try:
        # A whole number of any length is read as one with a fraction, which may be infinite.
        found = json.loads(match[2], parse_int=float)
    except (ValueError, RecursionError):
        return None
    numbers = {name: value for name, value in found.items() if isinstance(value, float)}
    return int(match[1]), dict(list(numbers.items())[:MAX_KEYS])


_SECTIONS = ("data", "environment", "generator", "trainer")
# Of the last section a key that every version has, near its end.
_LATE = "train_batch_size"
# A name of a section, or a line below one; YAML is printed in the order of its names.
_BELONGS = re.compile(rf"(?:{'|'.join(_SECTIONS)}):\s*$|\s+\S")
_KEY = r"""(?:[\w./@*-]+|'(?:[^']|'')*'|"(?:[^"\\]|\\.)*")"""
_LINE = re.compile(rf"( *)((?:- )*)(?:({_KEY}):(?: (.*))?|(.*))$")
# A float of YAML 1.1 has a point; `1e-6` without one is a text, and PyYAML writes both so.
_NUMBER = re.compile(r"[-+]?\d+|[-+]?(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?")
_WORDS: dict[str, Any] = {"null": None, "~": None, "true": True, "false": False, "{}": {}, "[]": []}
_WORDS |= {".nan": float("nan"), ".inf": float("inf"), "-.inf": float("-inf")}


def _scalar(shown: str) -> Any:
    """A value as PyYAML writes it in one line."""
    if shown in _WORDS:
        empty = _WORDS[shown]
        return type(empty)() if isinstance(empty, dict | list) else empty
    if shown[:1] == shown[-1:] == "'" and len(shown) > 1:
        return shown[1:-1].replace("''", "'")
    if shown[:1] == shown[-1:] == '"' and len(shown) > 1:
        try:
            return json.loads(shown)
        except ValueError:
            return shown[1:-1]
    if _NUMBER.fullmatch(shown):
        return int(shown) if re.fullmatch(r"[-+]?\d+", shown) else float(shown)
    return shown


def _whole_rows(lines: Iterable[str]) -> list[str]:
    """The lines, with what was too long for one of them put behind it."""
    rows: list[str] = []
    for line in lines:
        found = _LINE.match(line.rstrip())
        if rows and line.strip() and found is not None and not found[2] and found[3] is None:
            rows[-1] += f" {line.strip()}"
        else:
            rows.append(line)
    return rows


def read_yaml(text: str) -> Mapping[str, Any]:
    """The mapping that a block of YAML shows, as PyYAML dumps plain dicts and lists; ValueError when it is none.

    The first line may begin with loguru's prefix. A list of mappings is not read.
    """
    lines = text.splitlines()
    if lines:
        lines[0] = lines[0].rpartition(" - ")[2]
    root: dict[str, Any] = {}
    # The mappings and lists that are open, each with the indentation of its entries; the key that waits for its value.
    levels: list[tuple[int, dict[str, Any]]] = [(0, root)]
    waiting: tuple[dict[str, Any], str, int] | None = None
    for line in _whole_rows(lines):
        found = _LINE.match(line.rstrip())
        if found is None or not line.strip():
            continue
        indent, dashes, key, value, item = len(found[1]), found[2], found[3], found[4], found[5]
        if dashes:
            if waiting is not None:
                of, name, _ = waiting
                if not isinstance(of[name], list):
                    of[name] = []
                of[name].append(_scalar(item if key is None else line.strip()[2:]))
            continue
        if key is None:
            continue
        key = str(_scalar(key)) if key[0] in "'\"" else key
        if waiting is not None and indent > waiting[2] and waiting[0][waiting[1]] is None:
            inner: dict[str, Any] = {}
            waiting[0][waiting[1]] = inner
            levels.append((indent, inner))
        while len(levels) > 1 and indent < levels[-1][0]:
            levels.pop()
        if indent != levels[-1][0]:
            raise ValueError("the printed configuration is not a readable block of YAML")
        mapping = levels[-1][1]
        mapping[key] = None if not value else _scalar(value)
        waiting = None if value else (mapping, key, indent)
    if missing := [name for name in _SECTIONS if not isinstance(root.get(name), dict)]:
        raise ValueError(f"the printed configuration has no section {missing[0]}: it is cut or broken")
    if _LATE not in root["trainer"]:
        raise ValueError(f"the printed configuration is cut before `{_LATE}`, after which nothing is asked for")
    return root


def _said_by(function: str, text: str) -> str:
    """The shape of a line that one of SkyRL's functions logs."""
    return rf"\bskyrl\.[\w.]+:{function}:\d+ - {text}"


# A text is looked for before colours are taken off, so none goes over the parts of a prefix.
_CONFIG = "_setup_trainer"
_PROGRESS = "Training Batches Processed:"
_BAR = r"\s*(\d{1,3})%\|[^|]{0,200}\|\s*(\d{1,12})/(\d{1,12})"
_SAVE, _LOAD = Stage.CHECKPOINT_SAVE, Stage.CHECKPOINT_LOAD

_LITERALS = (
    Literal(_CONFIG, LogMark.CONFIG, Stage.RAY, shape=_said_by("_setup_trainer", "data:$"), opens=True),
    Literal("-m skyrl.train.entrypoints", LogMark.OPENING, shape=r"^\++ .*\s-m skyrl\.[\w.]*\bmain_\w+", opens=True),
    METRICS_LITERAL,
    Literal(_PROGRESS, LogMark.PROGRESS, Stage.TRAIN_STEP, rf"^\s*(?:{_PROGRESS}.*)?{_PROGRESS}{_BAR}"),
    Literal("Training done!", LogMark.FINAL, Stage.TRAIN_STEP, _said_by("train", "Training done!")),
    opening_literal("to ray runtime env", Stage.ENVIRONMENT),
    stage_literal("Total dataset size:", Stage.DATA, _said_by("[\\w<>]+", "Total dataset size:")),
    stage_literal("Filtered dataset size:", Stage.DATA, _said_by("[\\w<>]+", "Filtered dataset size:")),
    stage_literal("Initializing inference client", Stage.ROLLOUT_ENGINE),
    stage_literal("HTTP Inference: ", Stage.ROLLOUT_ENGINE),
    stage_literal("init policy/ref/critic models done", Stage.OPTIMIZER),
    stage_literal("Initialized weight sync state for policy model", Stage.EXPORT_WEIGHT_SYNC),
    stage_literal("Started: 'sync_weights'", Stage.EXPORT_WEIGHT_SYNC),
    stage_literal("Loaded LoRA adapter '", Stage.EXPORT_WEIGHT_SYNC),
    stage_literal("Started: 'generate'", Stage.TRAIN_STEP),
    stage_literal("Started: 'policy_train'", Stage.TRAIN_STEP),
    # Its own metrics, in the line before them.
    stage_literal("skyrl.train.utils.tracking", Stage.TRAIN_STEP, _said_by("log", r"Step \d+:\s*$")),
    checkpoint_literal("Started: 'save_checkpoints'", "saving", _SAVE),
    checkpoint_literal("Successfully saved checkpoint for global_step_", "saved", _SAVE),
    # The number of the step is in the folder's name.
    checkpoint_literal("Loading checkpoint from:", "resumed", _LOAD, r"Loading checkpoint from: \S*global_step_\d+"),
    stage_literal("Resuming from global_step:", _LOAD, r"Resuming from global_step: \d+"),
    checkpoint_literal("Loaded model state dict", "loaded", _LOAD),
    checkpoint_literal("Loaded optimizer state dict", "loaded", _LOAD),
    checkpoint_literal(" LoRA adapters from ", "loaded", _LOAD, r"Loaded \d+ LoRA adapters from "),
    checkpoint_literal("Successfully loaded complete checkpoint state", "loaded", _LOAD),
    checkpoint_literal("No checkpoint found, starting training from scratch", "scratch", _LOAD),
    sign_literal("Infrastructure logs will be written to", INFRASTRUCTURE_ELSEWHERE),
)

SKYRL_LOG = LogForms(
    literals=_LITERALS,
    variables=re.compile(r"PYTHONPATH|SKYRL_\w+"),
    config=ConfigForm(
        belongs=lambda text: _BELONGS.match(text) is not None,
        in_brackets=False,
        read=read_yaml,
    ),
    read_step=read_metrics,
    begins=rf"{re.escape(METRICS_MARK)}\d|{_PROGRESS}",
)
