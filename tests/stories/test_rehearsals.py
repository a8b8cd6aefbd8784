"""A rehearsal comes before the jobs that need a GPU: what follows from its answer, and from having none."""

from collections.abc import Callable

import pytest

from tests.fakes.github_standin.repository import Submodule
from tests.fakes.github_standin.state import WorkflowRun
from tests.fakes.places import ROOT
from tests.stories.conftest import Story
from tests.stories.furnished import POLICY, POLICY_FILE
from tests.stories.recordings import SMOKE, job_of
from tests.stories.rehearsals import (
    HEALTHY,
    MOVED,
    NO_IMPORT,
    WRONG,
    Files,
    entering,
    is_rehearsal,
    left_by_rehearsal,
    rehearsal_of,
)
from verl_e2e.core.compare.rehearsal import CellRecord, EnteredCode

CHECK = "verl-e2e / rehearsal"
PACKAGE = "src/megatron/bridge/__init__.py"
PACKAGED = ROOT / "bot/verl_e2e/policy/megatron-bridge.yml"
UNUSED = "src/unused/module.py"
EXEMPT = "  - {name: unused, paths: [src/unused/], reason: verl never imports it}\n"


@pytest.fixture
def rehearsed(story: Story) -> Story:
    """The story of a repository whose policy asks for rehearsals."""
    enter(story, "rehearsal: {run: true}\n")
    return story


def enter(story: Story, keys: str) -> None:
    """The base branch gets a policy with more keys, which exempts a folder of sources."""
    story.world.commit({POLICY_FILE: POLICY.replace("exempt:\n", f"exempt:\n{EXEMPT}") + keys}, "Rehearse")


def rehearsal(story: Story) -> WorkflowRun:
    """The one rehearsal that is under way; no job is."""
    (run,) = story.world.live_runs()
    assert is_rehearsal(run)
    return run


def end(story: Story, files: Files, run: WorkflowRun | None = None) -> None:
    """The rehearsal under way ends with a folder."""
    chosen = run or rehearsal(story)
    story.world.finish_run(files, chosen, artifact=f"verl-e2e-{chosen.inputs['key']}")
    story.service.settle()


def check(story: Story, number: int = 1) -> tuple[str, str, str]:
    """Status, conclusion and title of the check of the rehearsal."""
    found = story.world.check(story.world.head(number), CHECK)
    assert found is not None
    return found.status, found.conclusion or "", found.title or ""


def test_jobs_start_after_a_rehearsal_that_found_nothing(rehearsed: Story) -> None:
    world, service = rehearsed.world, rehearsed.service
    number = rehearsed.open()
    run = rehearsal(rehearsed)
    assert (rehearsal_of(run).bridge.commit, run.inputs["image"]) == (world.head(number), "")
    assert run.inputs["labels"] == '["ubuntu-latest"]'
    assert check(rehearsed)[0] == "queued"
    world.start_run(run)
    service.settle()
    service.go_on()
    assert check(rehearsed)[0] == "in_progress"
    assert "waits for the rehearsal" in world.card(number)
    assert world.gate(number) == "in_progress"
    end(rehearsed, left_by_rehearsal(run))
    assert check(rehearsed)[:2] == ("completed", "success")
    assert rehearsed.live() == [("0-lora-ddp", world.head(number))]
    service.go_on()
    assert "Equal in 3 of 3 cells" in world.card(number)
    rehearsed.finish(SMOKE)
    service.go_on()
    assert world.gate(number) == "success"
    assert len(world.runs()) == 2
    assert service.failures == []


def test_what_a_change_moves_is_shown_and_closes_nothing(rehearsed: Story) -> None:
    number = rehearsed.open()
    end(rehearsed, left_by_rehearsal(rehearsal(rehearsed), MOVED))
    assert rehearsed.live() == [("0-lora-ddp", rehearsed.world.head(number))]
    rehearsed.service.go_on()
    card = rehearsed.world.card(number)
    assert "Changed in 1, Equal in 2 of 3 cells" in card
    assert "level 0 of the plan looks at what moved" in card
    assert "loss is 1.5, was 1.0" in card


