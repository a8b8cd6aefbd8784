"""A pull request's way from opened to a gate that is green, or is not."""

import json
from pathlib import Path

import pytest

from tests.stories.conftest import Story
from tests.stories.recordings import BROKEN, RESUME, SMOKE, STOPPED, job_of, left_by

LEVELS = "src/saved/checkpoint.py"
MARK = "megatron/bridge/peft/lora.py imports a_package"
STOPPED_BY = {
    "check": "import_driver",
    "ok": False,
    "stage": "import",
    "summary": "import megatron.bridge fails in the driver",
    "attribution": "undecided",
    "fingerprint": MARK,
}


def test_a_pull_request_is_planned_run_judged_and_reported(story: Story) -> None:
    world, service = story.world, story.service
    number = story.open(LEVELS)
    assert world.gate(number) == "in_progress"
    assert story.live() == [("0-lora-ddp", world.head(number))]
    world.start_run()
    service.settle()
    assert world.check(world.head(number), "verl-e2e / 0-lora-ddp").status == "in_progress"  # type: ignore[union-attr]
    story.finish(SMOKE)
    assert story.live() == [("1-resume", world.head(number))]
    assert world.gate(number) == "in_progress"
    story.finish(RESUME)
    service.go_on()
    assert world.gate(number) == "success"
    assert len(world.cards(number)) == 1
    for message in ("Pass", "All 2 required jobs passed", f"--head {world.head(number)}"):
        assert message in world.card(number)
    assert service.failures == []
    assert [run.conclusion for run in world.runs()] == ["success", "success"]


def test_a_failing_level_0_fails_the_gate_and_starts_nothing_more(story: Story) -> None:
    world = story.world
    number = story.open(LEVELS)
    story.finish(BROKEN)
    story.service.go_on()
    assert world.gate(number) == "failure"
    assert story.live() == []
    assert "1-resume" in world.card(number)
    assert len(world.runs()) == 1


@pytest.mark.parametrize(
    ("base", "gate", "text"),
    [
        ({"result": "Pass"}, "failure", " passed, this head "),
        (
            {"result": "Blocked", "stage": "import", "fingerprint": [f"preflight: {MARK}"]},
            "action_required",
            "same way",
        ),
        (None, "action_required", "import megatron.bridge fails in the driver"),
    ],
)
def test_an_import_that_stops_a_run_is_judged_by_its_merge_base(
    base: dict[str, object] | None, gate: str, text: str, story: Story
) -> None:
    world = story.world
    number = story.open(LEVELS)
    (run,) = world.live_runs()
    files = left_by(run, STOPPED)
    environment = json.loads(files["environment.json"])
    environment["findings"] = [STOPPED_BY]
    left = {**files, "environment.json": json.dumps(environment).encode()}
    if base is not None:
        fields = {"role": "merge_base", "job_id": "0-lora-ddp", "job_digest": "e" * 64, "bridge_commit": "d" * 40}
        row = {**fields, "folder": "related/merge_base", **base}
        left["related.json"] = json.dumps({"schema": 2, "runs": [row]}).encode()
    world.finish_run(left, run, artifact=f"verl-e2e-{run.inputs['key']}")
    story.service.go_on()
    assert world.gate(number) == gate
    assert text in world.card(number)
    assert story.live() == []


def test_a_run_that_leaves_no_folder_blocks_the_gate(story: Story) -> None:
    world = story.world
    number = story.open()
    world.finish_run({}, conclusion="failure")
    story.service.settle()
    assert world.gate(number) == "action_required"
    story.say("alice", "/verl-e2e rerun blocked")
    assert story.live() == [("0-lora-ddp", world.head(number))]
    assert world.gate(number) == "in_progress"
    story.finish(SMOKE)
    assert world.gate(number) == "success"


def test_a_change_that_verl_never_runs_is_green_with_its_reason(story: Story) -> None:
    number = story.open("docs/guide.md")
    assert story.world.gate(number) == "success"
    assert story.world.runs() == []
    assert "nothing runs it" in story.world.card(number)


def test_the_folder_of_another_head_is_no_evidence(story: Story) -> None:
    world = story.world
    story.open()
    (run,) = world.live_runs()
    other = job_of(run).model_copy(update={"bridge": job_of(run).bridge.model_copy(update={"commit": "f" * 40})})
    world.finish_run(left_by(run, SMOKE, other), run, artifact=f"verl-e2e-{run.inputs['key']}")
    story.service.settle()
    assert world.gate() == "action_required"


