"""The queue of the service: who is woken, what a killed process leaves, how often a place is shown, and no queue."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.fakes.app import POLICY, REF, REPOSITORY, App, passes
from tests.fakes.trees import sha
from verl_e2e.app.on_event import NO_QUEUE
from verl_e2e.config.policy import POLICY_PATH
from verl_e2e.core.pulls.deliveries import CommentEvent
from verl_e2e.core.pulls.forge import PullRef
from verl_e2e.core.pulls.ledger import Priority, Run, RunState
from verl_e2e.core.pulls.queue import LOOK_S, Pool

LORA = "src/lora/a.py"


@pytest.fixture
def app() -> App:
    return App(pools=(Pool("all", 1),))


def open_pulls(app: App, count: int, author: str = "alice") -> list[PullRef]:
    """Pull requests of one job each, looked at in their order."""
    refs = []
    for number in range(1, count + 1):
        ref = PullRef(REPOSITORY, number)
        app.paths[sha(f"head {number}")] = LORA
        made = app.open("one", LORA, author=author)
        app.hub.pulls[number] = replace(made, ref=ref, head_sha=sha(f"head {number}"))
        app.handlers.reconciler.reconcile(ref)
        refs.append(ref)
    app.hub.pulls.pop(REF.number) if count < REF.number else None
    return refs


def run_of(app: App, ref: PullRef) -> Run:
    return app.ledger.runs(REPOSITORY, number=ref.number)[-1]


def say(app: App, ref: PullRef, author: str, body: str) -> None:
    comment = app.hub.say(ref, author, body)
    at = comment.created.isoformat()
    event = {
        "action": "created",
        "repository": {"full_name": REPOSITORY},
        "sender": {"login": author},
        "issue": {"number": ref.number, "pull_request": {}},
        "comment": {"id": comment.id, "body": body, "user": {"login": author}, "created_at": at, "updated_at": at},
    }
    app.handlers.events.hear(CommentEvent.model_validate(event))


def end(app: App, ref: PullRef) -> None:
    app.backend.finish(run_of(app, ref), passes)
    app.handlers.reconciler.reconcile(ref)


def test_who_gets_the_slot_that_another_left_is_looked_at(app: App) -> None:
    first, second, third = open_pulls(app, 3)
    assert [run_of(app, ref).waits_for_slot for ref in (first, second, third)] == [False, True, True]
    app.woken.clear()
    end(app, first)
    assert app.woken == [second]
    assert len(app.backend.submitted) == 1
    app.handlers.reconciler.reconcile(second)
    assert [run.number for run in app.backend.submitted] == [1, 2]


def test_a_slot_that_a_killed_process_gave_and_did_not_use_is_used_by_the_next(app: App) -> None:
    first, second = open_pulls(app, 2)
    end(app, first)
    app.woken.clear()
    app.restart()
    app.handlers.queue.wake_stragglers()
    assert app.woken == []
    app.clock.pass_s(61)
    app.handlers.queue.wake_stragglers()
    assert app.woken == [second]
    app.handlers.reconciler.reconcile(second)
    assert run_of(app, second).state is RunState.SUBMITTED


def test_a_slot_that_no_one_gave_before_a_kill_is_given_by_the_tick(app: App) -> None:
    first, second = open_pulls(app, 2)
    app.ledger.put_run(run_of(app, first).model_copy(update={"state": RunState.LOST}))
    app.restart()
    assert [run.number for run in app.handlers.queue.give_slots()] == [2]
    assert app.woken == [second]


def test_the_cards_of_many_that_wait_are_edited_at_a_bounded_rate(app: App) -> None:
    """Twenty pull requests wait behind runs of two minutes, each looked at whenever it is due, until all have ended."""
    refs = open_pulls(app, 20)
    due = dict.fromkeys(refs, app.clock.now())
    app.hub.calls.clear()
    began = app.clock.now()
    for _ in range(30):
        app.clock.pass_s(120)
        live = next(iter(app.backend.live()))
        end(app, PullRef(REPOSITORY, live.number or 0))
        for ref in [ref for ref in refs if due[ref] <= app.clock.now() or ref in app.woken]:
            again_s = app.handlers.reconciler.reconcile(ref)
            due[ref] = app.clock.now() + timedelta(seconds=again_s if again_s is not None else 86_400)
        app.woken.clear()
        if not app.backend.live():
            break
    assert {run_of(app, ref).state for ref in refs} == {RunState.FINISHED}
    # One for each start and end, and one in five minutes for each that waits; half of them wait on the average.
    waited_s = (app.clock.now() - began).total_seconds()
    assert app.hub.calls.count("edit") <= 2 * len(refs) + waited_s / LOOK_S * len(refs) / 2


def test_a_place_stays_as_it_was_shown_until_it_moved_by_much(app: App) -> None:
    refs = open_pulls(app, 3)

    def shown() -> str:
        return app.hub.cards(3)[0].body

    assert "Place 2 of 2 in the queue" in shown()
    end(app, refs[0])
    app.clock.pass_s(60)
    app.handlers.reconciler.reconcile(refs[2])
    assert "Place 2 of 2" in shown()
    app.clock.pass_s(300)
    app.handlers.reconciler.reconcile(refs[2])
    assert "Place 1 of 1" in shown()


@pytest.mark.parametrize("line", ("pause the disk is full", "resume", "priority high"))
def test_without_a_database_nothing_waits_and_these_commands_are_refused(line: str) -> None:
    app = App(pools=(Pool("all", 1),), has_queue=False)
    first, second = open_pulls(app, 2)
    assert [run_of(app, ref).state for ref in (first, second)] == [RunState.SUBMITTED] * 2
    say(app, first, "mona", f"/verl-e2e {line}")
    assert NO_QUEUE[4:20] in app.hub.talk[1][-1].body
    assert app.handlers.queue.pause_of(REPOSITORY) is None


@pytest.mark.parametrize("line", ("pause the disk is full", "resume", "priority high"))
def test_the_policy_of_another_branch_lets_no_one_rule_the_queue_that_all_branches_share(app: App, line: str) -> None:
    lenient = sha("lenient")
    app.hub.files[(lenient, POLICY_PATH)] = f"{POLICY}capabilities: {{queue: {{logins: [alice]}}}}\n".encode()
    app.hub.tips["aside"] = lenient
    app.open(base_branch="aside", base_sha=lenient, path=LORA)
    app.handlers.reconciler.reconcile(REF)
    say(app, REF, "alice", f"/verl-e2e {line}")
    assert app.ledger.written == []
    assert "`queue` needs the role maintain" in app.hub.talk[REF.number][-1].body
    say(app, REF, "mona", f"/verl-e2e {line}")
    assert [entry.actor for entry in app.ledger.written] == ["mona"]


def test_a_pause_wakes_all_that_has_runs_and_so_does_its_end(app: App) -> None:
    first, second = open_pulls(app, 2)
    app.woken.clear()
    say(app, first, "mona", "/verl-e2e pause the disk is full")
    assert {*app.woken} == {first, second}
    end(app, first)
    assert run_of(app, second).waits_for_slot
    app.woken.clear()
    say(app, second, "mona", "/verl-e2e resume")
    assert {*app.woken} == {second}
    app.handlers.reconciler.reconcile(second)
    assert run_of(app, second).state is RunState.SUBMITTED


def test_a_priority_counts_while_its_giver_may_give_it(app: App) -> None:
    first, second = open_pulls(app, 2)
    say(app, second, "mona", "/verl-e2e priority high")
    app.handlers.reconciler.reconcile(second)
    assert run_of(app, second).terms.priority is Priority.HIGH
    assert "Priority high, set by mona." in app.hub.gate(sha("head 2")).summary  # type: ignore[union-attr]
    # Also on the next head, but not for someone who lost the role.
    app.paths[sha("next")] = LORA
    app.hub.pulls[2] = replace(app.hub.pulls[2], head_sha=sha("next"))
    app.handlers.reconciler.reconcile(second)
    assert run_of(app, second).terms.priority is Priority.HIGH
    app.hub.roles["mona"] = "write"
    app.clock.pass_s(120)
    app.handlers.reconciler.reconcile(second)
    assert run_of(app, second).terms.priority is Priority.NORMAL
    assert run_of(app, first).state is RunState.SUBMITTED
