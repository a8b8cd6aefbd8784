"""What the required jobs of a head executed of its change, and which of them another one makes up for.

Only required jobs count, as everywhere at the gate: what a person requested in addition may be another job with
another model.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from verl_e2e.core.judge.execution import (
    JoinedExecution,
    Shortfall,
    accepted,
    join,
    shortfall,
    unknown_execution,
)
from verl_e2e.core.judge.verdict_document import read_verdict
from verl_e2e.core.model.access import Demand, ExecutionRules
from verl_e2e.core.model.execution import ChangeExecution, Side
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.gate import Standing
from verl_e2e.core.pulls.job_status import JobStatus
from verl_e2e.core.pulls.ledger import RunState


def execution_of_job(standing: Standing) -> ChangeExecution | None:
    """What the last run of a job executed of the change; None before it ended, and for a job that is for no change."""
    run, job = standing.run, standing.wanted.job
    if run is None or run.state is not RunState.FINISHED:
        return None
    verdict = read_verdict(run.verdict)
    # What the policy sets aside shows nothing, so nothing of it counts as executed.
    aside = standing.quarantine is not None
    if verdict is not None and verdict.execution is not None and not aside:
        return verdict.execution
    return unknown_execution(job.changed) if job is not None and job.changed else None


def joined_execution(found: Iterable[Standing]) -> JoinedExecution:
    """What the required jobs executed together."""
    return join(_executions(found))


def _executions(found: Iterable[Standing]) -> dict[str, ChangeExecution]:
    known = ((standing.wanted.id, execution_of_job(standing)) for standing in found if standing.wanted.required)
    return {job_id: execution for job_id, execution in known if execution is not None}


def with_accepted(found: tuple[Standing, ...], rules: ExecutionRules) -> tuple[Standing, ...]:
    """The standings, those accepted whose run never entered the change and that others make up for.

    A job that no host can run is named as such where the policy lets the gate open without it.
    """
    if rules.uncoverable is Demand.ALLOW:
        found = tuple(map(_without_hosts, found))
    if not any(standing.state is JobStatus.UNEXECUTED for standing in found):
        return found
    passed = _executions(standing for standing in found if standing.state is JobStatus.PASSED)
    return tuple(_weighed(standing, passed, rules) for standing in found)


def _without_hosts(standing: Standing) -> Standing:
    reason = standing.wanted.uncoverable if standing.state is JobStatus.BLOCKED else ""
    return replace(standing, state=JobStatus.UNCOVERABLE, reason=reason) if reason else standing


def _weighed(standing: Standing, passed: dict[str, ChangeExecution], rules: ExecutionRules) -> Standing:
    own = execution_of_job(standing) if standing.state is JobStatus.UNEXECUTED else None
    reason = accepted(own, passed, rules) if own is not None else ""
    if not reason:
        return standing
    parts = (standing.disagreement, "the run was good and never entered its part of the change", reason)
    return replace(standing, state=JobStatus.ACCEPTED, reason="; ".join(part for part in parts if part))


@dataclass(frozen=True, slots=True)
class ExecutionGap:
    """What no required job executed of a change, with the level whose override accepts it."""

    shortfall: Shortfall
    # A level of a job that was planned for the first of it; None where nothing keeps the gate closed.
    level: Level | None = None


def execution_gap(found: tuple[Standing, ...], rules: ExecutionRules, overridden: frozenset[Level]) -> ExecutionGap:
    """What no required job executed; an override of a level accepts what its jobs were planned for."""
    required = tuple(standing for standing in found if standing.wanted.required)
    levels = {standing.wanted.id: standing.wanted.level for standing in required}
    joined = joined_execution(required)
    gap = shortfall(joined, rules, (job_id for job_id, level in levels.items() if level in overridden))
    if not gap.closing:
        return ExecutionGap(gap)
    head = joined.of_side(Side.HEAD)
    allowed = rules.uncoverable is Demand.ALLOW
    closing = (item for item in head if not (allowed and item.function.uncoverable))
    open_jobs = [job for item in closing if item.never or item.unknown for job in item.planned]
    wanted = [levels[job] for job in (*open_jobs, *joined.cut_off) if levels[job] not in overridden]
    return ExecutionGap(gap, min(wanted))
