"""Triage of a bare log: where the run ended, whose fault it was, and the first relevant line.

A run of another backend than Megatron says nothing about Bridge or Megatron-LM: the frames of an error show which one
trained, then the configuration of the actor, then every strategy that the log names. A log that shows none is taken
for one of Megatron. Of work inside other work (a save exports weights, a resume loads them) the outer one is the stage.

Of several runs in one log the last whole one is the answer: one that came to its end, or that an error ended. Errors
of another run never decide. A log whose last run is cut is not a pass, however the run before it ended.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from verl_e2e.core.consumer.consumer import ConfigKey
from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.log.errors import EXIT_STATUS
from verl_e2e.core.log.literals import STRATEGY_SIGN
from verl_e2e.core.log.printed import lookup
from verl_e2e.core.model.facts import Excerpt, Frame, LogFacts, LoggedError, Noise
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.triage import silent
from verl_e2e.core.triage.candidates import (
    CAUGHT,
    Candidate,
    CandidateStanding,
    candidates,
    furthest,
    missing_metrics,
    other_trainer,
    survived_errors,
)
from verl_e2e.core.triage.origin import death_reason, error_origin, involves_trees
from verl_e2e.core.triage.rules import Fault, TriageRule
from verl_e2e.core.triage.table import NOISE, RULES

COMPLETED, INCOMPLETE, UNEXPLAINED, FORMAT = "completed", "incomplete", "unexplained", "format"
OTHER_TRAINER, OTHER_BACKEND = "other-trainer", "other-backend"


class TriageVerdict(StrEnum):
    """`pass` means only that the requested steps completed with no unexplained error; never the verdict Pass."""

    PASS = "pass"
    FAIL = "fail"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How another run of the same log ended."""

    run: int
    """Which run of the log, from 1."""
    begins: int
    """Its first line."""
    ends: int
    """Its last line."""
    verdict: TriageVerdict
    stage: Stage
    cause: str
    line: int
    """The line that decided, 0 when there is nothing to point at."""


@dataclass(frozen=True, slots=True)
class Triage:
    """The answer of triage."""

    # What the log comes to.
    verdict: TriageVerdict
    # The stage of the fault, or the last stage reached.
    stage: Stage
    # Why, as a clause.
    cause: str
    # The line that shows it, 1-based; 0 for none.
    line: int
    # The text of that line.
    excerpt: str
    # Harmless messages that look like errors.
    residual_noise: tuple[Noise, ...]
    # The id of the rule that decided.
    rule: str
    # What to do, with the section of the runbook; empty when there is nothing to do.
    fix: str
    frame: Frame | None = None
    """The innermost frame of the error in Megatron-Bridge, Megatron-LM or verl."""
    message: str = ""
    """The whole message of the error, with its line feeds; empty when no error decided."""
    run: int = 1
    """Which run of the log the answer is about, from 1."""
    others: tuple[RunOutcome, ...] = ()
    """The other runs of the log, in order; of many only the last ones are kept."""
    reached: Stage | None = None
    """How far Bridge-managed construction got, where `cause` says so."""
    undecided: bool = False
    """Whether a change of Megatron-Bridge or Megatron-LM may have caused what blocked the run."""


_STRATEGIES = tuple(filter(None, (consumer.keys.get(ConfigKey.STRATEGY) for consumer in CONSUMERS.values())))
_MEGATRON = re.compile(r"megatron|mindspeed")
_FRAME = re.compile(
    r"(?:^|/)workers/engine/(?!megatron|mindspeed)(\w+)/|(?:^|/)(fsdp|deepspeed|torchtitan|veomni|automodel)_(?:workers|sft_trainer)\.py:"
    r"|(?:^|/)(?:torch/distributed/)?_?(fsdp|deepspeed|torchtitan|veomni)/|(?:^|/)(dp)_(?:actor|critic|rm)\.py:",
    re.MULTILINE,
)
# Work that only Megatron has under this name; another backend wraps its model instead.
_CONSTRUCTION = frozenset({Stage.BRIDGE_PROVIDER, Stage.HF_IMPORT, Stage.DDP_WRAP})


