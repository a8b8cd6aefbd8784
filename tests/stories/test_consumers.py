"""Another trainer's jobs beside verl's: shown or required, as the policy says, and never before an approval."""

import pytest

from tests.stories.conftest import Story
from tests.stories.furnished import POLICY, POLICY_FILE
from tests.stories.recordings import SMOKE, job_of
from verl_e2e.core.consumer.skyrl import SKYRL

OURS, SKYRLS = "0-lora-ddp", "0-lora-ddp-skyrl"


def with_skyrl(story: Story, level: str) -> None:
    rules = f"consumers:\n  skyrl: {{level: {level}}}\n"
    story.world.commit({POLICY_FILE: POLICY + rules}, "Ask for SkyRL")


def opened_and_passed(story: Story, level: str) -> int:
    """A pull request whose job of verl passed, so that SkyRL's is under way."""
    with_skyrl(story, level)
    number = story.open()
    assert [job for job, _ in story.live()] == [OURS]
    story.finish(SMOKE)
    assert [job for job, _ in story.live()] == [SKYRLS]
    return number


@pytest.mark.parametrize(("level", "gate"), [("show", "success"), ("require", "in_progress")])
def test_the_gate_asks_only_for_what_is_required(story: Story, level: str, gate: str) -> None:
    number = opened_and_passed(story, level)
    assert story.world.gate(number) == gate
    said = "shown, the gate does not ask for it" if level == "show" else "required"
    assert f"**SkyRL ({said})**" in story.world.card(number)
    assert "verl-e2e check --consumer skyrl --repo Megatron-Bridge --verl skyrl" in story.world.card(number)
    # Without a folder there is nothing to judge.
    story.world.finish_run({}, story.world.live_runs()[0], conclusion="failure")
    story.service.settle()
    assert story.world.gate(number) == ("success" if level == "show" else "action_required")
    (row,) = [row for row in story.world.card(number).splitlines() if row.startswith(f"| {SKYRLS} ")]
    assert row.split(" | ")[2] == ("no" if level == "show" else "yes")
    # What builds on it does not start.
    assert story.live() == []


def test_no_job_of_another_trainer_starts_for_a_fork_before_an_approval(story: Story) -> None:
    with_skyrl(story, "show")
    number = story.open(author="carol", fork=True)
    assert story.live() == []
    story.say("mona", f"/verl-e2e approve {story.world.head(number)}", number)
    assert [job for job, _ in story.live()] == [OURS]


def test_its_job_names_its_own_program_commit_and_patches(story: Story) -> None:
    opened_and_passed(story, "show")
    (job,) = map(job_of, story.world.live_runs())
    assert (job.consumer, job.verl.commit, job.script) == ("skyrl", SKYRL.pin, SKYRL.script)
    assert job.patches == SKYRL.patches
    assert {key.partition(".")[0] for key in job.expected} <= {"trainer", "generator", "environment", "data"}


def test_a_folder_that_is_not_one_of_its_runs_stops_no_pull_request(story: Story) -> None:
    number = opened_and_passed(story, "show")
    # What the job left is a run of verl, with a critic, under the name of the other job.
    story.finish(SMOKE)
    assert story.service.failures == []
    story.say("alice", "/verl-e2e level2", number)
    assert [job for job, _ in story.live()] == ["2-dense"]


def test_a_push_of_documentation_ends_no_run_of_another_trainer(story: Story) -> None:
    number = opened_and_passed(story, "show")
    before = story.live()
    story.world.push(number, {"docs/x.md": "hello\n"})
    story.service.settle()
    story.service.go_on(100)
    card = story.world.card(number)
    assert f"| {OURS} | ✅ Pass | yes" in card
    assert "Cancelled" not in card
    assert story.live() == before
