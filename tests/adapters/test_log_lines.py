"""Log lines: each says what it is about, hides secrets, and nothing that a stranger wrote begins a line of its own."""

import json
import logging
import threading

import pytest

from tests.fakes.patience import HANG_S
from verl_e2e.adapters.json_log import LogLines
from verl_e2e.adapters.worker import Lanes, thread_pool
from verl_e2e.core.pulls.forge import MergeGroup, reference_text
from verl_e2e.log_context import add_to_log_context, current_log_context, log_context, log_context_of

HOSTILE = 'x\n{"level": "error"}\r\x1b[2J\x9b31m\u2028\u202eevil\x7f\U000e0041'
SECRET = "swordfish-swordfish"


@pytest.mark.parametrize("text", (False, True))
def test_what_a_stranger_wrote_stays_inside_its_line(text: bool) -> None:
    record = logging.LogRecord("x", logging.WARNING, "", 0, "refused: %s", (HOSTILE,), None)
    record.branch, record.secret = f"a b=c {HOSTILE}", f"at {SECRET}"
    with log_context(delivery=HOSTILE):
        line = LogLines(SECRET, text=text).format(record)
    assert line.isprintable()
    assert SECRET not in line
    assert "evil" in line


def test_a_traceback_of_a_stranger_begins_no_line_either() -> None:
    record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), None)
    try:
        raise ValueError(f"{HOSTILE}\n2026-01-01T00:00:00.000+00:00 INFO    made up")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    first, *rows = LogLines(text=True).format(record).split("\n")
    assert first.endswith(" ERROR   failed")
    assert {row[:4] for row in rows} == {"  | "}
    assert all(row.isprintable() for row in rows)
    assert "\n" not in LogLines().format(record)


def test_a_json_line_is_one_document_with_what_it_is_about() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "done", (), None)
    record.__dict__.update(seconds=0.25, level="fatal")
    with log_context(repository="octo/bridge", pull_request=7), log_context(run="abc", head=None):
        add_to_log_context(head="f" * 40)
        document = json.loads(LogLines().format(record))
    del document["time"]
    assert document == {
        "level": "info",
        "logger": "x",
        "message": "done",
        "repository": "octo/bridge",
        "pull_request": 7,
        "run": "abc",
        "head": "f" * 40,
        "seconds": 0.25,
    }
    assert "repository" not in LogLines().format(record)


def test_a_text_line_is_for_people() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, 'the "end" of it', (), None)
    record.created, record.reason = 0.0, "no machine"
    group = MergeGroup("octo/bridge", "main", "b" * 40, "a" * 40)
    with log_context_of("octo/bridge#7"):
        line = LogLines(text=True).format(record)
    about = 'repository=octo/bridge pull_request=7 reason="no machine"'
    assert line == f'1970-01-01T00:00:00.000+00:00 INFO    the "end" of it {about}'
    with log_context_of(reference_text(group)):
        assert f"repository=octo/bridge head={'a' * 40} merge_group=main" in LogLines(text=True).format(record)
    with log_context_of("anything"):
        assert "target=anything" in LogLines(text=True).format(record)


def test_threads_that_work_at_once_do_not_mix_what_their_lines_are_about() -> None:
    """Both wait inside their work until the other one has begun, and the threads are used again."""
    together, documents = threading.Barrier(2), list[dict[str, object]]()
    formatter = LogLines()

    def work(number: int) -> None:
        with log_context_of(f"octo/bridge#{number}"):
            together.wait(30)
            add_to_log_context(head=f"{number}" * 40)
            together.wait(30)
            documents.append(json.loads(formatter.format(logging.LogRecord("x", 20, "", 0, f"{number}", (), None))))
        documents.append(json.loads(formatter.format(logging.LogRecord("x", 20, "", 0, "after", (), None))))

    done = threading.Semaphore(0)
    lanes = Lanes(2, lambda _: 2, "test", done.release, thread_pool)
    for number in (1, 2, 3, 4):
        lanes.put(str(number), "", lambda number=number: work(number))  # type: ignore[misc]
    for _ in range(4):
        assert done.acquire(timeout=HANG_S)
    lanes.stop()
    found = {str(document["message"]): document for document in documents if document["message"] != "after"}
    assert {name: (row["pull_request"], row["head"]) for name, row in found.items()} == {
        str(number): (number, f"{number}" * 40) for number in (1, 2, 3, 4)
    }
    after = [document for document in documents if document["message"] == "after"]
    assert len(after) == 4
    assert not any("pull_request" in document for document in after)


def test_what_is_said_outside_of_any_block_does_not_stay() -> None:
    add_to_log_context(head="f" * 40)
    assert current_log_context() == {}
