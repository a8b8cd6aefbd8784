"""What people allowed counts while they may still allow it, and no one overrides what is his own."""

import pytest

from tests.fakes.app import BASE, POLICY, REF, App
from tests.fakes.events import comment_event, pull_event
from tests.fakes.trees import sha
from verl_e2e.config.policy import POLICY_PATH
from verl_e2e.core.pulls.forge import PullState
from verl_e2e.core.pulls.ledger import RecordedCommand

LORA = "src/lora/a.py"


@pytest.fixture
def app() -> App:
    made = App()
    made.open(path=LORA)
    return made


def look(app: App, seconds: float = 60) -> float | None:
    app.clock.pass_s(seconds)
    return app.handlers.reconciler.reconcile(REF)


def say(app: App, author: str, body: str) -> str:
    app.handlers.events.hear(comment_event(app.hub.say(REF, author, f"/verl-e2e {body}")))
    return app.hub.talk[7][-1].body


def gate(app: App, head: str = "one") -> str:
    found = app.hub.gate(sha(head))
    return "" if found is None else found.conclusion or found.status


def set_policy(app: App, more: str) -> None:
    app.hub.files[(sha("newer"), POLICY_PATH)] = f"{POLICY}{more}\n".encode()
    app.hub.tips["main"] = sha("newer")


def test_an_approval_counts_while_its_giver_may_approve(app: App) -> None:
    app.open(path=LORA, author="carol", head_repository="carol/bridge")
    say(app, "rob", f"approve {sha('one')}")
    app.hub.roles["rob"] = "write"
    say(app, "rob", f"approve {sha('one')}")
    look(app)
    assert len(app.backend.live()) == 1
    app.hub.roles["rob"] = "read"
    look(app)
    app.backend.settle()
    look(app)
    assert (app.backend.live(), gate(app)) == ([], "action_required")
    app.hub.roles["rob"] = "write"
    look(app)
    assert len(app.backend.live()) == 1


def test_a_command_that_is_gone_counts_for_nothing_where_it_was_kept_before(app: App) -> None:
    look(app)
    before = len(app.backend.live())
    app.ledger.add(
        RecordedCommand(
            source="comment:1:1",
            repository=REF.repository,
            number=REF.number,
            actor="mona",
            verb="baseline",
            head_sha=sha("one"),
            at=app.clock.now(),
        )
    )
    look(app)
    assert len(app.backend.live()) == before


def test_an_override_counts_while_its_giver_may_override(app: App) -> None:
    look(app)
    say(app, "mona", f"override 0 {sha('one')} no machine is free")
    look(app)
    assert gate(app) == "success"
    app.hub.roles["mona"] = "write"
    look(app)
    assert gate(app) != "success"
    assert "The override of level 0 by mona does not count" in app.hub.cards(7)[0].body


def test_an_override_of_somebody_who_left_the_team_counts_no_more(app: App) -> None:
    set_policy(app, "capabilities: {override: {teams: [octo/leads]}}")
    app.hub.teams["octo/leads"] = {"lea"}
    look(app)
    say(app, "lea", f"override 0 {sha('one')} no machine is free")
    look(app)
    assert gate(app) == "success"
    app.hub.teams["octo/leads"] = set()
    look(app)
    assert gate(app) != "success"


def test_a_level_that_somebody_asked_for_ends_with_the_role(app: App) -> None:
    app.open(path="docs/a.md")
    app.hub.roles["rob"] = "write"
    say(app, "rob", "level1")
    look(app)
    assert len(app.backend.live()) == 1
    app.hub.roles["rob"] = "read"
    look(app)
    app.backend.settle()
    look(app)
    assert app.backend.live() == []


def test_a_cancel_outlives_the_role_of_the_person_who_cancelled(app: App) -> None:
    app.hub.roles["rob"] = "write"
    look(app)
    say(app, "rob", "cancel")
    look(app)
    app.backend.settle()
    app.hub.roles["rob"] = "read"
    look(app)
    assert app.backend.live() == []


def test_a_request_given_under_another_base_needs_the_role_under_this_one(app: App) -> None:
    app.hub.files[(sha("aside"), POLICY_PATH)] = (
        f"{POLICY}capabilities: {{run: {{roles: [write], logins: [rob]}}}}\n".encode()
    )
    app.hub.tips["aside"] = sha("aside")
    app.open(path="docs/a.md", base_branch="aside")
    say(app, "rob", "level1")
    look(app)
    assert len(app.backend.live()) == 1
    app.open(path="docs/a.md")
    look(app)
    app.backend.settle()
    look(app)
    assert app.backend.live() == []


