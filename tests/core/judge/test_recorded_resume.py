"""The recorded save/resume run of a real GPU passes, and no mutation of it does."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.core.level_runs import job_of
from tests.core.recorded_run import RecordedRun
from tests.fakes.places import FIXTURES
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import Record

RUN = RecordedRun(FIXTURES / "runs" / "level1-resume")


def listed(change: Callable[[dict[str, Any]], None]) -> Record:
    """The record whose `checkpoints.json` was changed: the function gets one listing at a time."""
    found = RUN.documents.checkpoints
    assert found is not None
    document = found.model_dump(mode="json")
    for checkpoint in document["listings"]:
        change(checkpoint)
    return RUN.documents.model_copy(update={"checkpoints": type(found).model_validate(document)})


def without(path: str) -> Callable[[dict[str, Any]], None]:
    def change(text: dict[str, Any]) -> None:
        text["files"] = [file for file in text["files"] if not file["path"].endswith(path)]

    return change


def no_tracker(text: dict[str, Any]) -> None:
    text["trackers"] = {}
    without("latest_checkpointed_iteration.txt")(text)


def test_it_passes() -> None:
    verdict = RUN.judged()
    assert (verdict.result, verdict.cause) == (Result.PASS, "")
    assert "saved after step 1 and resumed from there" in verdict.sentence
    assert not [row for row in verdict.limitations if row.startswith("Save and resume")]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(lambda: RUN.cut("Resuming from"), id="the log does not show the resume"),
        pytest.param(lambda: RUN.cut("Loaded PEFT adapter"), id="no weights are loaded"),
        pytest.param(lambda: RUN.cut("critic/optimizer/dist_ckpt"), id="no optimizer state of the critic is loaded"),
        pytest.param(lambda: RUN.cut("Saving checkpoint to"), id="no save is announced"),
        pytest.param(
            lambda: RUN.text.replace("timing_s/save_checkpoint:", "timing_s/other:"), id="no save came to its end"
        ),
        pytest.param(lambda: RUN.cut("step:2 - "), id="no step 2"),
        pytest.param(lambda: RUN.text.replace("step:2 - ", "step:1 - "), id="the first step is 1"),
        pytest.param(
            lambda: RUN.text.replace("'resume_mode': 'auto'", "'resume_mode': 'disable'"), id="no resume mode"
        ),
        pytest.param(lambda: RUN.text.replace("setting global step to 1", "setting global step to 0"), id="step 0"),
        pytest.param(lambda: RUN.cut("Resuming from", "Loaded ") + "Training from scratch\n", id="from scratch"),
    ],
)
def test_no_mutation_of_its_log_passes(text: Callable[[], str]) -> None:
    assert text() != RUN.text
    assert RUN.judged(text()).result is not Result.PASS


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(no_tracker, id="no tracker"),
        pytest.param(without("actor/model/dist_ckpt/__0_0.distcp"), id="no adapter of the actor"),
        pytest.param(without("critic/optimizer/dist_ckpt/__0_0.distcp"), id="no optimizer of the critic"),
        pytest.param(without("actor/ckpt_contents.json"), id="no manifest"),
        pytest.param(lambda item: item["files"].clear(), id="nothing on disk"),
        pytest.param(lambda item: item.update(cut=True), id="a list that was cut"),
    ],
)
def test_no_mutation_of_its_files_passes(change: Callable[[dict[str, Any]], None]) -> None:
    changed = listed(change)
    assert changed != RUN.documents
    assert judge(changed, scan([RUN.text.encode()])).result is not Result.PASS


def test_without_the_list_of_files_it_does_not_pass() -> None:
    assert RUN.judged(checkpoints=None).result is Result.BLOCKED


def test_under_the_job_of_another_level_it_does_not_pass() -> None:
    assert RUN.documents.job is not None
    own = RUN.documents.job
    assert own is not None
    for other in (job_of(Level.PARALLELISM, "dense"), job_of(Level.MEGATRON_FSDP, "fsdp")):
        changed = own.model_copy(
            update={"id": other.id, "level": other.level, "variant": other.variant, "wrapper": other.wrapper}
        )
        assert RUN.judged(job=changed).result is Result.BLOCKED


def test_the_second_phase_is_known_by_its_first_line() -> None:
    starts = [
        event.data for event in RUN.documents.events if event.kind == "phase" and event.data.get("state") == "begin"
    ]
    begun = {start["step"]: start["line"] for start in starts if start["name"] == "run"}
    lines = RUN.text.split("\n")
    assert begun["save"] == 1
    assert lines[int(str(begun["resume"])) - 1].startswith("+ ")
    assert json.loads((RUN.folder / "checkpoints.json").read_text())["folder"].startswith("checkpoints/")
