"""The list of causes that come and go, for a terminal and as a document."""

from tests.core.pulls.test_flaky import HANG, MARK, ended, passed
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.stages import Stage
from verl_e2e.core.pulls.flaky import flaky_causes
from verl_e2e.core.report.attempts_text import NONE, flaky_json, flaky_text


def test_the_text_has_what_an_entry_of_the_quarantine_needs() -> None:
    found = flaky_causes((ended(HANG, stage=Stage.TRAIN_STEP), passed()))
    assert flaky_text(found).splitlines() == [
        f"{HANG} fingerprint {MARK}",
        "  ranks waited for a collective that never completed; a fault of the code under test",
        "  1 run, the last on 2026-01-01, in 0-lora-ddp",
        "  at train_step",
        "  1 head where another attempt passed, 1 pull request, 0 merge bases",
    ]
    assert flaky_text(()) == NONE
    assert flaky_json(found) == {
        "schema": 1,
        "causes": [
            {
                "cause": HANG,
                "fingerprint": MARK,
                "class": "change",
                "jobs": ["0-lora-ddp"],
                "stages": ["train_step"],
                "runs": 1,
                "heads_that_passed": 1,
                "pull_requests": 1,
                "merge_bases": 0,
                "last": "2026-01-01T00:00:00+00:00",
            }
        ],
    }
    lost = flaky_causes((ended("engine:preempted", fingerprint="", result=Result.BLOCKED), passed()))
    assert flaky_text(lost).startswith("engine:preempted\n  preempted; a passing fault of the infrastructure\n")
