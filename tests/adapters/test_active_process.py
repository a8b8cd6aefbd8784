"""Who works on a database, and who owns a row: never two at once, and what was cut off is free for the next one."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from tests.adapters.databases import fresh_database
from tests.fakes.postgres import controlled_server
from verl_e2e.adapters.store import SqlDeliveries, SqlOutbox, SqlWorklist, Store, open_store
from verl_e2e.core.pulls.deliveries import Received, reply_to

NOW = datetime(2026, 11, 20, 19, 0, tzinfo=UTC)
TARGETS = ("o/r#1", "o/r#2")


@contextmanager
def another(database: str) -> Iterator[Store]:
    """The same database, as another process has it open."""
    opened = open_store(database)
    yield opened
    opened.close()


def fill(store: Store) -> None:
    """One delivery, one message and two targets wait."""
    SqlDeliveries(store).keep([Received("one", "push", b"{}", NOW)])
    SqlOutbox(store).put(reply_to("o/r", 1, "x", "text", person=True), NOW)
    SqlWorklist(store).want(TARGETS, NOW)


def take(store: Store) -> int:
    """Take all that is free; how many rows those were."""
    found = (SqlDeliveries(store).take(NOW, 9), SqlOutbox(store).take(NOW, 9), SqlWorklist(store).take(NOW, 9))
    return sum(map(len, found))


def test_what_one_took_no_other_gets_until_it_is_returned(database: str, store: Store) -> None:
    fill(store)
    with another(database) as other:
        assert (take(store), take(other)) == (4, 0)
        SqlWorklist(store).release(TARGETS[0])
        assert [taken.target for taken in SqlWorklist(other).take(NOW, 9)] == [TARGETS[0]]


def test_what_a_process_had_taken_is_free_for_the_next_one(database: str, store: Store) -> None:
    fill(store)
    assert take(store) == 4
    with another(database) as other:
        other.free_rows((), (), ())
        assert take(other) == 4


def test_a_process_that_is_not_the_active_one_any_more_changes_nothing_that_another_one_has(
    database: str, store: Store
) -> None:
    fill(store)
    with another(database) as other:
        SqlDeliveries(store).take(NOW, 9)
        SqlOutbox(store).take(NOW, 9)
        (late, _) = SqlWorklist(store).take(NOW, 9)
        other.free_rows((), (), ())
        (letter,) = SqlOutbox(other).take(NOW, 9)
        assert len(SqlDeliveries(other).take(NOW, 9)) == 1
        assert len(SqlWorklist(other).take(NOW, 9)) == 2
        SqlWorklist(store).finish(late, NOW)
        SqlWorklist(store).postpone(late.target, "late", NOW)
        SqlDeliveries(other).processed([("one", [])], NOW)
        SqlDeliveries(store).failed("one", "late", NOW)
        SqlOutbox(store).failed(letter.number, "late", NOW)
        assert take(store) == 0
        SqlWorklist(other).release(late.target)
        assert len(SqlWorklist(store).take(NOW, 9)) == 1


def test_what_a_process_does_not_know_to_own_is_free_again(store: Store) -> None:
    """The answer to what took it was lost with the connection."""
    fill(store)
    assert take(store) == 4
    store.free_rows(["one"], [], [TARGETS[1]])
    assert (len(SqlOutbox(store).take(NOW, 9)), SqlDeliveries(store).take(NOW, 9)) == (1, ())
    assert [taken.target for taken in SqlWorklist(store).take(NOW, 9)] == [TARGETS[0]]


def test_one_process_is_active_until_it_ends(database: str) -> None:
    first, second = open_store(database), open_store(database)
    assert [first.is_active(), second.is_active(), first.is_active(), second.is_active()] == [True, False, True, False]
    first.close()
    assert second.is_active()
    second.close()


@pytest.mark.postgres
def test_a_process_whose_session_is_lost_is_active_again_only_where_no_other_is() -> None:
    with controlled_server() as server:
        database = fresh_database(server.url)
        first, second = open_store(database), open_store(database)
        assert first.is_active()
        server.stop()
        assert not first.is_active()
        for store in (first, second):
            with pytest.raises(sa.exc.OperationalError):
                store.is_active()
        server.start()
        assert first.is_active()
        assert not second.is_active()
        server.restart()
        assert second.is_active()
        assert [first.is_active(), first.is_active()] == [False, False]
        second.close()
        assert first.is_active()
        first.close()