@pytest.mark.parametrize(
    ("head", "named"),
    [
        (WRONG, "qwen3-plain-tp2: copies: off by 5.0e-01 at embedding"),
        (NO_IMPORT, "import: ImportError: no module named x at src/bridge.py:1"),
    ],
    ids=("oracle", "import"),
)
def test_a_fail_closes_the_gate_and_no_job_starts(head: tuple[CellRecord, ...], named: str, rehearsed: Story) -> None:
    world = rehearsed.world
    number = rehearsed.open()
    end(rehearsed, left_by_rehearsal(rehearsal(rehearsed), head))
    rehearsed.service.go_on()
    assert world.gate(number) == "failure"
    assert rehearsed.live() == []
    assert check(rehearsed)[:2] == ("completed", "failure")
    assert named in check(rehearsed)[2]
    what, _, where = named.partition(" at ")
    assert f"{what}\n- **Where:** Failed at `{where}`" in world.card(number)
    # What failed may be run once more, and only then do jobs start.
    rehearsed.say("alice", "/verl-e2e rehearse")
    assert world.gate(number) == "in_progress"
    end(rehearsed, left_by_rehearsal(rehearsal(rehearsed)))
    assert rehearsed.live() == [("0-lora-ddp", world.head(number))]


def test_the_button_of_its_check_runs_it_again(rehearsed: Story) -> None:
    world = rehearsed.world
    number = rehearsed.open()
    end(rehearsed, left_by_rehearsal(rehearsal(rehearsed), WRONG))
    found = world.check(world.head(number), CHECK)
    assert found is not None
    world.rerequest(found, "alice")
    rehearsed.service.settle()
    assert rehearsal(rehearsed).inputs["head_sha"] == world.head(number)


def test_a_fork_is_rehearsed_without_an_approval_and_its_jobs_are_not_run(rehearsed: Story) -> None:
    world = rehearsed.world
    number = rehearsed.open(author="carol", fork=True)
    assert rehearsal_of(rehearsal(rehearsed)).isolation == "required"
    end(rehearsed, left_by_rehearsal(rehearsal(rehearsed)))
    assert rehearsed.live() == []
    assert world.gate(number) == "action_required"
    rehearsed.say("mona", f"/verl-e2e approve {world.head(number)}", number)
    assert rehearsed.live() == [("0-lora-ddp", world.head(number))]


def test_a_fork_waits_for_its_approval_where_the_policy_asks_for_one(story: Story) -> None:
    enter(story, "rehearsal: {run: true, approval: true}\n")
    number = story.open(author="carol", fork=True)
    assert story.world.live_runs() == []
    story.say("mona", f"/verl-e2e approve {story.world.head(number)}", number)
    end(story, left_by_rehearsal(rehearsal(story)))
    assert story.live() == [("0-lora-ddp", story.world.head(number))]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (lambda run: left_by_rehearsal(run, base=NO_IMPORT, head=NO_IMPORT), "Blocked"),
        (lambda run: left_by_rehearsal(run, nonce="f" * 32), "nonce"),
        (
            lambda run: left_by_rehearsal(run, job=rehearsal_of(run).model_copy(update={"base": "f" * 40})),
            "another job",
        ),
    ],
    ids=("base", "nonce", "order"),
)
def test_jobs_start_without_an_answer_that_counts(
    files: Callable[[WorkflowRun], Files], why: str, rehearsed: Story
) -> None:
    number = rehearsed.open()
    end(rehearsed, files(rehearsal(rehearsed)))
    rehearsed.service.go_on()
    assert check(rehearsed)[:2] == ("completed", "action_required")
    assert why in check(rehearsed)[2]
    assert rehearsed.live() == [("0-lora-ddp", rehearsed.world.head(number))]
    assert "jobs start without it" in rehearsed.world.card(number)


def test_jobs_start_where_no_runner_takes_it(rehearsed: Story) -> None:
    number = rehearsed.open()
    for _ in range(8):
        rehearsed.service.go_on(300)
    assert rehearsed.live() == [("0-lora-ddp", rehearsed.world.head(number))]
    assert "jobs start without it" in rehearsed.world.card(number)


