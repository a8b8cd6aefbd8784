"""The verdict of one job: Pass, Fail or Blocked, with its limitations, deliverables and rows of evidence.

What a verdict does not prove, derived from the job, the resolved configuration and the evidence.

The five deliverables of a job; each of them is always listed.

The rows of a card's evidence that say what was run, on what, and by which command.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from verl_e2e.core.judge import wording
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.basic import ACTOR
from verl_e2e.core.judge.criteria.health import agreement_note, execution
from verl_e2e.core.judge.criteria.parity import reports
from verl_e2e.core.judge.criteria.signal import case_figure, signal_limitations
from verl_e2e.core.judge.criteria.table import CRITERIA, ROWS, Criterion, asked_of, state_limitations
from verl_e2e.core.judge.criteria.transfer import without_needless_warnings
from verl_e2e.core.judge.decide import blocking, decide, decide_run
from verl_e2e.core.judge.execution import aspect_of, execution_limitations
from verl_e2e.core.judge.related_runs import asks_for_base, fingerprint_of, related_rows, weigh
from verl_e2e.core.judge.verdict_document import Aspect, Limitation, Verdict
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import EVIDENCE_CAUSE, Decision, Deliverable, Outcome, Result, Stage, of_criterion
from verl_e2e.core.model.record import (
    ENVIRONMENT_FILE,
    JOB_FILE,
    STOPPED,
    EndReason,
    Environment,
    Finding,
    LeftRunning,
    Record,
    RepositoryState,
    read_data,
)
from verl_e2e.core.model.space import variants_of
from verl_e2e.core.triage.silent import constant_reward
from verl_e2e.core.triage.triage import Triage, TriageVerdict, triage_of_run

SIZES = {
    "tensor_model_parallel_size": Aspect.TENSOR,
    "pipeline_model_parallel_size": Aspect.PIPELINE,
    "context_parallel_size": Aspect.CONTEXT,
    "expert_model_parallel_size": Aspect.EXPERT,
}
_EAGER = "actor_rollout_ref.rollout.enforce_eager"
_SHOWN_FILES = 20


def limitations_of_case(case: Case, evidence: tuple[Evidence, ...]) -> tuple[Limitation, ...]:
    """All limitations of a verdict, the missing Bridge checks first, each once."""
    plain = (*_host(case), *_notes(case), *_end(case), *_noise(case))
    rows = [
        *_waived(case, evidence),
        *execution_limitations(execution(case)),
        *(Limitation(text) for text in (*_tests(case), *_trees(case))),
        *_checkpoint(case),
        *_shape(case),
        *(Limitation(text) for text in plain if text),
    ]
    by_text = {row.text: row for row in reversed(rows)}
    return tuple(by_text[text] for text in dict.fromkeys(row.text for row in rows))


def shown_by(case: Case, evidence: tuple[Evidence, ...]) -> tuple[str, ...]:
    """What a job that passed shows, and another job may not show."""
    met = {item.criterion for item in evidence if item.state is State.MET}
    chosen = case.job.checkpoint
    shown = {
        *(row.shows for row in CRITERIA if row.criterion in met),
        *([] if chosen.is_random else [Aspect.PRETRAINED]),
        *([Aspect.REWARD_MODEL] if case.job.reward_model else []),
        *([Aspect.CUDA_GRAPHS] if case.config_value(_EAGER) is False else []),
    }
    if case.job.level is Level.PARALLELISM:
        shown |= {aspect for size, aspect in SIZES.items() if _size(case, size) > 1}
    ran = execution(case)
    entered = map(aspect_of, ran.entered) if ran is not None else ()
    return (*(aspect for aspect in Aspect if aspect in shown), *entered)


def _size(case: Case, name: str) -> int:
    value = case.config_value(f"{ACTOR}.{name}")
    return value if isinstance(value, int) else 0


def _waived(case: Case, evidence: tuple[Evidence, ...]) -> Iterable[Limitation]:
    """The waived criteria; those on metrics only where a step was trained."""
    waived = [item for item in evidence if item.state is State.WAIVED]
    seen = [item for item in waived if item.criterion == Criterion.BRIDGE_TESTS or case.train_steps()]
    for item in sorted(seen, key=lambda item: item.criterion != Criterion.BRIDGE_TESTS):
        shows = ROWS[item.criterion].shows
        text = _with_full_stop(f"{item.summary[:1].upper()}{item.summary[1:]}")
        yield Limitation(text, () if shows is None else (shows,))


def _tests(case: Case) -> Iterable[str]:
    for item in case.job.site.deselected_tests:
        yield _with_full_stop(
            f"Focused Bridge test {item.test} is left out on site {case.job.site.name}: {item.reason}"
        )


def _trees(case: Case) -> Iterable[str]:
    environment = case.record.environment
    for state in environment.repositories if environment else ():
        if state.dirty:
            files = ", ".join(state.dirty[:_SHOWN_FILES])
            more = f" and {len(state.dirty) - _SHOWN_FILES} more" if len(state.dirty) > _SHOWN_FILES else ""
            yield f"{state.name} was tested with uncommitted changes: {files}{more}."


def _checkpoint(case: Case) -> Iterable[Limitation]:
    chosen = case.job.checkpoint
    if chosen.is_random:
        text = "Random weights: construction and training mechanics only, no compatibility of pretrained weights."
        yield Limitation(text, (Aspect.PRETRAINED,))
    if not case.job.reward_model:
        yield Limitation("Reward model disabled: reward-model serving is not exercised.", (Aspect.REWARD_MODEL,))


def _shape(case: Case) -> Iterable[Limitation]:
    if not case.facts.configs:
        return
    if case.config_value(_EAGER) is True:
        yield Limitation("enforce_eager is on: vLLM's CUDA graph capture is not exercised.", (Aspect.CUDA_GRAPHS,))
    if all(case.config_value(f"{ACTOR}.{size}") == 1 for size in SIZES):
        text = "All parallel sizes are 1: nothing is shown about tensor, pipeline, context or expert parallelism."
        yield Limitation(text, tuple(SIZES.values()))
    if case.config_value(f"{ACTOR}.expert_model_parallel_size") not in (None, 1):
        yield Limitation(
            "No line of a log names expert ranks, so the expert sizes are those of the run's own configuration."
        )
    if case.job.level is Level.MEGATRON_FSDP and case.job.gpu_count == 1:
        yield Limitation("Megatron-FSDP ran on one GPU: wrapped, but nothing was sharded.")
    if case.job.level is not Level.LEARNING_SIGNAL:
        steps = "One training step" if case.job.steps == 1 else f"{case.job.steps} training steps"
        yield Limitation(f"{steps}: no learning signal and no convergence is claimed.", (Aspect.LEARNING,))
    if case.job.level is not Level.SAVE_RESUME:
        yield Limitation("Save and resume are not exercised.", (Aspect.SAVE_RESUME,))


def _host(case: Case) -> Iterable[str]:
    yield from case.job.site.limitations
    for patch in case.job.patches:
        yield _with_full_stop(f"Declared patch {patch.name} in {patch.repository} ({patch.file}): {patch.reason}")
    environment = case.record.environment
    if environment and environment.hand_installed:
        yield f"Installed by hand: {', '.join(environment.hand_installed)}."


def _notes(case: Case) -> Iterable[str]:
    environment = case.record.environment
    for finding in environment.findings if environment else ():
        if not finding.ok and not finding.blocking:
            yield _with_full_stop(finding.summary)
    yield agreement_note(case)
    if case.job.level is not Level.LEARNING_SIGNAL and (constant := constant_reward(case.facts)):
        yield _with_full_stop(f"The reward never moves: {constant[2]}")
    yield from map(_with_full_stop, state_limitations(case))
    if case.job.level is Level.LEARNING_SIGNAL:
        yield from map(_with_full_stop, signal_limitations(case))


def _end(case: Case) -> Iterable[str]:
    for event in case.events("left_running"):
        left = read_data(event, LeftRunning)
        count = 1 if left is None else len(left.processes)
        if count:
            yield f"{count} process(es) of the run could not be ended and may hold its GPUs."
    if case.started:
        yield from (f"Missing from the folder: {item}." for item in case.record.missing)


def _with_full_stop(text: str) -> str:
    return f"{text.rstrip(' .')}."


def _noise(case: Case) -> Iterable[str]:
    for noise in case.triage.residual_noise:
        times = f", {noise.count} times" if noise.count > 1 else ""
        yield f"Residual log noise: {noise.name} (line {noise.at.line}{times})."


_OF_RESULT = {Result.PASS: Outcome.PASS, Result.FAIL: Outcome.FAIL, Result.BLOCKED: Outcome.BLOCKED}


def deliverables(
    case: Case, evidence: tuple[Evidence, ...], run: Decision, *, has_log: bool
) -> tuple[Deliverable, ...]:
    """All five, in the order of the card; `run` is the decision on the run by itself."""
    by = {item.criterion: item for item in evidence}
    return (
        _bridge_checks(case, by),
        _local_import(by),
        _backend_run(case, run),
        _variants(case, run, by),
        _log_capture(case, has_log=has_log),
    )


def of_unknown_job(detail: str, log: str, line_count: int | None) -> tuple[Deliverable, ...]:
    """The deliverables of a folder that names no job; `line_count` is None when it holds no log either."""
    names = (wording.BRIDGE_CHECKS, wording.LOCAL_IMPORT, wording.BACKEND_RUN, wording.VARIANTS)
    blocked = tuple(Deliverable(name, Outcome.BLOCKED, detail) for name in names)
    return (*blocked, _log(log, line_count))


def of_job_not_run(reason: str) -> tuple[Deliverable, ...]:
    """The deliverables of a planned job that never started."""
    names = (wording.BRIDGE_CHECKS, wording.LOCAL_IMPORT, wording.BACKEND_RUN, wording.VARIANTS, wording.LOG_CAPTURE)
    return tuple(Deliverable(name, Outcome.SKIPPED, f"not run: {reason}") for name in names)


def of_nothing_required(reason: str) -> tuple[Deliverable, ...]:
    """The deliverables of a change that needs no run."""
    names = (wording.BRIDGE_CHECKS, wording.LOCAL_IMPORT, wording.BACKEND_RUN, wording.VARIANTS, wording.LOG_CAPTURE)
    return tuple(Deliverable(name, Outcome.NOT_REQUESTED, reason) for name in names)


def with_contract(rows: tuple[Deliverable, ...], broken: tuple[str, ...]) -> tuple[Deliverable, ...]:
    """The deliverables with failed Bridge-side checks where the head breaks what verl uses."""
    if not broken:
        return rows
    failed = Deliverable(wording.BRIDGE_CHECKS, Outcome.FAIL, wording.contract_broken(broken))
    return tuple(failed if row.name == wording.BRIDGE_CHECKS else row for row in rows)


def _bridge_checks(case: Case, by: Mapping[str, Evidence]) -> Deliverable:
    item = by[Criterion.BRIDGE_TESTS]
    outcome = {
        State.MET: Outcome.PASS,
        State.BROKEN: Outcome.FAIL,
        State.MISSING: Outcome.BLOCKED,
        State.WAIVED: Outcome.SKIPPED,
    }[item.state]
    return Deliverable(wording.BRIDGE_CHECKS, outcome, wording.bridge_detail(case.job, item))


def _local_import(by: Mapping[str, Evidence]) -> Deliverable:
    item = by[Criterion.LOCAL_IMPORT]
    outcome = {State.MET: Outcome.PASS, State.BROKEN: Outcome.FAIL}.get(item.state, Outcome.BLOCKED)
    return Deliverable(wording.LOCAL_IMPORT, outcome, item.summary)


def _backend_run(case: Case, run: Decision) -> Deliverable:
    return Deliverable(wording.BACKEND_RUN, *_outcome_of_run(case, run))


def _variants(case: Case, run: Decision, by: Mapping[str, Evidence]) -> Deliverable:
    plain = case.job.level is Level.SMOKE and case.job.variant == variants_of(Level.SMOKE)[0].name
    if plain:
        return Deliverable(wording.VARIANTS, Outcome.NOT_REQUESTED, wording.NO_VARIANT)
    outcome, _ = _outcome_of_run(case, run)
    quoted = next((row.criterion for row in CRITERIA if row.quoted and row.level is case.job.level), None)
    shown = by.get(quoted) if quoted is not None else None
    text = shown.summary if shown and shown.state is State.MET else ""
    return Deliverable(wording.VARIANTS, outcome, wording.variant_detail(case.job, text))


def _outcome_of_run(case: Case, run: Decision) -> tuple[Outcome, str]:
    if case.ended_by(EndReason.NOT_STARTED) and not blocking(case.record) and not _is_wrong_import(run):
        return Outcome.SKIPPED, wording.backend_detail(case.job, wording.NEVER_STARTED)
    return _OF_RESULT[run.result], wording.backend_detail(case.job, run.cause)


def _is_wrong_import(run: Decision) -> bool:
    return run.at is not None and run.at.criterion == Criterion.LOCAL_IMPORT and run.at.state is State.BROKEN


def _log_capture(case: Case, *, has_log: bool) -> Deliverable:
    if case.ended_by(EndReason.NOT_STARTED) and not case.facts.line_count:
        return Deliverable(wording.LOG_CAPTURE, Outcome.SKIPPED, wording.NEVER_STARTED)
    return _log(case.log, case.facts.line_count if has_log else None)


def _log(name: str, line_count: int | None) -> Deliverable:
    if line_count is None:
        return Deliverable(wording.LOG_CAPTURE, Outcome.FAIL, wording.NO_LOG)
    outcome = Outcome.PASS if line_count else Outcome.FAIL
    return Deliverable(wording.LOG_CAPTURE, outcome, wording.log_detail(name, line_count))


_SHOWN_ID = 12
# The packages of the image on which a result depends most.
_SHOWN_PACKAGES = ("torch", "vllm", "sglang", "ray", "transformers", "transformer-engine", "nvidia-modelopt", "triton")
_REPOSITORY = {"bridge": "Bridge repo", "verl": "verl repo", "megatron_lm": "Megatron-LM"}


def origin_rows(record: Record) -> tuple[str, ...]:
    """All rows about what was run: the repositories, the host, and our instrumentation."""
    return (*repository_rows(record), *host_rows(record), *instrumentation_rows(record))


def repository_rows(record: Record) -> tuple[str, ...]:
    """`Bridge repo: <commit> plus dirty files` and its like; what the job asked for where no tree was recorded."""
    states = {state.name: state for state in record.environment.repositories} if record.environment else {}
    asked = {"bridge": record.job.bridge.commit, "verl": record.job.verl.commit} if record.job else {}
    rows = []
    for name, title in _REPOSITORY.items():
        if name in states:
            rows.append(f"{title}: {_state(states[name])}")
        elif name != "megatron_lm":
            commit = f"{asked[name]} asked for" if name in asked else "unknown"
            rows.append(f"{title}: {commit}, the tree and its dirty files are not recorded")
    return tuple(rows)


def _state(state: RepositoryState) -> str:
    dirty = f"dirty files: {', '.join(state.dirty)}" if state.dirty else "no dirty files"
    patches = f"; declared patches: {', '.join(state.patches)}" if state.patches else ""
    return f"{state.commit} plus {dirty}{patches}"


def host_rows(record: Record) -> tuple[str, ...]:
    """What the run ran on and what was installed by hand, or nothing when nothing is recorded."""
    environment = record.environment
    if environment is None:
        return ()
    names = Counter(gpu.name for gpu in environment.gpus)
    parts = [f"{count} x {name}" for name, count in sorted(names.items())]
    parts += [*_container(environment), *([f"site {environment.site}"] if environment.site else [])]
    rows = [f"Host: {', '.join(parts)}"] if parts else []
    versions = [f"{name} {environment.packages[name]}" for name in _SHOWN_PACKAGES if name in environment.packages]
    if versions:
        rows.append(f"Packages: {', '.join(versions)}")
    if environment.hand_installed:
        by_hand = (f"{name} {environment.packages.get(name, '')}".strip() for name in environment.hand_installed)
        rows.append(f"Installed by hand: {', '.join(by_hand)}")
    if environment.kernel_caches is not None:
        rows.append(f"Kernel caches: {environment.kernel_caches.text}")
    return tuple(rows)


def instrumentation_rows(record: Record) -> tuple[str, ...]:
    """What of ours ran inside the processes of the run, so that no one takes it for a part of verl or Bridge."""
    parts = []
    if record.executed is not None and record.executed.processes:
        parts.append(f"execution record ({_counted(len(record.executed.processes), 'process', 'processes')})")
    if record.fingerprints is not None:
        wrapped = {hook.target for hook in record.fingerprints.hooks if hook.installed}
        taken = _counted(len(record.fingerprints.snapshots), "snapshot", "snapshots")
        parts.append(f"state fingerprints ({_counted(len(wrapped), 'hook', 'hooks')}, {taken})")
    return (f"Instrumentation: {', '.join(parts)}",) if parts else ()


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _container(environment: Environment) -> tuple[str, ...]:
    """What is known of the container and its image; what is not is said to be not recorded."""
    found = environment.container
    if found is None:
        return ("image not recorded",)
    engine = f" ({found.engine})" if found.engine else ""
    container = f"container {found.id[:_SHOWN_ID]}{engine}" if found.id else f"container not recorded{engine}"
    digest = found.digests[0] if found.digests else ""
    if not found.image and not digest:
        asked = f", {found.asked} was asked for" if found.asked else ""
        return container, f"image not recorded{asked}"
    named = found.image if not digest or digest in found.image else f"{found.image}@{digest}".lstrip("@")
    missing = "" if digest else ", its digest not recorded"
    return container, f"image {named}{missing} (by {found.image_from})"


def command_row(record: Record, *, started: bool) -> str:
    """The exact command as one shell line, with the variables that were set for it, or what it would have been."""
    if record.environment and record.environment.command:
        never = "" if started else " (never started)"
        variables = [f"{name}={value}" for name, value in sorted(record.environment.process.items())]
        words = [*(["env", *variables] if variables else []), *record.environment.command]
        return f"{shlex.join(words)}{never}"
    if record.job is None:
        return "unknown"
    return f"bash {record.job.script} ({'exact arguments not recorded' if started else 'never started'})"


__all__ = ["Deliverable", "Outcome", "Result", "Verdict", "judge"]

_NO_LOG = Triage(TriageVerdict.BLOCKED, Stage.ENVIRONMENT, wording.NO_LOG, 0, "", (), "", "")


def judge(record: Record, facts: LogFacts | None) -> Verdict:
    """Judge a run folder. `facts` is None when it holds no log."""
    if record.job is None:
        return _without_job(record, facts)
    signal = record.job.level is Level.LEARNING_SIGNAL
    case = without_needless_warnings(Case(record.job, record, facts or LogFacts(0), _NO_LOG))
    if facts is not None:
        stopped = any(ended.end_reason in STOPPED for ended in case.ends())
        case = replace(case, triage=triage_of_run(case.facts, learning_signal=signal, stopped=stopped))
    return judge_case(case, has_log=facts is not None)


def judge_case(case: Case, *, has_log: bool = True) -> Verdict:
    """The verdict on a case whose log is already triaged."""
    evidence = judge_criteria(case)
    alone = decide(case, evidence)
    decision = weigh(case, alone)
    open_ends = limitations_of_case(case, evidence)
    return Verdict(
        job_id=case.job.id,
        result=decision.result,
        stage=decision.stage,
        cause=decision.cause,
        sentence=_sentence(case, decision),
        coverage=wording.coverage(case.job),
        checkpoint=wording.checkpoint(case.job),
        deliverables=deliverables(case, evidence, weigh(case, decide_run(case, evidence)), has_log=has_log),
        evidence=evidence,
        repositories=origin_rows(case.record),
        command=command_row(case.record, started=case.started),
        key_lines=_key_lines(case, evidence, decision),
        limitations=tuple(limitation.text for limitation in open_ends),
        followups=_followups(case, evidence, decision),
        related=related_rows(case),
        own_result=alone.result,
        fingerprint=fingerprint_of(case, alone),
        reports=reports(case),
        figure=case_figure(case),
        calls=_calls(case, alone),
        left_open=tuple(limitation.aspects for limitation in open_ends),
        shows=shown_by(case, evidence) if decision.result is Result.PASS else (),
        decided_by=alone.at.criterion if alone.at is not None else None,
        execution=execution(case),
        undecided=alone.undecided,
        causes=_causes(decision),
        recurrence=decision.recurrence,
    )


def _causes(decision: Decision) -> tuple[str, ...]:
    at = decision.at
    return decision.causes or (() if at is None else (of_criterion(at.criterion),))


def judge_criteria(case: Case) -> tuple[Evidence, ...]:
    """Every criterion that the job's level, settings and change ask for, judged, in the order of the table."""
    rows = tuple(row.find(case).evidence for row in asked_of(case))
    return tuple(disagreement(row, rows) if row.criterion == Criterion.ROLLOUT_AGREEMENT else row for row in rows)