def other_backend(facts: LogFacts, calls: tuple[str, ...] = ()) -> str:
    """The backend that trained in place of Megatron; empty where none is shown."""
    frames = "\n".join(calls)
    if _MEGATRON.search(frames):
        return ""
    found = _FRAME.search(frames)
    if found is not None:
        name = str(next(group for group in found.groups() if group))
        return "fsdp" if name == "dp" else name
    of_actor = (lookup(config.values, key, None) for config in facts.configs for key in _STRATEGIES)
    strategies = [strategy for strategy in of_actor if isinstance(strategy, str)] or [
        sign.name.removeprefix(STRATEGY_SIGN) for sign in facts.signs if sign.name.startswith(STRATEGY_SIGN)
    ]
    return "" if not strategies or any(map(_MEGATRON.search, strategies)) else strategies[0]


def trained_with(backend: str) -> str:
    """The clause that says which backend trained; empty for Megatron."""
    return f"; the run trains with {backend}, not with Megatron" if backend else ""


def stage_with(stage: Stage, backend: str) -> Stage:
    """The name of a stage for a run of that backend."""
    return Stage.FSDP_WRAP if backend and stage in _CONSTRUCTION else stage


# What syncs the rollout's weights; an export that none of these called, while a checkpoint was saved, is of the save.
_SYNC = re.compile(
    r":(?:a?sync_?)?update_weights\w*$|:rollout_mode$|:wake_up$|checkpoint_engine/|sharding_manager/|:sync_\w*weights\w*$",
    re.MULTILINE,
)
# What builds a model: an import that one of these called is not a resume.
_BUILD = re.compile(r":init_model$|:_build_\w+$|:__init__$|:initialize$", re.MULTILINE)
_INNER = {
    Stage.CHECKPOINT_SAVE: (frozenset({Stage.EXPORT_WEIGHT_SYNC, Stage.HF_IMPORT}), _SYNC),
    Stage.CHECKPOINT_LOAD: (frozenset({Stage.HF_IMPORT, Stage.PEFT, Stage.OPTIMIZER}), _BUILD),
}


def outer_stage(stage: Stage, error: LoggedError) -> Stage:
    """The stage of an error that happened in `stage`, seen from what the run was doing around it."""
    inner, other = _INNER.get(error.stage, (frozenset(), _SYNC))
    return stage if stage not in inner or other.search("\n".join(error.calls)) else error.stage


def explain_noise(facts: LogFacts) -> tuple[frozenset[LoggedError], tuple[Noise, ...]]:
    """The errors that are only noise, and all residual noise of the log."""
    explained: dict[LoggedError, str] = {}
    for error in facts.errors:
        name = noise_name(error)
        if name:
            explained[error] = name
    for error in survived_errors(facts):
        explained.setdefault(error, CAUGHT)
    noise = {note.name: note for note in facts.noise}
    for error, name in explained.items():
        known = noise.get(name)
        count = error.count + (known.count if known else 0)
        noise[name] = Noise(name, error.at if known is None else known.at, count)
    return frozenset(explained), tuple(sorted(noise.values(), key=lambda note: note.at.line))


def noise_name(error: LoggedError) -> str:
    """The name of the noise rule that explains an error, or empty."""
    if not error.after_completion:
        return ""
    text = f"{error.kind}: {error.message}"
    return next((rule.name for rule in NOISE if re.search(rule.pattern, text)), "")


def judge_runs(facts: LogFacts, judge: Callable[[LogFacts], Triage]) -> Triage:
    """The answer for a log with any number of runs; `judge` answers for the facts of one."""
    if not facts.parts:
        return judge(facts)
    *before, last = facts.parts
    parts = (*before, replace(last, facts=replace(last.facts, stopped=facts.stopped)))
    answers = [(part, judge(part.facts)) for part in parts]
    # A log whose last run is cut is not a pass.
    whole = next((row for row in reversed(answers) if row[1].rule != INCOMPLETE), answers[-1])
    chosen, answer = answers[-1] if whole[1].verdict is TriageVerdict.PASS else whole
    others = tuple(
        RunOutcome(part.number, part.begins, part.ends, other.verdict, other.stage, other.cause, other.line)
        for part, other in answers
        if part is not chosen
    )
    return replace(answer, run=chosen.number, others=others)


