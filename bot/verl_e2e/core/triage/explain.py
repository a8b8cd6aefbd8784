"""How triage came to its answer: the phase timeline, the candidates for the root cause, and the rule that decided."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.stages import Stage
from verl_e2e.core.triage.answer import (
    COMPLETED,
    FORMAT,
    INCOMPLETE,
    OTHER_BACKEND,
    OTHER_TRAINER,
    UNEXPLAINED,
    Triage,
)
from verl_e2e.core.triage.candidates import Candidate
from verl_e2e.core.triage.report import outcome_text, printable
from verl_e2e.core.triage.rules import Fault, Rule
from verl_e2e.core.triage.several import judged_facts
from verl_e2e.core.triage.table import RULES
from verl_e2e.core.triage.timeline import Phase, timeline
from verl_e2e.core.triage.triage import rule_of, shown, stage_of, triage, triage_json, weigh

SHOWN_CANDIDATES = 20
TEXT_CAP = 100


@dataclass(frozen=True, slots=True)
class Weighed:
    """A candidate as it is shown: what it is, why it stands there, what would explain it; `chosen` is the root."""

    line: int
    error: str
    state: str
    stage: Stage
    rule: str
    count: int
    chosen: bool


@dataclass(frozen=True, slots=True)
class Explained:
    """An answer with how it came about; `decided` is one sentence, `runs` how many runs the log holds."""

    answer: Triage
    phases: tuple[Phase, ...]
    candidates: tuple[Weighed, ...]
    decided: str
    runs: int


def explain(facts: LogFacts, events: Mapping[Stage, float] | None = None) -> Explained:
    """Triage a log and tell why; `events` are seconds by stage, where the run recorded them."""
    answer = triage(facts)
    run = judged_facts(facts, answer)
    ranked, _ = weigh(run)
    candidates = tuple(_weighed(chosen_test, run, answer) for chosen_test in ranked)
    return Explained(answer, timeline(run, events), candidates, _decided(answer), facts.runs)


def _weighed(candidate: Candidate, facts: LogFacts, answer: Triage) -> Weighed:
    rule = rule_of(candidate.error)
    stage = rule.stage if rule is not None and rule.stage is not None else stage_of(candidate.error, facts=facts)
    name = UNEXPLAINED if rule is None else rule.id
    chosen = (candidate.error.at.line, name) == (answer.line, answer.rule)
    return Weighed(
        candidate.error.at.line, shown(candidate.error), candidate.standing, stage, name, candidate.error.count, chosen
    )


def _decided(answer: Triage) -> str:
    rule = next((rule for rule in RULES if rule.id == answer.rule), None)
    if rule is not None and rule.fact is None and rule.fault is not Fault.CODE:
        return f"rule {rule.id}: {_WHOSE[rule.fault]}, {rule.outcome}"
    said = _OTHERWISE[answer.rule] if rule is None else f"rule {rule.id}: {_why(rule, answer)}"
    return f"{said}: {answer.verdict.capitalize()}"


_WHOSE = {Fault.OUTSIDE: "a fault outside of the change", Fault.TREES: "a fault in the source under test"}


def _why(rule: Rule, answer: Triage) -> str:
    if rule.fact is not None:
        return "nothing was raised, but a fact of the log shows the fault"
    begun = "had begun" if answer.stage.order >= Stage.BRIDGE_PROVIDER.order else "had not begun"
    return f"the stage decides; construction of the model {begun} at {answer.stage}"


_OTHERWISE = {
    COMPLETED: "the last requested step and its metrics are there, and every error is explained",
    INCOMPLETE: "no error ended the run, and the requested steps are not there",
    UNEXPLAINED: "no rule explains the error",
    FORMAT: "what stands around the lines is not understood",
    OTHER_TRAINER: "another trainer finished, so what is tested here did not run",
    OTHER_BACKEND: "the run trained without what is tested here",
}


def explain_text(file: str, message: Explained) -> str:
    """What a person reads; ends without a newline."""
    return "\n".join(printable(line) for line in _lines(file, message))


def _lines(file: str, message: Explained) -> Iterable[str]:
    answer = message.answer
    yield f"{file}: {answer.verdict} in {answer.stage}"
    yield f"  {answer.cause}"
    yield f"  line {answer.line}: {_cut(answer.excerpt)}"
    more = f" of run {answer.run} of {message.runs}" if message.runs > 1 else ""
    yield f"Phases{more} (line, seconds, stage, what proves it):" if message.phases else "Phases: none is proven"
    yield from (
        f"  {phase.at.line:>7} {_clock(phase)} {phase.stage:<19} {_cut(phase.at.text)}" for phase in message.phases
    )
    yield "Candidates for the root cause, as they were weighed:" if message.candidates else "Candidates: no error"
    yield from (_candidate(candidate) for candidate in message.candidates[:SHOWN_CANDIDATES])
    left = len(message.candidates) - SHOWN_CANDIDATES
    yield from [f"    and {left} more"] if left > 0 else []
    yield from (
        f"Residual noise: {noise.name}, line {noise.at.line}, {noise.count}x" for noise in answer.residual_noise
    )
    yield from (f"Run {run.run}, lines {run.begins}-{run.ends}: {outcome_text(run)}" for run in answer.others)
    yield f"Decided by {message.decided}"
    yield from [f"What to do: {answer.fix}"] if answer.fix else []


def _candidate(weighed: Weighed) -> str:
    times = f", {weighed.count}x" if weighed.count > 1 else ""
    mark = ">" if weighed.chosen else " "
    where = f"{weighed.stage}, rule {weighed.rule}"
    return f"{mark} {weighed.line:>7}  {_cut(weighed.error)} [{weighed.state}{times}; {where}]"


def _clock(phase: Phase) -> str:
    return " " * 8 + "-" if phase.seconds is None else f"{phase.seconds:9.1f}"


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CAP else text[: TEXT_CAP - 3] + "..."


def explain_json(file: str, message: Explained) -> dict[str, object]:
    """The line of `triage --explain --json`: the keys of `triage`, and how the answer came about."""
    answer = message.answer
    return {
        **triage_json(file, answer),
        "schema": 2,
        "rule": answer.rule,
        "decided": message.decided,
        "fix": answer.fix,
        "runs": message.runs,
        "phases": [
            {"stage": phase.stage, "line": phase.at.line, "seconds": phase.seconds, "proof": phase.at.text}
            for phase in message.phases
        ],
        "candidates": [asdict(candidate) for candidate in message.candidates],
    }
