"""The execution maps of a policy: those of the program and those that the policy names."""

from collections.abc import Iterable
from functools import cache

from verl_e2e.config.maps import known_maps, load_maps
from verl_e2e.core.model.execution_maps import NO_MAPS, ExecutionMaps, merged_maps
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.reach.program import module_name
from verl_e2e.core.reach.reached_functions import graph_names
from verl_e2e.core.reach.walk import Entry
from verl_e2e.ports import ChangeSource


def maps_of(policy: Policy, source: ChangeSource, commit: str) -> ExecutionMaps:
    """The packaged maps, and in addition those that a policy names, as they are at a commit; UserError.

    A map in which nothing of the policy's package ran is one of another repository and is left out.
    """
    content = source.read_blob(commit, policy.maps) if policy.maps else None
    own = NO_MAPS if content is None else load_maps(content, policy.maps or "")
    every = merged_maps(known_maps(), own).maps
    return ExecutionMaps(maps=tuple(found for found in every if is_about(found.files, policy)))


def is_about(paths: Iterable[str], policy: Policy) -> bool:
    """Whether one of some measured paths is of the package that a policy is about."""
    reach = policy.reach
    folders = tuple(f"{root}{reach.package.replace('.', '/')}/" for root in reach.roots) if reach is not None else ()
    return any(path.startswith(folders) for path in paths)


@cache
def entered_by_runs(package: str, roots: tuple[str, ...]) -> tuple[Entry, ...]:
    """The functions of the package that the packaged maps have, by all names that reach may have for them."""
    found: dict[tuple[str, str], Entry] = {}
    for measured in known_maps().maps:
        for path, symbols in measured.files.items():
            module = module_name(path, roots) or ""
            if f"{module}.".startswith(f"{package}."):
                names = (name for symbol in symbols for name in graph_names(symbol))
                found.update(((module, name), Entry(module, name, job=measured.job)) for name in names)
    return tuple(found.values())