def disagreement(found: Evidence, state: Iterable[Evidence]) -> Evidence:
    """The evidence of `rollout_agreement` with what the fingerprints say of the weights, where the two disagree."""
    if found.state is not State.BROKEN:
        return found
    met = {item.criterion for item in state if item.state is State.MET}
    text = "they do not hold the same weights, or compute something else with them"
    if Criterion.ROLLOUT_WEIGHTS in met:
        text = "what was compared arrived as it was exported, so the export or what the two compute is wrong"
    if {Criterion.ROLLOUT_WEIGHTS, Criterion.IMPORTED_WEIGHTS} <= met:
        text = "the weights that were compared are the same in both, so the rest or what is computed with them differs"
    return replace(found, summary=f"{found.summary}: {text}")


def _sentence(case: Case, decision: Decision) -> str:
    stage = decision.stage or Stage.ENVIRONMENT
    if decision.result is Result.PASS:
        return wording.passed(case.job, _bridge(case.record))
    if decision.result is Result.FAIL:
        tests = decision.at is not None and decision.at.criterion == Criterion.BRIDGE_TESTS
        return wording.failed(case.job, wording.FOCUSED_TESTS if tests else stage, decision)
    if decision.at is not None and decision.at.criterion == Criterion.CHANGE_EXECUTED:
        return wording.unexecuted(case.job, decision.cause)
    by_triage = decision.at is not None and decision.at.criterion == Criterion.NO_EXCEPTION
    says_it = by_triage and case.triage.reached is not None
    return wording.blocked(case.job, stage, decision.cause, None if says_it else _construction(case.facts))