def test_jobs_start_where_it_has_no_end(rehearsed: Story) -> None:
    number = rehearsed.open()
    rehearsed.world.start_run(rehearsal(rehearsed))
    rehearsed.service.settle()
    rehearsed.service.go_on(1_799)
    assert rehearsed.world.gate(number) == "in_progress"
    rehearsed.service.go_on(60)
    jobs = [run for run in rehearsed.world.live_runs() if not is_rehearsal(run)]
    assert len(jobs) == 1
    assert "no answer after 30 minutes" in rehearsed.world.card(number)


def test_a_new_head_ends_it_and_has_its_own(rehearsed: Story) -> None:
    world = rehearsed.world
    number = rehearsed.open()
    old = rehearsal(rehearsed)
    world.push(number, {"src/bridge.py": "value = 3\n"})
    for _ in range(3):
        rehearsed.service.go_on()
    assert old.conclusion == "cancelled"
    assert rehearsal(rehearsed).inputs["head_sha"] == world.head(number)
    assert [found.name for found in world.checks(old.inputs["head_sha"]) if found.status != "completed"] == []


def test_one_that_ends_after_a_push_says_nothing_of_the_new_head(rehearsed: Story) -> None:
    world = rehearsed.world
    number = rehearsed.open()
    old = rehearsal(rehearsed)
    world.start_run(old)
    old.stubborn = True
    rehearsed.service.settle()
    world.push(number, {"src/bridge.py": "value = 3\n"})
    rehearsed.service.settle()
    end(rehearsed, left_by_rehearsal(old, WRONG), old)
    rehearsed.service.go_on()
    assert rehearsal(rehearsed).inputs["head_sha"] == world.head(number)
    assert world.gate(number) == "in_progress"
    assert [found.name for found in world.checks(old.inputs["head_sha"]) if found.status != "completed"] == []


def test_closing_ends_it(rehearsed: Story) -> None:
    number = rehearsed.open()
    rehearsed.world.close(number)
    rehearsed.service.settle()
    rehearsed.service.go_on()
    assert rehearsed.world.live_runs() == []
    rehearsed.world.reopen(number)
    rehearsed.service.settle()
    rehearsed.service.go_on()
    assert rehearsal(rehearsed).inputs["head_sha"] == rehearsed.world.head(number)


def test_a_restart_and_doubled_deliveries_make_one_rehearsal(rehearsed: Story) -> None:
    world = rehearsed.world
    world.deliveries.hold()
    number = world.open_pull("alice", {"src/bridge.py": "value = 2\n"})
    (opened,) = world.deliveries.pending
    world.deliveries.release([opened, opened])
    rehearsed.service.settle()
    run = rehearsal(rehearsed)
    rehearsed.service.restart()
    rehearsed.service.settle()
    assert [other.id for other in world.runs()] == [run.id]
    world.finish_run(left_by_rehearsal(run), run, artifact=f"verl-e2e-{run.inputs['key']}")
    rehearsed.service.restart()
    rehearsed.service.go_on()
    assert rehearsed.live() == [("0-lora-ddp", world.head(number))]


def test_two_pull_requests_with_one_head_share_a_rehearsal(rehearsed: Story) -> None:
    world = rehearsed.world
    first = rehearsed.open()
    second = world.open_same("mona", first)
    rehearsed.service.settle()
    end(rehearsed, left_by_rehearsal(rehearsal(rehearsed)))
    rehearsed.service.go_on()
    assert [found for found in world.runs() if is_rehearsal(found)] == [world.runs()[0]]
    assert all("Equal in 3 of 3 cells" in world.card(number) for number in (first, second))


def test_a_change_that_it_does_not_run_is_not_rehearsed(rehearsed: Story) -> None:
    number = rehearsed.open("docs/guide.md")
    assert (rehearsed.world.gate(number), rehearsed.world.runs()) == ("success", [])
    assert rehearsed.world.check(rehearsed.world.head(number), CHECK) is None


