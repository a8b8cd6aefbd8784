"""The six criteria that every level asks for, each judged by one function of the record and the log's facts.

Every function returns `Evidence` with a state: met, broken, missing (never a pass) or waived (named among the
limitations).

1. The focused Bridge tests passed on the very commit that the run is about.
2. The checkout under test is what driver, Ray worker and training workers really imported. A wrong path stops
   everything: neither a pass nor a failure of such a run says anything about the change.
3. What the run itself printed as its configuration is what the job and its level asked for.
4. to 6. The steps completed, nothing unexplained was raised, and every process exited 0.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from verl_e2e.core.compare.jobs import KNOWN_GOOD, UNSHARDED
from verl_e2e.core.consumer.consumer import ConfigKey, PlannedPhase, Quantity
from verl_e2e.core.consumer.consumers import consumer_of, measured, named_variant
from verl_e2e.core.judge.case import (
    NOT_PRINTED,
    Case,
    StartedPhase,
    started_phases,
)
from verl_e2e.core.judge.execution import and_more
from verl_e2e.core.judge.junit import COMMIT_PROPERTY, UNFINISHED, covers
from verl_e2e.core.log.printed import lookup
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.facts import StepMetrics
from verl_e2e.core.model.jobs import Job, WhyChosen
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import (
    END,
    ENVIRONMENT_FILE,
    EVENTS_FILE,
    IMPORTS_FILE,
    JUNIT_FILE,
    TESTS_PHASE,
    Check,
    EndReason,
    ImportLine,
    PhaseEvent,
    ProbeEvent,
    TestCase,
    read_data,
)
from verl_e2e.core.model.settings import Axis, Setting, Value, expected_of_overrides, parsed, same_value
from verl_e2e.core.triage.silent import other_checkout
from verl_e2e.core.triage.triage import TriageVerdict

# Proven before the run in driver and Ray worker, with the consumer's package, and again from inside each trainer.
RUN_MODULES = ("megatron.bridge", "megatron.core")
_REPOSITORY = {"megatron.bridge": "bridge", "megatron.core": "megatron_lm"}
_PREFLIGHT = frozenset({Check.IMPORT_DRIVER, Check.IMPORT_WORKER})
_ROLE = {"driver": "driver", "ray_worker": "Ray worker"}
_IN_ROLE = {"driver": "the driver", "ray_worker": "a Ray worker"}
_INSTALLED = ("site-packages", "dist-packages")


def local_import(case: Case) -> Evidence:
    """Every module under test comes from its tree at the job's commit, in every process that shows what it imported."""
    wrong = _wrong_import(case)
    if wrong is not None:
        return wrong
    environment = case.record.environment
    findings = environment.findings if environment else ()
    told = (item.summary for item in findings if item.check in _PREFLIGHT and item.blocking and not item.ok)
    absent = next(told, "") or checkout_gap(case) or _run_gap(case)
    if absent:
        return Evidence(State.MISSING, absent, IMPORTS_FILE)
    proofs = [line for line in case.record.imports if line.role == "run" and line.module == "megatron.bridge"]
    count = len({line.pid for line in proofs})
    summary = f"{proofs[0].file} in the driver, a Ray worker and {count} process(es) of the run, each trainer included"
    return _import_evidence(State.MET, summary, proofs[0])


def checkout_gap(case: Case) -> str:
    """What keeps the folder from showing which checkout ran, whatever happened then; empty when nothing does."""
    environment = case.record.environment
    if environment is None:
        return f"{ENVIRONMENT_FILE} does not say which checkout ran"
    modules = (*RUN_MODULES, consumer_of(case.job).package)
    for module in modules:
        root = environment.import_roots.get(module)
        tree = _REPOSITORY.get(module, "verl")
        state = next((state for state in environment.repositories if state.name == tree), None)
        if not root or state is None:
            return f"{ENVIRONMENT_FILE} names no {'import root' if state else 'tree'} of {module}"
        if not is_below(root, state.root):
            return f"the import root of {module}, {root}, is not in the tree under test, {state.root}"
    for role, spoken in _ROLE.items():
        lines = [line for line in environment.imports if line.role == role]
        failed = next((line for line in lines if line.error), None)
        if failed:
            return f"import of {failed.module} failed in the {spoken}: {failed.error}"
        unseen = [module for module in modules if module not in {line.module for line in lines if line.file}]
        if unseen:
            return f"no import of {', '.join(unseen)} proven in the {spoken}"
    return ""