def judged_facts(facts: LogFacts, answer: Triage) -> LogFacts:
    """The facts of the run that the answer is about."""
    return next((part.facts for part in facts.parts if part.number == answer.run), facts)


NEAR_LINES = 400
RUNBOOK = "docs/triage.md"
# What criteria of a run folder judge themselves: by the band of the probe, and a level 5 by its learning signal.
# What was asked for is known there from the job, phase by phase.
_ASKED = frozenset({silent.other_checkout, silent.not_as_asked})
_OF_CRITERIA = _ASKED | {silent.agreement_low, silent.agreement_unknown, silent.constant_reward}
_OF_SIGNAL = frozenset({silent.no_rate, silent.no_advantage})
# Read from one step each: what is not finite there is not finite in the steps after it, under other names too.
_OF_A_STEP = frozenset({silent.metrics_not_finite, silent.agreement_unknown})
_OF_RUN = tuple(rule for rule in RULES if rule.fact not in _OF_CRITERIA)
_OF_SIGNAL_RUN = tuple(rule for rule in _OF_RUN if rule.fact not in _OF_SIGNAL)

TRUNCATED = "the compressed log is truncated, so only what could be unpacked was judged"
_FIXES = {
    COMPLETED: "",
    INCOMPLETE: "Find out why the run stopped (time limit, hang, cut log), then rerun.",
    FORMAT: "Give the log as the program printed it, without what a viewer or an export put around its lines.",
    UNEXPLAINED: "Read the traceback at that line; inconclusive until someone has.",
    OTHER_TRAINER: "Give the log of an RL run: another trainer tests neither rollout nor weight sync.",
    OTHER_BACKEND: "Run the job with strategy=megatron; a run of another backend says nothing about the change.",
}


def triage(facts: LogFacts, rules: Sequence[TriageRule] = RULES) -> Triage:
    """Judge a log by the furthest stage reached and whose fault its root exception is.

    Never `pass` without the requested steps, their metrics, and an explanation for every error. Of several runs in
    one log the last whole one is the answer.
    """
    return _of_truncated(judge_runs(facts, lambda run: _triage_run(run, rules)), facts)


def triage_of_run(facts: LogFacts, *, learning_signal: bool = False, stopped: bool = False) -> Triage:
    """Triage of a log in a run folder: all its runs are phases of one job, so an error of any of them counts.

    What its criteria judge better is left to them: agreement of trainer and rollout to the probe's own band, and what
    stood still to the `learning_signal` where the run is one for it. Of a run that its recorder `stopped`, what the
    run had survived until then is not the cause, and its exit status is on record.
    """
    hints = tuple(hint for hint in facts.hints if hint.kind != EXIT_STATUS)
    facts = replace(facts, stopped=stopped, hints=hints)
    return _of_truncated(_triage_run(facts, _OF_SIGNAL_RUN if learning_signal else _OF_RUN), facts)


def _triage_run(facts: LogFacts, rules: Sequence[TriageRule]) -> Triage:
    ranked, noise = weigh(facts)
    other = other_trainer(facts)
    root = next((candidate for candidate in ranked if candidate.decides), None)
    fault = _silent_fault(facts, rules) if other is None else None
    if fault is not None and (
        root is None
        # Neither a pass nor an error of another run than the one asked for says anything.
        or fault.rule.fact in _ASKED
        or fault.at.line <= root.error.at.line
        or root.standing in (CandidateStanding.ECHO, CandidateStanding.CUT)
    ):
        code, backend = fault.rule.fault is Fault.CODE, other_backend(facts)
        rule = None if code and backend else fault.rule
        name = OTHER_BACKEND if rule is None else rule.id
        verdict = TriageVerdict.FAIL if code and not backend else TriageVerdict.BLOCKED
        cause, at = f"{fault.cause}{trained_with(backend)}", fault.at
        return Triage(verdict, fault.stage, cause, at.line, at.text, noise, name, fix_of(name, rule))
    if root is None and facts.completed_at is None:
        root = next((candidate for candidate in ranked if candidate.standing is CandidateStanding.WARNING), None)
    if root is None and facts.completed_at is not None:
        root = next((candidate for candidate in ranked if candidate.standing is CandidateStanding.SURVIVED), None)
    if root is not None:
        return _judge_error(root.error, facts, noise, rules)
    if facts.misread is not None and (facts.completed_at is None or (facts.misread.headers and facts.misread.frames)):
        # A whole traceback may stand in lines that were not understood.
        return _blocked(
            facts, noise, "this format is not understood: known lines begin behind other text", facts.misread.at, FORMAT
        )
    if other is not None:
        return _blocked(facts, noise, other[1], other[0], OTHER_TRAINER)
    end, bar = facts.completed_at, facts.progress
    if end is None:
        how_far = f"at {found}" if (found := furthest(facts)) else f"in {facts.stood}"
        begun = facts.stood is not None or facts.stages
        cause = f"incomplete: the log ends {how_far} without an error" if begun else "no sign of a verl run in this log"
        return _blocked(facts, noise, cause, facts.last)
    if missing := missing_metrics(facts):
        return _blocked(facts, noise, missing, end)
    return Triage(
        verdict=TriageVerdict.PASS,
        stage=Stage.SHUTDOWN if noise or (bar is not None and bar.done >= bar.total) else Stage.TRAIN_STEP,
        cause=f"the requested steps completed, and nothing is left unexplained{trained_with(other_backend(facts))}",
        line=end.line,
        excerpt=end.text,
        residual_noise=noise,
        rule=COMPLETED,
        fix="",
    )


