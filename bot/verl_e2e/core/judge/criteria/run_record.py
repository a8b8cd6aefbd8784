"""Whether the record of a run fits the run that the back end saw: its times, its end, and the order's nonce.

A record is written where code under test runs. What is checked here makes a record that was made up, or taken from
another run, contradict itself or the back end; it proves nothing about a recorder that the code could change.
"""

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from pydantic import AwareDatetime

from verl_e2e.core.consumer.consumer import Quantity
from verl_e2e.core.consumer.consumers import measured
from verl_e2e.core.judge import wording
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.document import Document
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.outcome import Decision, Outcome, Result, Stage, of_criterion
from verl_e2e.core.model.record import EVENTS_FILE, EndedEvent, Event, Record, Started, read_data
from verl_e2e.core.triage.explain import timeline

# For the clocks of two machines, GitHub's whole seconds, and what a step of a workflow does besides the program.
TOLERANCE_S = 60.0
# Events of one run come from a few threads of the recorder.
_OUT_OF_ORDER_S = 5.0
# The end of the year 9999, the last that a date can have.
_LAST_SECOND = 253_402_300_799


class BackendTimes(Document):
    """What a back end itself knows of a run that ended."""

    # Who says so, for people, as `GitHub's job 0-lora-ddp`.
    who: str
    started: AwareDatetime | None = None
    # When it had ended, or a later time at which that was seen; None where that is not known.
    ended: AwareDatetime | None = None
    # Whether it ended well; None where the back end cannot tell.
    succeeded: bool | None = None
    conclusion: str = ""


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of a run outside of its folder."""

    took: BackendTimes | None = None
    # What the order held and the run must return; empty where the order held none.
    nonce: str = ""


def run_record(record: Record, facts: LogFacts | None, expected: Expected) -> Evidence:
    """The criterion: broken with the first thing that does not fit, waived where nothing could be compared."""
    misfit = _misfit(record, facts, expected)
    if misfit:
        return Evidence(State.BROKEN, misfit, EVENTS_FILE, criterion=Criterion.RUN_RECORD)
    took, text = expected.took, [f"{_recorded_s(record.events):.0f} s by its own events"]
    if took is not None and took.started is not None and took.ended is not None:
        text.append(f"within the {(took.ended - took.started).total_seconds():.0f} s of {took.who}")
    if expected.nonce:
        text.append("the order's nonce came back")
    if len(text) == 1:
        what = "not checked: the back end tells nothing of the run, and its order held no nonce"
        return Evidence(State.WAIVED, what, EVENTS_FILE, criterion=Criterion.RUN_RECORD)
    return Evidence(State.MET, ", ".join(text), EVENTS_FILE, criterion=Criterion.RUN_RECORD)


def hold_against_record(verdict: Verdict, item: Evidence, job: Job) -> Verdict:
    """The verdict with this criterion: a good run whose record does not fit is Blocked by that."""
    shown = replace(verdict, evidence=(*verdict.evidence, item))
    if item.state is State.WAIVED:
        return replace(shown, limitations=(*shown.limitations, f"Whether the record fits the run was {item.summary}."))
    if item.state is not State.BROKEN or not (verdict.result is Result.PASS or verdict.never_entered):
        return shown
    cause = f"the record does not fit the run: {item.summary}"
    rows = (
        replace(deliverable, outcome=Outcome.BLOCKED, detail=cause)
        if deliverable.outcome is Outcome.PASS
        else deliverable
        for deliverable in verdict.deliverables
    )
    return replace(
        shown,
        result=Result.BLOCKED,
        stage=Stage.ENVIRONMENT,
        cause=cause,
        sentence=wording.blocked_sentence(job, Stage.ENVIRONMENT, Decision(Result.BLOCKED, None, cause), None),
        deliverables=tuple(rows),
        followups=(wording.FIX_RECORD, *verdict.followups),
        own_result=Result.BLOCKED,
        decided_by=Criterion.RUN_RECORD,
        causes=(of_criterion(Criterion.RUN_RECORD),),
    )


def _misfit(record: Record, facts: LogFacts | None, expected: Expected) -> str:
    """The first thing that does not fit, empty where all does."""
    events, took = record.events, expected.took
    if took is not None and took.succeeded is False:
        return f"{took.who} ended as {took.conclusion or 'no success'}, and a run that passed ends as a success"
    times = [event.t_s for event in events]
    if any(not math.isfinite(at) or at < 0 for at in times):
        return "its events have times that no clock shows"
    if any(later < earlier - _OUT_OF_ORDER_S for earlier, later in pairwise(times)):
        return "its events go back in time"
    for kind in ("started", "ended"):
        count = sum(event.kind == kind for event in events)
        if count != 1:
            return f"its events tell {count} times that it {kind}"
    recorded_s = _recorded_s(events)
    if facts is not None:
        # The log's own times are inside of the run: training steps one after another, and stages in their order.
        trained_s = sum(measured(step.values, Quantity.STEP_TIME) or 0.0 for step in facts.steps)
        if not trained_s <= recorded_s + TOLERANCE_S:
            return f"its steps took {trained_s:.0f} s, and the run {recorded_s:.0f} s"
        logged_s = max((phase.seconds for phase in timeline(facts) if phase.seconds is not None), default=0.0)
        if logged_s > recorded_s + TOLERANCE_S:
            return f"its log goes on for {logged_s:.0f} s, and the run for {recorded_s:.0f} s"
    if took is not None and took.started is not None and took.ended is not None:
        # What the run tells lies inside of what the back end saw.
        lasted_s, slack = (took.ended - took.started).total_seconds(), timedelta(seconds=TOLERANCE_S)
        if recorded_s > lasted_s + TOLERANCE_S:
            return f"its record covers {recorded_s:.0f} s, and {took.who} ran for {lasted_s:.0f} s"
        started = next((read_data(event, Started) for event in events if event.kind == "started"), None)
        if started is not None and started.unix_s is not None and 0 <= started.unix_s <= _LAST_SECOND:
            began = datetime.fromtimestamp(started.unix_s, UTC)
            if not took.started - slack <= began <= took.ended + slack - timedelta(seconds=recorded_s):
                return f"it began at {began:%Y-%m-%d %H:%M}, and {took.who} ran from {took.started:%Y-%m-%d %H:%M}"
    returned = [(read_data(event, EndedEvent) or EndedEvent()).nonce for event in events if event.kind == "ended"]
    if not expected.nonce or returned == [expected.nonce]:
        return ""
    return f"it {'returns another nonce than that' if any(returned) else 'returns no nonce'} of the order"


def _recorded_s(events: tuple[Event, ...]) -> float:
    return max((event.t_s for event in events), default=0.0)