def run_imported_checkout(case: Case) -> bool:
    """Whether at least one process of the run itself shows Bridge from the checkout."""
    return any(line.role == "run" and line.module == "megatron.bridge" and line.file for line in case.record.imports)


def is_below(path: str, root: str) -> bool:
    """Whether a path lies in a directory and is not an installed package, as text (both are redacted alike)."""
    if not root or ".." in path.split("/") or not (path == root or path.startswith(root.rstrip("/") + "/")):
        return False
    return not any(part in _INSTALLED for part in path[len(root) :].split("/"))


def _wrong_import(case: Case) -> Evidence | None:
    environment = case.record.environment
    roots = environment.import_roots if environment else {}
    before = environment.imports if environment else ()
    for line in (*before, *case.record.imports):
        if line.file and line.module in roots and not is_below(line.file, roots[line.module]):
            where = _IN_ROLE.get(line.role, f"process {line.pid} of the run")
            summary = f"{line.module} in {where} is {line.file}, not below {roots[line.module]}"
            return _import_evidence(State.BROKEN, summary, line)
    asked = {"bridge": case.job.bridge.commit, "verl": case.job.verl.commit}
    if case.job.megatron_lm:
        asked["megatron_lm"] = case.job.megatron_lm.commit
    for state in environment.repositories if environment else ():
        wanted = asked.get(state.name, state.commit)
        if wanted != state.commit:
            moved = f"the tree of {state.name} is at {state.commit[:12]}, the job names {wanted[:12]}"
            return Evidence(State.BROKEN, moved, ENVIRONMENT_FILE, 0, moved)
    other = other_checkout(case.facts)
    if other:
        _, at, cause = other
        return Evidence(State.BROKEN, cause, case.log, at.line, at.text)
    ended = case.ended_by(EndReason.WRONG_IMPORT)
    if ended is None:
        return None
    words = ended.note or "a process imported another checkout"
    return Evidence(State.BROKEN, words, IMPORTS_FILE, 0, words)


def _run_gap(case: Case) -> str:
    """What is missing of the proof from inside the run: every training worker must have spoken for itself."""
    probes = (read_data(event, ProbeEvent) for event in case.events("probe"))
    unreadable = sum(1 if probe is None else probe.unreadable for probe in probes)
    if unreadable:
        return f"{unreadable} line(s) of the import probe could not be read"
    trainers = {worker.pid for worker in case.facts.workers if worker.built_model}
    if not trainers:
        return "no training worker is seen in the log"
    lines = [line for line in case.record.imports if line.role == "run"]
    for module in RUN_MODULES:
        silent = sorted(trainers - {line.pid for line in lines if line.module == module and line.file})
        if silent:
            shown = ", ".join(str(pid) for pid in silent[:8])
            return f"no import line of {module} from training worker {shown}"
    return ""


def _import_evidence(state: State, summary: str, line: ImportLine) -> Evidence:
    file = IMPORTS_FILE if line.role == "run" else ENVIRONMENT_FILE
    return Evidence(state, summary, file, 0, f"{line.module} = {line.file}")


_SHOWN_FAILED = 3


def bridge_tests(case: Case) -> Evidence:
    """Broken by any failed test; waived where no result is there or required; tests of another commit do not count."""
    job, environment = case.job, case.record.environment
    refused = _foreign_tests(case)
    tests = () if refused else case.record.tests or ()
    failed = [test for test in tests if test.outcome == "failed"]
    if failed:
        names = and_more([test.name for test in failed], _SHOWN_FAILED)
        summary = f"{len(failed)} of {len(tests)} focused Bridge tests failed, first {names}"
        return Evidence(State.BROKEN, summary, JUNIT_FILE, 0, failed[0].message or summary)
    outcomes: Counter[str] = Counter(test.outcome for test in tests)
    unseen = without_result(job, tests, environment.absent_tests if environment else ())
    gap = f"Bridge checks incomplete: no result of {', '.join(unseen)}" if unseen else ""
    if not outcomes["passed"]:
        why = refused or (environment.tests_not_run if environment else "")
        if not why and case.record.tests is not None:
            why = f"none of the {len(case.record.tests)} tests in {JUNIT_FILE} ran to its end"
        elif not why and case.ended_by(EndReason.NOT_STARTED):
            why = "the run was stopped before them"
        elif not why:
            why = f"no {JUNIT_FILE} in the folder" if job.bridge_tests else "the job lists none"
        gap = f"Bridge checks not run: {why}"
    if gap:
        return Evidence(State.MISSING if job.require_bridge_checks else State.WAIVED, gap, JUNIT_FILE)
    skipped = f", {outcomes['skipped']} skipped" if outcomes["skipped"] else ""
    rest = f", {outcomes[UNFINISHED]} without a result" if outcomes[UNFINISHED] else ""
    return Evidence(State.MET, f"{outcomes['passed']} focused Bridge tests passed{skipped}{rest}", JUNIT_FILE)


