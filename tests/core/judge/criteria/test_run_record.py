"""Whether a record fits the run: each thing that does not, and what it makes of a verdict."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.core.builders import ended, make_facts, make_job, make_record
from tests.core.executions import TRANSFORM, change, ran
from verl_e2e.core.judge.criteria.run_record import BackendTimes, Expected, hold_against_record, run_record
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.outcome import Outcome, Result
from verl_e2e.core.model.record import EndReason, Event, Record

NONCE = "a1" * 16
BEGAN = datetime(2026, 11, 20, 12, tzinfo=UTC)


def events(*, nonce: object = NONCE, last_s: float = 244.0, began: object = None) -> tuple[Event, ...]:
    first = {} if began is None else {"unix_s": began}
    data = {"reason": EndReason.EXITED.value, "exit_code": 0, "note": "", "nonce": nonce}
    return (
        Event(t_s=0.0, kind="started", data=first),
        Event(t_s=1.0, kind="command", data={"argv": ["bash"]}),
        Event(t_s=last_s, kind="ended", data=data),
    )


def took(seconds: float = 400, *, succeeded: bool | None = True, conclusion: str = "success") -> BackendTimes:
    end = BEGAN + timedelta(seconds=seconds)
    return BackendTimes(
        who="GitHub's job 0-lora-ddp", started=BEGAN, ended=end, succeeded=succeeded, conclusion=conclusion
    )


def with_events(*message: Event) -> Record:
    return make_record(events=message)


@pytest.mark.parametrize(
    ("record", "expected", "misfit"),
    [
        (with_events(*events()), Expected(took(), NONCE), ""),
        (with_events(*events(began=BEGAN.timestamp() + 60)), Expected(took(), NONCE), ""),
        (with_events(*events()), Expected(took(190), NONCE), ""),
        (
            with_events(*events()),
            Expected(took(0), NONCE),
            "244 s, and GitHub's job 0-lora-ddp ran for 0 s",
        ),
        (with_events(*events()), Expected(took(183), NONCE), "covers 244 s"),
        (with_events(*events()), Expected(took(succeeded=False, conclusion="failure"), NONCE), "ended as failure"),
        (with_events(*events()), Expected(took(succeeded=False, conclusion="timed_out"), NONCE), "ended as timed_out"),
        (with_events(*events(nonce="b2" * 16)), Expected(took(), NONCE), "another nonce"),
        (with_events(*events(nonce="")), Expected(took(), NONCE), "no nonce"),
        (with_events(*events(nonce=None)), Expected(took(), NONCE), "no nonce"),
        (with_events(*events(nonce=[NONCE])), Expected(took(), NONCE), "no nonce"),
        (with_events(*events(began=BEGAN.timestamp() - 3600)), Expected(took(), NONCE), "it began at 2026-11-20 11:00"),
        (with_events(*events(began=BEGAN.timestamp() + 399)), Expected(took(), NONCE), "it began at"),
        (
            with_events(*events(began=BEGAN.timestamp() - 86_400 * 30)),
            Expected(took(), NONCE),
            "at 2026-10-21",
        ),
        (with_events(*events(), *events()), Expected(took(), NONCE), "go back in time"),
        (with_events(*events(), *events()[-1:]), Expected(took(), NONCE), "tell 2 times that it ended"),
        (with_events(*events()[1:]), Expected(took(), NONCE), "tell 0 times that it started"),
        (with_events(*events(last_s=float("nan"))), Expected(took(), NONCE), "no clock shows"),
        (with_events(*events(last_s=float("inf"))), Expected(took(), NONCE), "no clock shows"),
        (with_events(*events(last_s=-1.0)), Expected(took(), NONCE), "no clock shows"),
        (with_events(*events(last_s=2.0)), Expected(took(), NONCE), ""),
        (with_events(), Expected(took(), NONCE), "tell 0 times"),
        (with_events(*events()), Expected(None, NONCE), ""),
        (with_events(*events()), Expected(BackendTimes(who="the runner on this host"), NONCE), ""),
    ],
)
def test_what_does_not_fit(record: Record, expected: Expected, misfit: str) -> None:
    item = run_record(record, make_facts(), expected)
    assert (item.state is State.BROKEN) == bool(misfit), item.summary
    assert misfit in item.summary


def test_steps_that_took_longer_than_the_run_do_not_fit() -> None:
    facts = make_facts()
    assert facts.steps
    trained_s = sum(step.values.get("timing_s/step", 0.0) for step in facts.steps)
    short = with_events(*events(last_s=max(trained_s - 61, 0.0)))
    fits = run_record(short, facts, Expected(took(), NONCE)).state is State.MET
    assert fits == (trained_s <= 61)


@pytest.mark.parametrize("message", [float("nan"), 1e300, -1, "yesterday", None, [1]])
def test_a_start_that_is_no_time_is_not_read(message: object) -> None:
    item = run_record(with_events(*events(began=message)), make_facts(), Expected(took(), NONCE))
    assert item.state is State.MET


def test_what_nobody_could_check_is_said() -> None:
    item = run_record(with_events(*ended()), make_facts(), Expected())
    assert (item.state, item.summary.startswith("not checked: ")) == (State.WAIVED, True)
    verdict = hold_against_record(judge(make_record(), make_facts()), item, make_job())
    assert verdict.result is Result.PASS
    assert any(
        limitation.startswith("Whether the record fits the run was not checked") for limitation in verdict.limitations
    )


def test_a_pass_whose_record_does_not_fit_is_blocked_and_says_why() -> None:
    record = make_record()
    item = run_record(record, make_facts(), Expected(took(0)))
    verdict = hold_against_record(judge(record, make_facts()), item, make_job())
    assert verdict.result is Result.BLOCKED
    assert verdict.cause.startswith("the record does not fit the run: its record covers 244 s")
    assert verdict.cause in verdict.sentence.replace("The record", "the record")
    assert all(deliverable.outcome is not Outcome.PASS for deliverable in verdict.deliverables)
    assert verdict.evidence[-1].criterion == Criterion.RUN_RECORD


def test_a_fail_stays_a_fail_though_the_job_ended_as_a_failure() -> None:
    record = make_record(events=ended(exit_code=1))
    known = judge(record, make_facts())
    item = run_record(record, make_facts(), Expected(took(succeeded=False, conclusion="failure")))
    assert known.result is not Result.PASS
    assert hold_against_record(known, item, make_job()).result is known.result


def test_a_run_that_never_entered_the_change_and_does_not_fit_is_blocked_by_its_record() -> None:
    record = make_record(job=make_job(changed=change(TRANSFORM)), executed=ran())
    known = judge(record, make_facts())
    item = run_record(record, make_facts(), Expected(took(0)))
    verdict = hold_against_record(known, item, make_job())
    assert (known.never_entered, verdict.never_entered, verdict.decided_by) == (True, False, Criterion.RUN_RECORD)
