"""A bump of Megatron-LM: which of the code that differs between two commits runs of verl are known to enter.

verl reaches Megatron-LM through Bridge, at names that are made at run time, so its calls are not followed: what jobs
entered of it is known by their execution maps. Of code that no job was measured with (Megatron-FSDP, state-space
layers) the rules of the policy speak by its place.
"""

from collections.abc import Mapping
from dataclasses import replace

from verl_e2e.core.model.execution import MEGATRON_LM_FOLDER, ExecutionMaps
from verl_e2e.core.reach.changed_functions import TouchedFunction, symbol_of_effect
from verl_e2e.core.reach.diff import FileDifference
from verl_e2e.core.reach.effects import UNREACHED, UNREAD, Effect, Effects, Inside

_UNREACHED = "no measured job entered what differs, and no rule of the policy names its place"
_NO_JOB = "no job was measured with it"


def with_bump(
    effects: Effects, differences: Mapping[str, FileDifference], maps: ExecutionMaps, commits: tuple[str, str]
) -> Effects:
    """The effects with those of a bump; `differences` are those of its files, by the path in Megatron-LM."""
    paths, functions = dict(effects.paths), list(effects.functions)
    entered = total = 0
    for inner, difference in differences.items():
        path = f"{MEGATRON_LM_FOLDER}/{inner}"
        # The jobs that entered anything of the file; of one that they do not know, of its folder.
        known = any(path in item.files for item in maps.maps)
        near = path if known else f"{path.rpartition('/')[0]}/"
        any_job = tuple(item.job for item in maps.maps if any(name.startswith(near) for name in item.files))
        if difference.problem:
            # Any of its functions may differ.
            paths[path] = Inside((Effect(path, "", UNREAD, (), (difference.problem,), sure=False, jobs=any_job),))
            continue
        found = []
        bodies = {function.symbol for function in difference.functions.changed}
        for change in difference.changes:
            jobs = tuple(item.job for item in maps.entered_by(path, change.symbol))
            # What is new, and what belongs to a class or module, may take part in whatever else runs there.
            if not jobs and (change.kind == "added" or change.symbol not in bodies):
                jobs = any_job
            via = (f"entered by {', '.join(jobs)}" if jobs else _NO_JOB,)
            found.append(Effect(path, change.symbol, change.kind, change.statements, via, sure=bool(jobs), jobs=jobs))
        paths[path] = Inside(tuple(found), UNREACHED, _UNREACHED)
        total += len(difference.functions.changed)
        for earlier, both in enumerate((difference.functions.changed, difference.functions.earlier)):
            for function in both:
                reached = bool(maps.entered_by(path, function.symbol))
                entered += reached and not earlier
                # A job was measured by functions, so it must enter the function and no certain line of it.
                update = {"path": path, "reached": reached, "lines": (), "excused": ()}
                named = function.model_copy(update=update)
                functions.append(TouchedFunction(named, path, symbol_of_effect(function.symbol), bool(earlier)))
    note = (
        f"Compared Megatron-LM {commits[0][:12]} with {commits[1][:12]}: {total} functions in {len(differences)} files "
        f"differ, and measured jobs entered {entered} of them."
    )
    notes = (*effects.notes, note)
    return replace(effects, paths=paths, functions=tuple(functions), notes=notes, bumped=commits)
