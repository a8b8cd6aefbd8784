"""Triage of a bare log: where the run ended, whose fault it was, and the first relevant line."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from bot.core.facts import Excerpt, LogFacts, LoggedError, Noise
from bot.core.metrics import not_finite
from bot.core.resolved_config import lora_rank
from bot.core.stages import Stage
from bot.core.triage_causes import CAUSES
from bot.core.triage_noise import explain
from bot.core.triage_phases import PHASES
from bot.core.triage_rules import Fault, Rule

RULES: tuple[Rule, ...] = CAUSES + PHASES

FINITE_METRICS = ("actor/loss", "actor/pg_loss", "actor/grad_norm", "critic/vf_loss", "critic/loss", "critic/grad_norm")
MIN_METRICS = 3


class TriageVerdict(StrEnum):
    """`pass` means only that the requested steps completed with no unexplained error; never the verdict Pass."""

    PASS = "pass"
    FAIL = "fail"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class Triage:
    """The answer of triage; `line` is 1-based (0: nothing to point at), `rule` names the rule that decided."""

    verdict: TriageVerdict
    stage: Stage
    cause: str
    line: int
    excerpt: str
    residual_noise: tuple[Noise, ...]
    rule: str
    mend: str


def triage(facts: LogFacts, rules: Sequence[Rule] = RULES) -> Triage:
    """Judge a log by the furthest stage reached and whose fault its root exception is.

    Never `pass` without the requested steps, their metrics, and an explanation for every error.
    """
    explained, noise = explain(facts)
    errors = tuple(error for error in facts.errors if error not in explained)
    silent = _silent_fault(facts, noise)
    root = relevant_error(errors)
    if silent is not None and (root is None or silent.line <= root.at.line or root.secondary):
        return silent
    if root is not None:
        return _judge_error(root, facts, noise, rules)
    if facts.completed_at is not None:
        return _judge_completed(facts, noise)
    warning = next((error for error in errors if error.soft), None)
    return _incomplete(facts, noise) if warning is None else _judge_error(warning, facts, noise, rules)


def relevant_error(errors: Sequence[LoggedError]) -> LoggedError | None:
    """The error that ended the run.

    The driver's own exception, unless it only reports that another process died: then the first one before
    it that does not. Bare warnings are no candidates.
    """
    hard = [error for error in errors if not error.soft]
    primary = [error for error in hard if not error.secondary]
    driver = next((error for error in hard if error.driver), None)
    if driver is None:
        return next(iter(primary or hard), None)
    if not driver.secondary:
        return driver
    before = (error for error in primary if error.at.line < driver.at.line)
    return next(before, next(iter(primary), driver))


def stage_of(error: LoggedError, rules: Sequence[Rule] = RULES) -> Stage:
    """Where an error happened: what its frames say, else where the run stood."""
    by_calls = (rule for rule in rules if rule in PHASES and rule.calls and rule.matches(error))
    rule = next(by_calls, None)
    return error.stage if rule is None or rule.stage is None else rule.stage


def triage_json(file: str, triaged: Triage) -> dict[str, object]:
    """The line of `verl-e2e triage`: exactly the keys that its documentation promises."""
    return {
        "file": file,
        "verdict": str(triaged.verdict),
        "stage": str(triaged.stage),
        "cause": triaged.cause,
        "line": triaged.line,
        "excerpt": triaged.excerpt,
        "residual_noise": [
            {"name": noise.name, "line": noise.at.line, "count": noise.count} for noise in triaged.residual_noise
        ],
    }


def _judge_error(error: LoggedError, facts: LogFacts, noise: tuple[Noise, ...], rules: Sequence[Rule]) -> Triage:
    rule = next((rule for rule in rules if rule.matches(error)), None)
    stage = stage_of(error, rules) if rule is None or rule.stage is None else rule.stage
    if error.after_completion and rule is None:
        stage = Stage.SHUTDOWN
    fails = rule is not None and rule.fault is Fault.CODE and _under_construction(stage)
    cause = "an error that no rule explains" if rule is None else rule.cause
    reached = "" if fails else _construction_reached(facts, stage)
    return Triage(
        verdict=TriageVerdict.FAIL if fails else TriageVerdict.BLOCKED,
        stage=stage,
        cause=f"{cause}: {_shown(error)}{reached}",
        line=error.at.line,
        excerpt=error.at.text,
        residual_noise=noise,
        rule="unexplained" if rule is None else rule.id,
        mend=_UNEXPLAINED_MEND if rule is None else rule.mend,
    )


_UNEXPLAINED_MEND = "Read the traceback at that line; inconclusive until someone has."


def _shown(error: LoggedError) -> str:
    text = f"{error.kind}: {error.message}" if error.message and error.kind else error.message or error.kind
    return text if len(text) <= 160 else text[:157] + "..."


def _under_construction(stage: Stage) -> bool:
    return stage.order >= Stage.BRIDGE_PROVIDER.order


def _construction_reached(facts: LogFacts, stage: Stage) -> str:
    marks = [mark.stage for mark in facts.stages if _under_construction(mark.stage) and mark.stage is not stage]
    reached = max((mark for mark in marks), key=lambda mark: mark.order, default=None)
    return "" if reached is None or reached is Stage.SHUTDOWN else f"; construction had reached {reached}"


def _silent_fault(facts: LogFacts, noise: tuple[Noise, ...]) -> Triage | None:
    """A fault that raises nothing: weights that were dropped, an adapter without parameters, NaN in the loss."""
    empty = next((report for report in facts.adapters if report.adapter == 0), None)
    if empty is not None and _lora_asked(facts):
        at = Excerpt(empty.line, "Adapter parameters: 0")
        return _fault(at, Stage.PEFT, "LoRA was asked for and matched no module", "adapter-empty", noise)
    if facts.lost_weights:
        at = facts.lost_weights[0]
        stage = _import_or_export(facts, at)
        return _fault(at, stage, "Bridge dropped weights and went on", "weights-lost", noise)
    for step in facts.steps:
        names = not_finite(step.values, FINITE_METRICS)
        if names:
            at = Excerpt(step.line, f"step:{step.step} - {names[0]}:{step.values[names[0]]}")
            return _fault(at, Stage.LEARNING_SIGNAL, f"{names[0]} is not finite", "metrics-not-finite", noise)
    return None


def _lora_asked(facts: LogFacts) -> bool:
    return facts.lora_at is not None or any(lora_rank(config) > 0 for config in facts.configs)


def _import_or_export(facts: LogFacts, at: Excerpt) -> Stage:
    synced = next((mark for mark in facts.stages if mark.stage is Stage.EXPORT_WEIGHT_SYNC), None)
    saved = any(event.at.line < at.line for event in facts.checkpoints)
    return Stage.EXPORT_WEIGHT_SYNC if saved or (synced is not None and synced.at.line < at.line) else Stage.HF_IMPORT


def _fault(at: Excerpt, stage: Stage, cause: str, rule: str, noise: tuple[Noise, ...]) -> Triage:
    return Triage(TriageVerdict.FAIL, stage, cause, at.line, at.text, noise, rule, _SILENT_MENDS[rule])


_SILENT_MENDS = {
    "adapter-empty": "Check lora.target_modules against the module names of this family.",
    "weights-lost": "Compare Bridge's mapping for this family with the keys of the checkpoint.",
    "metrics-not-finite": "Find the first tensor that is not finite; lower the rate or run in fp32.",
}


def _judge_completed(facts: LogFacts, noise: tuple[Noise, ...]) -> Triage:
    assert facts.completed_at is not None
    missing = _missing_metrics(facts)
    if missing:
        return _blocked(facts, noise, missing, facts.completed_at)
    bar = facts.progress is not None and facts.progress.done >= facts.progress.total
    at = facts.completed_at
    return Triage(
        verdict=TriageVerdict.PASS,
        stage=Stage.SHUTDOWN if bar or noise else Stage.TRAIN_STEP,
        cause="the requested steps completed, and nothing is left unexplained",
        line=at.line,
        excerpt=at.text,
        residual_noise=noise,
        rule="completed",
        mend="",
    )


def _missing_metrics(facts: LogFacts) -> str:
    """Why the completion proves nothing, or empty."""
    last, bar = facts.last_step, facts.progress
    if last is None or len(last.values) < MIN_METRICS:
        final = facts.final_metrics
        return "" if final is not None and "pid=" in final.text else "completed without the metrics of any step"
    if bar is not None and last.step < bar.total:
        return f"completed, but the last metrics are those of step {last.step} of {bar.total}"
    return ""


def _incomplete(facts: LogFacts, noise: tuple[Noise, ...]) -> Triage:
    stood = facts.stood
    if stood is None and not facts.stages:
        return _blocked(facts, noise, "no sign of a verl run in this log", facts.last)
    bar = facts.progress
    how_far = f" at step {bar.done} of {bar.total}" if bar is not None else f" in {stood}"
    return _blocked(facts, noise, f"incomplete: the log ends{how_far} without an error", facts.last)


def _blocked(facts: LogFacts, noise: tuple[Noise, ...], cause: str, at: Excerpt | None) -> Triage:
    return Triage(
        verdict=TriageVerdict.BLOCKED,
        stage=facts.stood or Stage.ENVIRONMENT,
        cause=cause,
        line=0 if at is None else at.line,
        excerpt="" if at is None else at.text,
        residual_noise=noise,
        rule="incomplete",
        mend="Find out why the run stopped (time limit, hang, cut log), then rerun.",
    )