def weigh(facts: LogFacts) -> tuple[tuple[Candidate, ...], tuple[Noise, ...]]:
    """The candidates for the root cause, the likeliest first, and what is only noise."""
    explained, noise = explain_noise(facts)
    every = (*(error for error in facts.errors if error not in explained), *facts.hints)
    return candidates(every, facts), noise


def rule_of(error: LoggedError, rules: Sequence[TriageRule] = RULES) -> TriageRule | None:
    """The first rule that explains an error."""
    origin = error_origin(error)
    return next((rule for rule in rules if rule.matches(error, origin)), None)


def stage_of(error: LoggedError, rules: Sequence[TriageRule] = RULES, facts: LogFacts | None = None) -> Stage:
    """Where an error happened: what its frames say, else where the run stood.

    Ray prints a line that several workers share only once, so the frames of one traceback may stand under several
    workers: the other cut tracebacks of the same kind of process close by are asked too.
    """
    torn = (
        [other for other in facts.errors if other.actor == error.actor and not other.kind] if facts is not None else []
    )
    near = [other for other in torn if error.actor and abs(other.at.line - error.at.line) <= NEAR_LINES]
    for calls in (error.calls, *(other.calls for other in near)):
        rule = next((rule for rule in rules if rule.places and rule.may_stand(error) and rule.locates(calls)), None)
        if rule is not None and rule.stage is not None:
            return rule.stage
    return error.stage


def triage_json(file: str, triaged: Triage) -> dict[str, object]:
    """The line of `verl-e2e triage`: exactly the keys that its documentation promises."""
    return {
        "file": file,
        "verdict": triaged.verdict,
        "stage": triaged.stage,
        "cause": triaged.cause,
        "line": triaged.line,
        "excerpt": triaged.excerpt,
        "residual_noise": [
            {"name": noise.name, "line": noise.at.line, "count": noise.count} for noise in triaged.residual_noise
        ],
        "frame": None if triaged.frame is None else asdict(triaged.frame),
        "message": triaged.message,
        "run": triaged.run,
        "other_runs": [asdict(run) for run in triaged.others],
    }


@dataclass(frozen=True, slots=True)
class _SilentFault:
    """The rule of a fault that raises nothing, where it happened, the line that shows it, and the cause in words."""

    rule: TriageRule
    stage: Stage
    at: Excerpt
    cause: str


def _silent_fault(facts: LogFacts, rules: Sequence[TriageRule]) -> _SilentFault | None:
    """The first fault of the table that the facts show; of those read from one step, that of the earliest step."""
    found = (
        _SilentFault(rule, rule.stage or seen[0], seen[1], seen[2] or rule.cause)
        for rule in rules
        if rule.fact is not None and (seen := rule.fact(facts)) is not None
    )
    first = next(found, None)
    if first is None or first.rule.fact not in _OF_A_STEP:
        return first
    return min((first, *(fault for fault in found if fault.rule.fact in _OF_A_STEP)), key=lambda fault: fault.at.line)


