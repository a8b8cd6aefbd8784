"""Who owns a row: never two at once, freed when its owner ends, and kept while the owner lives."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from tests.adapters.databases import database, fresh_database, server, store
from tests.fakes.postgres import controlled_server
from verl_e2e.adapters.store import SqlDeliveries, SqlLeases, SqlOutbox, SqlWorklist, Store, StoreError, open_store
from verl_e2e.adapters.store.leases import LEASE_S
from verl_e2e.core.pulls.deliveries import Received
from verl_e2e.core.pulls.messages import reply_to

__all__ = ["database", "server", "store"]

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


def beat(first_s: float, last_s: float, *leases: SqlLeases) -> None:
    """These live from one second to another."""
    second = first_s
    while second <= last_s:
        for lease in leases:
            lease.renew(second)
        second += 3.0


def test_what_one_took_no_other_gets_until_it_is_returned(database: str, store: Store) -> None:
    fill(store)
    with another(database) as other:
        assert (take(store), take(other)) == (4, 0)
        SqlWorklist(store).release(TARGETS[0])
        assert [taken.target for taken in SqlWorklist(other).take(NOW, 9)] == [TARGETS[0]]


@pytest.mark.parametrize("silent_s", (LEASE_S - 3, LEASE_S + 3))
def test_what_a_silent_process_took_is_free_after_the_lease_and_not_before(
    database: str, store: Store, silent_s: float
) -> None:
    fill(store)
    with another(database) as other:
        beat(0, 3, SqlLeases(store), lease := SqlLeases(other))
        assert take(store) == 4
        beat(6, 3 + silent_s, lease)
        assert take(other) == (4 if silent_s >= LEASE_S else 0)


def test_what_a_living_process_took_stays_its_own(database: str, store: Store) -> None:
    fill(store)
    with another(database) as other:
        assert take(store) == 4
        beat(0, 10 * LEASE_S, SqlLeases(store), SqlLeases(other))
        assert take(other) == 0


def test_nobody_is_taken_for_dead_because_the_database_was_away(database: str, store: Store) -> None:
    """Neither counts for a while; the one that comes first afterwards cannot know of the other."""
    fill(store)
    with another(database) as other:
        mine, theirs = SqlLeases(store), SqlLeases(other)
        beat(0, 3, mine, theirs)
        assert take(store) == 4
        theirs.renew(100)
        theirs.renew(103)
        assert take(other) == 0
        mine.renew(104)
        beat(106, 112, mine, theirs)
        assert take(other) == 0


def test_a_process_that_was_taken_for_dead_changes_nothing_that_another_one_has(database: str, store: Store) -> None:
    fill(store)
    with another(database) as other:
        beat(0, 3, SqlLeases(store), lease := SqlLeases(other))
        (late, _) = SqlWorklist(store).take(NOW, 9)
        beat(6, 30, lease)
        assert len(SqlWorklist(other).take(NOW, 9)) == 2
        SqlWorklist(store).finish(late, NOW)
        SqlWorklist(store).postpone(late.target, "late", NOW)
        assert SqlWorklist(store).take(NOW, 9) == ()
        # It lives on under its name.
        SqlLeases(store).renew(40)
        SqlWorklist(other).release(late.target)
        assert len(SqlWorklist(store).take(NOW, 9)) == 1


def test_what_is_left_of_a_process_is_free_at_once_for_one_that_is_alone(database: str, store: Store) -> None:
    fill(store)
    SqlLeases(store).renew(0)
    assert take(store) == 4
    with another(database) as next_one:
        next_one.alone = True
        assert SqlLeases(next_one).renew(1)
        assert take(next_one) == 4


def test_an_end_in_good_order_frees_everything_at_once(database: str, store: Store) -> None:
    fill(store)
    SqlLeases(store).renew(0)
    assert take(store) == 4
    SqlLeases(store).leave()
    with another(database) as other:
        assert SqlLeases(other).renew(0)
        assert take(other) == 4


def test_what_a_process_does_not_know_to_own_is_free_again(store: Store) -> None:
    """The answer to what took it was lost with the connection."""
    fill(store)
    assert take(store) == 4
    SqlLeases(store).retain(["one"], [], [TARGETS[1]])
    assert (len(SqlOutbox(store).take(NOW, 9)), SqlDeliveries(store).take(NOW, 9)) == (1, ())
    assert [taken.target for taken in SqlWorklist(store).take(NOW, 9)] == [TARGETS[0]]


def test_one_of_them_does_what_one_does_for_all_and_another_one_after_its_end(database: str, store: Store) -> None:
    with another(database) as other:
        both = {each.owner: SqlLeases(each) for each in (store, other)}
        for lease in both.values():
            lease.renew(0)
        leaders = [owner for owner, lease in both.items() if lease.renew(3)]
        assert len(leaders) == 1
        (left,) = set(both) - set(leaders)
        found = [both[left].renew(second) for second in range(6, 30, 3)]
        assert found[0] is False
        assert found[-1] is True


def test_a_failure_of_a_process_taken_for_dead_spoils_nothing_that_another_one_did(database: str, store: Store) -> None:
    fill(store)
    with another(database) as other:
        beat(0, 3, SqlLeases(store), lease := SqlLeases(other))
        assert take(store) == 4
        beat(6, 30, lease)
        (letter,) = SqlOutbox(other).take(NOW, 9)
        assert len(SqlDeliveries(other).take(NOW, 9)) == 1
        SqlDeliveries(other).processed([("one", [])], NOW)
        SqlDeliveries(store).failed("one", "late", NOW)
        SqlOutbox(store).failed(letter.number, "late", NOW)
        SqlLeases(store).renew(40)
        assert (SqlDeliveries(store).take(NOW, 9), SqlOutbox(store).take(NOW, 9)) == ((), ())


@pytest.mark.postgres
def test_one_that_is_alone_stays_so_after_the_database_was_away() -> None:
    with controlled_server() as server:
        database = fresh_database(server.url)
        first, second = open_store(database), open_store(database)
        assert first.enter(alone=True)
        server.stop()
        for _ in range(2):
            with pytest.raises(sa.exc.OperationalError):
                first.stay()
        server.start()
        first.stay()
        assert not second.enter(alone=False)
        server.stop()
        server.start()
        assert second.enter(alone=True)
        with pytest.raises(StoreError, match="took it over"):
            first.stay()
        second.close()
        first.stay()
        first.close()
