"""Which of a log's errors ended the run: the candidates in the order in which they are weighed.

Nested remote tracebacks are already one error with its root, and the same error of many workers one with a count
(`verl_e2e.core.log.errors`). What is left to tell apart is the fault from its echoes, and from what a run survived.

A run that ended well has survived every error that did not end it. Such an error is noise when a program says that it
had caught it (a log record, the end of a side thread), or when it happened in work that no step waits for. It is not
noise where a step is trained, or where weights are built, exchanged or kept: a run may go on there with less than it
should have, and only the error says so.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from verl_e2e.core.consumer.consumer import Quantity
from verl_e2e.core.consumer.consumers import CONSUMERS, measured
from verl_e2e.core.model.facts import Excerpt, LogFacts, LoggedError, TracebackRecord
from verl_e2e.core.triage.origin import Origin, death_reason, error_origin

MIN_METRICS = 3
SHOWN_METRICS = 4
# What a step of other trainers prints: SFT, preferences, reward models, pre-training.
_OF_OTHERS = re.compile(
    r"^(?:train|sft|dpo|orpo|kto|rm|eval|pretrain)\w*/|^(?:train_)?(?:loss|lr|grad_norm|learning_rate)$|/(?:nll|ce)?_?loss$"
)
# What a step of RL prints, whatever its estimator and trainer.
_OF_RL = tuple(name for consumer in CONSUMERS.values() for name in consumer.of_rl)


def ended_well(facts: LogFacts) -> bool:
    """Whether the requested steps completed with their metrics, and no exception ended the driver before."""
    killed = any(error.driver and not error.after_completion for error in facts.errors)
    return facts.completed_at is not None and not killed and not missing_metrics(facts)


def furthest(facts: LogFacts) -> str:
    """How far the run came, as bar, metrics and checkpoints show; empty where none of them is there."""
    bars = [bar for bar in (facts.progress, facts.epochs) if bar is not None]
    last = [facts.last_step.step] if facts.last_step is not None else []
    written = [
        event.step for event in facts.checkpoints if event.action in ("saving", "saved") and event.step is not None
    ]
    done = max([*(bar.done for bar in bars), *last, *written], default=None)
    planned = [facts.planned_steps.value] if facts.planned_steps is not None else []
    total = next(iter([*(bar.total for bar in bars), *planned]), None)
    if done is None:
        return ""
    return f"step {done}" if total is None else f"step {done} of {total}"


def other_trainer(facts: LogFacts) -> tuple[Excerpt, str] | None:
    """The end of a finished run whose metrics are not those of RL, with what was found and what is missing."""
    bar, last = facts.epochs, facts.last_step
    end = facts.completed_at or (bar.at if bar is not None and bar.done >= bar.total > 0 else None)
    steps = [step.values for step in (*facts.steps, *([last] if last is not None else []))]
    names = list(dict.fromkeys(name for values in steps for name in values if not name.startswith("val")))
    others = any(map(_OF_OTHERS.search, names)) and not any(name.startswith(_OF_RL) for name in names)
    if end is None or last is None or not others:
        return None
    more = f" and {len(names) - SHOWN_METRICS} more" if len(names) > SHOWN_METRICS else ""
    found = f"step {last.step} is there with {', '.join(names[:SHOWN_METRICS])}{more}"
    return end, f"a run of another trainer completed: {found}; metrics of an actor and of a rollout are missing"


def missing_metrics(facts: LogFacts) -> str:
    """Why the completion proves nothing, or empty."""
    last, bar = facts.last_step, facts.progress
    if last is None or len(last.values) < MIN_METRICS:
        final = facts.final_metrics
        # A log that is cut to its end has the validation after the last step only; one with a bar is not cut.
        whole = bar is not None or final is None or "pid=" not in final.text
        return "completed without the metrics of any step" if whole else ""
    if bar is not None and last.step != bar.total:
        return f"completed, but the last metrics are those of step {last.step} of {bar.total}"
    words = measured(last.values, Quantity.GLOBAL_STEP)
    if words not in (None, last.step):
        requested = f", {bar.total} requested" if bar is not None else ""
        return f"completed, but the last step, {last.step}, says global step {words:g}{requested}"
    return ""


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
    return tuple(error for error in facts.errors if not (error.driver or error.soft) and _is_noise(error, end))


def went_on(error: LoggedError, facts: LogFacts) -> bool:
    """Whether the run goes on after an error that a program had caught: two stages or steps are entered after it."""
    text = error.record not in (TracebackRecord.RAISED, TracebackRecord.PREFIXED)
    return text and signs_after(error, facts) >= SIGNS


def caught(error: LoggedError, facts: LogFacts) -> bool:
    """Whether a program had caught an error, or went on after it, before something else ended the run."""
    if error.driver or error.record in (TracebackRecord.ERROR, TracebackRecord.SIDE, TracebackRecord.WARNING):
        return not error.driver
    return error.over or any(_ASIDE.search(call) for call in error.calls) or signs_after(error, facts) >= SIGNS


def signs_after(error: LoggedError, facts: LogFacts) -> int:
    """How many signs of progress there are below the last time of an error: stages, steps, bars, checkpoints."""
    bars = (bar for bar in (facts.progress, facts.epochs) if bar is not None)
    signs = {mark.at.line for mark in facts.timeline} | {event.at.line for event in facts.checkpoints}
    signs |= {bar.at.line for bar in bars} | {step.line for step in facts.steps}
    return sum(line > max(error.at.line, error.last) for line in signs)


def _is_noise(error: LoggedError, end: int) -> bool:
    if not error.calls:
        return error.record is TracebackRecord.WARNING
    # Nothing shows that the process went on after an exception below the last line of the run.
    aside = error.at.line < end and any(_ASIDE.search(call) for call in error.calls)
    if error.record is TracebackRecord.RAISED and not aside:
        return False
    calls = [call for call in error.calls if not _IMPORT.search(call)]
    if calls and _DISPATCHES.search(calls[-1]):
        calls.pop()
    ours = _BRIDGE if error.record is TracebackRecord.WARNING else _OURS
    return not any(_WEIGHTS.search(call) or ours.search(call) for call in calls)


SIGNAL_LINES = 6
_TIMEOUT = "CollectiveTimeout"
# What comes and goes: a service that did not answer once.
_PASSES = frozenset({Origin.HUB, Origin.NETWORK, Origin.TRACKER})
_ABORT = re.compile(r"SIGABRT|Fatal Python error: Aborted|DistBackendError")


class CandidateStanding(StrEnum):
    """Why a candidate has its place, the first before the others; the value is what a person reads."""

    DRIVER = "ends the driver"
    PRIMARY = "raised where it happened"
    REPEAT = "folded by Ray: printed before by another worker"
    LOGGED = "caught and logged"
    STATED = "states what ended the run from outside"
    CUT = "cut before its exception"
    ECHO = "only reports that another process died or stopped answering"
    SURVIVED = "survived: the run went on"
    WARNING = "a warning that a run may survive"
    OVER = "a warning that the run survived"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An error and its standing."""

    error: LoggedError
    standing: CandidateStanding

    @property
    def decides(self) -> bool:
        """Whether the error may be the root cause by itself."""
        return self.standing not in (CandidateStanding.SURVIVED, CandidateStanding.WARNING, CandidateStanding.OVER)