def test_a_new_push_ends_the_run_and_nothing_late_reaches_the_new_head(story: Story) -> None:
    world = story.world
    number = story.open()
    old_head = world.head(number)
    (old,) = world.live_runs()
    world.start_run(old)
    old.stubborn = True
    story.service.settle()
    new_head = world.push(number, {"src/bridge.py": "value = 3\n"})
    story.service.settle()
    # It was asked to end and does not listen yet, so nothing else is started.
    assert [workflow_run.id for workflow_run in world.live_runs()] == [old.id]
    assert world.gate(number) == "in_progress"
    story.finish(SMOKE, old)
    assert story.live() == [("0-lora-ddp", new_head)]
    assert world.gate(number) == "in_progress"
    assert world.gate_of(old_head) != "success"
    story.finish(SMOKE)
    story.service.go_on()
    assert world.gate(number) == "success"
    assert len(world.cards(number)) == 1
    assert new_head[:12] in world.card(number)


def open_checks(story: Story, head: str) -> list[str]:
    """Our check runs of a commit that look as if someone still worked on them."""
    return [check.name for check in story.world.checks(head) if check.status != "completed"]


@pytest.mark.parametrize("recording", (SMOKE, BROKEN), ids=("pass", "fail"))
def test_a_superseded_run_that_ends_by_itself_leaves_no_check_open(story: Story, recording: Path) -> None:
    world = story.world
    number = story.open()
    old_head = world.head(number)
    (old,) = world.live_runs()
    world.start_run(old)
    old.stubborn = True
    story.service.settle()
    world.push(number, {"docs/guide.md": "better\n", "src/bridge.py": "value = 1\n"})
    story.service.settle()
    assert open_checks(story, old_head) == ["verl-e2e / 0-lora-ddp"]
    story.finish(recording, old)
    story.service.go_on()
    assert open_checks(story, old_head) == []


def test_two_pull_requests_with_one_head_turn_green_together(story: Story) -> None:
    world = story.world
    first = story.open()
    second = world.open_same("mona", first)
    story.service.settle()
    assert len(world.live_runs()) == 1
    story.finish(SMOKE)
    assert world.gate(second) == "success"
    story.service.go_on()
    assert all("verl-e2e: Pass" in world.card(number) for number in (first, second))
    assert open_checks(story, world.head(first)) == []


def test_a_run_that_does_not_listen_is_forced_to_end(story: Story) -> None:
    world = story.world
    number = story.open()
    (old,) = world.live_runs()
    world.start_run(old)
    old.stubborn = True
    world.push(number, {"src/bridge.py": "value = 3\n"})
    for _ in range(8):
        story.service.go_on(60)
    assert old.conclusion == "cancelled"
    assert story.live() == [("0-lora-ddp", world.head(number))]


def test_a_draft_is_planned_and_not_run(story: Story) -> None:
    world = story.world
    number = story.open(draft=True)
    assert (world.gate(number), world.runs()) == ("action_required", [])
    assert "draft" in world.card(number)
    world.set_draft(number, draft=False)
    story.service.settle()
    assert world.gate(number) == "in_progress"
    assert len(world.live_runs()) == 1


def test_closing_ends_what_runs(story: Story) -> None:
    world = story.world
    number = story.open()
    world.close(number)
    story.service.settle()
    story.service.go_on()
    assert story.live() == []
    world.reopen(number)
    story.service.settle()
    story.service.go_on()
    assert story.live() == [("0-lora-ddp", world.head(number))]


def test_two_webhooks_of_one_pull_request_at_once_make_one_of_everything(story: Story) -> None:
    world = story.world
    world.deliveries.hold()
    number = world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
    world.label(number, "verl-e2e:run", "alice")
    opened, labelled = world.deliveries.pending
    world.deliveries.release([opened, labelled, opened, labelled])
    story.service.settle()
    assert len(world.runs()) == 1
    assert len(world.cards(number)) == 1
    head = world.state.checks_of(world.full_name, world.head(number))
    assert sorted(check_run.name for check_run in head) == ["verl-e2e", "verl-e2e / 0-lora-ddp"]


def test_a_policy_that_the_pull_request_brings_has_no_effect(story: Story) -> None:
    world = story.world
    lax = "schema: 1\nexempt:\n  - {name: all, paths: [src/], reason: trust me}\n"
    number = world.open_pull("alice", {".github/verl-e2e.yml": lax, "src/bridge.py": "value = 2\n"})
    story.service.settle()
    assert world.gate(number) == "in_progress"
    assert story.live() == [("0-lora-ddp", world.head(number))]
    assert "trust me" not in world.card(number)


def test_more_files_than_github_lists_are_all_planned(story: Story) -> None:
    world = story.world
    files = {f"docs/page-{number:04}.md": "text\n" for number in range(3_100)}
    number = world.open_pull("alice", {**files, "src/bridge.py": "value = 2\n"})
    story.service.settle()
    assert world.api.shapes.whole_pull(world.pull(number))["changed_files"] == 3_101
    # The last file in the order of names is beyond what the API lists, and asks for level 0.
    assert story.live() == [("0-lora-ddp", world.head(number))]
    assert world.gate(number) == "in_progress"
