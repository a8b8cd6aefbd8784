"""Runs that the infrastructure broke, on a GitHub of our own: another attempt, once, whatever ends on the way."""

import pytest

from tests.fakes.github_standin.faults import When, cut
from tests.stories.conftest import Story
from tests.stories.recordings import BROKEN, SMOKE, left_by
from verl_e2e.core.pulls.ledger import RunState


def interrupt(story: Story) -> None:
    """The runner of the run under way is interrupted by its host, and leaves what it has."""
    (run,) = story.world.live_runs()
    left = dict(left_by(run, SMOKE))
    left["events.jsonl"] = left["events.jsonl"].replace(b'"reason": "exited"', b'"reason": "interrupted"')
    story.world.finish_run(left, run, artifact=f"verl-e2e-{run.inputs['key']}")
    story.service.settle()


def attempts(story: Story, number: int) -> list[tuple[int, RunState, bool]]:
    runs = story.service.ledger.runs(story.world.full_name, number=number)
    return [(run.attempt, run.state, bool(run.retry_of)) for run in runs]


def test_a_run_whose_host_was_shut_down_runs_again_and_the_card_shows_both(story: Story) -> None:
    number = story.open()
    interrupt(story)
    assert (story.live(), story.world.gate(number)) == ([], "in_progress")
    story.service.go_on(61)
    assert story.live() == [("0-lora-ddp", story.world.head(number))]
    story.finish(SMOKE)
    assert story.world.gate(number) == "success"
    story.service.go_on(16)
    card = story.world.card(number)
    assert "attempt 1: Blocked, the run was interrupted" in card
    assert "attempt 2: Pass, run again by itself" in card


@pytest.mark.parametrize("path", [r"/dispatches$", r"/check-runs/\d+$"])
def test_a_service_that_is_killed_while_it_starts_the_second_attempt_starts_it_once(story: Story, path: str) -> None:
    number = story.open()
    interrupt(story)
    story.world.faults.add(cut(When.AFTER), "POST" if "dispatches" in path else "PATCH", path, times=3)
    story.service.clock.pass_s(61)
    story.service.round()
    story.service.restart()
    story.world.faults.clear()
    for _ in range(4):
        story.service.go_on(901)
    assert story.live() == [("0-lora-ddp", story.world.head(number))]
    story.finish(SMOKE)
    story.service.go_on()
    assert attempts(story, number) == [(1, RunState.FINISHED, False), (2, RunState.FINISHED, True)]
    assert (len(story.world.runs()), story.world.gate(number)) == (2, "success")


def test_a_failure_is_never_run_again_by_itself(story: Story) -> None:
    number = story.open()
    story.finish(BROKEN)
    for _ in range(3):
        story.service.go_on(3_600)
    assert attempts(story, number) == [(1, RunState.FINISHED, False)]
    assert story.world.gate(number) == "failure"
