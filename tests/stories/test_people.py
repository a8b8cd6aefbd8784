"""Who may ask, and what is not a command."""

import pytest

from tests.stories.conftest import Story
from tests.stories.recordings import SMOKE


def test_a_fork_waits_for_an_approval_of_its_exact_head_and_a_push_withdraws_it(story: Story) -> None:
    world = story.world
    number = story.open(author="carol", fork=True)
    first = world.head(number)
    assert (world.gate(number), world.runs()) == ("action_required", [])
    story.say("carol", "/verl-e2e run", number)
    story.say("carol", f"/verl-e2e approve {first}", number)
    story.say("rita", f"/verl-e2e approve {first}", number)
    assert world.runs() == []
    story.say("alice", f"/verl-e2e approve {first}", number)
    assert story.live() == [("0-lora-ddp", first)]
    second = world.push(number, {"src/bridge.py": "import os\n"})
    story.service.settle()
    story.service.go_on()
    assert (world.gate(number), story.live()) == ("action_required", [])
    # Leave for the first head is none for the second, given again or not.
    story.say("alice", f"/verl-e2e approve {first}", number)
    assert story.live() == []
    story.say("alice", f"/verl-e2e approve {second}", number)
    assert story.live() == [("0-lora-ddp", second)]
    story.finish(SMOKE)
    story.service.go_on()
    assert world.gate(number) == "success"


def test_a_push_between_approval_and_look_runs_nothing(story: Story) -> None:
    world = story.world
    number = story.open(author="carol", fork=True)
    approved = world.head(number)
    world.comment("alice", f"/verl-e2e approve {approved}", number)
    world.push(number, {"src/bridge.py": "import os\n"})
    story.service.settle()
    assert world.runs() == []
    assert world.gate(number) == "action_required"


def test_a_first_contribution_from_a_branch_waits_too(story: Story) -> None:
    number = story.open(author="carol")
    assert (story.world.gate(number), story.world.runs()) == ("action_required", [])


def test_where_nothing_is_required_a_stranger_s_fork_waits_for_an_approval(story: Story) -> None:
    world = story.world
    number = story.open("docs/guide.md", author="carol", fork=True)
    assert world.gate(number) == "action_required"
    assert f"/verl-e2e approve {world.head(number)}" in world.card(number)
    story.say("carol", f"/verl-e2e approve {world.head(number)}", number)
    assert world.gate(number) == "action_required"
    story.say("alice", f"/verl-e2e approve {world.head(number)}", number)
    story.service.go_on()
    assert world.gate(number) == "success"
    world.push(number, {"docs/guide.md": "how to, otherwise\n"})
    story.service.settle()
    assert world.gate(number) == "action_required"
    assert world.runs() == []


@pytest.mark.parametrize("author", ("mona", "rita"))
@pytest.mark.parametrize("fork", (True, False))
def test_where_nothing_is_required_the_gate_opens_for_somebody_with_a_role(
    story: Story, author: str, fork: bool
) -> None:
    number = story.open("docs/guide.md", author=author, fork=fork)
    assert story.world.gate(number) == "success"


def test_an_edited_comment_is_no_command(story: Story) -> None:
    world = story.world
    story.open("docs/guide.md")
    comment = story.say("alice", "looks good")
    world.edit_comment(comment, "/verl-e2e level0")
    story.service.settle()
    assert world.runs() == []
    assert story.reactions(comment) == set()
    # Nor is it when the first delivery comes after the edit.
    world.deliveries.hold()
    late = world.comment("alice", "/verl-e2e level0")
    world.edit_comment(late, "never mind")
    world.deliveries.release(world.deliveries.pending[::-1])
    story.service.settle()
    assert len(world.cards()) == 1


@pytest.mark.parametrize(
    "body",
    (
        "```\n/verl-e2e level0\n```",
        "    /verl-e2e level0",
        "> /verl-e2e level0",
        "<!--\n/verl-e2e level0\n-->",
        "try `/verl-e2e level0`",
        "- a list\n\n      /verl-e2e level0",
        "<details>\n/verl-e2e level0\n</details>",
    ),
)
def test_a_command_in_code_quote_or_html_is_none(story: Story, body: str) -> None:
    story.open("docs/guide.md")
    comment = story.say("alice", body)
    assert (story.world.runs(), story.reactions(comment)) == ([], set())


def test_a_command_is_acknowledged_at_once_and_shown_on_the_card(story: Story) -> None:
    world = story.world
    number = story.open("docs/guide.md")
    comment = story.say("alice", "please\n\n/verl-e2e level0\n\nthank you")
    assert story.reactions(comment) == {"eyes"}
    assert story.live() == [("0-lora-ddp", world.head(number))]
    # An extra run never turns the gate either way.
    assert world.gate(number) == "success"
    story.service.go_on()
    assert "0-lora-ddp" in world.card(number)
    assert len(world.comments(number)) == 2


def test_a_command_that_is_misspelt_is_answered_with_what_was_meant(story: Story) -> None:
    world = story.world
    story.open("docs/guide.md")
    comment = story.say("alice", "/verl-e2e rerrun")
    assert story.reactions(comment) == {"eyes", "confused"}
    assert "did you mean" in world.cards()[-1].body
    assert "^" in world.cards()[-1].body


