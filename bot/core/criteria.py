"""The pass criteria, each judged by one function of the record and the log's facts.

Every function returns `Evidence` with a state: met, broken, missing (never a pass) or waived (named among the
limitations). Which criteria a level asks for is `required`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bot.core.evidence import Criterion, Evidence, State
from bot.core.facts import LogFacts
from bot.core.jobs import Job
from bot.core.record import (
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    EVENTS_FILE,
    IMPORTS_FILE,
    JUNIT_FILE,
    LOG_FILE,
    EndReason,
    ImportLine,
    Record,
)
from bot.core.triage import Triage, TriageVerdict

PROVEN_MODULES = ("megatron.bridge", "megatron.core")
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Case:
    """All that a criterion may look at."""

    job: Job
    record: Record
    facts: LogFacts
    triage: Triage


def bridge_tests(case: Case) -> Evidence:
    """Criterion 1: the focused Bridge tests passed on this head; waived when the environment has none."""
    tests = case.record.tests
    if not tests or all(test.outcome == "skipped" for test in tests):
        state = State.MISSING if case.job.require_bridge_checks else State.WAIVED
        return Evidence(Criterion.BRIDGE_TESTS, state, "Bridge checks not run", JUNIT_FILE)
    failed = [test for test in tests if test.outcome == "failed"]
    if failed:
        summary = f"{len(failed)} of {len(tests)} focused Bridge tests failed, first {failed[0].name}"
        return Evidence(Criterion.BRIDGE_TESTS, State.BROKEN, summary, JUNIT_FILE, 0, failed[0].message)
    passed = sum(test.outcome == "passed" for test in tests)
    return Evidence(Criterion.BRIDGE_TESTS, State.MET, f"{passed} focused Bridge tests passed", JUNIT_FILE)


def local_import(case: Case) -> Evidence:
    """Criterion 2: Bridge and core come from the checkout, in driver, Ray worker and the training workers."""
    environment = case.record.environment
    roots = environment.import_roots if environment else {}
    before = environment.imports if environment else ()
    wrong = _outside(roots, (*before, *case.record.imports))
    if wrong:
        return _import_evidence(State.BROKEN, wrong_import_sentence(wrong, roots[wrong.module]), wrong)
    absent = _missing_proof(case, roots, before)
    if absent:
        return Evidence(Criterion.LOCAL_IMPORT, State.MISSING, absent, IMPORTS_FILE)
    proof = next(line for line in case.record.imports if line.module == "megatron.bridge")
    count = len({line.pid for line in case.record.imports})
    summary = f"{proof.file} in the driver, a Ray worker and {count} processes of the run"
    return _import_evidence(State.MET, summary, proof)


def wrong_import_sentence(line: ImportLine, root: str) -> str:
    """Why an import is not the checkout under test."""
    where = {"driver": "the driver", "ray_worker": "a Ray worker", "run": f"process {line.pid} of the run"}[line.role]
    found = line.file or f"nothing ({line.error})"
    return f"{line.module} in {where} is {found}, not below {root}"


def is_below(path: str, root: str) -> bool:
    """Whether a path lies in a directory, as text (both are redacted alike)."""
    return bool(root) and (path == root or path.startswith(root.rstrip("/") + "/"))


def _outside(roots: Mapping[str, str], lines: Iterable[ImportLine]) -> ImportLine | None:
    for line in lines:
        if line.module in roots and not is_below(line.file, roots[line.module]):
            return line
    return None


def _missing_proof(case: Case, roots: Mapping[str, str], before: tuple[ImportLine, ...]) -> str:
    unrooted = [module for module in PROVEN_MODULES if module not in roots]
    if unrooted:
        return f"{ENVIRONMENT_FILE} names no import root of {', '.join(unrooted)}"
    for role, name in (("driver", "driver"), ("ray_worker", "Ray worker")):
        seen = {line.module for line in before if line.role == role and line.file}
        unseen = [module for module in PROVEN_MODULES if module not in seen]
        if unseen:
            return f"no import of {', '.join(unseen)} proven in the {name}"
    trainers = {worker.pid for worker in case.facts.workers if worker.built_model}
    if not trainers:
        return "no training worker is seen in the log"
    for module in PROVEN_MODULES:
        if not trainers & {line.pid for line in case.record.imports if line.module == module}:
            return f"no import line of {module} from a training worker"
    return ""


def _import_evidence(state: State, summary: str, line: ImportLine) -> Evidence:
    file = IMPORTS_FILE if line.role == "run" else ENVIRONMENT_FILE
    return Evidence(Criterion.LOCAL_IMPORT, state, summary, file, 0, f"{line.module} = {line.file}")


def resolved_config(case: Case) -> Evidence:
    """Criterion 3: what the run itself printed is what the job asked, key by key."""
    config = next((config for config in case.facts.configs if config.values is not None), None)
    if config is None or config.values is None:
        problem = case.facts.configs[0].problem if case.facts.configs else "the run printed none"
        return Evidence(Criterion.RESOLVED_CONFIG, State.MISSING, f"no resolved configuration: {problem}", LOG_FILE)
    wrong = [
        f"{key} is {_shown(found)}, asked {wanted!r}"
        for key, wanted in case.job.expected.items()
        if not same_value(found := lookup(config.values, key), wanted)
    ]
    if wrong:
        return Evidence(Criterion.RESOLVED_CONFIG, State.BROKEN, "; ".join(wrong[:5]), LOG_FILE, config.line, wrong[0])
    count = len(case.job.expected)
    if not count:
        return Evidence(Criterion.RESOLVED_CONFIG, State.MISSING, "the job names no expected values", "job.json")
    excerpt = f"'vanilla_mbridge': {lookup(config.values, 'actor_rollout_ref.actor.megatron.vanilla_mbridge')}"
    summary = f"all {count} requested values are in the resolved configuration ({CONFIG_FILE})"
    return Evidence(Criterion.RESOLVED_CONFIG, State.MET, summary, LOG_FILE, config.line, excerpt)


def lookup(values: Mapping[str, Any], dotted: str) -> Any:
    """The value at a dotted key of a nested mapping, or a sentinel that equals nothing."""
    found: Any = values
    for part in dotted.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return _ABSENT
        found = found[part]
    return found


def same_value(found: Any, wanted: bool | int | float | str | None) -> bool:
    """Equality without Python's True == 1."""
    return (type(found) is type(wanted) and bool(found == wanted)) or _same_number(found, wanted)


