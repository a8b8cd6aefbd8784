"""The verdict of one job: Pass, Fail or Blocked, with its limitations, deliverables and rows of evidence."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from verl_e2e.core.consumer.consumer import ConfigKey
from verl_e2e.core.consumer.consumers import consumer_of, variants_of
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.judge import wording
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.invariants import CriterionFinding
from verl_e2e.core.judge.criteria.metrics import (
    agreement_note,
    case_figure,
    reports,
    samples_note,
    signal_limitations,
)
from verl_e2e.core.judge.criteria.table import CRITERIA, ROWS, Criterion, criteria_of, state_limitations
from verl_e2e.core.judge.criteria.transfer import without_needless_warnings
from verl_e2e.core.judge.decide import blocking, decide, decide_run
from verl_e2e.core.judge.execution import and_more, aspect_of, execution, execution_limitations
from verl_e2e.core.judge.related_runs import as_known, asks_for_base, fingerprint_of, related_rows, weigh_related
from verl_e2e.core.judge.verdict_document import Aspect, Limitation, Verdict
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.facts import Frame, LogFacts
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import EVIDENCE_CAUSE, Decision, Deliverable, Outcome, Result, Stage, of_criterion
from verl_e2e.core.model.record import (
    ENVIRONMENT_FILE,
    JOB_FILE,
    STOPPED,
    EndReason,
    Environment,
    LeftRunning,
    Record,
    read_data,
)
from verl_e2e.core.text.escape import count_of
from verl_e2e.core.triage.silent import constant_reward
from verl_e2e.core.triage.triage import Triage, TriageVerdict, triage_of_run

_SIZES = {
    "tensor_model_parallel_size": Aspect.TENSOR,
    "pipeline_model_parallel_size": Aspect.PIPELINE,
    "context_parallel_size": Aspect.CONTEXT,
    "expert_model_parallel_size": Aspect.EXPERT,
}
_SHOWN_FILES = 20
# The variant of level 0 that every plan has.
_SMOKE = variants_of(Level.SMOKE)[0].name


def limitations_of_case(case: Case, found: tuple[CriterionFinding, ...]) -> tuple[Limitation, ...]:
    """All limitations of a verdict, the missing Bridge checks first, each once."""
    waived = [item.evidence for item in found if item.evidence.state is State.WAIVED]
    rows = []
    for item in sorted(waived, key=lambda item: item.criterion != Criterion.BRIDGE_TESTS):
        # Of metrics only where a step was trained.
        if item.criterion == Criterion.BRIDGE_TESTS or case.train_steps():
            shows = ROWS[item.criterion].shows
            text = _with_full_stop(f"{item.summary[:1].upper()}{item.summary[1:]}")
            rows.append(Limitation(text, () if shows is None else (shows,)))
    rows += execution_limitations(execution(case))
    site = case.job.site
    for left_out in site.deselected_tests:
        text = f"Focused Bridge test {left_out.test} is left out on site {site.name}: {left_out.reason}"
        rows.append(Limitation(_with_full_stop(text)))
    environment = case.record.environment
    for state in environment.repositories if environment else ():
        if state.dirty:
            dirty = and_more(state.dirty, _SHOWN_FILES)
            rows.append(Limitation(f"{state.name} was tested with uncommitted changes: {dirty}."))
    rows += _of_job(case)
    rows += (Limitation(text) for text in _of_run(case, found) if text)
    by_text = {row.text: row for row in reversed(rows)}
    return tuple(by_text[text] for text in dict.fromkeys(row.text for row in rows))


def shown_by(case: Case, evidence: tuple[Evidence, ...]) -> tuple[str, ...]:
    """What a job that passed shows, and another job may not show."""
    met = {item.criterion for item in evidence if item.state is State.MET}
    chosen = case.job.checkpoint
    shown = {
        *(row.shows for row in CRITERIA if row.criterion in met),
        *([] if chosen.is_random else [Aspect.PRETRAINED]),
        *([Aspect.CUDA_GRAPHS] if case.config(ConfigKey.ROLLOUT_EAGER) is False else []),
    }
    if case.job.level is Level.PARALLELISM:
        sizes = {aspect: case.config_value(f"{consumer_of(case.job).policy}.{size}") for size, aspect in _SIZES.items()}
        shown |= {aspect for aspect, size in sizes.items() if isinstance(size, int) and size > 1}
    ran = execution(case)
    entered = map(aspect_of, ran.entered) if ran is not None else ()
    return (*(aspect for aspect in Aspect if aspect in shown), *entered)


def _of_job(case: Case) -> Iterator[Limitation]:
    """What follows from the job and its configuration."""
    job = case.job
    if job.checkpoint.is_random:
        text = "Random weights: construction and training mechanics only, no compatibility of pretrained weights."
        yield Limitation(text, (Aspect.PRETRAINED,))
    if not job.reward_model:
        yield Limitation("Reward model disabled: reward-model serving is not exercised.", (Aspect.REWARD_MODEL,))
    elif job.reward_model.is_random:
        yield Limitation("The reward model has random weights: that it is served and asked, and no meaning of a score.")
    if not case.facts.configs:
        return
    if case.config(ConfigKey.ROLLOUT_EAGER) is True:
        yield Limitation("enforce_eager is on: vLLM's CUDA graph capture is not exercised.", (Aspect.CUDA_GRAPHS,))
    if all(case.config_value(f"{consumer_of(case.job).policy}.{size}") == 1 for size in _SIZES):
        text = "All parallel sizes are 1: nothing is shown about tensor, pipeline, context or expert parallelism."
        yield Limitation(text, tuple(_SIZES.values()))
    if case.config_value(f"{consumer_of(case.job).policy}.expert_model_parallel_size") not in (None, 1):
        yield Limitation(
            "No line of a log names expert ranks, so the expert sizes are those of the run's own configuration."
        )
    if job.level is Level.MEGATRON_FSDP and job.gpu_count == 1:
        yield Limitation("Megatron-FSDP ran on one GPU: wrapped, but nothing was sharded.")
    if job.level is not Level.LEARNING_SIGNAL:
        steps = "One training step" if job.steps == 1 else f"{job.steps} training steps"
        yield Limitation(f"{steps}: no learning signal and no convergence is claimed.", (Aspect.LEARNING,))
    if job.level is not Level.SAVE_RESUME:
        yield Limitation("Save and resume are not exercised.", (Aspect.SAVE_RESUME,))


def _of_run(case: Case, found: tuple[CriterionFinding, ...]) -> Iterator[str]:
    """What follows from the site, and from what the run showed."""
    job, environment = case.job, case.record.environment
    yield from job.site.limitations
    for patch in job.patches:
        yield _with_full_stop(f"Declared patch {patch.name} in {patch.repository} ({patch.file}): {patch.reason}")
    if environment and environment.hand_installed:
        yield f"Installed by hand: {', '.join(environment.hand_installed)}."
    findings = environment.findings if environment else ()
    yield from (_with_full_stop(item.summary) for item in findings if not item.ok and not item.blocking)
    yield agreement_note(case)
    yield samples_note(case)
    learns = job.level is Level.LEARNING_SIGNAL
    if not learns and (constant := constant_reward(case.facts)):
        yield _with_full_stop(f"The reward never moves: {constant[2]}")
    yield from map(_with_full_stop, state_limitations(case, found))
    yield from map(_with_full_stop, signal_limitations(case) if learns else ())
    for event in case.events("left_running"):
        left = read_data(event, LeftRunning)
        count = 1 if left is None else len(left.processes)
        if count:
            yield f"{count} process(es) of the run could not be ended and may hold its GPUs."
    yield from (f"Missing from the folder: {item}." for item in case.record.missing if case.started)
    for noise in case.triage.residual_noise:
        times = f", {noise.count} times" if noise.count > 1 else ""
        yield f"Residual log noise: {noise.name} (line {noise.at.line}{times})."


def _with_full_stop(text: str) -> str:
    return f"{text.rstrip(' .')}."


_OF_RESULT = {Result.PASS: Outcome.PASS, Result.FAIL: Outcome.FAIL, Result.BLOCKED: Outcome.BLOCKED}
_OF_TESTS = {
    State.MET: Outcome.PASS,
    State.BROKEN: Outcome.FAIL,
    State.MISSING: Outcome.BLOCKED,
    State.WAIVED: Outcome.SKIPPED,
}


def _deliverables(
    case: Case, evidence: tuple[Evidence, ...], run: Decision, *, has_log: bool
) -> tuple[Deliverable, ...]:
    """All five, in the order of the card; `run` is the decision on the run by itself."""
    by = {item.criterion: item for item in evidence}
    tests, imported = by[Criterion.BRIDGE_TESTS], by[Criterion.LOCAL_IMPORT]
    outcome = {State.MET: Outcome.PASS, State.BROKEN: Outcome.FAIL}.get(imported.state, Outcome.BLOCKED)
    never_started = case.ended_by(EndReason.NOT_STARTED) is not None
    wrong_import = run.at is not None and (run.at.criterion, run.at.state) == (Criterion.LOCAL_IMPORT, State.BROKEN)
    ran, cause = _OF_RESULT[run.result], run.cause
    if never_started and not blocking(case.record) and not wrong_import:
        ran, cause = Outcome.SKIPPED, wording.NEVER_STARTED
    variants = Deliverable(wording.REQUESTED_VARIANTS, Outcome.NOT_REQUESTED, wording.NO_VARIANT)
    if case.job.level is not Level.SMOKE or case.job.variant != _SMOKE:
        # What was requested in addition to the default Level 0, and what shows it.
        quoted = [row.criterion for row in CRITERIA if row.quoted and row.level is case.job.level]
        shown = "; ".join(by[name].summary for name in quoted if by[name].state is State.MET)
        detail = f"{case.job.level.title} ({case.job.variant}){f': {shown}' if shown else ''}"
        variants = Deliverable(wording.REQUESTED_VARIANTS, ran, detail)
    title = consumer_of(case.job).title
    log = _log(case.log, case.facts.line_count if has_log else None)
    if never_started and not case.facts.line_count:
        log = Deliverable(wording.LOG_CAPTURE, Outcome.SKIPPED, wording.NEVER_STARTED)
    return (
        Deliverable(wording.BRIDGE_CHECKS, _OF_TESTS[tests.state], wording.bridge_detail(case.job, tests)),
        Deliverable(wording.IMPORT_IN.format(title), outcome, imported.summary),
        Deliverable(wording.RUN_OF.format(title), ran, wording.backend_detail(case.job, cause)),
        variants,
        log,
    )


def _log(name: str, line_count: int | None) -> Deliverable:
    detail = wording.NO_LOG if line_count is None else f"$OUT/{name} ({line_count:,} lines)"
    return Deliverable(wording.LOG_CAPTURE, Outcome.PASS if line_count else Outcome.FAIL, detail)


def of_no_run(title: str, outcome: Outcome, detail: str) -> tuple[Deliverable, ...]:
    """The deliverables where nothing ran; `title` is the consumer's."""
    of_consumer = wording.IMPORT_IN.format(title), wording.RUN_OF.format(title)
    names = (wording.BRIDGE_CHECKS, *of_consumer, wording.REQUESTED_VARIANTS, wording.LOG_CAPTURE)
    return tuple(Deliverable(name, outcome, detail) for name in names)


