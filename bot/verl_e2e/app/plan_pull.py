"""Plan a pull request or a merge group by git objects, in full where these do not tell, and explain a plan."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date

from verl_e2e.app.choose_tests import REQUIREMENTS
from verl_e2e.app.known_targets import base_text, read_policy
from verl_e2e.app.plan_change import Planned, Planner, maps_of, require_package
from verl_e2e.config.maps import packaged_cell_map
from verl_e2e.core.compare.cell_map import CellMap
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus, SubmoduleBump, on_one_line
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.classify import classify
from verl_e2e.core.plan.explain import Explanation, explanations, with_maps, with_must_run
from verl_e2e.core.plan.lint import lint_jobs
from verl_e2e.core.plan.plan import plan
from verl_e2e.core.plan.policy import Policy, ReachPolicy
from verl_e2e.core.plan.reached_files import NOT_KNOWN
from verl_e2e.core.pulls.pull import Pull, PullRef, Target
from verl_e2e.core.reach.diff import symbols_of
from verl_e2e.core.reach.entries import USES_VERSION, Uses, uses_of
from verl_e2e.core.reach.program import SUMMARY_VERSION, module_name
from verl_e2e.core.text.escape import likely, suggest
from verl_e2e.ports import ForgeError, Pulls, SourceTrees, SummaryStore, UsesStore


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


class UnknownTargetError(UserError):
    """A path or symbol that the revision does not have, in one sentence with the nearest one. The user's mistake."""


_ONLY_SOME = "a change that keeps every requirement that verl's run imports, and the build, asks for nothing"


def explain(
    planner: Planner, revision: str, policy: Policy, targets: Iterable[tuple[str, str]]
) -> tuple[Explanation, ...]:
    """What the plan makes of changes at a revision; a target is a path and a symbol, empty for all of it.

    OtherRepositoryError where the revision does not hold the package that the policy is about, UnknownTargetError.
    """
    require_package(planner.repository, (revision,), policy)
    paths = _paths(planner.repository, revision)
    wanted = ((path.rstrip("/"), symbol) for path, symbol in targets)
    return tuple(row for target in wanted for row in _explained(planner, revision, policy, paths, target))


def _paths(repository: SourceTrees, revision: str) -> Mapping[str, ChangedPath]:
    """A change of each path of the tree: files, links and submodules."""
    paths = {path: ChangedPath(path, PathStatus.MODIFIED) for path in repository.tree(revision)}
    for path, target in repository.links(revision).items():
        commit = target.removeprefix("commit ") if target.startswith("commit ") else None
        bump = SubmoduleBump(commit, commit) if commit else None
        paths[path] = ChangedPath(path, PathStatus.MODIFIED, submodule=bump)
    return paths


def _explained(
    planner: Planner, revision: str, policy: Policy, paths: Mapping[str, ChangedPath], target: tuple[str, str]
) -> tuple[Explanation, ...]:
    path, symbol = target
    if path not in paths:
        raise UnknownTargetError(f"{on_one_line(path)}: {_no_path(path, paths)}")
    _require_symbol(planner.repository.read_blob(revision, path), path, symbol)
    change = Change(revision, revision, revision, (paths[path],))
    cells = packaged_cell_map()
    effects = planner.effects_of_whole(change, policy, cells)
    names = _symbols(planner, revision, path, policy) if effects is not None and effects.inside(path) else {}
    condition = _ONLY_SOME if policy.reach and policy.reach.dependencies and path in REQUIREMENTS else ""
    planned = plan(change, policy, (), effects, measured=planner.measured(change, policy, cells))
    found = explanations(planned, classify(path, policy, effects), symbol, names, condition)
    maps = maps_of(policy, planner.repository, revision)
    return tuple(with_maps(with_must_run(explanation, planned), maps) for explanation in found)


def _no_path(path: str, paths: Collection[str]) -> str:
    if any(name.startswith(f"{path}/") for name in paths):
        return "this is a folder; name a file in it"
    # The same name in another folder is nearer than any other text.
    same = [name for name in paths if name.rpartition("/")[2] == path.rpartition("/")[2]]
    near = likely(path, same) or next(iter(sorted(same)), "") or likely(path, paths)
    return f"this commit has no such path; {f'did you mean {on_one_line(near)}?' if near else 'name one of it'}"


def _require_symbol(content: bytes | None, path: str, symbol: str) -> None:
    """UnknownTargetError for a symbol that a file does not have."""
    known = symbols_of(content or b"") if symbol and path.endswith(".py") else ()
    if symbol and not any(f"{name}.".startswith(f"{symbol}.") for name in known):
        fix = suggest(symbol, known) if known else "leave it out: no symbol of the file can be read"
        raise UnknownTargetError(f"{on_one_line(path)} has no symbol {symbol}; {fix}")


def _symbols(planner: Planner, revision: str, path: str, policy: Policy) -> Mapping[str, bool]:
    """The symbols of a source file in order, each with whether an import of the file runs it."""
    assert policy.reach is not None
    view = planner.tree(revision, policy).program.view(module_name(path, policy.reach.roots) or "")
    content = planner.repository.read_blob(revision, path)
    kinds = {name: view.symbols[name].kind for name in view.symbols} if view is not None else {}
    return {name: kinds.get(name) in ("variable", "class") for name in symbols_of(content or b"")}


def uses_at(
    repository: SourceTrees, commit: str, reach: ReachPolicy, source: str, store: UsesStore | None = None
) -> Uses:
    """What verl uses of the package at a commit, given in full; `source` tells people which verl that is.

    `store` keeps what was read of it, unless a content was not there: a partial clone may have it the next time.
    """
    key = _key(commit, reach, source)
    known = store.load_uses(key) if store is not None else None
    if known is not None:
        return known
    tree = {path: blob for path, blob in repository.tree(commit, reach.callers).items() if path.endswith(".py")}
    contents = repository.read_objects(list(tree.values()))
    sources = {path: content for path, blob in tree.items() if (content := contents[blob]) is not None}
    uses = uses_of(sources, reach.package, source)
    if store is not None and len(sources) == len(tree):
        store.save_uses(key, uses)
    return uses


def _key(commit: str, reach: ReachPolicy, source: str) -> str:
    """All that the answer depends on, as one digest."""
    parts = (str(USES_VERSION), str(SUMMARY_VERSION), commit, reach.package, reach.callers, source)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
