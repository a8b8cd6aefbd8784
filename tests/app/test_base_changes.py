"""Which open pull requests a change of their base's policy concerns."""

from dataclasses import replace
from typing import cast

from tests.fakes.app import POLICY, REF, REPOSITORY, App
from tests.fakes.trees import sha
from verl_e2e.app.action_run import DerivedMemory, Here, busy_pulls
from verl_e2e.config.policy import POLICY_PATH
from verl_e2e.core.model.outcome import EngineEnd
from verl_e2e.core.pulls.forge import PullRef


def change_policy(app: App, text: str) -> None:
    app.hub.files[(sha(text), POLICY_PATH)] = text.encode()
    app.hub.tips["main"] = sha(text)


def outdated_now(app: App) -> list[int]:
    return [pull.ref.number for pull in app.handlers.known.outdated(app.hub.open_pulls(REPOSITORY))]


def test_only_what_was_looked_at_under_another_policy_is_outdated() -> None:
    app = App()
    pull = app.open(path="docs/a.md")
    app.hub.pulls[8] = replace(pull, ref=PullRef(REPOSITORY, 8), head_sha=sha("never looked at"))
    assert outdated_now(app) == []
    app.handlers.reconciler.reconcile(REF)
    assert outdated_now(app) == []
    change_policy(app, f"{POLICY}# newer\n")
    assert outdated_now(app) == [7]
    app.restart()
    assert outdated_now(app) == [7]
    app.handlers.reconciler.reconcile(REF)
    assert outdated_now(app) == []
    del app.hub.tips["main"]
    assert outdated_now(app) == [7]


def test_the_sweep_of_the_workflows_begins_the_next_attempt_of_what_was_lost() -> None:
    app = App()
    app.open(path="src/lora/a.py")
    own = app.handlers
    own.reconciler.reconcile(REF)
    app.backend.lose(app.backend.live()[0], EngineEnd.PREEMPTED)
    own.reconciler.reconcile(REF)
    memory = cast(DerivedMemory, app.ledger)
    here = Here(own.events, own.reconciler, memory, lambda _: None, 0.0)
    assert list(busy_pulls(REPOSITORY, here)) == [REF]
    app.clock.pass_s(3_600)
    own.reconciler.reconcile(REF)
    assert [run.attempt for run in app.backend.live()] == [2]


def test_the_sweep_of_the_workflows_looks_at_what_a_policy_concerns() -> None:
    app = App()
    app.open(path="docs/a.md")
    app.handlers.reconciler.reconcile(REF)
    own = app.handlers
    memory = cast(DerivedMemory, app.ledger)
    here = Here(own.events, own.reconciler, memory, lambda _: None, 0.0)
    assert list(busy_pulls(REPOSITORY, here)) == []
    change_policy(app, f"{POLICY}# newer\n")
    assert list(busy_pulls(REPOSITORY, here)) == [REF]
