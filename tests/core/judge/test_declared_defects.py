"""A run that fails exactly as a declared defect of unchanged code does is Blocked, and nothing else is excused."""

from collections import Counter
from functools import cache
from typing import Any

import pytest

from tests.fakes.places import FIXTURES
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.adapters.files.run_folder import read_record
from verl_e2e.config import packaged_policy
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import ErrorSign, JobDefect
from verl_e2e.core.model.outcome import DEFECT_CAUSE, Result, Stage
from verl_e2e.core.model.record import Record

# The recorded runs of unchanged code by which the policy declares what they fail for.
EXPORT = "fsdp-adapter-export"
RUNS = {
    "level3-adapter-export": EXPORT,
    "level3-adapter-export-two-ranks": EXPORT,
    "level4-mask-not-understood": "padding-mask-of-gemma2",
    "level1-shared-outer-not-saved": "save-of-shared-outer-adapters",
}
DECLARED = {entry.name: entry for entry in packaged_policy().defects}


@cache
def recording(name: str) -> tuple[Record, LogFacts]:
    folder = FIXTURES / "runs" / name
    return read_record(folder), scan(open_log(folder / "log.txt.zst"))


def judged(run: str, *defects: JobDefect, change: tuple[bytes, bytes] = (b"", b"")) -> Verdict:
    record, facts = recording(run)
    assert record.job is not None
    if change[0]:
        facts = scan([b"".join(open_log(FIXTURES / "runs" / run / "log.txt.zst")).replace(*change)])
    job = record.job.model_copy(update={"defects": defects})
    return judge(record.model_copy(update={"job": job}), facts)


def other(name: str, **changes: Any) -> JobDefect:
    found, *_ = DECLARED[name].of_job()
    return found.model_copy(update={"shows": found.shows.model_copy(update=changes)})


def test_each_declared_error_is_that_of_a_recorded_run() -> None:
    assert Counter(RUNS.values()) == {name: len(entry.shows) for name, entry in DECLARED.items() if entry.shows}


@pytest.mark.parametrize(("run", "name"), RUNS.items())
def test_a_run_with_a_declared_defect_is_blocked_and_says_so(run: str, name: str) -> None:
    assert judged(run).result is Result.FAIL
    verdict = judged(run, *DECLARED[name].of_job())
    assert (verdict.result, verdict.causes, verdict.undecided) == (Result.BLOCKED, (DEFECT_CAUSE,), False)
    assert verdict.cause.startswith(f"known defect {name}: ")
    assert "not evidence against" in verdict.sentence
    assert any("by the jobs that avoid the defect" in text for text in verdict.followups)
    # No run on the merge base is spent on what is known.
    assert not any("merge base" in text for text in verdict.followups)
    backend = next(item for item in verdict.deliverables if "backend" in item.name.lower())
    assert "known defect" in backend.detail


@pytest.mark.parametrize(
    ("changes", "change"),
    [
        ({"stage": Stage.TRAIN_STEP}, (b"", b"")),
        ({"error": "RuntimeError: aten.copy_.default got mixed torch.Tensor and DTensor @ a.py:f"}, (b"", b"")),
        # The same place raises another error, or the same error comes from another place.
        ({}, (b"aten.copy_.default got mixed", b"aten.add_.default got mixed")),
        ({}, (b"bucketed_weight_transfer.py", b"another_transfer.py")),
        ({}, (b"in async_send_weights", b"in send_weights")),
        ({}, (b"RuntimeError: aten", b"ValueError: aten")),
    ],
)
def test_any_other_failure_is_judged_as_usual(changes: dict[str, Any], change: tuple[bytes, bytes]) -> None:
    verdict = judged("level3-adapter-export", other(EXPORT, **changes), change=change)
    assert (verdict.result, DEFECT_CAUSE in verdict.causes) == (Result.FAIL, False)


def test_a_declared_defect_never_makes_a_pass_or_hides_an_earlier_fault() -> None:
    known = DECLARED[EXPORT].of_job()
    assert judged("level3-full-two-ranks", *known).result is Result.PASS
    # A broken fact of another kind decides, as without the declaration.
    assert judged("level0-swapped-export", *known).result is Result.FAIL


@pytest.mark.parametrize("error", ["RuntimeError", "RuntimeError: x", "x @ a.py:f", ": x @ a.py:f", ""])
def test_an_error_without_kind_message_and_place_declares_nothing(error: str) -> None:
    with pytest.raises(ValueError, match="error"):
        ErrorSign(stage=Stage.TRAIN_STEP, error=error)
