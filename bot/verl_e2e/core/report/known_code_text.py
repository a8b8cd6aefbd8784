"""What execution maps say about the functions of a change, as people read it in the text of a plan."""

from collections.abc import Iterator

from verl_e2e.core.model.change import on_one_line
from verl_e2e.core.plan.known_execution import Entry, KnownExecution
from verl_e2e.core.plan.plan import Plan

_SHOWN = 5


def known_code_lines(plan: Plan) -> Iterator[str]:
    """A block of the plan text; nothing where neither verl's sources nor a map lead to a changed function."""
    if all(item.entry is Entry.UNREACHED for item in plan.known):
        return
    by_entry = {entry: [item for item in plan.known if item.entry is entry] for entry in Entry}
    counts = ", ".join(f"{len(found)} {entry}" for entry, found in by_entry.items())
    yield f"Changed functions by what runs of the planned jobs entered: {counts}"
    for entry, found in by_entry.items():
        yield from (f"  {entry}: {_line(item)}" for item in found[:_SHOWN] if entry is not Entry.UNREACHED)
        if len(found) > _SHOWN and entry is not Entry.UNREACHED:
            yield f"  {entry}: and {len(found) - _SHOWN} more"


def _line(item: KnownExecution) -> str:
    parts = (
        ("entered by", [f"{job} at {commit[:12]}" for job, commit in item.known]),
        ("may be entered by", list(item.believed)),
        ("not entered by", [f"{job} at {commit[:12]}" for job, commit in item.not_entered]),
        ("entered by jobs that are not planned:", list(item.elsewhere)),
    )
    said = "; ".join(f"{words} {', '.join(jobs)}" for words, jobs in parts if jobs)
    return f"{on_one_line(f'{item.path}:{item.symbol}')}, {said or 'no job is planned for it'}"
