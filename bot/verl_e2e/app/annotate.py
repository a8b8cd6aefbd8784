"""Put remarks on the changed lines that a failure meets into the checks of the failed jobs."""

import logging
from dataclasses import replace

from verl_e2e.app.services import AppRooms
from verl_e2e.core.judge.verdict_document import Verdict, read_verdict
from verl_e2e.core.model.errors import LimitError
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.pulls.check_runs import CheckRun, check_name
from verl_e2e.core.pulls.gate import Standing
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.target_state import Situation
from verl_e2e.core.report.annotations import paths_to_read

log = logging.getLogger(__name__)


def with_remarks(
    situation: Situation, standings: tuple[Standing, ...], checks: tuple[CheckRun, ...], rooms: AppRooms
) -> tuple[CheckRun, ...]:
    """The checks, those of failed jobs with their remarks; files are read only where a traceback meets the change."""
    if situation.plan is None:
        return checks
    failed = {
        check_name(situation.policy.gate.name, one.wanted.id): verdict
        for one in standings
        if one.state is JobStatus.FAILED
        and one.run is not None
        and (verdict := read_verdict(one.run.verdict)) is not None
    }
    return tuple(
        _remarked(check, failed[check.name], situation.plan, situation, rooms)
        if check.name in failed and check.head_sha == situation.head_sha
        else check
        for check in checks
    )


def _remarked(check: CheckRun, verdict: Verdict, plan: Plan, situation: Situation, rooms: AppRooms) -> CheckRun:
    # Asked here too, so that no process is needed where there is nothing to read.
    if not paths_to_read(plan, verdict):
        return check
    try:
        return replace(check, annotations=rooms.analysis.annotate(situation.target, plan, verdict))
    except LimitError as error:
        log.warning("no remarks on %s: %s", check.name, error)
        return check
