"""Slots on SQLite and on a real PostgreSQL server: given in one transaction, by bots that decide at the same time."""

import re
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from verl_e2e.adapters.store import SqlDeliveries, SqlLedger, SqlOutbox, SqlRunLists, SqlWorklist, Store, open_store
from verl_e2e.core.pulls.deliveries import Received, reply_to
from verl_e2e.core.pulls.ledger import RecordedCommand, Run, RunState, run_key
from verl_e2e.core.pulls.queue import Pool, QueueSnapshot, admit, entry_of

NOW = datetime(2026, 11, 20, 19, 0, tzinfo=UTC)
THREE = (Pool("all", 3),)


def waiting(number: int, **given: object) -> Run:
    fields: dict[str, object] = {
        "key": run_key("octo/bridge", "a" * 40, "job", number),
        "repository": "octo/bridge",
        "number": number,
        "head_sha": "a" * 40,
        "job_id": "0-lora-ddp",
        "job_digest": "job",
        "created": NOW,
        "updated": NOW,
        "awaits_slot": True,
    }
    return Run.model_validate(fields | given)


def starts(snapshot: QueueSnapshot) -> tuple[str, ...]:
    return admit(snapshot, THREE, NOW).starts


def test_bots_that_decide_at_once_give_no_slot_twice(store: Store, database: str) -> None:
    first, second = SqlLedger(store), SqlLedger(other := open_store(database))
    for number in range(1, 13):
        first.put_run(waiting(number))
    with ThreadPoolExecutor(8) as pool:
        begun = [
            run
            for found in pool.map(lambda turn: (first, second)[turn % 2].give_slots(starts, NOW), range(16))
            for run in found
        ]
    assert len(begun) == 3
    assert {run.number for run in first.open_runs() if not run.waits_for_slot} == {run.number for run in begun}
    assert first.open_count() == 3
    # Each that ends frees a slot for one.
    first.put_run(begun[0].model_copy(update={"state": RunState.LOST}))
    assert len(second.give_slots(starts, NOW)) == 1
    other.close()


def test_a_decision_that_is_cut_off_gave_no_slot(store: Store) -> None:
    ledger = SqlLedger(store)
    ledger.put_run(waiting(1))

    asked = []

    def fail(snapshot: QueueSnapshot) -> tuple[str, ...]:
        asked.append(snapshot)
        if len(asked) == 2:
            raise RuntimeError("killed inside the transaction")
        return starts(snapshot)

    with pytest.raises(RuntimeError, match="killed inside"):
        ledger.give_slots(fail, NOW)
    assert ledger.has_waiting()
    assert len(ledger.give_slots(starts, NOW)) == 1
    assert not ledger.has_waiting()


def test_what_was_cancelled_meanwhile_gets_no_slot(store: Store) -> None:
    ledger = SqlLedger(store)
    run = ledger.put_run(waiting(1))
    ledger.put_run(run.model_copy(update={"state": RunState.CANCELLED}))
    assert ledger.give_slots(lambda _: [run.key], NOW) == ()


def test_a_snapshot_has_what_is_open(store: Store) -> None:
    ledger = SqlLedger(store)
    known = [waiting(1), waiting(2, created=NOW - timedelta(days=9))]
    for run in (*known, waiting(3, state=RunState.LOST)):
        ledger.put_run(run)
    assert {*ledger.snapshot().entries} == {*map(entry_of, known)}


def test_switches_are_found_by_repository_among_all_entries(store: Store) -> None:
    ledger = SqlLedger(store)
    values = {"actor": "mona", "head_sha": "a" * 40, "at": NOW, "number": 7}
    given = [
        RecordedCommand.model_validate(
            {"source": f"comment:{place}:1", "repository": repository, "verb": verb, "arguments": words, **values}
        )
        for place, (repository, verb, words) in enumerate(
            (("octo/a", "pause", ["the disk is full"]), ("octo/a", "run", []), ("octo/b", "resume", []))
        )
    ]
    for entry in given:
        ledger.add(entry)
    assert ledger.switches("octo/a") == (given[0],)
    assert ledger.snapshot().switches == (given[0], given[2])