def _foreign_tests(case: Case) -> str:
    """Why the JUnit file says nothing about the job's commit; empty when it does, or without a file.

    A file that states no commit counts only in a folder whose runner ran the tests itself.
    """
    record, wanted = case.record, case.job.bridge.commit
    stated = record.tests_commit
    if record.tests is None or stated == wanted:
        return ""
    if stated:
        return f"{JUNIT_FILE} is of {stated[:12]}, and the run of {wanted[:12]}"
    phases = (read_data(event, PhaseEvent) for event in record.events if event.kind == "phase")
    ended = [phase for phase in phases if phase is not None and (phase.name, phase.state) == (TESTS_PHASE, END)]
    if any(phase.outcome in ("passed", "failed") for phase in ended):
        return ""
    return f"{JUNIT_FILE} does not state its commit (property {COMMIT_PROPERTY})"


def without_result(job: Job, tests: tuple[TestCase, ...], absent: tuple[str, ...]) -> tuple[str, ...]:
    """The tests that a pass needs and that have no result; `absent` do not exist at the commit.

    A pass needs those that the policy lists and those that the change touched. Of what else was chosen a missing
    result is a limitation, and so is a test that the change touched and that the environment cannot collect.
    """
    left_out = {*(item.test for item in job.site.deselected_tests), *absent}
    why = {item.test: item.why for item in job.chosen_tests}
    unseen = []
    for listed in job.bridge_tests:
        kind = why.get(listed, WhyChosen.POLICY)
        if listed in left_out or kind in (WhyChosen.CONVERSION, WhyChosen.IMPORTS):
            continue
        own = [test for test in tests if covers(listed, test)]
        # A test was there and never ended; a file that could not be collected bears its own name alone.
        file = listed.partition("::")[0].removesuffix(".py").rpartition("/")[2]
        cut_off = any(test.outcome == UNFINISHED and test.name.rpartition(".")[2] != file for test in own)
        # One that the change touched needs a result, one that the policy lists must not be skipped either.
        skipped = kind is WhyChosen.POLICY and all(test.outcome in ("skipped", UNFINISHED) for test in own)
        if cut_off or not own or skipped:
            unseen.append(listed)
    return tuple(unseen)


_SHOWN_FAULTS = 5
# Parallel sizes and the wrapper for data parallelism, as a reader of the card looks for them.
_SHOWN_SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "megatron_fsdp": "use_megatron_fsdp",
}


def resolved_config(case: Case) -> Evidence:
    """Every configuration that the run printed shows every requested value."""
    configs = case.facts.configs
    unread = next((config for config in configs if config.values is None), None)
    if unread or not configs:
        problem = f"no resolved configuration: {unread.problem if unread else 'the run printed none'}"
        return Evidence(State.MISSING, problem, case.log, unread.line if unread else 0)
    phases = started_phases(case)
    for config in configs:
        phase = next((item.planned for item in phases if item.wrote(config.line)), None)
        wrong = list(_config_faults(case.job, phase, config.values or {}))
        if wrong:
            shown = wrong[:_SHOWN_FAULTS]
            more = f" and {len(wrong) - _SHOWN_FAULTS} more" if len(wrong) > _SHOWN_FAULTS else ""
            return Evidence(State.BROKEN, "; ".join(shown) + more, case.log, config.line, wrong[0])
    spoke = {phase.name for phase in phases if any(phase.wrote(config.line) for config in configs)}
    planned = consumer_of(case.job).phases(case.job)
    silent = next((phase.name for phase in planned if phase.name not in spoke), "") if len(planned) > 1 else ""
    if silent:
        return Evidence(State.MISSING, f"no resolved configuration: the {silent} phase printed none", case.log)
    count = len(requested_config(case.job))
    each = f", in each of {len(phases)} phases with its own steps and resume mode" if len(phases) > 1 else ""
    summary = f"the run's own configuration shows all {count} requested values{each}"
    # What a reader of the card looks for; what every job proves is proven by then.
    values, consumer = configs[-1].values or {}, consumer_of(case.job)
    named = {name: consumer.keys[key] for name, key in (*consumer.shown, ("lora_rank", ConfigKey.ADAPTER_RANK))}
    named |= {name: f"{consumer.policy}.{key}" for name, key in _SHOWN_SIZES.items()}
    shown_values = {name: lookup(values, key, NOT_PRINTED) for name, key in named.items()}
    rest = ", ".join(f"{name}={value}" for name, value in shown_values.items() if value is not NOT_PRINTED)
    excerpt = f"{consumer.proves}, {rest}"
    return Evidence(State.MET, summary, case.log, configs[-1].line, excerpt)


