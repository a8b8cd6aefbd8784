"""Whether the policy sets aside what ended a run: all of its causes, by entries that count today."""

from collections.abc import Iterable
from datetime import date

from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.quarantine import Counts, QuarantinedCause
from verl_e2e.core.pulls.ledger import Run


def set_aside_by(run: Run, entries: Iterable[QuarantinedCause], today: date) -> QuarantinedCause | None:
    """The entry that sets a run's end aside, of several the one that ends first; None where a cause is left."""
    counting = [entry for entry in entries if entry.counts(today) is Counts.YES]
    found = [next((entry for entry in counting if _fits(entry, cause_id, run)), None) for cause_id in run.causes]
    given = [entry for entry in found if entry is not None]
    return min(given, key=lambda entry: entry.until) if given and len(given) == len(found) else None


def _fits(entry: QuarantinedCause, cause_id: str, run: Run) -> bool:
    # Without a fingerprint nothing says that it is the known failure, and a Fail is never excused by its kind.
    known = run.result is not Result.FAIL if entry.fingerprint is None else entry.fingerprint == run.fingerprint
    of_job = entry.job is None or entry.job == run.job_id
    at_stage = entry.stage is None or entry.stage is run.stage
    return entry.cause_id == cause_id and known and of_job and at_stage
