"""Plan a pull request or a merge group: git's objects decide, and what they cannot tell is planned in full."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import date

from verl_e2e.app.base_policy import base_text, read_policy
from verl_e2e.app.plan_change import Planned, Planner
from verl_e2e.core.compare.cell_map import CellMap
from verl_e2e.core.model.change import Change, SubmoduleBump, on_one_line
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.lint import lint_jobs
from verl_e2e.core.plan.plan import plan
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.plan.reached_files import NOT_KNOWN
from verl_e2e.core.pulls.pull import Pull, PullRef, Target
from verl_e2e.core.reach.entries import Uses
from verl_e2e.ports import ForgeError, Pulls, SourceTrees, SummaryStore


@dataclass(frozen=True, slots=True)
class Readers:
    """What planning reads: facts of pull requests, trees of a target, verl's uses (by policy), kept summaries.

    `policy` stands in for the policy of the base branch where someone gave one.
    """

    pulls: Pulls
    changes: Callable[[Target], SourceTrees]
    uses: Callable[[Policy], Uses]
    summaries: SummaryStore
    policy: Policy | None = None
    today: date = date.min


def plan_pull(ref: PullRef, readers: Readers) -> Planned:
    """The plan of a pull request as it is now; by GitHub's own list of files where git cannot be had.

    UnknownPullError or ForgeError when GitHub does not tell what it is.
    """
    pull = readers.pulls.pull(ref)
    try:
        trees = readers.changes(pull)
        policy = readers.policy or _policy(pull, readers.pulls)
        return plan_target(pull, policy, Planner(trees, readers.uses(policy), readers.summaries, readers.today))
    except ForgeError as error:
        return _by_list(pull, readers, error)


def plan_target(target: Target, policy: Policy, planner: Planner, cells: CellMap | None = None) -> Planned:
    """The plan of a target; where git shows fewer names than GitHub counts files, it asks for everything."""
    found = planner.plan(target.base_sha, target.head_sha, policy, cells=cells)
    missing = _missing(target, found.change)
    if not missing:
        return found
    return _incomplete(planner.plan(target.base_sha, target.head_sha, policy, tuple(Level), cells), missing)


def _by_list(pull: Pull, readers: Readers, error: ForgeError) -> Planned:
    listed = readers.pulls.change(pull)
    policy = readers.policy or _policy(pull, readers.pulls)
    missing = _missing(pull, listed)
    without = f"{error}. So the files were not looked into."
    found = Planned(listed, plan(listed, policy, tuple(Level) if missing else ()), None)
    return _incomplete(found, *([missing] if missing else []), without)


def _policy(pull: Pull, pulls: Pulls) -> Policy:
    """The policy at the base's tip, as the service reads it."""
    return read_policy(base_text(pull.ref.repository, pull.base_branch, pulls))


def _missing(target: Target, change: Change) -> str:
    """A sentence when more files changed than are known; a rename may be counted as one file or as two."""
    counted = target.changed_files if isinstance(target, Pull) else 0
    known = sum(len(path.names()) for path in change.paths)
    if known >= counted:
        return ""
    return f"GitHub counts {counted} changed files and {known} are known: every level is planned."


def _incomplete(planned: Planned, *notes: str) -> Planned:
    """The plan with why it may not be what the change needs; no verdict is reused for what may be another change."""
    found = replace(planned.plan, incomplete=(*notes, *planned.plan.incomplete))
    return replace(planned, plan=found, reached=NOT_KNOWN)


_SHOWN_BUMPED = 20
_IMPORTED_OF_SUBMODULE = "megatron/core/"


def with_bumps(planned: Planned, submodule: SourceTrees) -> Planned:
    """The plan with a sentence for each submodule bump: how many paths of the submodule it changes, and which first."""
    bumps = ((item.path, item.submodule) for item in planned.change.paths)
    notes = [note for path, bump in bumps if bump is not None and (note := _bump(path, bump, submodule))]
    return replace(planned, plan=replace(planned.plan, notes=(*planned.plan.notes, *notes)))


def with_verl_files(planned: Planned, paths: Collection[str], verl: str) -> Planned:
    """The plan with a sentence for each job whose script is missing in `verl`; `paths` are all its files."""
    notes = lint_jobs(planned.plan.jobs, paths, verl)
    return replace(planned, plan=replace(planned.plan, notes=(*planned.plan.notes, *notes)))


def _bump(path: str, bump: SubmoduleBump, submodule: SourceTrees) -> str:
    if bump.old is None or bump.new is None:
        return ""
    try:
        names = submodule.change(bump.old, bump.new).names()
    except UserError:
        return f"The repository given for {path} does not have both commits: which of its paths differ is not known."
    first = sorted(names, key=lambda name: (not name.startswith(_IMPORTED_OF_SUBMODULE), name))
    shown = ", ".join(map(on_one_line, first[:_SHOWN_BUMPED])) + (", ..." if len(names) > _SHOWN_BUMPED else "")
    return f"{'1 path differs' if len(names) == 1 else f'{len(names)} paths differ'} in {path}: {shown}."