def candidates(errors: Sequence[LoggedError], facts: LogFacts) -> tuple[Candidate, ...]:
    """All of `errors`, the root cause first.

    The driver's own exception comes first, unless it is cut or only an echo: then the errors before it do, by line.
    Warnings and what the run survived come last.
    """
    # Where processes began to abort themselves over a collective that timed out; 0 when none did.
    waited = min((error.at.line for error in errors if error.kind == _TIMEOUT), default=0)
    aborts = sorted(error.at.line for error in errors if _aborts(error))
    waited_out = next((line for line in aborts if 0 < waited < line), 0)
    # What a library says right before or after the signal that it ended with.
    natives = [error.at.line for error in errors if error.kind == "NativeError" and not error.soft]
    ranked = [Candidate(error, _standing(error, facts, waited_out=waited_out, natives=natives)) for error in errors]
    ranked = [replace(item, standing=_until_the_end(item, ranked, facts)) for item in ranked]
    driver = next((item.error.at.line for item in ranked if item.error.driver and item.decides), None)

    def rank(item: Candidate) -> tuple[int, bool, bool, int]:
        # What came before the driver's end, then the driver and echoes that say what died, then the line.
        late = driver is not None and item.error.at.line > driver
        echo = item.standing is CandidateStanding.ECHO and error_origin(item.error) is not None
        first = item.error.driver or echo
        return list(CandidateStanding).index(item.standing), late, not first, item.error.at.line

    return tuple(sorted(ranked, key=rank))


