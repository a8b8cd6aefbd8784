"""What verl makes of the settings of jobs, as text and as JSON."""

from collections.abc import Sequence

from verl_e2e.core.model.settings_check import SettingsCheck


def settings_text(checks: Sequence[SettingsCheck]) -> str:
    """A line for each job, the reasons below it, and a summary with what was not checked."""
    lines = [line for check in checks for line in _lines(check)]
    accepted = sum(check.accepted for check in checks)
    unchecked = dict.fromkeys(check.unchecked for check in checks if check.unchecked)
    return "\n".join([*lines, f"{accepted} of {len(checks)} accepted", *(f"not checked: {text}" for text in unchecked)])


def _lines(check: SettingsCheck) -> list[str]:
    reasons = ([check.refused] if check.refused else []) + list(check.mismatches)
    return [f"{'accepted' if check.accepted else 'refused '}  {check.job_id}", *(f"    {text}" for text in reasons)]


def settings_json(checks: Sequence[SettingsCheck]) -> dict[str, object]:
    """The same as a document."""
    return {
        "schema": 1,
        "jobs": [
            {
                "id": check.job_id,
                "accepted": check.accepted,
                "refused": check.refused,
                "mismatches": list(check.mismatches),
                "unchecked": check.unchecked,
            }
            for check in checks
        ],
    }
