"""Errors that a run survived: caught and logged, in a side thread, or in work that the training does not need.

A run that ended well has survived every error that did not end it. Such an error is noise when a program says that it
had caught it (a log record, the end of a side thread), or when it happened in work that no step waits for. It is no
noise where a step is trained, or where weights are built, exchanged or kept: a run may go on there with less than it
should have, and only the error says so.
"""

import re

from verl_e2e.core.model.facts import LogFacts, LoggedError, Record
from verl_e2e.core.triage.completion import ended_well

CAUGHT = "caught-exception"
SIGNS = 2

# Side work where programs print a traceback and go on: tracking, scores of samples, validation, rows.
_ASIDE = re.compile(
    r"verl/utils/tracking\.py:|(?:^|/)(?:wandb|mlflow|swanlab|trackio|clearml|tensorboardX?)/|prometheus"
    r"|/tensorboard/|reward_score/|/sandbox_fusion/|reward_manager/|reward_loop/|:_?validate$|:_?(?:dump|log)_\w*generations$"
    r"|rl_dataset\.py:(?:doc2len|\w*filter\w*)$|agent_loop/tool",
    re.MULTILINE,
)

_IMPORT = re.compile(r":<import>$")
# Code that trains a step, or that builds, exchanges or keeps weights, by its frames.
_OURS = re.compile(r"(?:^|/)megatron/(?!core/telemetry/)\w+/|(?:^|/)modelopt/")
_BRIDGE = re.compile(r"(?:^|/)megatron/bridge/(?!utils/|data/)")
_WEIGHTS = re.compile(
    r":\w*(?:load_weights|update_weights|load_state_dict|save_checkpoint|load_checkpoint|state_dict_(?:sav|load)er)\w*$"
    r"|:(?:save|export|stream|import)_\w*(?:weight|adapter|ckpt|checkpoint|pretrained|state_dict)\w*$"
    r"|:(?:update_(?:actor|critic|policy)|train_(?:mini_)?batch|forward_backward\w*|optimizer_step|compute_\w*log_prob)$"
    r"|checkpoint_manager\.py:|checkpoint_engine/|dist_checkpointing/|distributed/checkpoint/|weight_(?:sync|update)",
    re.MULTILINE,
)

# What a worker raises in its own method, before or after the call that trains: that call was made, for a run that
# ended well printed what the update measured.
_DISPATCHES = re.compile(r"(?:^|/)verl/workers/\S*:update_(?:actor|critic|policy)$")


def survived_errors(facts: LogFacts) -> tuple[LoggedError, ...]:
    """The errors of a run that ended well which are only noise."""
    if not ended_well(facts):
        return ()
    assert facts.completed_at is not None  # a run that ended well has ended
    end = facts.completed_at.line
    return tuple(error for error in facts.errors if _is_noise(error, end))


def went_on(error: LoggedError, facts: LogFacts) -> bool:
    """Whether the run goes on after an error that a program had caught: two stages or steps are entered after it."""
    text = error.record not in (Record.RAISED, Record.PREFIXED)
    return text and signs_after(error, facts) >= SIGNS


def caught(error: LoggedError, facts: LogFacts) -> bool:
    """Whether a program had caught an error, or went on after it, before something else ended the run."""
    if error.driver or error.record in (Record.ERROR, Record.SIDE, Record.WARNING):
        return not error.driver
    return error.over or any(_ASIDE.search(call) for call in error.calls) or signs_after(error, facts) >= SIGNS


def signs_after(error: LoggedError, facts: LogFacts) -> int:
    """How many signs of progress there are below the last time of an error: stages, steps, bars, checkpoints."""
    bars = (bar for bar in (facts.progress, facts.epochs) if bar is not None)
    signs = {mark.at.line for mark in facts.timeline} | {event.at.line for event in facts.checkpoints}
    signs |= {bar.at.line for bar in bars} | {step.line for step in facts.steps}
    return sum(line > max(error.at.line, error.last) for line in signs)


def _is_noise(error: LoggedError, end: int) -> bool:
    if error.driver or error.soft:
        return False
    if not error.calls:
        return error.record is Record.WARNING
    text = error.record is not Record.RAISED
    # Nothing shows that the process went on after an exception below the last line of the run.
    aside = error.at.line < end and any(_ASIDE.search(call) for call in error.calls)
    return (text or aside) and not _touches_weights(error)


def _touches_weights(error: LoggedError) -> bool:
    calls = [call for call in error.calls if not _IMPORT.search(call)]
    if calls and _DISPATCHES.search(calls[-1]):
        calls.pop()
    if any(_WEIGHTS.search(call) for call in calls):
        return True
    ours = _BRIDGE if error.record is Record.WARNING else _OURS
    return any(ours.search(call) for call in calls)