def _calls(case: Case, decision: Decision) -> tuple[str, ...]:
    """The frames of the logged error that decided; none where something else did."""
    at = decision.at
    return next((error.calls for error in case.facts.errors if at is not None and error.at.line == at.line), ())


def _bridge(record: Record) -> RepositoryState:
    """The Bridge tree of a proven run."""
    assert record.environment is not None
    return next(state for state in record.environment.repositories if state.name == "bridge")


def _construction(facts: LogFacts) -> Stage | None:
    """How far Bridge-managed construction and training got, None when they never began."""
    first, last = Stage.BRIDGE_PROVIDER.order, Stage.TRAIN_STEP.order
    stages = [mark.stage for mark in facts.stages if first <= mark.stage.order <= last]
    return max(stages, key=lambda stage: stage.order, default=None)


def _key_lines(case: Case, evidence: tuple[Evidence, ...], decision: Decision) -> tuple[Evidence, ...]:
    met = [item for item in evidence if ROWS[item.criterion].key and item.state is State.MET and item.excerpt]
    if decision.result is Result.PASS:
        return tuple(met)
    config = [item for item in met if item.criterion == Criterion.RESOLVED_CONFIG]
    at = [decision.at] if decision.at and decision.at.excerpt else []
    curves = [item for item in evidence if item.criterion == Criterion.LEARNING_SIGNAL and item.excerpt]
    at += [item for item in curves if item is not decision.at]
    return (*config, *at, *(_finding(finding) for finding in blocking(case.record)))