def requested_config(job: Job, phase: PlannedPhase | None = None) -> tuple[tuple[str, Value], ...]:
    """Keys and values that the run must print, from `expected`, the wrapper variables, the variant and the rules.

    A key stands twice when two of them disagree: no run can satisfy both. What differs between the phases of a run
    is among them when `phase` says which one is meant, or when there is only one.
    """
    consumer = consumer_of(job)
    wrapper = {**job.site.wrapper, **job.wrapper}
    overrides = [item for item in job.site.overrides if item not in job.overrides] + list(job.overrides)
    asked = []
    variant = named_variant(job.level, job.variant, consumer)
    if variant is not None:
        # The job itself says whether it trains a critic and merges its adapter.
        own = consumer.own_choices
        values = {name: value for name, value in variant.wrapper.items() if name not in own}
        asked.append(Setting(values, tuple(item for item in variant.overrides if item not in own)))
    # What a derived job was made to set, whatever its variables and overrides say.
    asked += [consumer.setting(axis, value) for axis, value in job.settings.items() if not axis.invalid(value)]
    counts = consumer.counts(job.gpus_of_node, job.steps).wrapper
    # The sizes over which a large model is spread further than its job asks for (`outline.fit`).
    spread = {name for axis in (Axis.TENSOR, Axis.EXPERT) for name in consumer.settings[axis].variables}
    for setting in asked:
        # The number of steps of a variant is its default; the job's own is what was asked for.
        values = {name: value for name, value in setting.wrapper.items() if name not in counts}
        wrapper |= {
            name: value
            for name, value in values.items()
            if not (name in spread and _is_larger(value, wrapper.get(name, "")))
        }
        overrides += [item for item in setting.overrides if item not in overrides and not _is_set(item, overrides)]
    phases = len(consumer.phases(job))
    derived = expected_of_overrides(overrides)
    if job.script == consumer.script:
        wrapper |= phase.wrapper if phase else {}
        derived = consumer.expected(wrapper, overrides, phases=1 if phase else phases)
    # Runs of two phases print two configurations that differ in these on purpose; each is held to its own phase.
    of_a_phase = {consumer.keys.get(key) for key in (ConfigKey.STEPS, ConfigKey.RESUMES)}
    expected = {key: value for key, value in job.expected.items() if phases == 1 or key not in of_a_phase}
    rows = [*expected.items(), *derived.items(), *consumer.always(job.level).items()]
    return tuple({(key, type(value), value): (key, value) for key, value in rows}.values())


def _is_larger(asked: str, own: str) -> bool:
    least, size = parsed(asked), parsed(own)
    return isinstance(least, int) and isinstance(size, int) and size > least


def _is_set(override: str, overrides: list[str]) -> bool:
    """Whether the job sets this learning rate itself: a variant's is fit for one probe, the job's for its own."""
    key = override.partition("=")[0].lstrip("+")
    return key.endswith(".optim.lr") and any(item.partition("=")[0].lstrip("+") == key for item in overrides)


def _config_faults(job: Job, phase: PlannedPhase | None, values: Mapping[str, Any]) -> Iterator[str]:
    claimed = f"{int(job.level)}-{job.variant}"
    if not job.id.startswith(claimed):
        yield f"the job is called {job.id}, but it asks for {claimed}"
    for key, wanted in requested_config(job, phase):
        found = lookup(values, key, NOT_PRINTED)
        if not same_value(found, wanted):
            yield f"{key} is {'absent' if found is NOT_PRINTED else repr(found)[:80]}, asked {wanted!r}"
    keys = consumer_of(job).keys
    targets, of_targets = job.settings.get(Axis.ADAPTER_TARGETS), keys[ConfigKey.ADAPTER_TARGETS]
    if isinstance(targets, str) and lookup(values, of_targets, NOT_PRINTED) != targets.split(","):
        yield f"{of_targets} is {lookup(values, of_targets, None)!r:.160}, asked {targets}"
    of_rank = keys[ConfigKey.ADAPTER_RANK]
    rank = lookup(values, of_rank, NOT_PRINTED)
    # The references of a parallel job train what that job trains, adapters or the whole model.
    needs_adapter = job.level is Level.SMOKE and not job.variant.endswith((UNSHARDED, KNOWN_GOOD))
    if needs_adapter and not (isinstance(rank, int) and rank > 0):
        yield f"{of_rank} is {'absent' if rank is NOT_PRINTED else repr(rank)[:80]}, level 0 needs LoRA"


