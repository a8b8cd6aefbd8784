"""DBOS's tables hold plain JSON: whoever can write them can have a target looked at, and run nothing.

DBOS reads what a row says of itself, and a row that says `py_pickle` is unpickled whatever serializer is configured.
So reading pickle is switched off, and rows of that kind, which only earlier versions wrote, are removed: what is to be
done lies in our own tables.
"""

from contextlib import suppress
from typing import Any, NoReturn

import sqlalchemy as sa
from dbos import DBOSPortableJSONSerializer, _serialization
from sqlalchemy.exc import OperationalError, ProgrammingError


class PickleError(Exception):
    """A row of the queue that would run code while it is read."""


def serializer() -> Any:
    """What DBOS writes with; from now on it reads nothing that could run code."""
    _serialization.DefaultSerializer.deserialize = _refuse  # type: ignore[assignment,method-assign]
    return DBOSPortableJSONSerializer()


def _refuse(_self: object, _text: str) -> NoReturn:
    raise PickleError("a row of the queue is pickled, and no version that runs here writes such; stop and delete it")


def drop_pickled(url: str) -> int:
    """Remove the looks that an earlier version queued in a form that is read no more; how many."""
    name = DBOSPortableJSONSerializer().name()
    table = "workflow_status" if url.startswith("sqlite") else "dbos.workflow_status"
    wanted = sa.text(f"DELETE FROM {table} WHERE serialization IS NULL OR serialization <> :name")  # noqa: S608
    engine = sa.create_engine(sa.make_url(url).set(drivername=_driver(url)))
    try:
        # A new database has no such table yet.
        with suppress(OperationalError, ProgrammingError), engine.begin() as connection:
            return connection.execute(wanted, {"name": name}).rowcount
        return 0
    finally:
        engine.dispose()


def _driver(url: str) -> str:
    return "sqlite+pysqlite" if url.startswith("sqlite") else "postgresql+psycopg"
