"""Hearing: what an event leaves in the ledger, what is looked at because of it, and what is answered to whom."""

from datetime import timedelta

import pytest

from tests.fakes.app import APP, BASE, POLICY, REF, REPOSITORY, App, fails
from tests.fakes.events import (
    check_event,
    comment_event,
    group_event,
    pull_event,
    push_event,
    suite_event,
    workflow_event,
)
from tests.fakes.trees import sha
from verl_e2e.config.policy import POLICY_PATH
from verl_e2e.core.pulls.forge import CheckId, MergeGroup
from verl_e2e.core.pulls.ledger import Approval, Override, RecordedCommand

GATE = str(CheckId(7, sha("one")))


@pytest.fixture
def app() -> App:
    made = App()
    made.open()
    return made


def say(app: App, author: str, body: str, **given: object) -> tuple[object, ...]:
    comment = app.hub.say(REF, author, body)
    return app.handlers.events.hear(comment_event(comment, **given))  # type: ignore[arg-type]


def asked(app: App) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(item.actor, item.verb, item.arguments) for item in app.ledger.written if isinstance(item, RecordedCommand)]


def answers(app: App) -> list[str]:
    return [comment.body for comment in app.hub.talk.get(7, ()) if comment.app_id == APP]


def test_a_command_is_kept_with_the_head_as_it_is(app: App) -> None:
    assert say(app, "alice", "/verl-e2e level2 steps=3") == (REF,)
    (entry,) = app.ledger.written
    assert isinstance(entry, RecordedCommand)
    assert (entry.actor, entry.verb, entry.arguments, entry.options) == ("alice", "level", ("2",), {"steps": "3"})
    assert (entry.head_sha, entry.source) == (sha("one"), "comment:101:1")
    assert (app.hub.reactions, answers(app)) == ({(101, "eyes")}, [])


def test_a_comment_heard_twice_is_kept_once(app: App) -> None:
    comment = app.hub.say(REF, "alice", "/verl-e2e run\n/verl-e2e level0 steps=x")
    for _ in range(3):
        app.handlers.events.hear(comment_event(comment))
    assert (len(app.ledger.written), len(answers(app))) == (1, 1)


def test_a_comment_without_a_command_costs_nothing(app: App) -> None:
    assert say(app, "alice", "looks fine, see `/verl-e2e run`\n\n> /verl-e2e run") == ()
    assert app.hub.calls == []


@pytest.mark.parametrize(
    "given",
    [{"updated": True}, {"sender": "mallory"}, {"via": APP}],
    ids=["edited", "relayed", "our own"],
)
def test_only_a_created_comment_counts_and_only_by_the_person_who_wrote_it(app: App, given: dict[str, object]) -> None:
    if given.get("updated"):
        given = {"updated": app.clock.now() + timedelta(seconds=1)}
    assert say(app, "alice", "/verl-e2e run", **given) == ()
    assert (app.ledger.written, app.hub.calls) == ([], [])


def test_a_mistake_is_answered_once_with_a_caret(app: App) -> None:
    say(app, "alice", "hello\n\n/verl-e2e rnu")
    (text,) = answers(app)
    assert "did you mean 'run'?" in text.replace("\\", "")
    assert "/verl-e2e rnu\n          ^^^" in text
    assert (101, "confused") in app.hub.reactions


def test_who_may_not_is_told_why_and_nothing_is_kept(app: App) -> None:
    say(app, "stranger", "/verl-e2e run")
    (text,) = answers(app)
    assert "needs the role write, and stranger has the role read" in text
    assert app.ledger.written == []


def test_anybody_may_ask_and_the_author_may_cancel(app: App) -> None:
    app.hub.roles["alice"] = "read"
    say(app, "stranger", "/verl-e2e help")
    say(app, "alice", "/verl-e2e cancel")
    say(app, "alice", "/verl-e2e run")
    assert asked(app) == [("stranger", "help", ()), ("alice", "cancel", ())]


