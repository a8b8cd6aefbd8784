"""Whether a run came to its end as it should: its last requested step, the metrics of it, and its end."""

from verl_e2e.core.model.facts import LogFacts

MIN_METRICS = 3


def ended_well(facts: LogFacts) -> bool:
    """Whether the requested steps completed with their metrics, and no exception ended the driver before."""
    killed = any(error.driver and not error.after_completion for error in facts.errors)
    return facts.completed_at is not None and not killed and not missing_metrics(facts)


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
