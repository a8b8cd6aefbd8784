"""GitHub's lists show what was created only later: nothing is created twice, or what was is collapsed."""

import re
import threading
from datetime import timedelta

import pytest
import sqlalchemy as sa

from tests.fakes.github_standin.faults import When, cut
from tests.stories.conftest import Story
from tests.stories.recordings import SMOKE
from tests.stories.service import LAG_S

CREATIONS = (r"/dispatches$", r"/issues/\d+/comments$", r"/check-runs$")
SOURCE = {"src/bridge.py": "value = 2\n"}


class KilledError(BaseException):
    """The process ends here."""


def killed_after(story: Story, path: str) -> None:
    """The next creation has its effect, and the process ends before it learns so; another one goes on."""
    story.world.state.clock = story.service.clock.now
    story.world.faults.add(cut(When.AFTER), "POST", path)
    story.service.waits.killed = KilledError
    with pytest.raises(KilledError):
        story.service.settle()
    story.service.waits.killed = None
    story.service.restart()


def killed_before_write(story: Story, path: str, number: int) -> None:
    """The next creation is answered, and the process ends before so many writes to its tables; another one goes on."""
    story.world.state.clock = story.service.clock.now
    created, left, worker = threading.Event(), [number], threading.get_ident()

    def note(method: str, asked: str) -> None:
        if method == "POST" and re.search(path, asked):
            created.set()

    def end(_: sa.Connection) -> None:
        if created.is_set() and threading.get_ident() == worker:
            left[0] -= 1
            if not left[0]:
                raise KilledError

    story.world.faults.choose = note
    sa.event.listen(sa.Engine, "commit", end)
    try:
        with pytest.raises(KilledError):
            story.service.settle()
    finally:
        sa.event.remove(sa.Engine, "commit", end)
    story.world.faults.clear()
    story.service.restart()


def all_of(story: Story) -> tuple[int, int, int]:
    """Runs that were not cancelled, cards, and gates under the name that counts."""
    runs = [run for run in story.world.runs() if run.conclusion != "cancelled"]
    gates = [check for check in story.world.state.checks.values() if check.name == "verl-e2e"]
    return len(runs), len(story.world.cards(1)), len(gates)


def go_on(story: Story, seconds: float) -> None:
    for _ in range(int(seconds) // 5):
        story.service.go_on(5.0)


@pytest.mark.parametrize("path", CREATIONS)
@pytest.mark.parametrize("lag_s", (0.0, 10.0, 25.0))
def test_what_was_created_before_a_kill_is_found_though_lists_lag(story: Story, path: str, lag_s: float) -> None:
    story.world.state.lag_s = lag_s
    story.world.open_pull("alice", SOURCE)
    killed_after(story, path)
    go_on(story, 3 * LAG_S)
    assert all_of(story) == (1, 1, 1)
    assert len(story.world.runs()) == 1
    story.finish(SMOKE)
    go_on(story, LAG_S)
    assert story.world.gate(1) == "success"


@pytest.mark.parametrize("path", CREATIONS)
@pytest.mark.parametrize("number", (1, 2, 3))
def test_what_was_created_is_found_though_the_kill_comes_before_its_id_is_kept(
    story: Story, path: str, number: int
) -> None:
    story.world.state.lag_s = 10.0
    story.world.open_pull("alice", SOURCE)
    killed_before_write(story, path, number)
    go_on(story, 3 * LAG_S)
    assert all_of(story) == (1, 1, 1)
    assert len(story.world.runs()) == 1


@pytest.mark.parametrize("path", CREATIONS)
def test_what_was_created_twice_is_collapsed(story: Story, path: str) -> None:
    """The lists lag longer than anyone waits."""
    story.world.state.lag_s = 2 * LAG_S
    story.world.open_pull("alice", SOURCE)
    killed_after(story, path)
    go_on(story, 8 * LAG_S)
    assert all_of(story) == (1, 1, 1)
    story.finish(SMOKE)
    go_on(story, LAG_S)
    assert story.world.gate(1) == "success"


def test_another_pull_request_goes_on_while_one_waits_for_a_list(story: Story) -> None:
    story.world.state.lag_s = 10.0
    story.world.open_pull("alice", SOURCE)
    killed_after(story, r"/dispatches$")
    story.world.open_pull("alice", {"docs/guide.md": "other\n"})
    story.service.settle()
    assert story.world.gate(2) == "success"
    # Its own checks and card stand too; only the dispatch waits.
    assert len(story.world.cards(1)) == 1


def test_a_clock_that_is_set_back_makes_nobody_wait_longer(story: Story) -> None:
    story.world.state.lag_s = 10.0
    story.world.open_pull("alice", SOURCE)
    killed_after(story, r"/dispatches$")
    # What the world has made stays in its lists.
    story.world.state.lag_s = 0.0
    # GitHub's own clock is not set back.
    theirs = story.world.state.clock
    story.world.state.clock = lambda: theirs() + timedelta(hours=1)
    story.service.clock.pass_s(-3600)
    go_on(story, 2 * LAG_S)
    assert len(story.world.runs()) == 1
    assert story.live()
