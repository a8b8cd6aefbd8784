"""More is to run than may run at once: who waits, who is next, and a pause."""

import pytest

from tests.stories.conftest import Story
from tests.stories.recordings import SMOKE

OTHER = "src/other.py"


@pytest.fixture
def narrow(story: Story) -> Story:
    """A service with one slot."""
    story.service.environ = {"VERL_E2E_SLOTS": "all=1"}
    story.service.restart()
    return story


def heads(story: Story) -> list[str]:
    """The heads of the runs under way."""
    return [head for _, head in story.live()]


def test_what_has_no_slot_waits_with_us_and_starts_when_one_is_free(narrow: Story) -> None:
    world, service = narrow.world, narrow.service
    first, second = narrow.open(), narrow.open(OTHER, author="mona")
    assert heads(narrow) == [world.head(first)]
    assert "waits for a free slot" in world.card(second)
    assert "Place 1 of 1 in the queue" in world.card(second)
    assert world.gate(second) == "in_progress"
    service.go_on(3_000)
    narrow.finish(SMOKE)
    assert heads(narrow) == [world.head(second)]
    narrow.finish(SMOKE)
    assert [world.gate(number) for number in (first, second)] == ["success", "success"]


def test_a_restart_neither_loses_nor_doubles_a_slot(narrow: Story) -> None:
    world, service = narrow.world, narrow.service
    first, second = narrow.open(), narrow.open(OTHER)
    service.restart()
    service.settle()
    assert heads(narrow) == [world.head(first)]
    narrow.finish(SMOKE)
    service.restart()
    service.settle()
    assert heads(narrow) == [world.head(second)]


def test_a_merge_group_goes_first_and_a_maintainer_sets_who_follows(narrow: Story) -> None:
    world = narrow.world
    first = narrow.open()
    second, third = narrow.open(OTHER), narrow.open("src/third.py", author="mona")
    refused = narrow.say("alice", "/verl-e2e priority high", second)
    assert "confused" in narrow.reactions(refused)
    narrow.say("mona", "/verl-e2e priority low", third)
    world.commit({"src/fourth.py": "value = 9\n"}, "Something else came first")
    group = world.queue(first)
    narrow.service.settle()
    order = []
    for _ in range(4):
        order += heads(narrow)
        narrow.finish(SMOKE)
    assert order == [world.head(first), group, world.head(second), world.head(third)]


def test_a_push_leaves_the_queue_at_once(narrow: Story) -> None:
    world = narrow.world
    narrow.open()
    second = narrow.open(OTHER)
    world.push(second, {OTHER: "value = 3\n"})
    narrow.service.settle()
    states = [run.state for run in narrow.service.ledger.runs("octo/bridge", number=second)]
    assert states == ["cancelled", "queued"]
    assert len(world.runs()) == 1


def test_a_pause_holds_what_has_not_started_and_says_so_until_it_is_resumed(story: Story) -> None:
    world, service = story.world, story.service
    running = story.open()
    refused = story.say("alice", "/verl-e2e pause the file system is full", running)
    assert "confused" in story.reactions(refused)
    story.say("mona", "/verl-e2e pause the file system is full", running)
    held = story.open(OTHER)
    service.go_on()
    assert heads(story) == [world.head(running)]
    assert world.gate(held) == "action_required"
    for number in (running, held):
        assert "the file system is full" in world.card(number)
        assert "mona" in world.card(number)
    service.restart()
    service.go_on()
    assert world.gate(held) == "action_required"
    story.finish(SMOKE)
    assert world.gate(running) == "success"
    story.say("mona", "/verl-e2e resume", held)
    service.go_on()
    assert heads(story) == [world.head(held)]
    assert "file system" not in world.card(held)


def test_a_pause_does_not_end_a_merge_group_before_its_deadline(story: Story) -> None:
    world = story.world
    number = story.open()
    story.finish(SMOKE)
    story.say("mona", "/verl-e2e pause the file system is full", number)
    world.commit({OTHER: "value = 9\n"}, "Something else came first")
    group = world.queue(number)
    story.service.settle()
    assert (world.gate_of(group), story.live()) == ("in_progress", [])
    for _ in range(7):
        story.service.go_on(600)
    assert world.gate_of(group) == "action_required"
    assert "the file system is full" in str(world.check(group, "verl-e2e"))