def _judge_error(error: LoggedError, facts: LogFacts, noise: tuple[Noise, ...], rules: Sequence[TriageRule]) -> Triage:
    rule = rule_of(error, rules)
    stage = stage_of(error, rules, facts) if rule is None or rule.stage is None else rule.stage
    stage = outer_stage(stage, error)
    if error.after_completion and rule is None:
        stage = Stage.SHUTDOWN
    backend = other_backend(facts, error.calls)
    stage = stage_with(stage, backend)
    code, begun = rule is not None and rule.fault is Fault.CODE, stage.order >= Stage.BRIDGE_PROVIDER.order
    # Words and checkpoints tell of the run itself, whoever built the model.
    whatever_trains = rule is not None and not rule.places and bool(rule.message)
    whatever_trains = whatever_trains or stage in (Stage.CHECKPOINT_SAVE, Stage.CHECKPOINT_LOAD)
    elsewhere = bool(backend) and code and not whatever_trains
    # A bare line is too little to blame someone by.
    blames = rule is not None and (rule.fault is Fault.TREES or (code and begun))
    fails = blames and not elsewhere and not error.soft
    cause = "an error that no rule explains" if rule is None else rule.cause
    marks = (mark.stage for mark in facts.stages if mark.stage.order >= Stage.BRIDGE_PROVIDER.order)
    last = max((mark for mark in marks if mark is not stage), key=lambda mark: mark.order, default=None)
    reached = None if fails or last is Stage.SHUTDOWN else last
    beyond = "" if reached is None else f"; construction had reached {reached}"
    name = UNEXPLAINED if rule is None else rule.id
    if elsewhere:
        name, rule = OTHER_BACKEND, None
    may_be_the_changes = rule is None or code or rule.undecided
    return Triage(
        verdict=TriageVerdict.FAIL if fails else TriageVerdict.BLOCKED,
        stage=stage,
        cause=f"{cause}: {shown_error(error)}{beyond}{trained_with(backend)}",
        reached=reached,
        line=error.at.line,
        excerpt=error.at.text,
        residual_noise=noise,
        rule=name,
        fix=fix_of(name, rule),
        frame=error.frame,
        message=error.full_message,
        undecided=not fails and not backend and may_be_the_changes and involves_trees(error),
    )


def fix_of(name: str, rule: TriageRule | None = None) -> str:
    """What to do about a cause, in a sentence, with its section of the runbook."""
    fix = _FIXES[name] if rule is None else rule.fix
    return f"{fix} See {RUNBOOK}#{name}." if fix else ""


def shown_error(error: LoggedError) -> str:
    """An error in at most 160 characters; of the report of a death its reason."""
    reason = error.full_message.partition("is dead because ")[2] if death_reason(error) is not None else ""
    message = " ".join(reason.split()) or error.message
    text = f"{error.kind}: {message}" if message and error.kind else message or error.kind
    return text if len(text) <= 160 else text[:157] + "..."


def _of_truncated(answer: Triage, facts: LogFacts) -> Triage:
    """The answer about a log whose end could not be unpacked: it says so, and a half line completes nothing."""
    if not facts.truncated:
        return answer
    proofs = (facts.completed_at, facts.progress.at if facts.progress else None, facts.last_step)
    if answer.verdict is TriageVerdict.PASS and facts.cut_line:
        at = next((proof for proof in proofs if proof is not None and proof.line >= facts.line_count), None)
        if at is not None:
            cause = "the line that shows the completion is cut"
            cut = _blocked(facts, answer.residual_noise, cause, facts.last)
            answer = replace(cut, run=answer.run, others=answer.others)
    return replace(answer, cause=f"{answer.cause}; {TRUNCATED}")


def _blocked(
    facts: LogFacts, noise: tuple[Noise, ...], cause: str, at: Excerpt | None, rule: str = INCOMPLETE
) -> Triage:
    return Triage(
        verdict=TriageVerdict.BLOCKED,
        stage=facts.stood or Stage.ENVIRONMENT,
        cause=cause,
        line=0 if at is None else at.line,
        excerpt="" if at is None else at.text,
        residual_noise=noise,
        rule=rule,
        fix=fix_of(rule),
    )