def test_a_request_that_will_not_be_served_is_refused_with_the_reason(app: App) -> None:
    for steps in range(2, 22):
        say(app, "alice", f"/verl-e2e level0 steps={steps}")
    assert (len(app.ledger.written), answers(app)) == (20, [])
    late = app.hub.say(REF, "alice", "/verl-e2e level0 steps=99")
    for _ in range(2):
        app.handlers.events.hear(comment_event(late))
    assert len(app.ledger.written) == 20
    (answer,) = answers(app)
    assert "20 different requests" in answer
    app.push("two")
    say(app, "alice", "/verl-e2e level0 steps=99")
    assert (len(app.ledger.written), len(answers(app))) == (21, 1)


def test_an_approval_names_the_head_as_it_is(app: App) -> None:
    app.open(head_repository="evil/bridge", author="mallory")
    say(app, "mallory", f"/verl-e2e approve {sha('one')}")
    say(app, "mona", f"/verl-e2e approve {sha('zero')}")
    assert app.ledger.written == []
    assert f"the head is `{sha('one')}` now" in answers(app)[-1]
    say(app, "mona", f"/verl-e2e approve {sha('one')}")
    (entry,) = app.ledger.written
    assert isinstance(entry, Approval)
    assert (entry.head_sha, entry.actor) == (sha("one"), "mona")


def test_an_override_names_the_head_as_it_is_whenever_it_is_processed(app: App) -> None:
    app.handlers.reconciler.reconcile(REF)
    late = app.hub.say(REF, "mona", f"/verl-e2e override 0 {sha('one')} the cluster is down today")
    app.push("two")
    # Written, pushed and processed in the same second.
    app.handlers.events.hear(comment_event(late))
    app.handlers.reconciler.reconcile(REF)
    app.handlers.events.hear(comment_event(late))
    assert app.ledger.written == []
    assert f"/verl-e2e override 0 {sha('two')} the cluster is down today" in answers(app)[-1]
    say(app, "mona", f"/verl-e2e override 0 {sha('two')} the cluster is down today")
    assert [item.head_sha for item in app.ledger.written] == [sha("two")]


@pytest.mark.parametrize(
    "given", ["0 the cluster is down", "0 1234567 the cluster is down", f"0 {sha('one')[:39]} the cluster is down"]
)
def test_an_override_without_the_whole_sha_is_answered_with_the_whole_command(app: App, given: str) -> None:
    say(app, "mona", f"/verl-e2e override {given}")
    assert app.ledger.written == []
    assert f"```text\n/verl-e2e override 0 {sha('one')} the cluster is down\n```" in answers(app)[-1]


@pytest.mark.parametrize("command", [f"override 0 {sha('one')} the cluster is down today", f"approve {sha('one')}"])
def test_what_one_base_lets_somebody_say_counts_for_no_other_base(app: App, command: str) -> None:
    lenient = sha("lenient")
    policy = f"{POLICY}capabilities: {{override: {{logins: [alice]}}, approve: {{logins: [alice]}}}}\n"
    app.hub.files[(lenient, POLICY_PATH)] = policy.encode()
    app.hub.tips["aside"] = lenient
    aside = {"base_branch": "aside", "base_sha": lenient, "path": "src/lora/a.py", "author": "carol"}
    app.open(**aside, head_repository="alice/bridge")
    app.hub.roles["alice"] = "read"
    app.handlers.reconciler.reconcile(REF)
    say(app, "alice", f"/verl-e2e {command}")
    assert len(app.ledger.written) == 1
    app.clock.pass_s(60)
    app.handlers.reconciler.reconcile(REF)
    shown = app.hub.gate(sha("one"))
    assert shown is not None
    assert shown.conclusion != "action_required"
    app.open(path="src/lora/a.py", author="carol", head_repository="alice/bridge")
    for _ in range(2):
        app.clock.pass_s(60)
        app.handlers.reconciler.reconcile(REF)
        app.backend.settle()
    shown = app.hub.gate(sha("one"))
    assert shown is not None
    assert (shown.conclusion, app.backend.live()) == ("action_required", [])


