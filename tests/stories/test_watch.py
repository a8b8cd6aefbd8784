"""The default branch is watched by the whole service: its tip is run, what broke it is found and said in one issue."""

from tests.fakes.github_standin.state import WorkflowRun
from tests.stories.conftest import Story
from tests.stories.furnished import POLICY, POLICY_FILE
from tests.stories.recordings import BROKEN, SMOKE, job_of

WATCHED = f"{POLICY}schedule: {{levels: [0], labels: [red]}}\n"
DAY_S = 25 * 3600.0


def tip(story: Story) -> str:
    return story.world.repository.git.text("rev-parse", "refs/heads/main")


def merge(story: Story, number: int, path: str = "src/bridge.py") -> str:
    story.world.move_base({path: f"value = {number}\n"})
    story.service.settle()
    return tip(story)


def finish_all(story: Story, broken: set[str]) -> list[str]:
    """Let runs end until none is under way; gives the commits that were run, in order."""
    ran: list[str] = []
    while live := story.world.live_runs():
        run: WorkflowRun = live[0]
        ran.append(job_of(run).bridge.commit)
        story.finish(BROKEN if ran[-1] in broken else SMOKE, run)
        story.service.go_on(60)
    return ran


def test_what_broke_the_branch_is_found_and_said_in_one_issue(story: Story) -> None:
    world, service = story.world, story.service
    # A day goes by for GitHub too.
    world.state.clock = service.clock.now
    world.move_base({POLICY_FILE: WATCHED})
    service.settle()
    first = tip(story)
    assert finish_all(story, set()) == [first]
    commits = [merge(story, number, "docs/guide.md" if number == 3 else "src/bridge.py") for number in range(2, 8)]
    assert world.live_runs() == [], "a round began before its time"
    broken = set(commits[4:])
    service.go_on(DAY_S)
    service.restart()
    service.settle()
    ran = finish_all(story, broken)
    # The tip, then the search over the five that matter, then both sides of the border once more.
    assert ran[0] == commits[-1]
    assert len(ran) <= 1 + 3 + 2
    (issue,) = world.repository.issues.values()
    assert f"A commit broke it: `{commits[4]}`" in issue.body
    assert "two runs failed and two passed" in issue.body
    assert [label.name for label in issue.labels] == ["red"]
    assert [check.name for check in world.checks(commits[-1])] == []
    repaired = merge(story, 9)
    service.go_on(DAY_S)
    assert finish_all(story, broken) == [repaired]
    assert issue.state == "closed"
    assert [comment.body for comment in world.state.comments_of(issue.repository, issue.number)] == [
        f"✅ `0-lora-ddp` passes again on `{repaired}`, after it failed in 1 round in a row.\n"
    ]


def test_a_branch_that_is_not_the_default_one_is_not_watched(story: Story) -> None:
    story.world.commit({POLICY_FILE: WATCHED}, branch="other")
    story.world.move_base({"src/bridge.py": "value = 5\n"}, branch="other")
    story.service.settle()
    assert story.world.live_runs() == []
