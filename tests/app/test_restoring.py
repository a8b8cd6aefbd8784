"""What someone edited, hid or deleted is put right: on request, on a webhook, and after a while anyway; and no loop."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.fakes.app import APP, REF, App, passes
from tests.fakes.events import comment_event
from tests.fakes.trees import sha
from verl_e2e.core.pulls.deliveries import CommentEvent, parse_event
from verl_e2e.core.pulls.forge import PullState
from verl_e2e.ports import Comment

FALSE = "<!-- verl-e2e:card:v1 -->\n### ✅ verl-e2e: Pass - edited by hand"


@pytest.fixture
def app() -> App:
    made = App()
    made.open(path="src/lora/a.py")
    for _ in range(3):
        look(made)
    made.backend.finish(made.backend.live()[0], passes)
    for _ in range(2):
        look(made)
    return made


def look(app: App, seconds: float = 20) -> None:
    app.clock.pass_s(seconds)
    app.handlers.reconciler.reconcile(REF)


def card(app: App) -> Comment:
    (found,) = app.hub.cards(7)
    return found


def change_card(app: App, **changed: object) -> None:
    known = card(app)
    app.hub.talk[7] = [replace(comment, **changed) if comment == known else comment for comment in app.hub.talk[7]]  # type: ignore[arg-type]


def edit_card(app: App) -> None:
    change_card(app, body=FALSE, edited=True)


def hide_card(app: App) -> None:
    change_card(app, minimized=True)


def delete_card(app: App) -> None:
    known = card(app)
    app.hub.talk[7] = [comment for comment in app.hub.talk[7] if comment != known]


def edit_gate(app: App) -> None:
    change_gate(app, title="All is well", summary="Trust me")


def fail_gate(app: App) -> None:
    change_gate(app, conclusion="failure")


def reopen_gate(app: App) -> None:
    change_gate(app, status="in_progress", conclusion="")


def change_gate(app: App, **changed: object) -> None:
    known = app.hub.gate(sha("one"))
    assert known is not None
    app.hub.runs = [replace(run, **changed) if run == known else run for run in app.hub.runs]  # type: ignore[arg-type]


def shown(app: App) -> object:
    """What people see; ids may be new."""
    cards = [(comment.body, comment.minimized) for comment in app.hub.cards(7)]
    return cards, sorted((run.name, run.status, run.conclusion, run.title, run.summary) for run in app.hub.runs)


def ask_status(app: App) -> None:
    assert app.handlers.events.hear(comment_event(app.hub.say(REF, "stranger", "/verl-e2e status"))) == (REF,)


TOUCHES = (edit_card, hide_card, delete_card, edit_gate, fail_gate, reopen_gate)


@pytest.mark.parametrize("touch", TOUCHES)
def test_status_puts_right_what_somebody_changed(app: App, touch: Callable[[App], None]) -> None:
    before = shown(app)
    touch(app)
    assert shown(app) != before
    ask_status(app)
    look(app)
    assert shown(app) == before
    assert len(app.hub.cards(7)) == 1


@pytest.mark.parametrize("touch", TOUCHES)
def test_a_look_after_a_while_puts_it_right_without_being_asked(app: App, touch: Callable[[App], None]) -> None:
    before = shown(app)
    touch(app)
    look(app)
    look(app, 1801)
    assert shown(app) == before


@pytest.mark.parametrize("touch", (edit_card, hide_card, delete_card))
def test_the_card_of_a_closed_pull_request_is_put_right_as_well(app: App, touch: Callable[[App], None]) -> None:
    app.hub.pulls[7] = replace(app.hub.pulls[7], state=PullState.CLOSED)
    look(app)
    before = shown(app)
    touch(app)
    ask_status(app)
    look(app)
    assert shown(app) == before


@pytest.mark.parametrize("action", ("edited", "deleted"))
def test_somebody_elses_hand_on_our_card_leads_to_a_look_and_ours_does_not(app: App, action: str) -> None:
    known = card(app)
    before = shown(app)
    (edit_card if action == "edited" else delete_card)(app)
    ours = comment_event(known, "verl-e2e[bot]", via=APP, action=action)
    assert app.handlers.events.hear(ours) == ()
    look(app)
    assert shown(app) != before
    assert app.handlers.events.hear(comment_event(known, "mona", via=APP, action=action)) == (REF,)
    look(app)
    assert shown(app) == before


def test_other_peoples_comments_may_be_edited_and_say_nothing(app: App) -> None:
    theirs = app.hub.say(REF, "alice", "/verl-e2e cancel")
    for sender, action in (("alice", "edited"), ("mona", "edited"), ("mona", "deleted"), ("alice", "deleted")):
        assert app.handlers.events.hear(comment_event(theirs, sender, action=action)) == ()
    assert app.ledger.written == []


def test_putting_right_comes_to_an_end(app: App) -> None:
    edit_card(app)
    ask_status(app)
    look(app)
    app.hub.calls.clear()
    for _ in range(5):
        ask_status(app)
        look(app)
    assert not {"edit", "comment", "write_check", "delete"} & set(app.hub.calls)


def test_line_ends_and_blanks_of_githubs_own_are_no_change(app: App) -> None:
    change_card(app, body=card(app).body.replace("\n", "\r\n") + "\n")
    app.hub.calls.clear()
    ask_status(app)
    look(app)
    assert "edit" not in app.hub.calls


def test_an_edited_or_deleted_comment_is_parsed_and_a_pinned_one_is_not() -> None:
    text = comment_event(App().hub.say(REF, "mona", "x")).model_dump_json()
    for action in ("edited", "deleted"):
        event = parse_event("issue_comment", text.replace('"created"', f'"{action}"').encode())
        assert isinstance(event, CommentEvent)
        assert event.action == action
    assert parse_event("issue_comment", text.replace('"created"', '"pinned"').encode()) is None
