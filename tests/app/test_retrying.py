"""What the infrastructure broke is run again by itself, and nothing else is: what runs, and what GitHub shows."""

import re
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.app.test_reconciling import SMOKE, ask, finish, gate, live, look
from tests.core.builders import config_with, error, make_facts
from tests.fakes.app import BASE, POLICY, REF, REPOSITORY, App, blocks, fails, passes
from tests.fakes.trees import sha
from verl_e2e.config.policy import POLICY_PATH
from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.outcome import EngineEnd, Stage
from verl_e2e.core.model.record import Record
from verl_e2e.core.pulls.ledger import RunState
from verl_e2e.ports import BackendError, ForgeError

AGAIN = [
    EngineEnd.NODE_FAILED,
    EngineEnd.NODE_NOT_READY,
    EngineEnd.PREEMPTED,
    EngineEnd.RUNNER_KILLED,
    EngineEnd.FORGOTTEN,
]


@pytest.fixture
def app() -> App:
    made = App()
    made.open(path="src/lora/a.py")
    look(made)
    return made


def lose(app: App, end: EngineEnd = EngineEnd.NODE_FAILED) -> None:
    """The run under way ends as the engine says, after it ran for ten minutes."""
    app.backend.begin()
    look(app)
    app.clock.pass_s(540)
    (run,) = app.backend.live()
    app.backend.lose(run, end)
    look(app)


def unreachable(job: Job) -> tuple[Record, LogFacts | None]:
    """What a run leaves whose model could not be downloaded."""
    record, _ = passes(job)
    found = error("OSError", "[Errno -2] Name or service not known", stage=Stage.MODEL_DOWNLOAD, line=40)
    configs = (config_with(dict(job.expected)),)
    return record, make_facts(errors=(found,), configs=configs, steps=(), progress=None, completed_at=None, stages=())


def attempts(app: App) -> list[tuple[int, RunState, bool]]:
    runs = app.ledger.runs(REPOSITORY, number=7)
    return [(run.attempt, run.state, bool(run.retry_of)) for run in runs]


def card(app: App) -> str:
    (found,) = app.hub.cards(7)
    return found.body


@pytest.mark.parametrize("end", EngineEnd)
def test_each_end_of_an_engine_is_run_again_only_where_it_may_pass(app: App, end: EngineEnd) -> None:
    lose(app, end)
    look(app, 61)
    assert live(app) == ([SMOKE] if end in AGAIN else [])
    assert gate(app)[:2] == (("in_progress", "") if end in AGAIN else ("completed", "action_required"))
    (first, *_) = app.ledger.runs(REPOSITORY, number=7)
    assert first.causes == (f"engine:{end}",)


def test_the_second_attempt_passes_and_every_attempt_stays_on_the_card(app: App) -> None:
    lose(app)
    assert (live(app), gate(app)[0]) == ([], "in_progress"), "it waits a minute"
    assert re.search(r"attempt 2 begins at 2026-11-20 12:1\d UTC", card(app))
    assert look(app, 61) == app.handlers.reconciler.poll_s
    finish(app, SMOKE, passes)
    look(app)
    assert gate(app)[:2] == ("completed", "success")
    assert attempts(app) == [(1, RunState.LOST, False), (2, RunState.FINISHED, True)]
    text = card(app)
    assert "attempt 1: Blocked, node failed" in text
    assert "attempt 2: Pass, run again by itself" in text
    (check,) = (run for run in app.hub.runs if run.name == f"verl-e2e / {SMOKE}")
    assert "attempt 1: Blocked, node failed" in check.summary


def test_the_gpu_minutes_of_all_attempts_add_up(app: App) -> None:
    lose(app)
    (first,) = app.ledger.runs(REPOSITORY, number=7)
    assert first.gpu_minutes == pytest.approx(10.0), "seen to run for ten minutes on one GPU"
    look(app, 61)
    lose(app)
    runs = app.ledger.runs(REPOSITORY, number=7)
    assert [run.gpu_minutes for run in runs] == [10.0, 10.0]
    assert "GPU minutes: 20.0 used" in card(app)


def test_the_gpu_minutes_of_a_lost_run_are_those_that_the_engine_saw_however_late_the_look_is(app: App) -> None:
    app.backend.begin()
    look(app)
    (run,) = app.backend.live()
    ended = app.clock.now() + timedelta(minutes=4)
    app.clock.pass_s(7200)
    app.backend.lose(
        run, EngineEnd.RUNNER_ENDED, BackendTimes(who="Slurm", started=ended - timedelta(minutes=3), ended=ended)
    )
    look(app)
    (first, *_) = app.ledger.runs(REPOSITORY, number=7)
    assert first.gpu_minutes == pytest.approx(3.0)


def test_a_model_that_could_not_be_downloaded_is_tried_once_more(app: App) -> None:
    finish(app, SMOKE, unreachable)
    look(app)
    look(app, 61)
    assert live(app) == [SMOKE]
    finish(app, SMOKE, unreachable)
    look(app)
    assert look(app, 3_600) is None
    assert attempts(app) == [(1, RunState.FINISHED, False), (2, RunState.FINISHED, True)]
    assert gate(app)[:2] == ("completed", "action_required")
    assert "not run again: 2 attempts met a passing fault of the infrastructure" in card(app)