@pytest.mark.parametrize("who", ("carol", "rita"))
def test_who_may_not_is_answered_why_and_nothing_runs(story: Story, who: str) -> None:
    world = story.world
    story.open("docs/guide.md")
    story.say(who, "/verl-e2e level0")
    assert world.runs() == []
    assert f"{who} has the role" in world.cards()[-1].body


def test_a_label_is_the_command_and_needs_the_same_leave(story: Story) -> None:
    world = story.world
    number = story.open("docs/guide.md")
    world.label(number, "verl-e2e:level0", "rita")
    story.service.settle()
    assert world.runs() == []
    world.unlabel(number, "verl-e2e:level0", "rita")
    world.label(number, "verl-e2e:level0", "alice")
    story.service.settle()
    assert story.live() == [("0-lora-ddp", world.head(number))]


def test_an_override_is_shown_and_only_a_maintainer_may(story: Story) -> None:
    world = story.world
    number = story.open()
    head = world.head(number)
    story.say("alice", f"/verl-e2e override level0 {head} the runners are away")
    assert world.gate(number) == "in_progress"
    story.say("mona", f"/verl-e2e override level0 {head} the runners are away")
    story.service.go_on()
    assert world.gate(number) == "success"
    assert "the runners are away" in world.card(number)
    assert "mona" in world.card(number)
    world.push(number, {"src/bridge.py": "value = 3\n"})
    story.service.settle()
    assert world.gate(number) != "success"


def test_cancel_ends_the_runs_until_somebody_runs_again(story: Story) -> None:
    world = story.world
    number = story.open()
    story.say("alice", "/verl-e2e cancel")
    story.service.go_on()
    assert (story.live(), world.gate(number)) == ([], "action_required")
    story.say("alice", "/verl-e2e run")
    assert story.live() == [("0-lora-ddp", world.head(number))]


def test_a_card_that_was_deleted_by_hand_is_made_again(story: Story) -> None:
    world = story.world
    number = story.open()
    world.delete_comment(world.cards(number)[0], "alice")
    world.start_run()
    story.service.settle()
    story.service.go_on()
    assert len(world.cards(number)) == 1
    story.finish(SMOKE)
    story.service.go_on()
    assert "Pass" in world.card(number)
    assert len(world.cards(number)) == 1


def test_a_comment_of_somebody_else_with_our_marker_is_never_touched(story: Story) -> None:
    world = story.world
    number = story.open()
    mine = world.card(number)
    copied = world.comment("carol", mine, number)
    world.delete_comment(world.cards(number)[0], "carol")
    story.finish(SMOKE)
    story.service.go_on()
    assert (copied.body, copied.edits) == (mine, 0)
    assert len(world.cards(number)) == 1
    # Nor when no one remembers which comment the card is.
    other = world.open_pull("alice", {"src/bridge.py": "value = 5\n"})
    forged = world.comment("carol", mine, other)
    story.service.settle()
    assert (forged.body, len(world.cards(other))) == (mine, 1)


def test_buttons_are_the_commands(story: Story) -> None:
    world = story.world
    number = story.open()
    world.finish_run({}, conclusion="failure")
    story.service.settle()
    gate = world.check(world.head(number), "verl-e2e")
    assert gate is not None
    assert [action["identifier"] for action in gate.actions] != []
    world.press(gate, "rerun", "carol")
    story.service.settle()
    assert story.live() == []
    world.press(gate, "rerun", "alice")
    story.service.settle()
    assert story.live() == [("0-lora-ddp", world.head(number))]
    world.finish_run({}, conclusion="failure")
    story.service.settle()
    world.rerequest_all(world.head(number), "alice")
    story.service.settle()
    assert story.live() == [("0-lora-ddp", world.head(number))]


def test_a_card_that_somebody_edited_or_deleted_is_put_right_at_once(story: Story) -> None:
    world = story.world
    number = story.open("docs/guide.md")
    (card,) = world.cards(number)
    text = card.body
    world.edit_comment(card, "### ✅ verl-e2e: Pass - edited by hand", "mona")
    story.service.settle()
    story.service.go_on()
    assert world.card(number) == text
    with world.state.lock:
        del world.state.comments[card.id]
    story.say("alice", "/verl-e2e status", number)
    story.service.go_on()
    assert [comment.body for comment in world.cards(number)] == [text]
    # Our own edits lead to no look that writes.
    writes = len([item for item in world.standin.traffic if item.method == "PATCH"])
    story.service.go_on()
    assert len([item for item in world.standin.traffic if item.method == "PATCH"]) == writes


def test_each_stranger_gets_a_sign_however_much_the_others_wrote(story: Story) -> None:
    number = story.open()
    strangers = [f"stranger-{at}" for at in range(6)]
    for login in strangers:
        story.world.person(login)
    for login in strangers[:3]:
        for at in range(4):
            story.world.comment(login, f"/verl-e2e rnu {at}", number)
    last = [story.world.comment(login, "/verl-e2e approve 123", number) for login in strangers[3:]]
    story.service.settle()
    assert all(story.reactions(comment) for comment in last)