def test_closing_and_opening_again_renews_nothing(app: App) -> None:
    look(app)
    say(app, "mona", f"override 0 {sha('one')} no machine is free")
    app.open(path=LORA, state=PullState.CLOSED)
    look(app)
    app.hub.roles["mona"] = "read"
    app.open(path=LORA)
    look(app)
    assert gate(app) != "success"


@pytest.mark.parametrize("why", ["opened", "pushed", "wrote"])
def test_nobody_overrides_a_head_of_his_own(app: App, why: str) -> None:
    if why == "opened":
        app.open(path=LORA, author="Mona")
    if why == "pushed":
        app.handlers.events.hear(pull_event("synchronize", "one", sender="mona"))
    if why == "wrote":
        app.hub.authors[sha("one")] = frozenset({"MONA", "alice"})
    look(app)
    text = say(app, "mona", f"override 0 {sha('one')} no machine is free")
    assert "cannot override its levels" in text
    assert app.ledger.written == []
    say(app, "admin", f"override 0 {sha('one')} no machine is free")
    look(app)
    assert gate(app) == "success"


def test_an_override_ends_when_it_is_learnt_that_its_giver_pushed_the_head(app: App) -> None:
    look(app)
    say(app, "mona", f"override 0 {sha('one')} no machine is free")
    app.handlers.events.hear(pull_event("synchronize", "one", sender="mona"))
    look(app)
    assert gate(app) != "success"


def test_a_head_that_somebody_else_pushed_again_stays_that_of_both(app: App) -> None:
    app.handlers.events.hear(pull_event("synchronize", "one", sender="mona"))
    app.handlers.events.hear(pull_event("synchronize", "one", sender="rob"))
    app.restart()
    assert "cannot override its levels" in say(app, "mona", f"override 0 {sha('one')} no machine is free")


def test_level_0_may_need_two_people(app: App) -> None:
    set_policy(app, "overrides: {two_persons: [0]}")
    look(app)
    text = say(app, "mona", f"override 0 {sha('one')} no machine is free")
    assert "does not" not in text
    look(app)
    assert gate(app) != "success"
    assert "a second person has to override it too" in app.hub.cards(7)[0].body
    say(app, "mona", f"override 0 {sha('one')} really, no machine is free")
    look(app)
    assert gate(app) != "success"
    say(app, "admin", f"override 0 {sha('one')} I see that too")
    look(app)
    assert gate(app) == "success"
    shown = app.hub.gate(sha("one"))
    assert shown is not None
    assert "mona and admin" in shown.summary


def test_a_level_that_the_policy_keeps_cannot_be_overridden(app: App) -> None:
    set_policy(app, "overrides: {levels: [2, 3]}")
    assert "lets no one override level 0" in say(app, "mona", f"override 0 {sha('one')} no machine is free")
    assert app.ledger.written == []


def test_a_policy_that_is_tightened_ends_an_override(app: App) -> None:
    look(app)
    say(app, "mona", f"override 0 {sha('one')} no machine is free")
    look(app)
    assert gate(app) == "success"
    set_policy(app, "overrides: {levels: []}")
    look(app)
    assert gate(app) != "success"


def test_an_override_ends_by_itself_and_is_looked_at_then(app: App) -> None:
    set_policy(app, "overrides: {expires_h: 2}")
    look(app)
    for run in app.backend.live():
        app.backend.cancel(run)
    app.backend.settle()
    say(app, "mona", f"override 0 {sha('one')} no machine is free")
    wait_s = look(app, 600)
    assert gate(app) == "success"
    assert wait_s is not None
    assert wait_s <= 2 * 3600 - 600
    look(app, 2 * 3600)
    assert gate(app) != "success"


def test_looking_up_somebody_again_costs_one_call_a_minute_at_most(app: App) -> None:
    look(app)
    say(app, "mona", f"override 0 {sha('one')} no machine is free")
    look(app)
    app.hub.calls.clear()
    for _ in range(5):
        look(app, 10)
    assert app.hub.calls.count("role") <= 2
    assert app.hub.calls.count("committers") == 0


def test_the_policy_of_the_packaged_default_lets_every_level_be_overridden_by_one(app: App) -> None:
    del app.hub.files[(BASE, POLICY_PATH)]
    app.restart()
    app.open(path="setup.cfg")
    look(app)
    say(app, "mona", f"override 0 {sha('one')} no machine is free")
    assert len(app.ledger.written) == 1
