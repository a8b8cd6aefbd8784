"""Deliveries while the database is away: on the disk, within bounds, and in the database when it is back."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from verl_e2e.adapters.store import Spool, SpooledDeliveries, SqlDeliveries, open_store
from verl_e2e.adapters.store import spool as spooling
from verl_e2e.core.pulls.deliveries import Received

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def received(key: str, body: bytes = b"{}") -> Received:
    return Received(key, "push", body, NOW)


class Away(SqlDeliveries):
    """A database that can go away."""

    away = False

    def keep(self, received: object) -> tuple[bool, ...]:
        if self.away:
            raise sa.exc.OperationalError("INSERT", {}, Exception("gone"))
        return super().keep(received)  # type: ignore[arg-type]


@contextmanager
def both(tmp_path: Path) -> Iterator[tuple[Away, SpooledDeliveries]]:
    store = open_store(f"sqlite:///{tmp_path / 'bot.sqlite3'}")
    table = Away(store)
    yield table, SpooledDeliveries(table, Spool(tmp_path / "spool"))
    store.close()


def test_what_came_while_the_database_was_away_is_heard_when_it_is_back(tmp_path: Path) -> None:
    with both(tmp_path) as (table, deliveries):
        assert deliveries.keep([received("before")]) == (True,)
        table.away = True
        assert deliveries.keep([received("during", b"\x00\n{"), received("during too")]) == (True, True)
        with pytest.raises(sa.exc.OperationalError):
            deliveries.take(NOW, 9)
        table.away = False
        found = deliveries.take(NOW, 9)
        assert [(delivery.id, delivery.body) for delivery in found][:2] == [("before", b"{}"), ("during", b"\x00\n{")]
        assert len(found) == 3
        assert not list((tmp_path / "spool").iterdir())


def test_what_is_on_the_disk_outlives_the_process_and_is_kept_once(tmp_path: Path) -> None:
    with both(tmp_path) as (table, deliveries):
        table.away = True
        deliveries.keep([received("one")])
        deliveries.keep([received("one")])
    (tmp_path / "spool" / "half.part").write_bytes(b"{")
    (tmp_path / "spool" / "0-bad.delivery").write_bytes(b"no JSON\n")
    with both(tmp_path) as (_, deliveries):
        assert [delivery.id for delivery in deliveries.take(NOW, 9)] == ["one"]
        assert [path.name for path in (tmp_path / "spool").iterdir()] == ["0-bad.damaged"]


def test_the_disk_takes_no_more_than_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooling, "MOST_FILES", 3)
    spool = Spool(tmp_path / "spool")
    spool.keep([received(f"{number}") for number in range(3)])
    with pytest.raises(spooling.SpoolFullError):
        spool.keep([received("4")])


FULL = """
import resource, sys
from datetime import UTC, datetime
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from verl_e2e.adapters.store import Spool, SpooledDeliveries, SqlDeliveries, open_store
from verl_e2e.core.pulls.deliveries import Received
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder, now = Path(sys.argv[2]), datetime(2026, 11, 20, 12, tzinfo=UTC)
store = open_store(f"sqlite:///{folder / 'bot.sqlite3'}")
deliveries = SpooledDeliveries(SqlDeliveries(store), Spool(folder / "spool"))
deliveries.keep([Received("small", "push", b"{}", now)])
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
try:
    deliveries.keep([Received("large", "push", b"x" * 2_000_000, now)])
except OSError as error:
    print("refused", type(error).__name__)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
import time
time.sleep(1.1)
print(deliveries.keep([Received("large", "push", b"x" * 2_000_000, now)]))
print(sorted(delivery.id for delivery in deliveries.take(now, 9)), list((folder / "spool").iterdir()))
"""


def test_a_full_disk_refuses_a_delivery_loses_nothing_and_goes_on_when_there_is_space(tmp_path: Path) -> None:
    """The limit on the size of a file stands in for a full disk: both the database and the spool meet it."""
    assert resource.RLIMIT_FSIZE is not None
    argv = [sys.executable, "-c", FULL, str(ROOT), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, env=os.environ.copy(), timeout=HANG_S, check=False)
    assert done.stdout.splitlines() == ["refused OSError", "(True,)", "['large', 'small'] []"], done.stderr