def with_contract(rows: tuple[Deliverable, ...], broken: tuple[str, ...], title: str) -> tuple[Deliverable, ...]:
    """The deliverables with failed Bridge-side checks where the head breaks what the consumer uses."""
    if not broken:
        return rows
    failed = Deliverable(wording.BRIDGE_CHECKS, Outcome.FAIL, wording.contract_broken(broken, title))
    return tuple(failed if row.name == wording.BRIDGE_CHECKS else row for row in rows)


_SHOWN_ID = 12
# The packages of the image on which a result depends most.
_SHOWN_PACKAGES = ("torch", "vllm", "sglang", "ray", "transformers", "transformer-engine", "nvidia-modelopt", "triton")


def _repository_rows(record: Record) -> Iterator[str]:
    """`Bridge repo: <commit> plus dirty files` and its like; what the job asked for where no tree was recorded."""
    trees = record.environment.repositories if record.environment else ()
    states = {str(state.name): state for state in trees}
    asked = {"bridge": record.job.bridge.commit, "verl": record.job.verl.commit} if record.job else {}
    consumer = consumer_of(record.job).title if record.job else VERL.title
    titles = {"bridge": "Bridge repo", "verl": f"{consumer} repo", "megatron_lm": "Megatron-LM"}
    for name, title in titles.items():
        state = states.get(name)
        if state is not None:
            dirty = f"dirty files: {', '.join(state.dirty)}" if state.dirty else "no dirty files"
            patches = f"; declared patches: {', '.join(state.patches)}" if state.patches else ""
            yield f"{title}: {state.commit} plus {dirty}{patches}"
        elif name != "megatron_lm":
            commit = f"{asked[name]} asked for" if name in asked else "unknown"
            yield f"{title}: {commit}, the tree and its dirty files are not recorded"


