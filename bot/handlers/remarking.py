"""Put remarks on the changed lines that a failure meets into the checks of the failed jobs."""

import logging
from dataclasses import replace

from bot.core.planning.plan import Plan
from bot.core.pulls.annotations import paths_to_read
from bot.core.pulls.check_runs import CheckRun
from bot.core.pulls.checks_wanted import check_name
from bot.core.pulls.gate import JobState, Standing
from bot.core.pulls.situation import Situation
from bot.core.pulls.verdict_parts import VerdictDocument, parsed
from bot.handlers.app_rooms import AppRooms
from bot.ports import LimitError

log = logging.getLogger(__name__)


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
    # Asked here too, so that no process is needed where there is nothing to read.
    if not paths_to_read(plan, verdict):
        return check
    try:
        return replace(check, annotations=rooms.analysis.annotate(situation.target, plan, verdict))
    except LimitError as error:
        log.warning("no remarks on %s: %s", check.name, error)
        return check
