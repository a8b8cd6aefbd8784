"""What execution maps say about the functions of a change: those of the program and those of the policy."""

from dataclasses import replace
from functools import cache

from verl_e2e.config.maps import known_maps, load_maps
from verl_e2e.core.model.changed_code import ChangedFunction
from verl_e2e.core.model.execution_maps import NO_MAPS, ExecutionMap, ExecutionMaps, merged_maps
from verl_e2e.core.plan.known_execution import known_executions
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.reach.changes import symbols_of
from verl_e2e.core.reach.program import module_name
from verl_e2e.core.reach.reached_functions import graph_names, symbol_of_effect
from verl_e2e.core.reach.walk import Entry
from verl_e2e.ports import ChangeSource


def maps_of(policy: Policy, source: ChangeSource, commit: str) -> ExecutionMaps:
    """The packaged maps, and in addition those that a policy names, as they are at a commit; UserError.

    A map in which nothing of the policy's package ran is one of another repository and is left out.
    """
    content = source.read_blob(commit, policy.maps) if policy.maps else None
    own = NO_MAPS if content is None else load_maps(content, policy.maps or "")
    reach = policy.reach
    folders = tuple(f"{root}{reach.package.replace('.', '/')}/" for root in reach.roots) if reach is not None else ()
    every = merged_maps(known_maps(), own).maps
    return ExecutionMaps(maps=tuple(found for found in every if any(path.startswith(folders) for path in found.files)))


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


def with_known_execution(planned: Plan, maps: ExecutionMaps, source: ChangeSource, base: str) -> Plan:
    """The plan with what the maps say of each function that a run must enter; `base` is the merge base."""
    symbols: dict[str, frozenset[str]] = {}

    def existed(_: ExecutionMap, function: ChangedFunction) -> bool:
        if function.path not in symbols:
            symbols[function.path] = frozenset(symbols_of(source.read_blob(base, function.path) or b""))
        return bool({function.symbol, symbol_of_effect(function.symbol)} & symbols[function.path])

    jobs = {
        job.id: frozenset((function.path, function.symbol) for function in job.changed.required)
        for job in planned.jobs
        if not job.obstacles
    }
    made = (job for job in planned.jobs if job.replaces)
    replaced = {job.id: f"{job.replaces}{job.id.removeprefix(job.variant.job_id)}" for job in made}
    return replace(planned, known=known_executions(planned.changed.functions, jobs, maps, existed, replaced))
