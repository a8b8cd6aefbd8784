"""Whoever writes the queue's tables runs no code in the service, on SQLite and on PostgreSQL."""

import base64
import json
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.adapters.databases import database, server
from tests.fakes.patience import HANG_S
from verl_e2e.adapters.durable import queue_url
from verl_e2e.adapters.durable.plain_json import PickleError, drop_pickled
from verl_e2e.adapters.durable.queue import TargetQueue

__all__ = ["database", "server"]


class Planted:
    """Makes a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def table(url: str) -> tuple[sa.Engine, str]:
    if url.startswith("sqlite"):
        return sa.create_engine(url), "workflow_status"
    return sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg")), "dbos.workflow_status"


def run(url: str, *targets: str) -> list[str]:
    """A queue's life: what was looked at."""
    looked: list[str] = []
    queue = TargetQueue(queue_url(url), looked.append, workers=1)
    queue.start()
    try:
        for target in targets:
            queue.put(target)
        deadline = time.monotonic() + HANG_S
        while len(looked) < len(targets) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
    finally:
        queue.stop()
    return looked


def test_what_is_queued_is_plain_json(database: str) -> None:
    assert run(database, "o/r#1") == ["o/r#1"]
    engine, name = table(queue_url(database))
    with engine.connect() as connection:
        kinds = connection.exec_driver_sql(f"SELECT DISTINCT serialization FROM {name}").scalars().all()
        kept = connection.exec_driver_sql(f"SELECT inputs FROM {name.replace('status', 'input')}").scalars().all()
    engine.dispose()
    assert kinds == ["portable_json"]
    assert [json.loads(row)["positionalArgs"] for row in kept] == [["o/r#1"]]


def test_a_planted_row_runs_no_code(database: str, tmp_path: Path) -> None:
    run(database, "o/r#1")
    harm = tmp_path / "harm"
    planted = base64.b64encode(pickle.dumps({"args": (Planted(harm),), "kwargs": {}})).decode()
    engine, name = table(queue_url(database))
    with engine.begin() as connection:
        inputs = sa.text(f"UPDATE {name.replace('status', 'input')} SET inputs = :planted")
        assert connection.execute(inputs, {"planted": planted}).rowcount
        begun = "status = 'PENDING', completed_at = NULL, recovery_attempts = 0"
        connection.exec_driver_sql(f"UPDATE {name} SET serialization = 'py_pickle', {begun}")
    engine.dispose()
    assert run(database, "o/r#2") == ["o/r#2"]
    assert not harm.exists()


def test_what_an_earlier_version_queued_is_removed_and_a_new_database_is_no_trouble(database: str) -> None:
    url = queue_url(database)
    assert drop_pickled(url) == 0
    run(database, "o/r#1")
    engine, name = table(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {name} SET serialization = NULL")
    engine.dispose()
    assert drop_pickled(url) == 1
    assert drop_pickled(url) == 0


def test_reading_pickle_is_switched_off(tmp_path: Path) -> None:
    from dbos import _serialization

    run(f"sqlite:///{tmp_path / 'bot.sqlite3'}")
    with pytest.raises(PickleError):
        _serialization.DBOSDefaultSerializer.deserialize(base64.b64encode(pickle.dumps("x")).decode())