def _until_the_end(item: Candidate, ranked: Sequence[Candidate], facts: LogFacts) -> CandidateStanding:
    """The standing in the light of an end from outside: what the run had survived until then did not end it."""
    line = max(item.error.at.line, item.error.last)
    ends = [other.error.at.line for other in ranked if other.standing is CandidateStanding.STATED]
    end = max([*ends, *([facts.line_count + 1] if facts.stopped else [])], default=0)
    raised = item.standing in (CandidateStanding.PRIMARY, CandidateStanding.REPEAT, CandidateStanding.LOGGED)
    if not raised and (item.standing is not CandidateStanding.WARNING or item.error.soft):
        return item.standing
    deaths = (CandidateStanding.ECHO, CandidateStanding.DRIVER)
    died = next((row.error.at.line for row in ranked if row.standing in deaths and row.error.at.line > line), 0)
    passed = item.standing is CandidateStanding.LOGGED and not died and _is_over(item.error, facts)
    stopped = line < end and not 0 < died < end and caught(item.error, facts)
    return CandidateStanding.SURVIVED if passed or stopped else item.standing


def _is_over(error: LoggedError, facts: LogFacts) -> bool:
    """Whether what comes and goes is followed by any progress, or by other work of the same process."""
    signs = signs_after(error, facts)
    return signs >= SIGNS or (error_origin(error) in _PASSES and (error.over or signs > 0))


def _aborts(error: LoggedError) -> bool:
    return error.kind == "Signal" and _ABORT.search(error.message) is not None


def _standing(error: LoggedError, facts: LogFacts, *, waited_out: int, natives: Sequence[int]) -> CandidateStanding:
    if error.soft:
        return CandidateStanding.OVER if error.over or _is_over(error, facts) else CandidateStanding.WARNING
    # Two steps, for the line of one may arrive late from another process.
    if not error.driver and len(facts.steps) > 1 and facts.steps[-2].line > error.at.line:
        return CandidateStanding.SURVIVED
    if error.record not in (TracebackRecord.RAISED, TracebackRecord.PREFIXED) and not error.secondary:
        if went_on(error, facts):
            return CandidateStanding.SURVIVED
        return CandidateStanding.LOGGED if error.record is TracebackRecord.ERROR else CandidateStanding.WARNING
    # A timeout is an echo of a peer's end, unless the one that waited ended itself over it: then no peer had ended.
    if waited_out and error.kind == _TIMEOUT:
        return CandidateStanding.PRIMARY
    if error.kind == "Cancelled" or (error.secondary and death_reason(error) is not None):
        return CandidateStanding.STATED
    # A signal is what a library ended with that said more right before or after it.
    explained = error.kind == "Signal" and any(abs(line - error.at.line) <= SIGNAL_LINES for line in natives)
    if error.secondary or (_aborts(error) and 0 < waited_out <= error.at.line) or explained:
        return CandidateStanding.ECHO
    if not error.kind:
        return CandidateStanding.CUT
    if error.repeated:
        return CandidateStanding.REPEAT
    return CandidateStanding.DRIVER if error.driver else CandidateStanding.PRIMARY