@contextmanager
def asking() -> Iterator[list[tuple[str, tuple[str, ...]]]]:
    """The statements that are executed meanwhile, each with its values."""
    asked: list[tuple[str, tuple[str, ...]]] = []

    @sa.event.listens_for(sa.Engine, "before_cursor_execute")
    def note(_connection: object, _cursor: object, text: str, values: tuple[str, ...], *_rest: object) -> None:
        asked.append((text, values))

    yield asked
    sa.event.remove(sa.Engine, "before_cursor_execute", note)


def steps_of(file: Path, questions: list[tuple[str, tuple[str, ...]]]) -> set[tuple[str, str]]:
    """How SQLite answers them, whatever the order in which the indexes were made: it decides between equal ones.

    Each index is made first once, and last once.
    """
    steps = set()
    with closing(sqlite3.connect(file)) as connection:
        made = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql > ''").fetchall()
        for first in range(len(made)):
            turned = made[first:] + made[:first]
            for order in (turned, turned[::-1]):
                for name, _ in order:
                    connection.execute(f"DROP INDEX {name}")
                for _, text in order:
                    connection.execute(text)
                steps |= {
                    (str(step[3]), text)
                    for text, values in questions
                    for step in connection.execute(f"EXPLAIN QUERY PLAN {text}", values)
                }
    return steps


def test_no_question_of_a_look_reads_all_runs_or_entries(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'bot.sqlite3'}")
    ledger = SqlLedger(store)
    with asking() as asked:
        ledger.has_waiting()
        ledger.open_runs()
        ledger.open_count()
        ledger.switches("octo/bridge")
        ledger.snapshot()
        ledger.give_slots(starts, NOW)
        ledger.run_by_handle("octo/bridge", "1")
        for which in ({"number": 1}, {"head_sha": "a" * 40}, {"reuse_key": "a" * 64}, {"newest": 9}):
            ledger.runs("octo/bridge", **which)
        SqlRunLists(store).overrides(("octo/bridge",), NOW)
    store.close()
    questions = [given for given in asked if given[0].startswith("SELECT")]
    assert len(questions) == 14
    steps = steps_of(tmp_path / "bot.sqlite3", questions)
    # To go through an index of what is open, waiting, a switch or an override is not to read the table, and no document
    # lies in an index that covers all that is asked for.
    few = re.compile("runs_open|runs_waiting|entries_switches|entries_overrides|COVERING")
    much = re.compile(r"^SCAN|\(repository=\?\)$")
    assert [step for step in steps if much.search(step[0]) and not few.search(step[0])] == []


def test_what_is_taken_from_a_queue_reads_nothing_that_is_done(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'bot.sqlite3'}")
    received = tuple(Received(str(number), "push", b"{}", NOW) for number in range(3))
    SqlDeliveries(store).keep(received)
    SqlDeliveries(store).processed([("0", ["octo/bridge#1", "octo/bridge#2"])], NOW)
    SqlOutbox(store).put(reply_to("octo/bridge", 1, "x", "text", person=True), NOW)
    with asking() as asked:
        taken = [delivery.id for delivery in SqlDeliveries(store).take(NOW, 9)]
        assert len(SqlWorklist(store).take(NOW, 9)) == 2
        assert len(SqlOutbox(store).take(NOW, 9)) == 1
    store.close()
    assert taken == ["1", "2"]
    questions = [given for given in asked if given[0].startswith(("SELECT", "UPDATE"))]
    assert len(questions) == 9
    whole = ("SCAN deliveries", "SCAN outbox", "SCAN targets")
    assert [step for step in steps_of(tmp_path / "bot.sqlite3", questions) if step[0].startswith(whole)] == []


def test_the_newest_runs_of_a_repository(store: Store) -> None:
    ledger = SqlLedger(store)
    known = [ledger.put_run(waiting(number)) for number in range(1, 5)]
    assert ledger.runs("octo/bridge", newest=2) == tuple(known[2:])