def _finding(finding: Finding) -> Evidence:
    return Evidence(State.MISSING, finding.summary, ENVIRONMENT_FILE, 0, finding.summary, criterion=Criterion.EXIT_ZERO)


def _followups(case: Case, evidence: tuple[Evidence, ...], decision: Decision) -> tuple[str, ...]:
    rows = [decision.fix, *(wording.fix(finding.summary, finding.fix) for finding in blocking(case.record))]
    if asks_for_base(case, decision):
        rows.append(wording.RUN_MERGE_BASE)
    waived = any(item.criterion == Criterion.BRIDGE_TESTS and item.state is State.WAIVED for item in evidence)
    if waived and case.started:
        rows.append(wording.run_bridge_tests(case.job))
    return tuple(dict.fromkeys(row for row in rows if row))


def _without_job(record: Record, facts: LogFacts | None) -> Verdict:
    """A folder with no job file: whatever the log says, it is Blocked, and each missing item is named."""
    missing = record.missing or (f"{JOB_FILE}: not there",)
    cause = wording.missing_evidence(missing)
    answer = triage_of_run(facts) if facts else None
    return Verdict(
        job_id="unknown",
        result=Result.BLOCKED,
        stage=answer.stage if answer else Stage.ENVIRONMENT,
        cause=cause,
        sentence=wording.log_only(cause, answer),
        coverage=wording.UNKNOWN_JOB,
        checkpoint=wording.UNKNOWN_JOB,
        deliverables=of_unknown_job(wording.UNPROVEN, record.log, facts.line_count if facts else None),
        evidence=(),
        repositories=origin_rows(record),
        command=command_row(record, started=bool(facts and facts.line_count)),
        key_lines=(_triage_evidence(answer, record.log),) if answer and answer.excerpt else (),
        limitations=tuple(f"Missing from the folder: {item}." for item in missing),
        followups=(wording.FIX_EVIDENCE,),
        causes=(EVIDENCE_CAUSE,),
    )


def _triage_evidence(answer: Triage, log: str) -> Evidence:
    state = State.MET if answer.verdict is TriageVerdict.PASS else State.BROKEN
    return Evidence(state, answer.cause, log, answer.line, answer.excerpt, criterion=Criterion.NO_EXCEPTION)
