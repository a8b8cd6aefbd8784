"""Criterion 2: the checkout under test is what driver, Ray worker and training workers really imported.

A wrong path stops everything: neither a pass nor a failure of such a run says anything about the change.
"""

from collections.abc import Iterable, Iterator

from verl_e2e.core.judge.case import Case
from verl_e2e.core.model.events import ProbeEvent, read_data
from verl_e2e.core.model.evidence import Criterion, Evidence, State
from verl_e2e.core.model.record import (
    ENVIRONMENT_FILE,
    IMPORTS_FILE,
    Check,
    EndReason,
    Environment,
    ImportLine,
    RepositoryState,
)
from verl_e2e.core.triage.asked import other_checkout

# Proven before the run in driver and Ray worker; the first two again from inside each training worker.
MODULES = ("megatron.bridge", "megatron.core", "verl")
RUN_MODULES = MODULES[:2]
_REPOSITORY = {"megatron.bridge": "bridge", "megatron.core": "megatron_lm", "verl": "verl"}
_PREFLIGHT = frozenset({Check.IMPORT_DRIVER, Check.IMPORT_WORKER})
_INSTALLED = ("site-packages", "dist-packages")


def local_import(case: Case) -> Evidence:
    """Every module under test comes from its tree at the job's commit, in every process that shows what it imported."""
    wrong = _wrong_import(case)
    if wrong is not None:
        return wrong
    absent = _told_before(case) or checkout_gap(case) or _run_gap(case)
    if absent:
        return Evidence(Criterion.LOCAL_IMPORT, State.MISSING, absent, IMPORTS_FILE)
    proofs = [line for line in case.record.imports if line.role == "run" and line.module == "megatron.bridge"]
    count = len({line.pid for line in proofs})
    summary = f"{proofs[0].file} in the driver, a Ray worker and {count} process(es) of the run, each trainer included"
    return _evidence(State.MET, summary, proofs[0])


def _told_before(case: Case) -> str:
    """What preflight found of the place of a module: the path, and where it should have been."""
    environment = case.record.environment
    findings = environment.findings if environment else ()
    return next(
        (
            finding.summary
            for finding in findings
            if finding.check in _PREFLIGHT and finding.blocking and not finding.ok
        ),
        "",
    )


def checkout_gap(case: Case) -> str:
    """What keeps the folder from showing which checkout ran, whatever happened then; empty when nothing does."""
    environment = case.record.environment
    if environment is None:
        return f"{ENVIRONMENT_FILE} does not say which checkout ran"
    gaps = (_tree_gap(module, environment) for module in MODULES)
    roles = (_role_gap(role, name, environment) for role, name in (("driver", "driver"), ("ray_worker", "Ray worker")))
    return next((gap for gap in (*gaps, *roles) if gap), "")


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
            return _evidence(State.BROKEN, _wrong_sentence(line, roots[line.module]), line)
    moved = next(_wrong_commits(case, environment), "")
    if moved:
        return Evidence(Criterion.LOCAL_IMPORT, State.BROKEN, moved, ENVIRONMENT_FILE, 0, moved)
    other = other_checkout(case.facts)
    if other:
        return Evidence(Criterion.LOCAL_IMPORT, State.BROKEN, other.cause, case.log, other.at.line, other.at.text)
    ended = case.ended_by(EndReason.WRONG_IMPORT)
    if ended:
        words = ended.note or "a process imported another checkout"
        return Evidence(Criterion.LOCAL_IMPORT, State.BROKEN, words, IMPORTS_FILE, 0, words)
    return None


def _wrong_sentence(line: ImportLine, root: str) -> str:
    where = {"driver": "the driver", "ray_worker": "a Ray worker", "run": f"process {line.pid} of the run"}[line.role]
    return f"{line.module} in {where} is {line.file}, not below {root}"


def _wrong_commits(case: Case, environment: Environment | None) -> Iterator[str]:
    """Trees that stand at another commit than the job names."""
    asked = {"bridge": case.job.bridge.commit, "verl": case.job.verl.commit}
    if case.job.megatron_lm:
        asked["megatron_lm"] = case.job.megatron_lm.commit
    for state in environment.repositories if environment else ():
        if asked.get(state.name, state.commit) != state.commit:
            yield f"the tree of {state.name} is at {state.commit[:12]}, the job names {asked[state.name][:12]}"


def _tree_gap(module: str, environment: Environment) -> str:
    root = environment.import_roots.get(module)
    state = _state(environment.repositories, _REPOSITORY[module])
    if not root or state is None:
        return f"{ENVIRONMENT_FILE} names no {'import root' if state else 'tree'} of {module}"
    if not is_below(root, state.root):
        return f"the import root of {module}, {root}, is not in the tree under test, {state.root}"
    return ""


def _state(states: Iterable[RepositoryState], name: str) -> RepositoryState | None:
    return next((state for state in states if state.name == name), None)


def _role_gap(role: str, name: str, environment: Environment) -> str:
    lines = [line for line in environment.imports if line.role == role]
    failed = next((line for line in lines if line.error), None)
    if failed:
        return f"import of {failed.module} failed in the {name}: {failed.error}"
    unseen = [module for module in MODULES if module not in {line.module for line in lines if line.file}]
    return f"no import of {', '.join(unseen)} proven in the {name}" if unseen else ""


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


def _evidence(state: State, summary: str, line: ImportLine) -> Evidence:
    file = IMPORTS_FILE if line.role == "run" else ENVIRONMENT_FILE
    return Evidence(Criterion.LOCAL_IMPORT, state, summary, file, 0, f"{line.module} = {line.file}")
