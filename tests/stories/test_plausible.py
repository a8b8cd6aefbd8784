"""A Pass needs a run: what a folder tells is held against what GitHub saw."""

import pytest

from tests.stories.conftest import Story
from tests.stories.recordings import BROKEN, SMOKE, adapted, job_of, left_by


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"lasted_s": 0.0}, "ran for 0 s"),
        ({"conclusion": "failure"}, "ended as failure"),
        ({"conclusion": "timed_out"}, "ended as timed_out"),
    ],
    ids=["no time passed", "failure", "timed out"],
)
def test_a_pass_that_github_did_not_see_is_blocked(story: Story, given: dict[str, object], why: str) -> None:
    world = story.world
    number = story.open()
    (run,) = world.live_runs()
    world.finish_run(left_by(run, SMOKE), run, artifact=f"verl-e2e-{run.inputs['key']}", **given)  # type: ignore[arg-type]
    story.service.settle()
    story.service.go_on()
    assert world.gate(number) == "action_required"
    assert "does not fit the run" in world.card(number)
    check = world.check(world.head(number), "verl-e2e / 0-lora-ddp")
    assert check is not None
    assert why in f"{check.summary} {check.text}".replace("\\", "")


@pytest.mark.parametrize("nonce", ["", "0" * 32])
def test_a_folder_of_another_order_of_the_same_job_is_blocked(story: Story, nonce: str) -> None:
    world = story.world
    number = story.open()
    (run,) = world.live_runs()
    world.finish_run(adapted(SMOKE, job_of(run), nonce), run, artifact=f"verl-e2e-{run.inputs['key']}")
    story.service.settle()
    assert world.gate(number) == "action_required"


def test_a_fail_is_read_from_a_workflow_job_that_failed(story: Story) -> None:
    world = story.world
    number = story.open()
    (run,) = world.live_runs()
    files = left_by(run, BROKEN)
    world.finish_run(files, run, artifact=f"verl-e2e-{run.inputs['key']}", conclusion="failure")
    story.service.settle()
    assert world.gate(number) == "failure"


def test_each_order_has_a_nonce_of_its_own_that_a_restart_keeps(story: Story) -> None:
    first = story.open()
    second = story.world.open_pull("alice", {"src/bridge.py": "value = 7\n"})
    story.service.settle()
    story.service.restart()
    kept = [run.nonce for number in (first, second) for run in story.service.ledger.runs("octo/bridge", number=number)]
    assert len(set(kept)) == 2
    assert all(len(nonce) == 32 for nonce in kept)
