"""What is removed, and that nothing grows for ever."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.adapters.test_ledger import run as run_of
from verl_e2e.adapters.store import Retention, SqlDeliveries, SqlLedger, SqlOutbox, SqlWorklist, Store
from verl_e2e.core.pulls.deliveries import Received, reply_to
from verl_e2e.core.pulls.ledger import RunState

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def use(store: Store, day: int, count: int = 400) -> None:
    """A day on which so many deliveries are processed, each about a pull request of its own and answered."""
    now = NOW + day * DAY
    rows = [Received(f"{day}-{number}", "push", b"x" * 2_000, now) for number in range(count)]
    SqlDeliveries(store).keep(rows)
    targets = [f"o/r#{day * count + number + 1}" for number in range(count)]
    SqlDeliveries(store).processed([(one.id, [target]) for one, target in zip(rows, targets, strict=True)], now)
    outbox, worklist = SqlOutbox(store), SqlWorklist(store)
    for number in range(0, count, 10):
        outbox.put(reply_to("o/r", number + 1, f"{day}-{number}", "text " * 100, person=True), now)
    for letter in outbox.take(now, count):
        outbox.written(letter.number)
    for taken in worklist.take(now, count):
        worklist.finish(taken, now)


def test_the_database_stops_growing(store: Store, tmp_path: Path) -> None:
    retention = Retention(store, tmp_path / "runs")
    sizes = []
    for day in range(12):
        use(store, day)
        while retention.remove(NOW + (day - 3) * DAY):
            pass
        if store.dialect == "sqlite":
            # The file itself follows when SQLite copies its write-ahead log, at a moment of its own.
            with store.read() as connection:
                sizes.append(connection.exec_driver_sql("PRAGMA page_count").scalar_one())
    with store.read() as connection:
        counts = [connection.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar() for name in TABLES]
    assert counts == [4 * 400, 4 * 400, 4 * 40]
    if sizes:
        assert sizes[-1] <= 1.1 * max(sizes[3:6])


TABLES = ("deliveries", "targets", "outbox")


def test_what_waits_and_the_newest_pull_request_stay_however_old(store: Store, tmp_path: Path) -> None:
    worklist, outbox = SqlWorklist(store), SqlOutbox(store)
    SqlDeliveries(store).keep([Received("waits", "push", b"", NOW)])
    outbox.put(reply_to("o/r", 1, "waits", "text", person=True), NOW)
    worklist.want(["o/r#3", "o/r#9", "o/r#10"], NOW)
    for taken in worklist.take(NOW, 9, only=["o/r#9", "o/r#10"]):
        worklist.finish(taken, NOW)
    assert not Retention(store, tmp_path / "runs").remove(NOW + 400 * DAY)
    assert worklist.known() == ("o/r#10", "o/r#3")
    assert len(SqlDeliveries(store).take(NOW, 9)) == len(outbox.take(NOW, 9)) == 1


def test_the_folder_of_a_run_goes_when_the_run_is_over_and_old(store: Store, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    ledger = SqlLedger(store)
    over, live = run_of(attempt=1).model_copy(update={"state": RunState.FINISHED}), run_of(attempt=2)
    fresh = run_of(attempt=3).model_copy(update={"state": RunState.FINISHED})
    for run in (over, live, fresh):
        ledger.put_run(run)
        (runs / run.key / "deep").mkdir(parents=True)
    old = (NOW - 30 * DAY).timestamp()
    for run in (over, live):
        os.utime(runs / run.key, (old, old))
    Retention(store, runs).remove(NOW - 14 * DAY)
    assert {path.name for path in runs.iterdir()} == {live.key, fresh.key}
    assert len(ledger.runs(over.repository)) == 3
