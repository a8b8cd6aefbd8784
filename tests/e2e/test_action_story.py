"""A repository without a server: each event is a fresh process with a fresh disk and the workflow's own token."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.command_server import verl_e2e
from tests.fakes.github_standin.state import GITHUB_ACTIONS, CheckRun
from tests.fakes.github_standin.world import World, living
from tests.fakes.patience import HANG_S
from tests.stories.furnished import POLICY, POLICY_FILE, furnish
from tests.stories.recordings import BROKEN, SMOKE, job_of, left_by
from tests.stories.rehearsals import MOVED, is_rehearsal, left_by_rehearsal
from verl_e2e.adapters.derived_ledger import LEDGER_CHECK

TOKEN = "ghs_of-the-workflow"
PERMISSIONS = {"contents": "read", "checks": "write", "pull_requests": "write", "actions": "write"}
TOOL = "octo/verl-e2e@" + "c" * 40


class Actions:
    """GitHub's runners as far as our trusted workflows go: one process for each event."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self._folder = folder
        self._steps = 0

    def event(self, code: int = 0, /, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run the workflow of the event that GitHub sent last."""
        names = {
            "pull_request": "pull_request_target",
            "issue_comment": "issue_comment",
            "merge_group": "merge_group",
        }
        message = next(item for item in reversed(self.world.deliveries.made) if item.event in names)
        name = names[message.event]
        return self.step("event", message.payload, code, GITHUB_EVENT_NAME=name, **changes)

    def report(self, target: str) -> subprocess.CompletedProcess[str]:
        """Run the report of the workflow that ran a job."""
        return self.step("event", {}, GITHUB_EVENT_NAME="workflow_dispatch", VERL_E2E_TARGET=target)

    def sweep(self, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run the workflow of the clock."""
        return self.step("sweep", {}, GITHUB_EVENT_NAME="schedule", **changes)

    def step(self, command: str, payload: object, code: int = 0, /, **changes: str) -> subprocess.CompletedProcess[str]:
        """One step on a runner that has never seen us before."""
        self._steps += 1
        folder = self._folder / f"step-{self._steps}"
        folder.mkdir()
        (folder / "event.json").write_text(json.dumps(payload))
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "GITHUB_API_URL": self.world.url,
            "GITHUB_SERVER_URL": self.world.url,
            "GITHUB_REPOSITORY": self.world.full_name,
            "GITHUB_EVENT_PATH": str(folder / "event.json"),
            "GITHUB_RUN_ID": str(self._steps),
            "RUNNER_TEMP": str(folder / "temp"),
            "VERL_E2E_TOKEN": TOKEN,
            "VERL_E2E_TOOL": TOOL,
            # No one attests here: Sigstore's own instance cannot be reached, and a workflow trusts no other.
            "VERL_E2E_ATTESTATION": "preferred",
            # The card may be edited every 15 s, and no test waits for it.
            "VERL_E2E_PATIENCE_S": "2",
            "VERL_E2E_SITE": "hopper-offline",
            "VERL_E2E_SITE_VALUES": "kit=/opt/kit",
        }
        command_line = [*verl_e2e(), "action", command]
        done = subprocess.run(
            command_line,
            env=variables | changes,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_S,
        )
        assert done.returncode == code, done.stderr
        return done

    def check(self, name: str, number: int = 1) -> CheckRun | None:
        """Our check run on the head of a pull request."""
        with self.world.state.lock:
            found = self.world.state.checks_of(self.world.full_name, self.world.head(number))
            return next((check_run for check_run in reversed(found) if check_run.name == name), None)

    def gate(self, number: int = 1) -> str:
        """What the gate says."""
        found = self.check("verl-e2e", number)
        return "" if found is None else found.conclusion or found.status

    def cards(self, number: int = 1) -> list[str]:
        """What GitHub Actions' own App wrote on the pull request."""
        return [
            comment.body for comment in self.world.comments(number) if comment.app and comment.app.id == GITHUB_ACTIONS
        ]


@pytest.fixture
def actions(tmp_path: Path) -> Iterator[Actions]:
    with living(tmp_path / "github") as world:
        furnish(world)
        world.actions_token(TOKEN, PERMISSIONS)
        yield Actions(world, tmp_path)