def test_an_override_needs_its_capability(app: App) -> None:
    app.handlers.reconciler.reconcile(REF)
    say(app, "alice", f"/verl-e2e override 0 {sha('one')} the cluster is down today")
    assert app.ledger.written == []
    say(app, "mona", f"/verl-e2e override 0 {sha('one')} the cluster is down today")
    (entry,) = app.ledger.written
    assert isinstance(entry, Override)
    assert (int(entry.level), entry.reason, entry.head_sha) == (0, "the cluster is down today", sha("one"))


@pytest.mark.parametrize(
    ("label", "sender", "kept"),
    [
        ("verl-e2e:run", "alice", [("alice", "run", ())]),
        ("verl-e2e:level3", "alice", [("alice", "level", ("3",))]),
        ("verl-e2e:level3", "rita", []),
        ("verl-e2e:level9", "alice", []),
        ("verl-e2e:cancel", "alice", []),
        ("level3", "alice", []),
    ],
)
def test_a_label_is_the_command_of_the_person_who_set_it(
    app: App, label: str, sender: str, kept: list[tuple[str, str, tuple[str, ...]]]
) -> None:
    event = pull_event("labeled", "one", sender, label)
    assert app.handlers.events.hear(event) == (REF,)
    app.handlers.events.hear(event)
    # Anyone who sets a label without the role for it gets one answer.
    message = [f"A label asked for `level 3` in the name of {sender}" in answer for answer in answers(app)]
    assert (asked(app), message) == (kept, [True] if sender == "rita" else [])


def test_a_label_set_again_on_a_new_head_counts_for_that_head(app: App) -> None:
    app.handlers.events.hear(pull_event("labeled", "one", "alice", "verl-e2e:run"))
    app.push("two")
    app.handlers.events.hear(pull_event("labeled", "two", "alice", "verl-e2e:run"))
    assert [item.head_sha for item in app.ledger.written if isinstance(item, RecordedCommand)] == [
        sha("one"),
        sha("two"),
    ]


def test_a_label_of_an_earlier_head_asks_for_nothing(app: App) -> None:
    app.push("two")
    assert app.handlers.events.hear(pull_event("labeled", "one", "alice", "verl-e2e:level5")) == (REF,)
    assert app.ledger.written == []


@pytest.mark.parametrize("action", ["opened", "synchronize", "reopened", "closed", "ready_for_review", "edited"])
def test_what_happens_to_a_pull_request_is_only_looked_at(app: App, action: str) -> None:
    assert app.handlers.events.hear(pull_event(action, "one")) == (REF,)
    assert (app.ledger.written, app.hub.calls) == ([], [])


@pytest.mark.parametrize(
    ("button", "sender", "kept"),
    [
        ("rerun", "alice", [("alice", "rerun", ())]),
        ("cancel", "alice", [("alice", "cancel", ())]),
        ("level:4", "alice", [("alice", "level", ("4",))]),
        ("level:9", "alice", []),
        ("run; rm", "alice", []),
        ("rerun", "stranger", []),
    ],
)
def test_a_button_is_the_command_of_the_person_who_pressed_it(
    app: App, button: str, sender: str, kept: list[tuple[str, str, tuple[str, ...]]]
) -> None:
    event = check_event(GATE, "one", sender=sender, button=button)
    assert app.handlers.events.hear(event, "d1") == (REF,)
    app.handlers.events.hear(event, "d1")
    assert asked(app) == kept
    app.handlers.events.hear(event, "d2")
    assert len(asked(app)) == 2 * len(kept)


def test_a_button_of_an_earlier_head_or_of_another_app_asks_for_nothing(app: App) -> None:
    app.push("two")
    assert app.handlers.events.hear(check_event(GATE, "one", button="rerun")) == (REF,)
    assert app.handlers.events.hear(check_event(GATE, "one", button="rerun", app=1)) == ()
    assert app.handlers.events.hear(check_event("someone-else", "one", button="rerun")) == ()
    assert app.handlers.events.hear(check_event(str(CheckId(7, sha("two"))), "one", button="rerun")) == ()
    assert app.ledger.written == []


def ended_in_failure(app: App) -> None:
    app.handlers.reconciler.reconcile(REF)
    (run,) = app.backend.live()
    app.backend.finish(run, fails)
    app.clock.pass_s(60)
    app.handlers.reconciler.reconcile(REF)
    app.clock.pass_s(60)


