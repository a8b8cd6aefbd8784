"""Explain paths and symbols: what the plan makes of a change of each path alone, at one revision."""

from collections.abc import Collection, Iterable, Mapping

from verl_e2e.app.choose_tests import REQUIREMENTS
from verl_e2e.app.plan_change import Planner, maps_of, require_package
from verl_e2e.config.maps import packaged_cell_map
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus, SubmoduleBump, on_one_line
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.plan.classify import classify
from verl_e2e.core.plan.explain import Explanation, explanations, with_maps, with_must_run
from verl_e2e.core.plan.plan import plan
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.reach.changes import symbols_of
from verl_e2e.core.reach.program import module_name
from verl_e2e.core.text.escape import likely, suggest
from verl_e2e.ports import SourceTrees


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
