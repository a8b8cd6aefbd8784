"""The nonce of an order: read once, kept from what runs, returned with the end."""

from pathlib import Path

from tests.core.builders import make_facts, make_record
from verl_e2e.adapters.files.folders import take_nonce
from verl_e2e.core.judge.criteria.run_record import Expected, run_record
from verl_e2e.core.model.record import EVENTS_FILE, EndReason, Event
from verl_e2e.core.text.redact import redactor
from verl_e2e.wiring.action import leave_nonce
from verl_e2e_runner.folder.recorder import Recorder, record_end
from verl_e2e_runner.process.processes import Ended

NONCE = "a1b2" * 8


def test_a_nonce_lies_beside_the_job_for_its_user_alone_and_is_gone_once_it_was_read(tmp_path: Path) -> None:
    job_file = tmp_path / "job.json"
    leave_nonce(job_file, NONCE)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o077 == 0
    assert take_nonce(job_file) == NONCE
    assert list(tmp_path.iterdir()) == []
    assert take_nonce(job_file) == ""


def test_an_order_without_one_leaves_no_file(tmp_path: Path) -> None:
    leave_nonce(tmp_path / "job.json", "")
    assert list(tmp_path.iterdir()) == []


def test_a_run_returns_the_nonce_with_its_end_and_not_before(tmp_path: Path) -> None:
    clock = iter(range(1_000))
    with Recorder(tmp_path / "run", redactor=redactor(), monotonic=lambda: float(next(clock))) as recorder:
        recorder.nonce = NONCE
        recorder.event("started", job="0-lora-ddp")
        assert NONCE not in (tmp_path / "run" / EVENTS_FILE).read_text()
        record_end(recorder, Ended(EndReason.EXITED, 0, ""))
    lines = (tmp_path / "run" / EVENTS_FILE).read_text().splitlines()
    events = tuple(Event.model_validate_json(line) for line in lines)
    assert run_record(make_record(events=events), make_facts(), Expected(None, NONCE)).summary.endswith("came back")