@pytest.mark.parametrize("how", [fails, blocks])
def test_a_fail_and_what_nothing_is_known_of_are_never_run_again(app: App, how: object) -> None:
    finish(app, SMOKE, how)
    look(app)
    assert look(app, 3_600) is None
    assert attempts(app) == [(1, RunState.FINISHED, False)]


def test_an_infrastructure_fault_after_a_fail_is_not_run_again(app: App) -> None:
    finish(app, SMOKE, fails)
    look(app)
    ask(app, "rerun")
    look(app)
    lose(app)
    look(app, 61)
    assert (live(app), gate(app)[1]) == ([], "action_required")
    assert "an attempt of this job failed" in card(app)


def test_a_new_head_while_it_waits_gets_the_runs(app: App) -> None:
    lose(app)
    app.push("two", "src/lora/a.py")
    look(app, 61)
    assert [(run.head_sha, run.attempt, run.retry_of) for run in app.backend.live()] == [(sha("two"), 1, "")]


def test_a_cancel_while_it_waits_ends_the_waiting(app: App) -> None:
    lose(app)
    ask(app, "cancel")
    look(app, 61)
    assert live(app) == []
    assert attempts(app) == [(1, RunState.LOST, False)]


@pytest.mark.parametrize("fault", ["submit", "submit!", "write_check", "edit"])
def test_a_kill_between_decision_and_dispatch_starts_it_once(app: App, fault: str) -> None:
    lose(app)
    (app.backend if fault.startswith("submit") else app.hub).fail.append(fault)
    with suppress(BackendError, ForgeError):
        look(app, 61)
    for _ in range(4):
        app.restart()
        look(app, 61)
    assert attempts(app)[1:] == [(2, app.ledger.runs(REPOSITORY, number=7)[-1].state, True)]
    assert [run.attempt for run in app.backend.submitted] == [1, 2]


def test_two_processes_that_decide_at_once_start_one_attempt(app: App) -> None:
    lose(app)
    app.clock.pass_s(61)
    other = app.connect()
    assert app.handlers.reconciler is not other.reconciler
    other.reconciler.reconcile(REF)
    app.handlers.reconciler.reconcile(REF)
    assert [run.attempt for run in app.backend.submitted] == [1, 2]


def test_the_policy_says_how_often_and_how_much() -> None:
    app = App()
    app.hub.files[(BASE, POLICY_PATH)] = (
        f"{POLICY}retry: {{passing: 2, wait_s: 0, gpu_minutes_per_day: 400}}\n".encode()
    )
    app.open(path="src/lora/a.py")
    look(app)
    for _ in range(3):
        lose(app)
    assert [run.attempt for run in app.backend.submitted] == [1, 2, 3]
    assert live(app) == []


def known(app: App, gate_rule: str = "block", until: str = "2026-12-31") -> None:
    """The policy of the base sets the failure of the runs so far aside."""
    run = app.ledger.runs(REPOSITORY, number=7)[0]
    entry = f"{{cause: {run.causes[0]}, fingerprint: '{run.fingerprint}', until: {until}, reason: known, "
    entry += "link: 'https://example.com/1'}"
    text = f"{POLICY}gate: {{quarantined: {gate_rule}}}\nquarantine: [{entry}]\n"
    app.hub.tips["main"] = sha("with quarantine")
    app.hub.files[(sha("with quarantine"), POLICY_PATH)] = text.encode()
    app.hub.pulls[7] = replace(app.hub.pulls[7], base_sha=sha("with quarantine"))


def test_a_known_failure_is_quarantined_by_name_until_its_day(app: App) -> None:
    finish(app, SMOKE, fails)
    look(app)
    assert gate(app)[1] == "failure"
    known(app)
    look(app)
    assert gate(app)[1:] == ("action_required", gate(app)[2])
    assert gate(app)[2].startswith("0-lora-ddp quarantined until 2026-12-31 (known, https://example.com/1)")
    known(app, "allow")
    app.restart()
    # A gate that is open by an entry is looked at again when the entry ends, though nothing happens to it.
    assert look(app) == (datetime(2027, 1, 1, tzinfo=UTC) - app.clock.now()).total_seconds()
    assert gate(app)[1] == "success"
    assert "quarantined until 2026-12-31 (known" in gate(app)[2]
    (check,) = (run for run in app.hub.runs if run.name == f"verl-e2e / {SMOKE}")
    assert check.conclusion == "action_required"
    app.clock.pass_s(45 * 86_400)
    app.restart()
    look(app)
    assert gate(app)[1] == "failure"


def test_a_rerun_that_passes_says_with_which_attempt_it_disagrees(app: App) -> None:
    finish(app, SMOKE, fails)
    look(app)
    ask(app, "rerun", "failed")
    look(app)
    finish(app, SMOKE, passes)
    look(app)
    assert gate(app)[1] == "success"
    assert "0-lora-ddp disagrees with attempt 1, which failed" in gate(app)[2]
    assert "attempt 1: Fail" in card(app)


@pytest.mark.parametrize("end", [EngineEnd.NODE_NOT_READY, None])
def test_a_run_without_a_folder_is_tried_again_only_where_its_job_never_began(app: App, end: EngineEnd | None) -> None:
    (run,) = app.backend.live()
    order = app.backend.orders[run.key]
    order.state, order.end = RunState.FINISHED, end
    look(app)
    look(app, 61)
    assert live(app) == ([SMOKE] if end else [])
