"""Lines on which a rollout engine says that it did not take a weight, and goes on without an exception.

A wording is not what decides. A line counts when it names weights and says that some were not taken, and when it
comes from the engine, or from any worker while weights are on their way to it. What the trainer says while it builds
and imports its own model is a matter of `verl_e2e.core.log.literals`, and so is what a model says in its answers.
"""

import re

from verl_e2e.core.log.lines import Line
from verl_e2e.core.model.stages import Stage

_ENGINE = re.compile(r"(?i)vllm|sglang|trtllm|enginecore|scheduler")
# A logger's prefix of an engine: `WARNING 11-20 14:34:20 [utils.py:301]` or `[2026-11-20 14:34:20 TP0]`.
_LOGGER = re.compile(r"\[[\w.]+:\d+\]|^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]{0,40}\]")
_ON_THE_WAY = frozenset({Stage.EXPORT_WEIGHT_SYNC, Stage.TRAIN_STEP})
# The process that prints samples of what the model says.
_DRIVER = re.compile(r"(?i)task_?runner|main_task")

_WEIGHT = re.compile(
    r"(?i)\b(?:weights?|tensors?|params?_dict|param(?:eter)?s?)\b|state[_ ]dict|(?:missing|unexpected)[_ ]keys?"
    r"|\blora modules?|\badapter modules?|[\w\]}]\.(?:bias|lora_[AB])\b"
)
# Parameters of a request or of the program, and the memory that weights take; neither is a weight.
_REQUEST = re.compile(
    r"(?i)\b(?:sampling|generation|request|server|engine|config\w*|environment|init|cli)[ -]"
    r"(?:param(?:eter)?s?|arg(?:ument)?s?)\b|\b(?:argument|flag|variable|option)s?\b"
    r"|\b(?:memory|cache|sleep|offload\w*|[GM]iB)\b"
)
_REFUSED = re.compile(
    r"(?i)(?:\bnot|n't) (?:\w+ )?(?:found|loaded|initialized|used|in|present|match\w*|updated?|copied|supported"
    r"|accepted|recogni[sz]ed|applied|exist|known|taken|assigned|registered)\b"
    r"|\bun(?:expected|loaded|known|used|matched|initiali[sz]ed|recogni[sz]ed|supported|assigned)\b"
    r"|\bmissing(?![a-z])"
    r"|\bskip(?:s|ped|ping)?\b|\bignor(?:es?|ed|ing)\b|\bmismatch\w*|\bfail(?:s|ed|ing)? to\b|\breject(?:s|ed|ing)?\b"
    r"|\bunable to\b|\brefus(?:es?|ed|ing)\b|\bdrop(?:s|ped|ping)\b|\bdiscard(?:s|ed|ing)?\b"
    r"|\bno (?:module|parameter|weight|such)\b|\bcould not be\b|\bcannot be\b|\bkeeping the old\b|\bleft (?:as|un)\w*"
)
_NONE_LOADED = re.compile(r"loaded_params: 0\b")
# What a model does not store although a checkpoint may, and shapes that the program was set to let differ.
_HARMLESS = re.compile(
    r"(?i)rotary_emb\.(?:inv_freq|(?:cos|sin)_cached)|attn\.(?:masked_)?bias\b|[kvq]_scale\b|allowed by"
    r"|missing_keys=\[\],? ?unexpected_keys=\[\]|\b(?:no|0|without) (?:missing|unexpected|mismatched|skipped)\b"
)


def may_refuse(text: str) -> bool:
    """Whether `refuses` may hold of a line without colours, the person who wrote it."""
    return bool((_REFUSED.search(text) and _WEIGHT.search(text)) or _NONE_LOADED.search(text))


def refuses(line: Line, stood: Stage | None) -> bool:
    """Whether the line says that the engine did not take a weight; `stood` is the stage that the run is in."""
    if _NONE_LOADED.search(line.text):
        return True
    from_engine = bool(_ENGINE.search(line.process))
    on_the_way = stood in _ON_THE_WAY and not _DRIVER.search(line.process) and bool(_LOGGER.search(line.printed))
    if not (from_engine or on_the_way):
        return False
    text = line.text[:4096]
    refused = _REFUSED.search(text) is not None and _WEIGHT.search(text) is not None
    return refused and not _HARMLESS.search(text) and not _REQUEST.search(text)
