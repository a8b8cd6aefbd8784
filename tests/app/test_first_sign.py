"""The gate is there before anything is planned, and never says so for ever; without it no GPU is spent."""

from typing import NoReturn

import pytest

from tests.fakes.app import BASE, REF, REPOSITORY, App, passes
from tests.fakes.trees import sha
from verl_e2e.core.pulls.forge import CheckRun, MergeGroup, PullState
from verl_e2e.ports import BackendError, ForgeError


def gate(app: App, head: str = "one") -> CheckRun:
    found = app.hub.gate(sha(head))
    assert found is not None
    return found


class Seen:
    """Stands before the trees of a target, and notes what the gate says when they are asked for."""

    def __init__(self, app: App, error: Exception | None = None) -> None:
        self.app, self.inner, self.error = app, app.analysis(), error
        self.titles: list[str] = []

    def __getattr__(self, name: str) -> object:
        shown = [check for check in self.app.hub.runs if check.name == "verl-e2e" and check.status != "completed"]
        self.titles += [check.title for check in shown] or ["nothing"]
        if self.error is not None:
            raise self.error
        return getattr(self.inner, name)


def watch(app: App, error: Exception | None = None) -> Seen:
    seen = Seen(app, error)
    app.handlers = app.connect(analysis=seen)  # type: ignore[arg-type]
    return seen


@pytest.mark.parametrize("path", ("docs/a.md", "src/peft/a.py"))
def test_the_gate_says_planning_before_anything_is_planned(path: str) -> None:
    app = App()
    app.open(path=path)
    seen = watch(app)
    app.handlers.reconciler.reconcile(REF)
    assert seen.titles[0] == "Planning"
    assert gate(app).title != "Planning"
    assert len([check for check in app.hub.runs if check.name == "verl-e2e"]) == 1


def test_a_merge_group_has_its_first_sign_as_well() -> None:
    app = App()
    app.paths[sha("group")] = "src/lora/a.py"
    made = MergeGroup(REPOSITORY, "main", BASE, sha("group"), (7,))
    app.handlers.known.remember_group(made)
    seen = watch(app)
    app.handlers.reconciler.reconcile(made)
    assert seen.titles[0] == "Planning"
    app.handlers.known.remember_group(made, destroyed=True)


def test_a_head_that_was_looked_at_says_planning_no_more() -> None:
    app = App()
    app.open(path="src/lora/a.py")
    for _ in range(2):
        app.clock.pass_s(60)
        app.handlers.reconciler.reconcile(REF)
    written = len([call for call in app.hub.calls if call == "write_check"])
    app.restart()
    app.clock.pass_s(60)
    app.handlers.reconciler.reconcile(REF)
    assert len([call for call in app.hub.calls if call == "write_check"]) == written
    app.push("two")
    seen = watch(app)
    app.handlers.reconciler.reconcile(REF)
    assert "Planning" in seen.titles


def test_a_closed_one_gets_no_sign() -> None:
    app = App()
    app.open(state=PullState.CLOSED)
    app.handlers.reconciler.reconcile(REF)
    assert app.hub.runs == []


@pytest.mark.parametrize("error", (RuntimeError("a fault of ours"), ForgeError("GitHub refused: 403")))
def test_a_look_that_dies_says_so_on_the_gate(error: Exception) -> None:
    app = App()
    app.open()
    watch(app, error)
    with pytest.raises(type(error)):
        app.handlers.reconciler.reconcile(REF)
    assert (gate(app).conclusion, gate(app).title) == ("action_required", "The change could not be planned")
    assert ("a fault of ours" in gate(app).summary) is False
    assert ("403" in gate(app).summary) is isinstance(error, ForgeError)
    app.restart()
    app.handlers.reconciler.reconcile(REF)
    assert gate(app).status == "in_progress"


def test_a_fault_that_may_pass_is_told_when_it_lasts() -> None:
    app = App()
    app.open()
    for passed_s, status in ((0, "in_progress"), (60, "in_progress"), (300, "completed")):
        app.clock.pass_s(passed_s)
        watch(app, ForgeError("GitHub did not answer", passing=True))
        with pytest.raises(ForgeError):
            app.handlers.reconciler.reconcile(REF)
        assert gate(app).status == status


def refuse(_: object, __: object) -> NoReturn:
    raise ForgeError("GitHub refused: POST check-runs: 403 Resource not accessible by integration")


def test_nothing_is_dispatched_where_checks_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App()
    app.open()
    monkeypatch.setattr(app.hub, "write_check", refuse)
    for _ in range(3):
        with pytest.raises(ForgeError):
            app.handlers.reconciler.reconcile(REF)
    assert app.backend.submitted == []


def test_nothing_more_is_dispatched_once_checks_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App()
    app.open()
    app.handlers.reconciler.reconcile(REF)
    app.backend.finish(app.backend.live()[0], passes)
    monkeypatch.setattr(app.hub, "write_check", refuse)
    app.clock.pass_s(60)
    with pytest.raises((ForgeError, BackendError)):
        app.handlers.reconciler.reconcile(REF)
    assert [run.job_id for run in app.backend.submitted] == ["0-lora-ddp"]


def test_a_dispatch_costs_no_more_writes_for_being_announced() -> None:
    app = App()
    app.open(path="src/lora/a.py")
    app.handlers.reconciler.reconcile(REF)
    # The first sign, then the gate and the job's check as they are once the job is ordered.
    assert app.hub.calls.count("write_check") == 3
