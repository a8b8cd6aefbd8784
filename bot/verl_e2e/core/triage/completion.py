"""Whether a run came to its end as it should: its last requested step, the metrics of it, and its end."""

import re

from verl_e2e.core.model.facts import Excerpt, LogFacts

MIN_METRICS = 3
SHOWN_METRICS = 4
# What a step of other trainers prints: SFT, preferences, reward models, pre-training.
_OF_OTHERS = re.compile(
    r"^(?:train|sft|dpo|orpo|kto|rm|eval|pretrain)\w*/|^(?:train_)?(?:loss|lr|grad_norm|learning_rate)$|/(?:nll|ce)?_?loss$"
)
# What a step of RL prints, whatever its estimator and trainer.
_OF_RL = ("actor/", "critic/", "rollout", "response", "prompt_length/", "training/", "reward", "timing_s/gen")


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
    words = last.values.get("training/global_step", float(last.step))
    if words != last.step:
        requested = f", {bar.total} requested" if bar is not None else ""
        return f"completed, but the last step, {last.step}, says global step {words:g}{requested}"
    return ""
