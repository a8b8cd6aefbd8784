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
from verl_e2e.core.pulls.target_state import TargetState
from verl_e2e.core.report.annotations import paths_to_read

log = logging.getLogger(__name__)


def with_notes(
    target_state: TargetState, standings: tuple[Standing, ...], checks: tuple[CheckRun, ...], rooms: AppRooms
) -> tuple[CheckRun, ...]:
    """The checks, those of failed jobs with their remarks; files are read only where a traceback meets the change."""
    if target_state.plan is None:
        return checks
    failed = {
        check_name(target_state.policy.gate.name, standing.wanted.id): verdict
        for standing in standings
        if standing.state is JobStatus.FAILED
        and standing.run is not None
        and (verdict := read_verdict(standing.run.verdict)) is not None
    }
    return tuple(
        _remarked(check, failed[check.name], target_state.plan, target_state, rooms)
        if check.name in failed and check.head_sha == target_state.head_sha
        else check
        for check in checks
    )


def _remarked(check: CheckRun, verdict: Verdict, plan: Plan, target_state: TargetState, rooms: AppRooms) -> CheckRun:
    # Asked here too, so that no process is needed where there is nothing to read.
    if not paths_to_read(plan, verdict):
        return check
    try:
        return replace(check, annotations=rooms.analysis.annotate(target_state.target, plan, verdict))
    except LimitError as error:
        log.warning("no remarks on %s: %s", check.name, error)
        return check
