"""How many files one event passes through, held to a budget: a change that raises one says why."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.fakes.places import ROOT
from tests.pages.place import BRIDGE, CHANGED
from tests.runners.world import World as Host
from tests.runners.world import commit, make_world
from tests.stories.conftest import Story
from tests.stories.walks import Walk, traced
from verl_e2e.cli import cli
from verl_e2e.cli.command import EXIT_BLOCKED

# At most so many files of ours; what is aimed at is below.
# The report of a run, its comparisons and the rows of a failure brought five files to `judge` and six to `run`, the
# watch of a branch one to a webhook. What verl calls things stands apart in four files, how it is started in three.
BUDGETS = {"webhook": 61, "plan": 45, "judge": 48, "run": 61}
AIMS = {"webhook": 60, "plan": 45, "judge": 45, "run": 50}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Repositories of a run."""
    return make_world(tmp_path_factory.mktemp("walks"))


def typed(*words: str | Path) -> Walk:
    """The walk of a command in this process, the second time: caches are warm, and nothing is imported."""
    for _ in range(2):
        with traced() as walk:
            done = CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exit_code in {0, 4}, done.output
    return walk


def held(name: str, walk: Walk) -> None:
    """A walk is within its budget, and the budget is not larger than it has to be."""
    files = len(walk.files)
    assert files <= BUDGETS[name], f"{name}: {files} files, {len(walk.functions)} functions; aimed at {AIMS[name]}"
    assert files > BUDGETS[name] - 5, f"{name} passes {files} files: lower its budget"


def test_a_webhook_to_its_first_card(story: Story) -> None:
    story.open()
    story.service.settle()
    with traced() as walk:
        number = story.world.open_pull("bob", {"src/bridge.py": "value = 3\n"})
        story.service.settle()
    assert "0-lora-ddp" in story.world.card(number)
    held("webhook", walk)


def test_plan(tmp_path: Path) -> None:
    base = commit(tmp_path / "bridge", BRIDGE)
    head = commit(tmp_path / "bridge", CHANGED)
    words = "plan", "--repo", tmp_path / "bridge", "--base", base, "--head", head, "--cache", tmp_path / "cache"
    held("plan", typed(*words))


def test_judge(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ROOT / "bot/verl_e2e/demo/recording", tmp_path / "run"))
    held("judge", typed("judge", folder))


def test_run_on_a_host_without_a_gpu(host: Host, tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text(host.job().model_dump_json())
    # The second time caches are warm, whichever tests this process ran before.
    for out in ("cold", "warm"):
        words = "run", "--job", str(job), "--out", str(tmp_path / out)
        with traced() as walk:
            done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.return_value == EXIT_BLOCKED, done.output
    held("run", walk)
