"""One commit as the head of two pull requests: runs of their own, and one gate that opens when it may for both."""

from dataclasses import replace

import pytest

from bot.config.policy import POLICY_PATH
from bot.core.pulls.pull import Pull, PullRef, PullState
from bot.handlers.reconciling import reconcile
from tests.fakes.app import POLICY, REF, REPOSITORY, App, fails, passes
from tests.fakes.trees import sha

OTHER = PullRef(REPOSITORY, 8)
LENIENT = sha("lenient")


@pytest.fixture
def app() -> App:
    made = App()
    made.hub.files[(LENIENT, POLICY_PATH)] = POLICY.replace("paths: [docs/]", "paths: [docs/, src/]").encode()
    return made


def look(app: App, ref: PullRef = REF) -> float | None:
    app.clock.pass_s(60)
    return reconcile(ref, app.rooms)


def open_other(app: App, pull: Pull, **given: object) -> None:
    app.hub.pulls[OTHER.number] = replace(pull, ref=OTHER, **given)  # type: ignore[arg-type]


def said(app: App) -> str:
    found = app.hub.gate(sha("one"))
    return "" if found is None else found.conclusion or found.status


def pass_all(app: App, ref: PullRef) -> None:
    while app.backend.live():
        for run in app.backend.live():
            app.backend.finish(run, passes)
        look(app, ref)
        look(app, ref)


def test_a_pull_request_that_takes_anothers_place_runs_though_the_other_was_ended(app: App) -> None:
    pull = app.open(path="src/lora/a.py")
    look(app)
    app.hub.pulls[REF.number] = replace(pull, state=PullState.CLOSED)
    look(app)
    app.backend.settle()
    look(app)
    assert app.backend.live() == []
    open_other(app, pull)
    look(app, OTHER)
    assert [run.number for run in app.backend.live()] == [OTHER.number]
    pass_all(app, OTHER)
    assert said(app) == "success"


def test_two_pull_requests_with_one_head_share_its_runs(app: App) -> None:
    pull = app.open(path="src/lora/a.py")
    look(app)
    open_other(app, pull)
    look(app, OTHER)
    (run,) = app.backend.live()
    assert run.number == REF.number
    pass_all(app, OTHER)
    look(app, REF)
    look(app, OTHER)
    assert said(app) == "success"
    assert {one.number for one in app.ledger.runs(REPOSITORY)} == {REF.number}


def test_what_fails_for_one_base_is_tried_again_for_another(app: App) -> None:
    pull = app.open(path="src/lora/a.py")
    look(app)
    app.backend.finish(app.backend.live()[0], fails)
    look(app)
    open_other(app, pull)
    look(app, OTHER)
    (run,) = app.backend.live()
    assert (run.number, run.attempt) == (OTHER.number, 2)


def test_a_commit_that_may_pass_by_another_base_opens_no_gate_of_the_first(app: App) -> None:
    pull = app.open(path="src/lora/a.py")
    look(app)
    open_other(app, pull, base_sha=LENIENT)
    look(app, OTHER)
    assert said(app) == "action_required"
    shown = app.hub.gate(sha("one"))
    assert shown is not None
    assert "Pull request #7 has this head too" in shown.title
    look(app)
    assert said(app) == "in_progress"
    pass_all(app, REF)
    assert said(app) == "success"
    look(app, OTHER)
    assert said(app) == "success"


def test_the_one_that_is_left_is_satisfied_once_the_other_is_closed_and_stays_so(app: App) -> None:
    pull = app.open(path="src/lora/a.py")
    look(app)
    open_other(app, pull, base_sha=LENIENT)
    look(app, OTHER)
    app.hub.pulls[REF.number] = replace(pull, state=PullState.CLOSED)
    look(app)
    app.backend.settle()
    look(app, OTHER)
    assert said(app) == "success"
    look(app)
    assert said(app) == "success"


def test_a_head_that_another_one_had_before_a_push_asks_nothing(app: App) -> None:
    pull = app.open(path="src/lora/a.py")
    look(app)
    open_other(app, pull, base_sha=LENIENT)
    app.push("two")
    look(app, OTHER)
    assert said(app) == "success"
