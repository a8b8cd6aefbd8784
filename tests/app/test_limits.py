"""What a stranger wrote takes too much, or ends the service: the pull request says so, and nothing goes on for ever."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.fakes.app import REF, App, passes
from tests.fakes.trees import sha
from verl_e2e.app.analysis import DirectAnalysis, Judged
from verl_e2e.app.plan_change import Planned
from verl_e2e.app.required_jobs import REPLAN_S
from verl_e2e.app.runs import MOST_JUDGINGS
from verl_e2e.core.compare.cell_map import CellMap
from verl_e2e.core.model.errors import LimitError
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.forge import Target
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.wiring.app import Handlers


@dataclass(frozen=True, slots=True)
class Troubled(DirectAnalysis):
    """An analysis that raises, and counts how often it was asked."""

    planning: BaseException | None = None
    judging: Exception | None = None
    asked: list[str] = field(default_factory=list)
    # Not empty: what is planned may be better the next time.
    passing: list[bool] = field(default_factory=list)

    def plan(self, target: Target, policy: Policy, cells: CellMap | None = None, megatron_lm: str = "") -> Planned:
        self.asked.append("plan")
        if self.planning is not None:
            raise self.planning
        found = DirectAnalysis.plan(self, target, policy, cells, megatron_lm)
        return replace(found, plan=replace(found.plan, passing=bool(self.passing)))

    def judge(self, run: Run, folder: Path) -> Judged:
        self.asked.append("judge")
        if self.judging is not None:
            raise self.judging
        return DirectAnalysis.judge(self, run, folder)


def troubled(
    app: App, planning: BaseException | None = None, judging: Exception | None = None
) -> tuple[Handlers, Troubled]:
    plain = app.analysis()
    own = Troubled(plain.changes, plain.uses, plain.summaries, plain.folders, planning=planning, judging=judging)
    return app.connect(analysis=own), own


def gate(app: App, head: str = "one") -> tuple[str, str]:
    found = app.hub.gate(sha(head))
    assert found is not None
    return found.conclusion, found.title + found.summary


def test_a_change_that_takes_too_much_closes_its_gate_and_is_not_tried_again() -> None:
    app = App()
    app.open()
    handlers, own = troubled(app, LimitError("the number of files", "200,000"))
    for _ in range(3):
        assert handlers.reconciler.reconcile(REF) is None
        app.clock.pass_s(3600)
    conclusion, message = gate(app)
    assert conclusion == "action_required"
    assert "cannot be planned" in message
    assert "the number of files exceeds 200,000" in message.replace("\\", "")
    assert own.asked == ["plan"]
    app.push("two")
    handlers.reconciler.reconcile(REF)
    assert own.asked == ["plan", "plan"]


def test_a_plan_that_a_server_left_incomplete_is_made_again_after_a_while() -> None:
    app = App(paths={"src/megatron/bridge/peft/lora.py": "modified"})
    app.open()
    handlers, own = troubled(app)
    own.passing.append(True)
    assert handlers.reconciler.reconcile(REF) is not None
    handlers.reconciler.reconcile(REF)
    assert own.asked == ["plan"]
    app.clock.pass_s(REPLAN_S + 1)
    handlers.reconciler.reconcile(REF)
    assert own.asked == ["plan", "plan"]
    own.passing.clear()
    for _ in range(3):
        app.clock.pass_s(REPLAN_S + 1)
        handlers.reconciler.reconcile(REF)
    assert own.asked == ["plan"] * 3


@pytest.mark.parametrize("error", [RuntimeError("a fault"), IndexError("tuple index out of range"), RecursionError()])
def test_judging_that_fails_again_and_again_is_blocked_and_not_tried_for_ever(error: Exception) -> None:
    app = App()
    app.open()
    handlers, _ = troubled(app, judging=error)
    handlers.reconciler.reconcile(REF)
    app.backend.begin()
    app.backend.finish(app.backend.live()[0], passes)
    for _ in range(MOST_JUDGINGS - 1):
        with pytest.raises(type(error)):
            handlers.reconciler.reconcile(REF)
    handlers.reconciler.reconcile(REF)
    (run,) = app.ledger.runs(REF.repository, number=REF.number)
    assert (run.state.final, run.result) == (True, Result.BLOCKED)
    assert run.sentence == f"what the run left cannot be judged: judging it failed 5 times ({type(error).__name__})"
    assert gate(app)[0] == "action_required"


def test_a_run_folder_that_takes_too_much_is_blocked_at_once() -> None:
    app = App()
    app.open()
    handlers, _ = troubled(app, judging=LimitError("the memory that it needs", "2048 MiB"))
    handlers.reconciler.reconcile(REF)
    app.backend.begin()
    app.backend.finish(app.backend.live()[0], passes)
    handlers.reconciler.reconcile(REF)
    (run,) = app.ledger.runs(REF.repository, number=REF.number)
    assert run.sentence == "what the run left cannot be judged: the memory that it needs exceeds 2048 MiB"
