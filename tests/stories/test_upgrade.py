"""An upgrade of the service: the next process writes its jobs in another way, and repeats nothing for that."""

import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.github_standin.state import WorkflowRun
from tests.stories.conftest import Story
from tests.stories.recordings import BROKEN, SMOKE, job_of, left_by
from verl_e2e.core.model.jobs import Job

Document = dict[str, Any]
# A digest of the older version.
OLD = "0" * 64


def in_other_words(job: Job) -> Document:
    """As a version wrote it that knew no key with a default, and said other things to people, in another order."""
    document = job.model_dump(mode="json", exclude_defaults=True)
    site = {**document["site"], "description": "another text", "limitations": ["Another limitation."]}
    return dict(reversed(({**document, "schema": 1, "site": site}).items()))


def asking_less(job: Job) -> Document:
    """As a version planned it that expected less of the result."""
    return edited(job, expected=dict(list(job.expected.items())[1:]))


def edited(job: Job, **changes: object) -> Document:
    return {**job.model_dump(mode="json"), **changes}


def upgrade(story: Story, older: Callable[[Job], Document]) -> None:
    """Start the service on a database in which an older version wrote the jobs, by digests of its own."""
    story.service.close()
    with sqlite3.connect(story.service.folder / "verl-e2e.sqlite3") as database:
        for key, text in database.execute("SELECT key, document FROM runs").fetchall():
            run = json.loads(text)
            if run["job_digest"] == OLD:
                continue
            run |= {"job": older(Job.model_validate(run["job"])), "job_digest": OLD, "reuse_key": "1" * 64}
            database.execute(
                "UPDATE runs SET document = ?, reuse_key = ? WHERE key = ?", (json.dumps(run), "1" * 64, key)
            )
    database.close()
    story.service._open()
    story.service.go_on()


def leave(story: Story, recording: Path, older: Callable[[Job], Document], run: WorkflowRun | None = None) -> None:
    """A run ends as a recording did, with the job that the older version sent."""
    chosen = run or story.world.live_runs()[0]
    files = left_by(chosen, recording, Job.model_validate(older(job_of(chosen))))
    story.world.finish_run(files, chosen, artifact=f"verl-e2e-{chosen.inputs['key']}")


def ends(story: Story) -> list[str | None]:
    """How each workflow run ended, None for one under way."""
    return [run.conclusion for run in story.world.runs()]


@pytest.mark.parametrize("older", (in_other_words, asking_less))
def test_an_upgrade_repeats_and_ends_no_run_whose_job_means_the_same(
    story: Story, older: Callable[[Job], Document]
) -> None:
    world, service = story.world, story.service
    service.environ = {"VERL_E2E_SLOTS": "all=3"}
    service.restart()
    passed, failed = story.open("src/a.py"), story.open("src/b.py")
    leave(story, SMOKE, older, world.runs()[0])
    leave(story, BROKEN, older, world.runs()[1])
    # Judged as the older version would have judged them.
    upgrade(story, older)
    running, submitted, ended = (story.open(f"src/{name}.py") for name in "cde")
    waiting = story.open("src/f.py")
    world.start_run(world.runs()[2])
    service.settle()
    leave(story, SMOKE, older, world.runs()[4])
    upgrade(story, older)
    assert ends(story)[:5] == ["success", "success", None, None, "success"]
    assert [world.gate(number) for number in (passed, failed, ended)] == ["success", "failure", "success"]
    for _ in range(2):
        leave(story, SMOKE, older)
        service.settle()
    # It waited with us, so it was sent as the newer version has it.
    story.finish(SMOKE)
    service.restart()
    service.go_on()
    assert ends(story) == ["success"] * 6
    assert [world.gate(number) for number in (running, submitted, waiting)] == ["success"] * 3
    assert world.gate(failed) == "failure"


def test_what_does_other_work_runs_again_and_the_card_says_why(story: Story) -> None:
    world, service = story.world, story.service
    passed, running = story.open("src/a.py"), story.open("src/b.py")
    story.finish(SMOKE)
    assert world.gate(passed) == "success"
    service.environ = {"VERL_E2E_SITE_VALUES": "kit=/opt/another"}
    service.restart()
    service.go_on()
    service.go_on()
    assert ends(story) == ["success", "cancelled", None, None]
    (old,) = [run for run in service.ledger.runs(world.full_name, number=running) if run.state.final]
    card = world.card(passed).replace("\\", "")
    for text in (card, old.reason):
        assert re.search("the job changed since then: .*site.python_path", text)
    assert re.search(r"A run of 0-lora-ddp that ended on \d{4}-\d\d-\d\d \(Pass\) does not count", card)
    story.finish(SMOKE)
    service.go_on()
    assert world.gate(passed) == "success"
    assert "does not count any more" not in world.card(passed)