def test_from_opened_to_a_green_gate(actions: Actions) -> None:
    world = actions.world
    number = world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
    actions.event()
    (run,) = world.live_runs()
    assert (actions.gate(), job_of(run).bridge.commit) == ("in_progress", world.head(number))
    assert run.inputs["tool_sha"] == "c" * 40
    assert len(actions.cards()) == 1
    world.start_run(run)
    world.finish_run(left_by(run, SMOKE), run, artifact=f"verl-e2e-{run.inputs['key']}")
    actions.report(f"{run.inputs['pull']}@{run.inputs['head_sha']}")
    assert actions.gate() == "success"
    assert len(actions.cards()) == 1
    assert "0-lora-ddp" in actions.cards()[0]
    assert actions.check(LEDGER_CHECK) is not None


def test_a_tag_orders_the_commit_that_it_names_and_a_branch_is_refused(actions: Actions) -> None:
    world = actions.world
    with world.state.lock:
        tool = world.state.add_repository("octo/verl-e2e")
        tagged = tool.git.commit("refs/tags/v0.1", {"action.yml": "name: verl-e2e\n"}, "Release 0.1")
        tool.git.commit("refs/heads/v0.2", {"action.yml": "name: another\n"}, "A branch")
    world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
    assert "octo/verl-e2e has no tag v0.2" in actions.event(2, VERL_E2E_TOOL="octo/verl-e2e@v0.2").stderr
    assert "is not a commit of a repository" in actions.event(2, VERL_E2E_TOOL="octo/verl-e2e@main").stderr
    actions.event(VERL_E2E_TOOL="octo/verl-e2e@v0.1")
    (run,) = world.live_runs()
    assert (run.inputs["tool_repository"], run.inputs["tool_sha"]) == ("octo/verl-e2e", tagged)


def test_a_rehearsal_comes_first_and_is_judged_by_the_workflow_that_reports_it(actions: Actions) -> None:
    world = actions.world
    world.commit({POLICY_FILE: f"{POLICY}rehearsal: {{run: true}}\n"}, "Rehearse")
    number = world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
    actions.event()
    (run,) = world.live_runs()
    assert (is_rehearsal(run), run.inputs["image"], actions.gate()) == (True, "", "in_progress")
    world.start_run(run)
    world.finish_run(left_by_rehearsal(run, MOVED), run, artifact=f"verl-e2e-{run.inputs['key']}")
    actions.report(f"{run.inputs['pull']}@{run.inputs['head_sha']}")
    (job,) = world.live_runs()
    assert job_of(job).bridge.commit == world.head(number)
    found = actions.check("verl-e2e / rehearsal")
    assert found is not None
    assert found.conclusion == "success", found.title
    assert "Changed in 1" in (found.title or "")
    # The card is edited no sooner than the policy's 15 s after its last edit.
    deadline = time.monotonic() + HANG_S
    while "Changed in 1" not in actions.cards()[0]:
        assert time.monotonic() < deadline, actions.cards()[0]
        time.sleep(1)
        actions.sweep()


def test_nothing_required_is_a_success_and_no_run(actions: Actions) -> None:
    actions.world.open_pull("alice", {"docs/guide.md": "how else\n"})
    actions.event()
    assert (actions.gate(), actions.world.runs()) == ("success", [])


def test_a_fork_runs_after_its_exact_head_is_approved_and_no_longer_after_a_push(actions: Actions) -> None:
    world = actions.world
    number = world.open_pull("carol", {"src/bridge.py": "value = 2\n"}, fork=True)
    actions.event()
    assert (actions.gate(), world.runs()) == ("action_required", [])
    world.comment("carol", f"/verl-e2e approve {world.head(number)}")
    actions.event()
    assert world.runs() == []
    world.comment("mona", f"/verl-e2e approve {world.head(number)}")
    actions.event()
    (run,) = world.live_runs()
    world.push(number, {"src/bridge.py": "value = 3\n"})
    actions.event()
    assert (run.conclusion, actions.gate()) == ("cancelled", "action_required")
    assert world.live_runs() == []


def test_an_approval_that_was_edited_afterwards_is_none(actions: Actions) -> None:
    world = actions.world
    number = world.open_pull("carol", {"src/bridge.py": "value = 2\n"}, fork=True)
    actions.event()
    comment = world.comment("mona", f"/verl-e2e approve {world.head(number)}")
    actions.event()
    world.edit_comment(comment, "never mind")
    actions.sweep()
    assert world.live_runs() == []