@pytest.mark.parametrize(
    ("head", "gate"),
    [
        (tuple(entering(record, UNUSED) for record in HEALTHY), "success"),
        # A line that runs at import and that nothing imported proves nothing.
        (HEALTHY, "action_required"),
        (MOVED, "action_required"),
        (WRONG, "failure"),
    ],
    ids=("equal", "unentered", "moved", "wrong"),
)
def test_nothing_is_required_of_a_stranger_whose_rehearsal_is_equal(
    head: tuple[CellRecord, ...], gate: str, rehearsed: Story
) -> None:
    number = rehearsed.open(UNUSED, author="carol", fork=True)
    assert rehearsed.world.gate(number) == "in_progress"
    end(rehearsed, left_by_rehearsal(rehearsal(rehearsed), head))
    rehearsed.service.go_on()
    assert rehearsed.world.gate(number) == gate
    assert rehearsed.world.live_runs() == []


def test_a_merge_group_is_rehearsed_too(rehearsed: Story) -> None:
    world = rehearsed.world
    number = rehearsed.open()
    head = world.queue(number)
    rehearsed.service.settle()
    of_group = [run for run in world.live_runs() if run.inputs["pull"] == ""]
    assert [(is_rehearsal(run), run.inputs["head_sha"]) for run in of_group] == [(True, head)]


MODULE = "src/megatron/bridge/models/conversion/auto_bridge.py"
LOADS = """\
class AutoBridge:
    @classmethod
    def from_hf_pretrained(cls, path, rank=0):
        if rank:
            return {value}
        return cls()
"""


@pytest.mark.parametrize(
    ("in_time", "fork", "base", "added"),
    [(True, False, True, True), (False, False, True, False), (True, True, True, False), (True, False, False, False)],
    ids=("before", "after", "fork", "blocked"),
)
def test_what_its_cells_entered_decides_the_jobs_that_have_not_begun(
    in_time: bool, fork: bool, base: bool, added: bool, story: Story
) -> None:
    """The changed line moves the cell of two tensor-parallel ranks alone, so a job of level 2 is added.

    Not where jobs began before, nor for a fork, nor where the base did not run: then the packaged map counts.
    """
    world = story.world
    policy = PACKAGED.read_text().replace("require_bridge_checks: true", "require_bridge_checks: false")
    files = {
        "src/megatron/__init__.py": "",
        "src/megatron/bridge/__init__.py": "from megatron.bridge.models.conversion.auto_bridge import AutoBridge\n",
        "src/megatron/bridge/models/__init__.py": "",
        "src/megatron/bridge/models/conversion/__init__.py": "",
    }
    world.commit({POLICY_FILE: policy, MODULE: LOADS.format(value=1), **files}, "The packaged policy")
    number = world.open_pull("alice", {MODULE: LOADS.format(value=2)}, fork=fork)
    story.service.settle()
    run = rehearsal(story)
    if not in_time:
        world.start_run(run)
        story.service.settle()
        story.service.go_on(1_860)
    symbol = f"{MODULE}:AutoBridge.from_hf_pretrained"
    outside = EnteredCode(functions=(symbol,), lines={MODULE: ((3, 4), (6, 6))})
    inside = EnteredCode(functions=(symbol,), lines={MODULE: ((3, 6),)})
    _, plain, sharded = MOVED
    head = (HEALTHY[0], plain.model_copy(update={"entered": outside}), sharded.model_copy(update={"entered": inside}))
    end(story, left_by_rehearsal(run, head, HEALTHY if base else NO_IMPORT), run)
    story.service.go_on()
    assert ("Changed in 1, Equal in 2 of 3 cells" if base else "Blocked") in world.card(number)
    assert ("2-tp2" in world.card(number)) is added
    assert "0-lora-ddp" in world.card(number)
    assert story.live() == ([] if fork else [("0-lora-ddp", world.head(number))])
    assert story.service.failures == []


