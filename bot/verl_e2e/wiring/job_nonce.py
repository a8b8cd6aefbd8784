"""The nonce of an order, kept next to its job's file: the one who runs the job reads it once and leaves none behind."""

from pathlib import Path

from verl_e2e.core.pulls.job_order import NONCE_FILE


def leave_nonce(job_file: Path, nonce: str) -> None:
    """Write the nonce next to the job's file, for the user alone; nothing for none."""
    if nonce:
        file = job_file.with_name(NONCE_FILE)
        file.touch(mode=0o600)
        file.write_text(nonce, encoding="ascii")


def take_nonce(job_file: Path) -> str:
    """The nonce next to a job's file, which is gone then; empty where there is none."""
    file = job_file.with_name(NONCE_FILE)
    try:
        nonce = file.read_text(encoding="ascii")[:64]
        file.unlink()
    except (OSError, ValueError):
        return ""
    return nonce