def test_a_comment_whose_workflow_never_ran_is_processed_by_the_next(actions: Actions) -> None:
    world = actions.world
    world.open_pull("carol", {"src/bridge.py": "value = 2\n"}, fork=True)
    actions.event()
    world.comment("mona", f"/verl-e2e approve {world.head(1)}")
    world.comment("carol", "/verl-e2e status")
    actions.event()
    assert len(world.live_runs()) == 1


def test_the_same_event_twice_is_one_run_and_one_card(actions: Actions) -> None:
    actions.world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
    actions.event()
    actions.event()
    assert (len(actions.world.runs()), len(actions.cards())) == (1, 1)


def test_a_run_whose_report_was_lost_is_found_by_the_sweep(actions: Actions) -> None:
    world = actions.world
    world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
    actions.event()
    (run,) = world.live_runs()
    world.finish_run(left_by(run, SMOKE), run, artifact=f"verl-e2e-{run.inputs['key']}")
    done = actions.sweep()
    assert actions.gate() == "success"
    assert "updated octo/bridge#1" in done.stderr
    assert "looked at" not in actions.sweep().stderr


def test_a_merge_group_takes_over_what_passed(actions: Actions) -> None:
    world = actions.world
    number = world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
    actions.event()
    (run,) = world.live_runs()
    world.finish_run(left_by(run, SMOKE), run, artifact=f"verl-e2e-{run.inputs['key']}")
    actions.report(f"{number}@{world.head(number)}")
    world.actions_token(TOKEN, {**PERMISSIONS, "pull_requests": "read"})
    group = world.queue(number)
    actions.event()
    found = [check_run for check_run in world.state.checks_of(world.full_name, group) if check_run.name == "verl-e2e"]
    assert [check_run.conclusion for check_run in found] == ["success"]
    assert world.live_runs() == []


def test_a_merge_group_that_needs_a_run_of_its_own_is_reported_by_its_head(actions: Actions) -> None:
    world = actions.world
    number = world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
    group = world.queue(number)
    actions.event()
    (run,) = world.live_runs()
    assert (run.inputs["pull"], run.inputs["head_sha"]) == ("", group)
    world.finish_run(left_by(run, SMOKE), run, artifact=f"verl-e2e-{run.inputs['key']}")
    actions.report(f"@{group}")
    found = [check_run for check_run in world.state.checks_of(world.full_name, group) if check_run.name == "verl-e2e"]
    assert found[-1].conclusion == "success"


def test_a_pull_request_that_is_closed_runs_nothing_more(actions: Actions) -> None:
    world = actions.world
    number = world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
    actions.event()
    world.close(number)
    actions.event()
    assert [run.conclusion for run in world.runs()] == ["cancelled"]


def test_the_clock_runs_a_watched_branch_and_the_report_says_what_fails(actions: Actions) -> None:
    world = actions.world
    world.actions_token(TOKEN, {**PERMISSIONS, "issues": "write"})
    tip = world.commit({POLICY_FILE: f"{POLICY}schedule: {{levels: [0], labels: [red]}}\n"}, "Watch")
    assert actions.sweep(GITHUB_REF_NAME="main").stderr == "updated octo/bridge@main\n"
    (run,) = world.live_runs()
    assert (run.inputs["pull"], run.inputs["head_sha"]) == ("", tip)
    world.finish_run(left_by(run, BROKEN), run, artifact=f"verl-e2e-{run.inputs['key']}")
    actions.report(f"@{tip}")
    (issue,) = world.repository.issues.values()
    assert (issue.title, [label.name for label in issue.labels]) == ("verl-e2e: 0-lora-ddp fails on main", ["red"])
    assert "No commit is known on which it passed" in issue.body
    assert "Evidence:" in issue.body
    actions.sweep(GITHUB_REF_NAME="main")
    assert (len(world.runs()), len(world.repository.issues)) == (1, 1)


def test_an_event_of_somebody_else_is_nothing(actions: Actions) -> None:
    done = actions.step("event", {"action": "created"}, GITHUB_EVENT_NAME="watch")
    assert "nothing to do" in done.stderr