def test_a_bump_is_compared_and_what_its_cells_entered_of_megatron_lm_decides_the_jobs(story: Story) -> None:
    """Its commits are fetched from the repository of the policy, for the plan and for the rehearsal's verdict."""
    world, inner, place = story.world, "megatron/core/model.py", "3rdparty/Megatron-LM"
    core = world.state.add_repository("nvidia/megatron-lm").git
    text = "def build(x):\n    return x\n\n\ndef scatter(x):\n    return {}\n\n\ndef spare(x):\n    return {}\n"
    old, new = (core.commit("refs/heads/main", {inner: text.format(value, value)}, "c") for value in ("x", "x + 1"))
    policy = PACKAGED.read_text().replace("require_bridge_checks: true", "require_bridge_checks: false")
    policy = policy.replace("https://github.com/NVIDIA/Megatron-LM", f"{world.url}/nvidia/megatron-lm")
    world.commit({POLICY_FILE: policy, "src/megatron/bridge/__init__.py": "", place: Submodule(old)}, "Pin it")
    number = world.open_pull("alice", {place: Submodule(new)})
    story.service.settle()
    run = rehearsal(story)
    card = world.card(number)
    assert f"Compared Megatron-LM {old[:12]} with {new[:12]}: 2 functions in 1 files differ" in card
    assert ("incomplete" in card, "2-tp2" in card) == (False, False)
    _, plain, sharded = MOVED
    inside = EnteredCode(functions=(f"{place}/{inner}:scatter",), lines={f"{place}/{inner}": ((5, 6),)})
    head = (HEALTHY[0], plain, sharded.model_copy(update={"entered": inside}))
    end(story, left_by_rehearsal(run, head), run)
    story.service.go_on()
    assert "Changed in 1, Equal in 2 of 3 cells" in world.card(number)
    assert "entered by no cell" in world.card(number)
    assert f"{place}/{inner}:spare`" in world.card(number)
    assert "2-tp2" in world.card(number)
    assert story.live() == [("0-lora-ddp", world.head(number))]
    assert story.service.failures == []


def test_a_bump_whose_commits_are_not_to_be_had_asks_for_every_level_of_a_rule(
    story: Story,
) -> None:
    world, place = story.world, "3rdparty/Megatron-LM"
    policy = PACKAGED.read_text().replace("require_bridge_checks: true", "require_bridge_checks: false")
    policy = policy.replace("https://github.com/NVIDIA/Megatron-LM", f"{world.url}/nvidia/megatron-lm")
    world.commit({POLICY_FILE: policy, "src/megatron/bridge/__init__.py": "", place: Submodule("1" * 40)}, "Pin it")
    number = world.open_pull("alice", {place: Submodule("2" * 40)})
    story.service.settle()
    card = world.card(number).replace("\\", "")
    assert "has no repository nvidia/megatron-lm" in card
    assert all(job in card for job in ("1-resume", "2-dense", "3-fsdp", "5-signal"))
    assert story.service.failures == []


def test_a_command_runs_a_level_with_another_megatron_lm_and_looks_for_what_it_changes(story: Story) -> None:
    world, inner, place = story.world, "megatron/core/optimizer/optimizer.py", "3rdparty/Megatron-LM"
    core = world.state.add_repository("nvidia/megatron-lm").git
    text = "class MegatronOptimizer:\n    def __init__(self, x):\n        self.x = {}\n"
    old, new = (core.commit("refs/heads/main", {inner: text.format(value)}, "c") for value in ("x", "x + 1"))
    address = f"megatron_lm: {{repository: {world.url}/nvidia/megatron-lm}}\n"
    reach = "reach: {package: megatron.bridge, roots: [src/], rules: []}\n"
    world.commit({POLICY_FILE: POLICY + address + reach, PACKAGE: "", place: Submodule(old)}, "Pin it")
    number = story.open("docs/guide.md")
    assert world.live_runs() == []
    story.say("alice", f"/verl-e2e level0 mcore_ref={new}", number)
    (asked,) = map(job_of, world.live_runs())
    assert (asked.id.startswith("0-lora-ddp-x"), asked.megatron_lm and asked.megatron_lm.commit) == (True, new)
    symbol = (f"{place}/{inner}", "MegatronOptimizer.__init__")
    assert symbol in {(item.path, item.symbol) for item in asked.changed.functions}
    story.service.go_on()
    assert f"mcore_ref={new}" in world.card(number).replace("\\", "")
    assert story.service.failures == []
