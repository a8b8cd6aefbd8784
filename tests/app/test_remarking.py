"""A failed job's check points at the changed lines; no one else's does, and nothing is read for them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from tests.fakes.app import BASE, REF, REPOSITORY, App, FakeSource, fails, passes
from tests.fakes.shown_pull import FAILED, PASSED, shown_target_state
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Record
from verl_e2e.core.pulls.decide import decide_actions
from verl_e2e.core.pulls.forge import Annotation, Target
from verl_e2e.core.report.checks import checks_wanted

LORA = "src/megatron/bridge/peft/lora.py"
BEFORE, AFTER = b"one = 1\ntwo = 2\nthree = 3\n", b"one = 1\ntwo = 20\nthree = 30\n"


@dataclass
class _Source(FakeSource):
    """Trees that give the changed file, and count how often they are asked for it."""

    read: list[str] = field(default_factory=list)

    def read_blob(self, revision: str, path: str) -> bytes | None:
        self.read.append(path)
        return (BEFORE if revision == BASE else AFTER) if path == LORA else None


def _ended(how: Callable[[Job], tuple[Record, LogFacts | None]], path: str = LORA) -> tuple[list[Annotation], _Source]:
    """The annotations of every check once the job of a pull request has ended, and what was read for them."""
    app = App()
    pull = app.open(path=path)
    source = _Source(app.paths)

    def changes(_: Target) -> _Source:
        return source

    analysis = replace(app.analysis(), changes=changes)
    handlers = app.connect(changes=changes, analysis=analysis)
    handlers.reconciler.reconcile(REF)
    app.backend.begin()
    planned = len(source.read)
    for run in app.backend.live():
        app.backend.finish(run, how)
    app.clock.pass_s(60)
    handlers.reconciler.reconcile(REF)
    source.read = source.read[planned:]
    checks = app.hub.check_runs(REPOSITORY, pull.head_sha)
    assert {check.name for check in checks} >= {"verl-e2e", "verl-e2e / 0-lora-ddp"}
    return [note for check in checks for note in check.annotations], source


def test_a_failed_job_points_at_the_changed_lines_of_the_file_that_failed() -> None:
    (found,), _ = _ended(fails)
    assert (found.path, found.first_line, found.last_line, found.level) == (LORA, 2, 3, "failure")
    assert found.title == "0-lora-ddp failed at peft"
    assert "planted in LoRA" in found.message


def test_a_pass_and_a_failure_elsewhere_point_at_nothing_and_read_nothing() -> None:
    for how, path in ((passes, LORA), (fails, "src/megatron/bridge/peft/dora.py")):
        found, source = _ended(how, path)
        assert (found, source.read) == ([], [])


@pytest.mark.parametrize("recorded", [PASSED, FAILED])
def test_every_check_of_a_recorded_run_is_one_that_github_takes(recorded: tuple[str, ...]) -> None:
    target_state = shown_target_state(*recorded)
    checks = checks_wanted(target_state, decide_actions(target_state))
    assert [check.name for check in checks] == ["verl-e2e", "verl-e2e / 0-lora-ddp", "verl-e2e / 1-resume"]
    assert all(0 < len(check.title) <= 255 and len(check.summary + check.text) < 65_000 for check in checks)
    (buttons, *others) = [check.actions for check in checks]
    assert len(buttons) <= 3
    assert all(len(label) <= 20 and len(text) <= 40 and len(name) <= 20 for label, text, name in buttons)
    assert not any(others)
    assert [label for label, _, _ in buttons] == [*(["Rerun failed"] if recorded == FAILED else []), "Run level 2"]