def steps_completed(case: Case) -> Evidence:
    """Criterion 4: in each phase the bar reached the requested steps, and the metrics of that very step are there."""
    started = {phase.name: phase for phase in started_phases(case)}
    rows = []
    for planned in consumer_of(case.job).phases(case.job):
        if planned.name not in started:
            summary = f"the {planned.name} phase, until step {planned.last_step}, never began"
            return Evidence(State.MISSING, summary, case.log)
        item = _phase_completed(case, started[planned.name], alone=len(consumer_of(case.job).phases(case.job)) == 1)
        if item.state is not State.MET:
            return item
        rows.append(item)
    return replace(rows[-1], summary="; then ".join(row.summary for row in rows))


def _phase_completed(case: Case, phase: StartedPhase, *, alone: bool) -> Evidence:
    where = "" if alone else f" in the {phase.name} phase"
    wanted = phase.planned.last_step
    bars = [*case.facts.earlier, *([case.facts.progress] if case.facts.progress else [])]
    progress = next((bar for bar in reversed(bars) if phase.wrote(bar.at.line)), None)
    if progress is None:
        summary = f"no training progress {'in the log' if alone else where.strip()}"
        return Evidence(State.MISSING, summary, case.log)
    at = (case.log, progress.at.line, progress.at.text)
    latest = progress is case.facts.progress
    reached = (progress.done, progress.total, progress.percent) == (wanted, wanted, 100)
    if not reached or (latest and not case.facts.completed_at):
        bar = f"the bar stands at {progress.percent}%, {progress.done}/{progress.total}{where}"
        return Evidence(State.MISSING, f"{bar}, with {wanted} requested", *at)
    steps = [step for step in case.train_steps() if alone or phase.wrote(step.line)]
    first = phase.planned.first_step
    for step in steps:
        stray = (
            f"step {step.step} on line {step.line} comes before the first step, {first}," if step.step < first else ""
        )
        if step.step > wanted or global_step(step) != step.step:
            stray = f"step {step.step} on line {step.line} says global step {global_step(step):g}, {wanted} requested"
        if stray:
            return Evidence(State.MISSING, f"{stray}{where}", case.log, step.line)
    last = next((step for step in reversed(steps) if step.step == wanted), None)
    if last is None:
        return Evidence(State.MISSING, f"no metrics of global step {wanted}{where}", *at)
    bar = consumer_of(case.job).log.bar
    summary = f"{bar} 100% at {wanted}/{wanted}, metrics of global step {wanted} on line {last.line}"
    return Evidence(State.MET, summary, *at)


def global_step(step: StepMetrics) -> float:
    """The global step that a metric line says it belongs to, its own number when it says nothing."""
    found = measured(step.values, Quantity.GLOBAL_STEP)
    return float(step.step) if found is None else found


def no_exception(case: Case) -> Evidence:
    """Criterion 5: no unexplained exception anywhere in the run; what only its shutdown printed is named."""
    answer = case.triage
    if answer.verdict is not TriageVerdict.PASS:
        state = State.BROKEN if answer.excerpt else State.MISSING
        return Evidence(state, answer.cause, case.log, answer.line, answer.excerpt)
    noise = ", ".join(dict.fromkeys(noise.name for noise in answer.residual_noise))
    summary = f"no unexplained exception; residual noise: {noise}" if noise else "no exception"
    return Evidence(State.MET, summary, case.log)


def exit_zero(case: Case) -> Evidence:
    """Criterion 6: every process of the wrapper, one for each phase, exited 0 by itself."""
    ends = case.ends()
    if not ends:
        return Evidence(State.MISSING, "no end of the process is recorded", EVENTS_FILE)
    for ended in (*case.phases(END), *ends):
        if not ended.exited_zero:
            note = f": {ended.note}" if ended.note else ""
            reason = ended.end_reason or "an unknown cause"
            summary = f"the process ended by {reason}, exit code {ended.exit_code}{note}"
            return Evidence(State.BROKEN, summary, EVENTS_FILE)
    return Evidence(State.MET, "the process exited 0", EVENTS_FILE)
