"""Merge groups."""

from tests.stories.conftest import Story
from tests.stories.recordings import SMOKE


def test_a_push_that_no_job_can_reach_runs_nothing(story: Story) -> None:
    world = story.world
    number = story.open()
    (started,) = world.live_runs()
    world.start_run(started)
    story.service.settle()
    old_head, new_head = world.head(number), world.push(number, {"docs/guide.md": "# More\n"})
    story.service.settle()
    assert (story.live(), world.gate_of(new_head)) == ([("0-lora-ddp", old_head)], "in_progress")
    story.finish(SMOKE)
    assert world.gate_of(new_head) == "success"
    newer = world.push(number, {"docs/guide.md": "# Even more\n"})
    story.service.settle()
    assert (world.gate_of(newer), len(world.runs())) == ("success", 1)
    story.service.go_on()
    assert f"reused from {old_head[:12]}" in world.card(number).replace("`", "")
    # A person who wants the run all the same asks for it.
    story.say("alice", "/verl-e2e rerun")
    assert story.live() == [("0-lora-ddp", newer)]


def test_a_merge_group_takes_over_what_passed_on_the_same_code(story: Story) -> None:
    world = story.world
    number = story.open()
    story.finish(SMOKE)
    assert world.gate(number) == "success"
    group = world.queue(number)
    story.service.settle()
    assert world.gate_of(group) == "success"
    assert len(world.runs()) == 1
    summary = world.check(group, "verl-e2e").summary  # type: ignore[union-attr]
    assert world.head(number)[:12] in str(summary)


def test_a_merge_group_with_other_code_runs_again(story: Story) -> None:
    world = story.world
    number = story.open()
    story.finish(SMOKE)
    world.commit({"src/other.py": "value = 9\n"}, "Something else came first")
    group = world.queue(number)
    story.service.settle()
    assert world.gate_of(group) == "in_progress"
    assert story.live() == [("0-lora-ddp", group)]
    story.finish(SMOKE)
    assert world.gate_of(group) == "success"


def test_a_merge_group_that_is_given_up_runs_no_more(story: Story) -> None:
    world = story.world
    number = story.open()
    story.finish(SMOKE)
    world.commit({"src/other.py": "value = 9\n"})
    group = world.queue(number)
    story.service.settle()
    world.leave_queue(group)
    story.service.settle()
    story.service.go_on()
    assert story.live() == []


def test_a_merge_group_is_answered_before_the_queue_gives_it_up(story: Story) -> None:
    world = story.world
    number = story.open()
    story.finish(SMOKE)
    world.commit({"src/other.py": "value = 9\n"})
    group = world.queue(number)
    story.service.settle()
    for _ in range(7):
        story.service.go_on(600)
    assert world.gate_of(group) == "action_required"


def test_a_group_of_documents_is_green_at_once(story: Story) -> None:
    world = story.world
    number = story.open("docs/guide.md")
    group = world.queue(number)
    story.service.settle()
    assert world.gate_of(group) == "success"
    assert world.runs() == []