def host_rows(record: Record) -> tuple[str, ...]:
    """What the run ran on and what was installed by hand, or nothing when nothing is recorded."""
    environment = record.environment
    if environment is None:
        return ()
    names = Counter(gpu.name for gpu in environment.gpus)
    parts = [f"{count} x {name}" for name, count in sorted(names.items())]
    parts += [*_container(environment), *([f"site {environment.site}"] if environment.site else [])]
    rows = [f"Host: {', '.join(parts)}"]
    versions = [f"{name} {environment.packages[name]}" for name in _SHOWN_PACKAGES if name in environment.packages]
    if versions:
        rows.append(f"Packages: {', '.join(versions)}")
    if environment.hand_installed:
        by_hand = (f"{name} {environment.packages.get(name, '')}".strip() for name in environment.hand_installed)
        rows.append(f"Installed by hand: {', '.join(by_hand)}")
    if environment.kernel_caches is not None:
        rows.append(f"Kernel caches: {environment.kernel_caches.text}")
    return tuple(rows)


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


def instrumentation_rows(record: Record) -> tuple[str, ...]:
    """What of ours ran inside the processes of the run, so that no one takes it for a part of verl or Bridge."""
    parts = []
    if record.executed is not None and record.executed.processes:
        count = len(record.executed.processes)
        parts.append(f"execution record ({count} {'process' if count == 1 else 'processes'})")
    if record.fingerprints is not None:
        hooks = len({hook.target for hook in record.fingerprints.hooks if hook.installed})
        taken = count_of(len(record.fingerprints.snapshots), "snapshot")
        parts.append(f"state fingerprints ({count_of(hooks, 'hook')}, {taken})")
    return (f"Instrumentation: {', '.join(parts)}",) if parts else ()


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
    found = judge_criteria(case)
    evidence = tuple(item.evidence for item in found)
    alone = as_known(case, decide(case, found))
    decision, run = weigh_related(case, alone), as_known(case, decide_run(case, found))
    open_ends = limitations_of_case(case, found)
    at = alone.at
    causes = decision.causes or (() if decision.at is None else (of_criterion(decision.at.criterion),))
    # The logged error that decided; none where something else did.
    in_log = at is not None and at.file == case.log
    error = next((error for error in case.facts.errors if in_log and at and error.at.line == at.line), None)
    return Verdict(
        job_id=case.job.id,
        result=decision.result,
        stage=decision.stage,
        cause=decision.cause,
        sentence=_sentence(case, decision),
        coverage=wording.requested_coverage(case.job),
        checkpoint=wording.checkpoint(case.job),
        deliverables=_deliverables(case, evidence, weigh_related(case, run), has_log=has_log),
        evidence=evidence,
        repositories=(*_repository_rows(case.record), *host_rows(case.record), *instrumentation_rows(case.record)),
        command=command_row(case.record, started=case.started),
        key_lines=_key_lines(case, evidence, decision),
        limitations=tuple(limitation.text for limitation in open_ends),
        followups=_followups(case, evidence, decision),
        related=related_rows(case),
        own_result=alone.result,
        fingerprint=fingerprint_of(case, alone),
        reports=reports(case),
        figure=case_figure(case),
        calls=error.calls if error else (),
        frame=error.frame if error else _frame(case),
        steps=case.facts.steps,
        left_open=tuple(limitation.aspects for limitation in open_ends),
        shows=shown_by(case, evidence) if decision.result is Result.PASS else (),
        decided_by=at.criterion if at is not None else None,
        execution=execution(case),
        undecided=alone.undecided,
        causes=causes,
        recurrence=decision.recurrence,
        blame=decision.blame,
    )


