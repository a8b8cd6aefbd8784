"""The plan's reasons for a comment: one fold for each level, each reason with the chain by which verl reaches it."""

from collections.abc import Iterable, Iterator

from verl_e2e.core.judge.purposes_text import purpose_rows
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.plan import Plan, Reason
from verl_e2e.core.text.blocks import Block, folded_text

SHOWN_PLACES = 4
SHOWN_STEPS = 8


def reason_blocks(plan: Plan, share: int) -> tuple[Block, ...]:
    """A folded block for each required level and one for the rest; together they take about `share` characters."""
    each = max(600, share // (len(plan.levels) + 1))
    required = tuple(folded_text(_title(level, plan), tuple(_rows(level, plan)), each) for level in plan.levels)
    rest = tuple(_rest(plan))
    title = "Levels that are not required, and why" if plan.levels else "Why no level is required"
    return (*required, folded_text(title, rest, each)) if rest else required


def _title(level: Level, plan: Plan) -> str:
    paths = {reason.path for reason in plan.reasons if reason.level is level and reason.path is not None}
    jobs = sum(job.variant.level is level for job in plan.jobs)
    asked = f"{_count(len(paths), 'changed path')} require{'s' if len(paths) == 1 else ''} it" if paths else "requested"
    return f"Why level {int(level)}, {level.title}: {asked}, {_count(jobs, 'job')}"


def _rows(level: Level, plan: Plan) -> Iterator[str]:
    groups: dict[str, list[Reason]] = {}
    for reason in plan.reasons:
        if reason.level is level:
            groups.setdefault(reason.reason, []).append(reason)
    for text, reasons in groups.items():
        yield text
        yield from _places(reasons)
    for job in plan.jobs:
        rows = purpose_rows(job.purposes) if job.variant.level is level else ()
        yield from (f"job {job.id}: {row}" for row in rows)


def _places(reasons: list[Reason]) -> Iterator[str]:
    placed = [reason for reason in reasons if reason.path is not None]
    for reason in placed[:SHOWN_PLACES]:
        yield f"  {reason.path}" + (f": {reason.symbol}" if reason.symbol else "")
        yield from (f"    {step}" for step in _chain(reason.via))
    if len(placed) > SHOWN_PLACES:
        yield f"  and {_count(len(placed) - SHOWN_PLACES, 'more place')}"


def _chain(via: tuple[str, ...]) -> Iterable[str]:
    """The chain from verl, outermost first; a long one is shortened in the middle, because its ends say most."""
    if len(via) <= SHOWN_STEPS:
        return via
    left = len(via) - SHOWN_STEPS + 1
    head = SHOWN_STEPS // 2
    return (*via[:head], f"... {_count(left, 'step')} ...", *via[head + left :])


def _rest(plan: Plan) -> Iterator[str]:
    if len({item.reason for item in plan.not_required}) == 1 and not plan.levels:
        yield plan.not_required[0].reason
    else:
        yield from (f"Level {int(item.level)}, {item.level.title}: {item.reason}" for item in plan.not_required)
    yield from (*plan.switched_off, *plan.incomplete, *plan.notes)
    yield from _left_open(plan)
    if not plan.levels and plan.looked_at is not None:
        yield plan.looked_at.sentence
    for test in plan.tests.tests:
        yield f"Bridge test chosen: {test.test}: {test.reason}"
    if plan.levels:
        for item in plan.exempted:
            yield f"Set aside: {_count(item.count, 'path')} in {item.name} ({item.reason})"


def _left_open(plan: Plan) -> Iterator[str]:
    """What the planned jobs do not show, or are not known to."""
    for left in plan.not_covered[:SHOWN_PLACES]:
        yield from (f"No job is planned {row}: {left.reason}" for row in purpose_rows([left.purpose]))
    if len(plan.not_covered) > SHOWN_PLACES:
        yield f"No job is planned for {_count(len(plan.not_covered) - SHOWN_PLACES, 'more place')}"
    for place in plan.not_entered[:SHOWN_PLACES]:
        yield f"It is not known whether a planned job enters {place}: {place.problem}"
    if len(plan.not_entered) > SHOWN_PLACES:
        yield f"Nor is it known of {_count(len(plan.not_entered) - SHOWN_PLACES, 'more place')}"
    for unshown in plan.unshown:
        more = f" and {len(unshown.places) - 1} more" if len(unshown.places) > 1 else ""
        yield f"Level {int(unshown.level)} {unshown.reason}, so it cannot show {unshown.places[0]}{more}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
