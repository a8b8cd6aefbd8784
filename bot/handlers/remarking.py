"""Put remarks on the changed lines that a failure meets into the checks of the failed jobs."""

from dataclasses import replace

from bot.core.planning.plan import Plan
from bot.core.pulls.annotations import Source, annotate, paths_to_read
from bot.core.pulls.check_runs import CheckRun
from bot.core.pulls.checks_wanted import check_name
from bot.core.pulls.gate import JobState, Standing
from bot.core.pulls.situation import Situation
from bot.core.pulls.verdict_parts import VerdictDocument, parsed
from bot.handlers.app_rooms import AppRooms
from bot.ports import SourceTrees


def with_remarks(
    situation: Situation, standings: tuple[Standing, ...], checks: tuple[CheckRun, ...], rooms: AppRooms
) -> tuple[CheckRun, ...]:
    """The checks, those of failed jobs with their remarks; files are read only where a traceback meets the change."""
    if situation.plan is None:
        return checks
    failed = {
        check_name(situation.policy.gate.name, one.wanted.id): parsed(one.run.verdict)
        for one in standings
        if one.state is JobState.FAILED and one.run is not None
    }
    return tuple(
        _remarked(check, failed[check.name], situation.plan, situation, rooms)
        if check.name in failed and check.head_sha == situation.head_sha
        else check
        for check in checks
    )


def _remarked(check: CheckRun, verdict: VerdictDocument, plan: Plan, situation: Situation, rooms: AppRooms) -> CheckRun:
    paths = paths_to_read(plan, verdict)
    if not paths:
        return check
    trees = rooms.changes(situation.target)
    base = trees.change(plan.base, plan.head).merge_base or plan.base
    sources = {path: source for path in paths if (source := _source(trees, base, plan.head, path)) is not None}
    return replace(check, annotations=annotate(plan, verdict, sources))


def _source(trees: SourceTrees, base: str, head: str, path: str) -> Source | None:
    """The file on both sides; None for one that the head has not."""
    now = trees.read_blob(head, path)
    return Source(now, trees.read_blob(base, path)) if now is not None else None