def judge_criteria(case: Case) -> tuple[CriterionFinding, ...]:
    """Every criterion that the job's level, settings and change ask for, judged, in the order of the table."""
    found = tuple(row.find(case) for row in criteria_of(case))
    every = tuple(item.evidence for item in found)
    return tuple(replace(item, evidence=disagreement(item.evidence, every)) for item in found)


def disagreement(found: Evidence, state: Iterable[Evidence]) -> Evidence:
    """The evidence of `rollout_agreement` with what the fingerprints say of the weights, where the two disagree."""
    if found.criterion != Criterion.ROLLOUT_AGREEMENT or found.state is not State.BROKEN:
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
    by = decision.at.criterion if decision.at is not None else None
    if decision.result is Result.PASS:
        assert case.record.environment is not None
        bridge = next(state for state in case.record.environment.repositories if state.name == "bridge")
        return wording.passed_sentence(case.job, bridge)
    if decision.result is Result.FAIL:
        return wording.failed_sentence(
            case.job, wording.FOCUSED_TESTS if by == Criterion.BRIDGE_TESTS else stage, decision
        )
    if by == Criterion.CHANGE_EXECUTED:
        return wording.unexecuted_sentence(case.job, decision.cause)
    says_it = by == Criterion.NO_EXCEPTION and case.triage.reached is not None
    # How far Bridge-managed construction and training got, None when they never began.
    first, last = Stage.BRIDGE_PROVIDER.order, Stage.TRAIN_STEP.order
    stages = [mark.stage for mark in case.facts.stages if first <= mark.stage.order <= last]
    reached = max(stages, key=lambda stage: stage.order, default=None)
    return wording.blocked_sentence(case.job, stage, decision, None if says_it else reached)


