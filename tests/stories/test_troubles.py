"""Lost webhooks, answers that never come, and a service that is killed on the way."""

from collections.abc import Iterator

import pytest

from tests.fakes.github_standin.faults import Fault, When, cut, server_error, slow_down
from tests.stories.conftest import Story
from tests.stories.recordings import SMOKE

# One of each kind that the service tells apart; tests/adapters/test_github_faults.py and tests/stories/test_machine.py
# have further statuses of a kind.
BROKEN = (server_error(502), server_error(502, When.AFTER), slow_down(403, 3), cut(), cut(When.AFTER))
CALLS = (
    ("GET", r"/pulls/1$"),
    ("GET", r"/collaborators/alice/permission$"),
    ("GET", r"/check-runs$"),
    ("POST", r"/dispatches$"),
    ("POST", r"/check-runs$"),
    ("PATCH", r"/check-runs/\d+$"),
    ("POST", r"/issues/1/comments$"),
    ("PATCH", r"/issues/comments/\d+$"),
    ("POST", r"/access_tokens$"),
    ("GET", r"/artifacts$"),
    ("GET", r"/actions/artifacts/\d+/zip$"),
)


def lose_everything(story: Story) -> None:
    for item in list(story.world.deliveries.pending):
        story.world.deliveries.lose(item)
    story.world.deliveries.release()


def test_a_lost_opening_and_a_lost_command_are_made_good_by_the_tick(story: Story) -> None:
    world = story.world
    world.deliveries.hold()
    number = world.open_pull("alice", {"docs/guide.md": "better\n"})
    world.comment("alice", "/verl-e2e level0")
    lose_everything(story)
    assert world.cards(number) == []
    story.service.tick()
    assert world.gate(number) == "success"
    assert story.live() == [("0-lora-ddp", world.head(number))]


def test_a_lost_push_is_found_though_github_does_not_say_which_webhooks_failed(story: Story) -> None:
    world = story.world
    number = story.open("docs/guide.md")
    world.deliveries.hold()
    world.push(number, {"docs/guide.md": "more\n"})
    lose_everything(story)
    world.faults.add(server_error(503), "GET", r"/app/hook/deliveries$", times=99)
    story.service.tick()
    assert world.gate(number) == "success"


def test_the_last_edit_of_a_card_is_made_good_when_it_failed(story: Story) -> None:
    world = story.world
    number = story.open()
    story.service.go_on()
    world.faults.add(server_error(500), "PATCH", r"/issues/comments/\d+$", times=99)
    story.finish(SMOKE)
    assert world.gate(number) == "success"
    assert "verl-e2e: Pass " not in world.card(number)
    world.faults.clear()
    story.service.go_on(1_000)
    assert "verl-e2e: Pass " in world.card(number)


def test_a_lost_end_of_a_run_is_found_by_the_clock(story: Story) -> None:
    world = story.world
    number = story.open()
    world.deliveries.hold()
    story.finish(SMOKE)
    lose_everything(story)
    assert world.gate(number) == "in_progress"
    story.service.go_on(601)
    assert world.gate(number) == "success"


def test_a_webhook_that_is_not_signed_by_github_is_refused(story: Story) -> None:
    world = story.world
    world.deliveries.secret = "someone else's secret"
    number = world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
    story.service.settle()
    # A search of the service asks once for what failed.
    assert {attempt.status for attempt in world.deliveries.attempts} == {401}
    assert (world.gate(number), world.runs()) == ("", [])
    # And it is not asked for over and over again.
    for _ in range(6):
        story.service.tick()
    assert len(world.deliveries.made[0].attempts) <= 4


def failing() -> Iterator[object]:
    """Each call with each kind of fault. Of a call that only reads, one after its effect is one before it."""
    for method, path in CALLS:
        for fault in BROKEN:
            if method != "GET" or fault.when is not When.AFTER:
                name = f"{method}-{path.strip('/$')}-{fault.status or 'cut'}-{fault.when.value}"
                yield pytest.param(method, path, fault, id=name)


@pytest.mark.parametrize(("method", "path", "fault"), list(failing()))
def test_a_call_that_fails_once_changes_nothing_in_the_end(story: Story, method: str, path: str, fault: Fault) -> None:
    world = story.world
    world.faults.add(fault, method, path)
    number = story.open()
    for _ in range(4):
        story.service.go_on()
    assert story.live() == [("0-lora-ddp", world.head(number))]
    world.start_run()
    story.service.settle()
    story.service.go_on()
    story.finish(SMOKE)
    for _ in range(4):
        story.service.go_on()
    assert world.faults.met == 1
    assert world.gate(number) == "success"
    assert (len(world.runs()), len(world.cards(number))) == (1, 1)
    heads = world.state.checks_of(world.full_name, world.head(number))
    assert sorted(item.name for item in heads) == ["verl-e2e", "verl-e2e / 0-lora-ddp"]


@pytest.mark.parametrize("method", ("POST", "PATCH", "GET"))
def test_a_service_that_is_killed_at_any_call_takes_up_where_it_was(story: Story, method: str) -> None:
    world = story.world
    # Every other answer of this method is lost after its effect, and the process with it.
    for call in range(6):
        world.faults.clear()
        world.faults.add(cut(When.AFTER), method, times=99, skip=call)
        if call == 0:
            world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
        world.deliveries.wait()
        story.service.round()
        story.service.round()
        world.faults.clear()
        story.service.restart()
        story.service.clock.pass_s(901)
    story.service.tick()
    story.service.go_on(901)
    assert story.live() == [("0-lora-ddp", world.head(1))]
    story.finish(SMOKE)
    story.service.go_on()
    assert world.gate() == "success"
    assert (len(world.runs()), len(world.cards())) == (1, 1)


def test_hours_without_github_are_got_over(story: Story) -> None:
    world = story.world
    world.faults.add(server_error(503), times=10_000)
    world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
    for _ in range(5):
        story.service.go_on(1_000)
    assert (world.runs(), world.cards()) == ([], [])
    world.faults.clear()
    story.service.go_on(1_000)
    assert story.live() == [("0-lora-ddp", world.head(1))]
    assert len(world.cards()) == 1
