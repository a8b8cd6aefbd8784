"""One commit as the head of two pull requests: runs of their own, and one gate that opens when it may for both."""

from dataclasses import replace

import pytest

from tests.fakes.app import POLICY, REF, REPOSITORY, App, fails, passes
from tests.fakes.events import comment_event, pull_event, workflow_event, workflow_job_event
from tests.fakes.trees import sha
from verl_e2e.config.policy import POLICY_PATH
from verl_e2e.core.pulls.forge import Pull, PullRef, PullState
from verl_e2e.ports import ForgeError

OTHER = PullRef(REPOSITORY, 8)
LENIENT, STRICT = sha("lenient"), sha("strict")


@pytest.fixture
def app() -> App:
    made = App()
    made.hub.files[(LENIENT, POLICY_PATH)] = POLICY.replace("paths: [docs/]", "paths: [docs/, src/]").encode()
    made.hub.files[(STRICT, POLICY_PATH)] = POLICY.replace(sha("verl"), sha("other verl")).encode()
    made.hub.tips["lenient"] = LENIENT
    made.hub.tips["strict"] = STRICT
    return made


def look(app: App, ref: PullRef = REF) -> float | None:
    app.clock.pass_s(60)
    return app.handlers.reconciler.reconcile(ref)


def open_other(app: App, pull: Pull, **given: object) -> None:
    app.hub.pulls[OTHER.number] = replace(pull, ref=OTHER, **given)  # type: ignore[arg-type]


def said(app: App) -> str:
    found = app.hub.gate(sha("one"))
    return "" if found is None else found.conclusion or found.status


def title(app: App) -> str:
    found = app.hub.gate(sha("one"))
    return "" if found is None else found.title


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
    assert {other_run.number for other_run in app.ledger.runs(REPOSITORY)} == {REF.number}


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
    open_other(app, pull, base_branch="lenient")
    look(app, OTHER)
    assert said(app) == "in_progress"
    assert title(app).startswith("Waits for pull request #7, which has the same head; its gate says: 0 of 1 required")
    look(app)
    assert said(app) == "in_progress"
    pass_all(app, REF)
    assert said(app) == "success"
    look(app, OTHER)
    assert said(app) == "success"


def test_the_one_that_is_left_is_satisfied_once_the_other_is_closed_and_stays_so(app: App) -> None:
    pull = app.open(path="src/lora/a.py")
    look(app)
    open_other(app, pull, base_branch="lenient")
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
    open_other(app, pull, base_branch="lenient")
    app.push("two")
    look(app, OTHER)
    assert said(app) == "success"


@pytest.mark.parametrize("ref", (REF, OTHER), ids=str)
def test_the_end_of_a_shared_run_turns_the_gate_green_by_a_look_at_either(app: App, ref: PullRef) -> None:
    pull = app.open(path="src/lora/a.py")
    look(app)
    open_other(app, pull)
    look(app, OTHER)
    app.backend.finish(app.backend.live()[0], passes)
    look(app, ref)
    assert said(app) == "success", title(app)


def test_the_end_of_a_shared_run_is_a_reason_to_look_at_everybody_who_has_its_head(app: App) -> None:
    pull = app.open(path="src/lora/a.py")
    look(app)
    open_other(app, pull)
    look(app, OTHER)
    (run,) = app.ledger.runs(REPOSITORY)
    app.ledger.put_run(run.model_copy(update={"handle": "77"}))
    for event in (workflow_event(77), workflow_job_event(77)):
        assert app.handlers.events.hear(event) == (REF, OTHER)


def test_what_is_heard_of_one_is_a_reason_to_look_at_the_others(app: App) -> None:
    pull = app.open(path="src/lora/a.py")
    look(app)
    open_other(app, pull)
    look(app, OTHER)
    said_now = app.hub.say(REF, "alice", "/verl-e2e status")
    assert set(app.handlers.events.hear(comment_event(said_now))) == {REF, OTHER}
    assert set(app.handlers.events.hear(pull_event("closed", "one"))) == {REF, OTHER}
    pushed = pull_event("synchronize", "two").model_copy(update={"before": sha("one")})
    assert set(app.handlers.events.hear(pushed)) == {REF, OTHER}


def test_a_gate_that_waits_for_another_names_what_that_one_needs(app: App) -> None:
    pull = app.open(path="src/lora/a.py")
    look(app)
    app.backend.finish(app.backend.live()[0], passes)
    look(app)
    open_other(app, pull, draft=True, base_branch="strict")
    look(app, REF)
    look(app, OTHER)
    look(app, REF)
    assert said(app) == "action_required"
    shared = "Pull request #8 has the same head, and both share one gate; its gate says: "
    assert title(app) == f"{shared}Drafts are planned, not run"


def test_a_push_away_from_a_shared_head_leaves_its_checks_to_the_other(app: App) -> None:
    pull = app.open(path="src/lora/a.py")
    look(app)
    open_other(app, pull)
    look(app, OTHER)
    app.push("two", "src/lora/a.py")
    look(app)
    assert said(app) == "in_progress"
    for _ in range(4):
        app.backend.settle()
        for run in app.backend.live():
            app.backend.finish(run, passes)
        look(app)
        look(app, OTHER)
    assert said(app) == "success"
    assert {check.status for check in app.hub.runs} == {"completed"}


def test_checks_of_a_closed_one_are_ended_by_the_one_that_is_left(app: App) -> None:
    pull = app.open(path="src/peft/a.py")
    look(app)
    open_other(app, pull, base_branch="lenient")
    app.hub.pulls[REF.number] = replace(pull, state=PullState.CLOSED)
    for _ in range(4):
        look(app)
        app.backend.settle()
        look(app, OTHER)
    assert said(app) == "success"
    assert {check.status for check in app.hub.runs} == {"completed"}


def test_what_is_wrong_with_one_for_good_does_not_end_the_look_at_the_other(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = app.open(path="src/lora/a.py")
    look(app)
    open_other(app, pull)
    look(app, OTHER)
    app.backend.finish(app.backend.live()[0], passes)
    look(app)
    app.hub.pulls[OTHER.number] = replace(app.hub.pulls[OTHER.number], base_branch="gone")
    tip = app.hub.tip

    def refuse(repository: str, branch: str) -> str | None:
        if branch == "gone":
            raise ForgeError("GitHub refused: GET x: 451 Unavailable", answer="451 Unavailable")
        return tip(repository, branch)

    monkeypatch.setattr(app.hub, "tip", refuse)
    look(app)
    assert (said(app), "It cannot be planned: 451 Unavailable" in title(app)) == ("action_required", True)
