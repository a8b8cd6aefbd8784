"""Compare the code that a finished run executed with that of another head, by what the run recorded."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_e2e.app.judge_finished import is_of
from verl_e2e.app.plan_change import ABSENT, Planner
from verl_e2e.app.reached_files import REQUIREMENTS
from verl_e2e.core.judge.case import planned_phases
from verl_e2e.core.model.errors import LimitError, UserError
from verl_e2e.core.model.executed import Executed, ProcessRole
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.plan.reached_files import NOT_KNOWN, ReachedFiles
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.core.reach.effects import Version
from verl_e2e.core.reach.program import module_name
from verl_e2e.core.reach.unentered import noticed
from verl_e2e.ports import RunFolders


@dataclass(frozen=True, slots=True)
class CodeComparison:
    """The code of a run's head, compared with that of another head."""

    # What the run notices of the difference, as a clause; empty for nothing.
    noticed: str
    # What the job can read at the head of the run.
    reached: ReachedFiles = NOT_KNOWN


def compare_code(
    planner: Planner, policy: Policy, run: Run, head: str, folder: Path, folders: RunFolders, *, tests: bool
) -> CodeComparison:
    """What a run notices of the code of another head; `tests` says that its Bridge tests count for that head."""
    try:
        return compared(planner, policy, run, head, _executed_in(folder, folders, run), tests=tests)
    except LimitError:
        raise
    except (OSError, UserError) as error:
        return CodeComparison(f"it cannot be compared ({type(error).__name__})")


def compared(
    planner: Planner, policy: Policy, run: Run, head: str, executed: Executed | None, *, tests: bool
) -> CodeComparison:
    """The same for a run with this record."""
    if executed is None or run.job is None or executed.bridge_commit != run.head_sha or not executed.is_whole:
        return CodeComparison("no whole record of it tells what it entered")
    if not _has_each_trainer(executed, run.job):
        return CodeComparison("no record tells what each of its trainers entered")
    named = run.job.bridge_tests if tests else ()
    if named and all(process.role is not ProcessRole.BRIDGE_TEST for process in executed.processes):
        return CodeComparison("no record tells what its Bridge tests entered")
    old, new = (planner.reached(revision, policy, named) for revision in (run.head_sha, head))
    besides = old.besides_for(tests=bool(named))
    if not besides or besides != new.besides_for(tests=bool(named)):
        return CodeComparison("files besides the sources of the package differ, or are not known", old)
    if any(_differs(name, planner, policy, (run.head_sha, head)) for name in REQUIREMENTS):
        return CodeComparison("a requirement differs that a run imports", old)
    entered = _entered(executed, tests=tests)
    imported = (file.path for file in executed.files if file.path.startswith(old.roots))
    sources = {*old.sources, *new.sources, *imported}
    return CodeComparison(noticed_in(planner, policy, (run.head_sha, head), sources, entered), old)


def _has_each_trainer(executed: Executed, job: Job) -> bool:
    """Whether a trainer for each GPU was recorded in each start of the wrapper: no one sees what left no record."""
    trainers = Counter(process.phase for process in executed.processes if process.role is ProcessRole.TRAINER)
    return all(trainers[phase.name] >= job.gpu_count for phase in planned_phases(job))


def _entered(executed: Executed, *, tests: bool) -> Mapping[str, Collection[str]]:
    """By path the functions that a run entered, with or without those that its Bridge tests alone did."""
    counts = {
        at for at, process in enumerate(executed.processes) if tests or process.role is not ProcessRole.BRIDGE_TEST
    }
    return {
        file.path: names
        for file in executed.files
        if (names := {function.symbol for function in file.functions if not counts.isdisjoint(function.first_s)})
    }


def _differs(name: str, planner: Planner, policy: Policy, commits: tuple[str, str]) -> bool:
    """Whether a file of requirements asks for something else, where it was left out of the digests."""
    if policy.reach is None or not policy.reach.dependencies:
        return False
    old, new = (planner.repository.read_blob(commit, name) for commit in commits)
    return old != new and not planner.has_same_requirements(name, commits, policy.reach)


def noticed_in(
    planner: Planner,
    policy: Policy,
    commits: tuple[str, str],
    sources: Iterable[str],
    entered: Mapping[str, Collection[str]],
) -> str:
    """What a run at the first commit notices of the modules of the second; empty for nothing.

    `sources` are the files that a run of either can read, `entered` has by path the functions that the run entered.
    """
    if policy.reach is None:
        return "what it imports is not known"
    roots = policy.reach.roots
    old, new = (planner.tree(commit, policy) for commit in commits)
    if unread := (*old.unread, *new.unread):
        return f"{unread[0]} cannot be read"
    differing = [path for path in sorted(set(sources)) if old.files.get(path) != new.files.get(path)]
    wanted = [path for path in differing if module_name(path, roots) is not None]
    contents = planner.repository.read_objects(
        {tree.files[p] for tree in (old, new) for p in wanted if p in tree.files}
    )
    pairs = []
    for path in wanted:
        blobs = [tree.files.get(path) for tree in (old, new)]
        if any(blob is not None and contents[blob] is None for blob in blobs):
            return f"{path}: {ABSENT}"
        before, after = (contents[blob] if blob is not None else None for blob in blobs)
        pairs.append((Version(path, before), Version(path, after)))
    return noticed(pairs, entered)


def _executed_in(folder: Path, folders: RunFolders, run: Run) -> Executed | None:
    found = folders.find(folder)
    if len(found) != 1:
        return None
    record = folders.record(found[0])
    return record.executed if is_of(record.job, run) else None
