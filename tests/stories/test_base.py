"""The base is its tip: what is merged there reaches the pull requests that were opened before."""

from tests.fakes.github_standin.repository import BareRepository, Edit
from tests.stories.conftest import Story
from tests.stories.furnished import POLICY, POLICY_FILE
from tests.stories.recordings import SMOKE, job_of

LAX = f"{POLICY}gate: {{none: open}}\n".replace(
    'paths: [docs/, "*.md", .github/]', 'paths: [docs/, "*.md", .github/, src/]'
)
NAMED = f"{POLICY}capabilities:\n  approve: {{logins: [mallory]}}\n  override: {{logins: [mallory]}}\n"
NEWER_VERL = POLICY.replace("9097cc4d4c9cf77e3fe88c34badd7d7549534e4a", "1dda039b" + "0" * 32)


def test_a_tightened_policy_reaches_a_pull_request_that_was_green(story: Story) -> None:
    world = story.world
    world.move_base({POLICY_FILE: LAX}, message=False)
    number = story.open(author="carol", fork=True)
    assert world.gate(number) == "success"
    base = world.pull(number).base_sha
    world.move_base({POLICY_FILE: POLICY})
    story.service.settle()
    assert world.pull(number).base_sha == base
    assert world.gate(number) == "action_required"


def test_a_tightened_policy_of_which_no_webhook_told_is_found(story: Story) -> None:
    world = story.world
    world.move_base({POLICY_FILE: LAX}, message=False)
    number = story.open(author="carol", fork=True)
    world.move_base({POLICY_FILE: POLICY}, message=False)
    story.service.settle()
    assert world.gate(number) == "success"
    story.service.tick()
    assert world.gate(number) == "action_required"


def test_a_push_that_leaves_the_policy_alone_makes_nobody_look(story: Story) -> None:
    world, service = story.world, story.service
    story.open("docs/other.md")
    looks = service.looks
    world.move_base({"docs/guide.md": "how to, better\n"})
    service.settle()
    service.tick()
    assert service.looks == looks


def test_many_open_pull_requests_are_looked_at_a_few_at_a_time(story: Story) -> None:
    world, service = story.world, story.service
    numbers = [story.open("docs/guide.md") for _ in range(12)]
    looks = service.looks
    world.move_base({POLICY_FILE: f"{POLICY}# newer\n"})
    service.settle()
    assert service.looks - looks == 10
    service.go_on(31)
    assert service.looks - looks == 12
    service.tick()
    service.go_on(120)
    assert service.looks - looks == 12
    assert {world.gate(number) for number in numbers} == {"success"}


def test_somebody_whom_the_policy_names_no_longer_can_give_no_leave(story: Story) -> None:
    world = story.world
    world.person("mallory")
    world.move_base({POLICY_FILE: NAMED}, message=False)
    number = story.open(author="carol", fork=True)
    world.move_base({POLICY_FILE: POLICY})
    story.service.settle()
    story.say("mallory", f"/verl-e2e approve {world.head(number)}", number)
    assert (world.runs(), world.gate(number)) == ([], "action_required")


def test_a_newer_pin_of_verl_is_what_an_open_pull_request_is_tested_with(story: Story) -> None:
    world, service = story.world, story.service
    number = story.open()
    (first,) = world.live_runs()
    world.move_base({POLICY_FILE: NEWER_VERL})
    service.settle()
    service.go_on(60)
    (second,) = world.live_runs()
    assert first.conclusion == "cancelled"
    assert job_of(second).verl.commit.startswith("1dda039b")
    assert world.gate(number) == "in_progress"


def test_a_job_that_a_policy_adds_is_planned_and_run(story: Story) -> None:
    world, service = story.world, story.service
    number = story.open("src/saved/checkpoint.py")
    world.move_base(
        {POLICY_FILE: POLICY.replace("levels: [0, 1], reason: verl saves", "levels: [0], reason: verl saves")}
    )
    service.settle()
    story.finish(SMOKE)
    service.go_on()
    assert world.gate(number) == "success"
    world.move_base({POLICY_FILE: POLICY})
    service.settle()
    assert world.gate(number) == "in_progress"
    assert len(story.live()) == 1


def test_a_base_that_is_gone_closes_the_gate_and_says_so(story: Story) -> None:
    world, service = story.world, story.service
    world.commit({POLICY_FILE: LAX}, branch="release")
    number = world.open_pull("alice", {"src/bridge.py": "value = 2\n"}, base="release")
    service.settle()
    assert world.gate(number) == "success"
    world.delete_branch("release")
    service.settle()
    gate = world.check(world.head(number), "verl-e2e")
    assert gate is not None
    assert gate.conclusion == "action_required"
    assert "release is not there any more" in str(gate.title)
    world.retarget(number, "main")
    service.settle()
    assert world.gate(number) == "in_progress"


def test_a_policy_that_breaks_closes_the_gate_under_the_name_that_it_had(story: Story) -> None:
    world, service = story.world, story.service
    named = f"{POLICY}gate: {{name: coverage}}\n"
    world.move_base({POLICY_FILE: named}, message=False)
    number = story.open("docs/guide.md")
    assert world.gate(number, "coverage") == "success"
    world.move_base({POLICY_FILE: f"{named}rulez: []\n"})
    service.settle()
    assert (world.gate(number, "coverage"), world.gate(number)) == ("action_required", "")


def test_a_merge_group_is_judged_by_its_own_base(story: Story) -> None:
    world, service = story.world, story.service
    number = story.open("docs/guide.md")
    head = world.queue(number)
    world.move_base({POLICY_FILE: f"{POLICY}rulez: []\n"}, message=False)
    service.settle()
    assert world.gate_of(head) == "success"


def test_a_head_that_takes_a_fix_back_by_a_second_merge_base_runs(story: Story) -> None:
    """Main merged a fix and a document; the head merges the same two commits and leaves the fix out."""
    world = story.world
    git = world.repository.git
    start = git.text("rev-parse", "refs/heads/main")
    fix = git.commit("refs/heads/fix", {"src/bridge.py": "value = 'fixed'\n"}, "Fix it", (start,))
    document = git.commit("refs/heads/document", {"docs/x.md": "x\n"}, "Document it", (start,))
    git.commit("refs/heads/main", {"src/bridge.py": "value = 'fixed'\n"}, "Merge both", (document, fix))
    shown: dict[str, Edit] = {"docs/typo.md": "y\n"}

    def crossing(home: BareRepository, _: str) -> str:
        return home.commit("refs/heads/crossing", shown, "Merge both", (document, fix))

    number = world.open_pull("alice", shown, made=crossing)
    story.service.settle()
    head = world.head(number)
    merged = git.merge_tree("refs/heads/main", head)
    assert merged is not None
    assert git.text("show", f"{merged}:src/bridge.py") == "value = 1"
    assert (world.gate(number), story.live()) == ("in_progress", [("0-lora-ddp", head)])
    assert "do not have exactly one merge base" in world.card(number)