def _same_number(found: Any, wanted: Any) -> bool:
    numbers = not isinstance(found, bool) and not isinstance(wanted, bool)
    return numbers and isinstance(found, int | float) and isinstance(wanted, int | float) and found == wanted


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)


def steps_completed(case: Case) -> Evidence:
    """Criterion 4: the progress bar reached the requested steps and the last step's metrics are there."""
    progress, steps, wanted = case.facts.progress, case.facts.steps, case.job.steps
    if progress is None:
        return Evidence(Criterion.STEPS_COMPLETED, State.MISSING, "no training progress in the log", LOG_FILE)
    at = (LOG_FILE, progress.at.line, progress.at.text)
    if progress.total != wanted or progress.done < wanted or case.facts.completed_at is None:
        summary = f"{progress.done} of {progress.total} steps done, {wanted} requested"
        return Evidence(Criterion.STEPS_COMPLETED, State.MISSING, summary, *at)
    last = next((step for step in reversed(steps) if global_step(step.values, step.step) == wanted), None)
    if last is None:
        return Evidence(Criterion.STEPS_COMPLETED, State.MISSING, f"no metrics of global step {wanted}", *at)
    summary = f"Training Progress: 100% at {wanted}/{wanted}, metrics of global step {wanted} on line {last.line}"
    return Evidence(Criterion.STEPS_COMPLETED, State.MET, summary, *at)


def global_step(values: Mapping[str, float], step: int) -> int:
    """The global step that a metric line belongs to."""
    reported = values.get("training/global_step", float(step))
    return int(reported) if reported == reported and abs(reported) < 1e15 else -1


def no_exception(case: Case) -> Evidence:
    """Criterion 5: no unexplained exception anywhere in the run."""
    answer = case.triage
    if answer.verdict is TriageVerdict.PASS:
        noise = ", ".join(noise.name for noise in answer.residual_noise)
        summary = f"no unexplained exception; residual noise: {noise}" if noise else "no exception"
        return Evidence(Criterion.NO_EXCEPTION, State.MET, summary, LOG_FILE)
    state = State.BROKEN if answer.excerpt else State.MISSING
    return Evidence(Criterion.NO_EXCEPTION, state, answer.cause, LOG_FILE, answer.line, answer.excerpt)


def exit_zero(case: Case) -> Evidence:
    """Criterion 6: the wrapper's process exited 0 by itself."""
    ended = next((event for event in reversed(case.record.events) if event.kind == "ended"), None)
    if ended is None:
        return Evidence(Criterion.EXIT_ZERO, State.MISSING, "no end of the process is recorded", EVENTS_FILE)
    reason, code = ended.data.get("reason"), ended.data.get("exit_code")
    if reason == EndReason.EXITED and code == 0:
        return Evidence(Criterion.EXIT_ZERO, State.MET, "the process exited 0", EVENTS_FILE)
    note = ended.data.get("note") or ""
    summary = f"the process ended by {reason}, exit code {code}{f': {note}' if note else ''}"
    return Evidence(Criterion.EXIT_ZERO, State.BROKEN, summary, EVENTS_FILE)


Judge = Callable[[Case], Evidence]
BASIC: tuple[Judge, ...] = (bridge_tests, local_import, resolved_config, steps_completed, no_exception, exit_zero)
