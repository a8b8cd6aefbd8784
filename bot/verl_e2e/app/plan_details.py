"""What the user's verl and Megatron-LM say of a plan: missing scripts, and what a bump of the submodule changes."""

from collections.abc import Collection
from dataclasses import replace

from verl_e2e.app.plan_change import Planned
from verl_e2e.core.model.change import SubmoduleBump, on_one_line
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.plan.lint import lint_jobs
from verl_e2e.ports import SourceTrees

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
