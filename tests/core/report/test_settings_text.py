"""What verl makes of the settings of jobs, as people and programs read it."""

from verl_e2e.core.model.settings_check import SettingsCheck
from verl_e2e.core.report.plan_text import settings_json, settings_text

CHECKS = (
    SettingsCheck("0-lora-ddp"),
    SettingsCheck("2-cp", "Key 'x' is not in struct", ("a is 1, the job expects 2",), "vLLM is not installed"),
    SettingsCheck("2-dp", unchecked="vLLM is not installed"),
)


def test_each_job_has_a_line_and_its_reasons_and_what_was_not_checked_is_said_once() -> None:
    assert settings_text(CHECKS) == (
        "accepted  0-lora-ddp\n"
        "refused   2-cp\n"
        "    Key 'x' is not in struct\n"
        "    a is 1, the job expects 2\n"
        "accepted  2-dp\n"
        "2 of 3 accepted\n"
        "not checked: vLLM is not installed"
    )


def test_the_document_has_the_same() -> None:
    jobs = settings_json(CHECKS)["jobs"]
    assert isinstance(jobs, list)
    assert jobs[1] == {
        "id": "2-cp",
        "accepted": False,
        "refused": "Key 'x' is not in struct",
        "mismatches": ["a is 1, the job expects 2"],
        "unchecked": "vLLM is not installed",
    }
    assert [job["accepted"] for job in jobs] == [True, False, True]