def _key_lines(case: Case, evidence: tuple[Evidence, ...], decision: Decision) -> tuple[Evidence, ...]:
    met = [item for item in evidence if ROWS[item.criterion].key and item.state is State.MET and item.excerpt]
    if decision.result is Result.PASS:
        return tuple(met)
    config = [item for item in met if item.criterion == Criterion.RESOLVED_CONFIG]
    at = [decision.at] if decision.at and decision.at.excerpt else []
    curves = [item for item in evidence if item.criterion == Criterion.LEARNING_SIGNAL and item.excerpt]
    at += [item for item in curves if item is not decision.at]
    found = (
        Evidence(State.MISSING, item.summary, ENVIRONMENT_FILE, 0, item.summary, criterion=Criterion.EXIT_ZERO)
        for item in blocking(case.record)
    )
    return (*config, *at, *found)


def _frame(case: Case) -> Frame | None:
    """The line of code at which preflight found a fault, None where it was at none."""
    place = next((finding.place for finding in blocking(case.record) if finding.place), "")
    path, _, line = place.rpartition(":")
    return Frame(path, int(line), "") if path and line.isdecimal() else None


def _followups(case: Case, evidence: tuple[Evidence, ...], decision: Decision) -> tuple[str, ...]:
    rows = [decision.fix]
    for finding in blocking(case.record):
        summary, fix = wording.strip_full_stop(finding.summary), wording.strip_full_stop(finding.fix)
        rows.append(f"{fix[:1].upper()}{fix[1:]}. Found: {summary}" if fix else f"Fix: {summary}")
    if asks_for_base(case, decision):
        rows.append(wording.RUN_MERGE_BASE)
    waived = any(item.criterion == Criterion.BRIDGE_TESTS and item.state is State.WAIVED for item in evidence)
    if waived and case.started:
        rows.append(wording.run_tests_by_hand(case.job))
    return tuple(dict.fromkeys(filter(None, rows)))


def _without_job(record: Record, facts: LogFacts | None) -> Verdict:
    """A folder with no job file: whatever the log says, it is Blocked, and each missing item is named."""
    missing = record.missing or (f"{JOB_FILE}: not there",)
    cause = wording.missing_evidence(missing)
    answer = triage_of_run(facts) if facts else None
    shown: tuple[Evidence, ...] = ()
    if answer and answer.excerpt:
        state = State.MET if answer.verdict is TriageVerdict.PASS else State.BROKEN
        at = Evidence(state, answer.cause, record.log, answer.line, answer.excerpt, criterion=Criterion.NO_EXCEPTION)
        shown = (at,)
    return Verdict(
        job_id="unknown",
        result=Result.BLOCKED,
        stage=answer.stage if answer else Stage.ENVIRONMENT,
        cause=cause,
        sentence=wording.log_only(cause, answer),
        coverage=wording.UNKNOWN_JOB,
        checkpoint=wording.UNKNOWN_JOB,
        deliverables=(
            *of_no_run(VERL.title, Outcome.BLOCKED, wording.NOTHING_PROVES_IT)[:-1],
            _log(record.log, facts.line_count if facts else None),
        ),
        evidence=(),
        repositories=(*_repository_rows(record), *host_rows(record), *instrumentation_rows(record)),
        command=command_row(record, started=bool(facts and facts.line_count)),
        key_lines=shown,
        limitations=tuple(f"Missing from the folder: {item}." for item in missing),
        followups=(wording.FIX_EVIDENCE,),
        causes=(EVIDENCE_CAUSE,),
    )