def test_one_job_asked_for_again_runs_again_and_its_check_is_written_again(app: App) -> None:
    ended_in_failure(app)
    app.hub.calls.clear()
    own = str(CheckId(7, sha("one"), "0-lora-ddp"))
    app.handlers.events.hear(check_event(own, "one", name="verl-e2e / 0-lora-ddp"), "d1")
    assert asked(app) == [("alice", "rerun", ("0-lora-ddp",))]
    app.handlers.reconciler.reconcile(REF)
    assert [text.attempt for text in app.backend.live()] == [2]


def test_a_check_that_github_set_back_is_written_again_though_nothing_changed(app: App) -> None:
    ended_in_failure(app)
    app.handlers.reconciler.reconcile(REF)
    app.hub.calls.clear()
    app.handlers.events.hear(check_event(GATE, "one", sender="stranger"), "d1")
    app.handlers.reconciler.reconcile(REF)
    assert app.hub.calls.count("write_check") == 1


def test_a_suite_asked_for_again_is_a_rerun(app: App) -> None:
    ended_in_failure(app)
    assert app.handlers.events.hear(suite_event("one"), "d1") == (REF,)
    assert app.handlers.events.hear(suite_event("two"), "d2") == ()
    assert asked(app) == [("alice", "rerun", ())]


def test_a_merge_group_is_remembered_for_when_github_is_silent(app: App) -> None:
    group = MergeGroup(REPOSITORY, "main", BASE, sha("group"), (7,))
    assert app.handlers.events.hear(group_event("checks_requested", "group")) == (group,)
    app.clock.pass_s(10)
    assert app.handlers.events.hear(group_event("checks_requested", "group")) == (group,)
    assert app.handlers.events.hear(group_event("destroyed", "group")) == (group,)
    assert app.handlers.reconciler.reconcile(group) is None
    assert app.backend.submitted == []


def test_a_workflow_run_leads_to_the_target_that_it_is_for(app: App) -> None:
    app.handlers.reconciler.reconcile(REF)
    (run,) = app.ledger.kept.values()
    app.ledger.kept[run.key] = run.model_copy(update={"handle": "123"})
    assert (app.handlers.events.hear(workflow_event(123)), app.handlers.events.hear(workflow_event(124))) == (
        (REF,),
        (),
    )


def test_a_mirror_push_is_looked_at(app: App) -> None:
    assert app.handlers.events.hear(push_event(7)) == (REF,)


def test_under_a_broken_policy_only_asking_is_left(app: App) -> None:
    app.hub.files[(BASE, POLICY_PATH)] = (POLICY + "rulez: []\n").encode()
    say(app, "mona", "/verl-e2e run\n/verl-e2e help")
    assert [item[1] for item in asked(app)] == ["help"]
    assert "cannot be used" in answers(app)[0]


def test_a_pull_request_that_is_gone_is_nothing(app: App) -> None:
    app.hub.pulls.clear()
    assert say(app, "alice", "/verl-e2e run") == ()
    assert app.handlers.reconciler.reconcile(REF) is None


def test_two_commands_that_are_delivered_in_the_wrong_order_count_as_they_were_written(app: App) -> None:
    first = app.hub.say(REF, "alice", "/verl-e2e run")
    app.clock.pass_s(5)
    second = app.hub.say(REF, "alice", "/verl-e2e cancel")
    app.clock.pass_s(5)
    for comment in (second, first):
        app.handlers.events.hear(comment_event(comment))
    app.handlers.reconciler.reconcile(REF)
    assert not app.backend.submitted
    third = app.hub.say(REF, "alice", "/verl-e2e run")
    app.handlers.events.hear(comment_event(third))
    app.handlers.reconciler.reconcile(REF)
    assert app.backend.submitted


def test_commands_of_one_second_count_in_the_order_of_their_comments(app: App) -> None:
    first, second = (app.hub.say(REF, "alice", f"/verl-e2e {verb}") for verb in ("cancel", "run"))
    for comment in (second, first):
        app.handlers.events.hear(comment_event(comment))
    app.handlers.reconciler.reconcile(REF)
    assert app.backend.submitted
