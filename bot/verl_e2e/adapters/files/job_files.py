"""Files that a user hands to `verl-e2e run`: the job, and test results from another environment."""

from pathlib import Path

from pydantic import ValidationError

from verl_e2e.core.judge.junit import COMMIT_PROPERTY, JunitError, read_junit, stating_commit
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.rehearsal_job import Order, read_order


def read_job(path: Path) -> Order:
    """A job file, or that of a rehearsal, validated; raises UserError with file, key and value."""
    try:
        return read_order(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a job file as `verl-e2e check` writes it") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the document"
        shown = repr(first["input"])[:80]
        raise UserError(f"{path}: {key}: {first['msg']}, got {shown}; fix the file and run again") from None


def read_junit_file(path: Path, job: Job, commit: str | None) -> bytes:
    """A JUnit file from another environment, stating the job's Bridge commit; raises UserError for any other.

    `commit` is what the caller says of a file that does not say it itself.
    """
    wanted = job.bridge.commit
    try:
        raw = path.read_bytes()
        stated = read_junit(raw).commit or (commit or "").lower()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a readable JUnit file") from None
    except JunitError as error:
        raise UserError(f"{path}: not readable as JUnit ({error}); bring the whole file as pytest wrote it") from None
    if not stated:
        raise UserError(f"{path}: no property {COMMIT_PROPERTY}; name the commit of the tests with --junit-commit SHA")
    if stated != wanted:
        message = f"{COMMIT_PROPERTY}: {stated}, and the job tests {wanted}"
        raise UserError(f"{path}: {message}; run the tests on the job's commit")
    return stating_commit(raw, wanted)
