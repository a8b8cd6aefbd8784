"""A database that is open: one writer at a time on SQLite, short transactions on both, the tables of this version."""

import fcntl
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError, ProgrammingError, SQLAlchemyError
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from verl_e2e.adapters.store.schema import steps, versions
from verl_e2e.core.model.errors import UserError

# Below the 10 s that GitHub waits for an answer, so that a locked database is an error and not a silence.
BUSY_S = 5
# SQLite's log is copied into its file this often while the worker works, and at the latest at 64 MiB.
_WRITE_BACK_S, _LOG_PAGES = 1.0, 16384
# Keys of PostgreSQL's advisory locks: while the tables are made, while bots work on
# them, and while one changes a list.
_MIGRATING, _WORKING, _LISTS = 0x7665726C, 0x7665726D, 0x7665726E
_DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg"}


class StoreError(UserError):
    """The database cannot be used; the text has the fix and never a password."""


class Store:
    """An open database. On SQLite writers take turns here, because its own waiting is unfair and coarse."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self.dialect = engine.dialect.name
        self._turn = threading.Lock() if self.dialect == "sqlite" else nullcontext()
        # This process, as the rows that it works on name it.
        self.owner = uuid.uuid4().hex
        # Whether no other process can work on this database meanwhile.
        self.alone = False
        self._held = ExitStack()
        # The connection whose end makes PostgreSQL forget that this process works here.
        self._entered: sa.Connection | None = None
        self._written_back = 0.0

    @contextmanager
    def write(self, *, lasting: bool = True) -> Iterator[sa.Connection]:
        """One transaction that writes: all of it or nothing.

        One that need not be `lasting` outlives a kill of the process, and on SQLite perhaps no power cut: for what is
        simply done again when it is forgotten.
        """
        options = {"lasting": lasting}
        with self._turn, self._engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection
        if not lasting:
            self._write_back()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """One transaction that only reads; it waits for no writer."""
        with self._engine.connect().execution_options(only_reads=True) as connection:
            yield connection

    def insert(self, table: sa.Table) -> Any:
        """An INSERT that can say what to do on a conflict."""
        return sqlite.insert(table) if self.dialect == "sqlite" else postgresql.insert(table)

    def _write_back(self) -> None:
        """Copy SQLite's log into its file now and then, here and not inside a write that someone waits for."""
        now = time.monotonic()
        if self.dialect != "sqlite" or now < self._written_back + _WRITE_BACK_S:
            return
        self._written_back = now
        with closing(self._engine.raw_connection()) as connection:
            connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def shrink(self, pages: int) -> None:
        """Give pages that were freed back to the file system; PostgreSQL does so by itself."""
        if self.dialect == "sqlite":
            with self._turn, closing(self._engine.raw_connection()) as connection:
                connection.cursor().execute(f"PRAGMA incremental_vacuum({pages})").fetchall()

    def enter(self, *, alone: bool) -> bool:
        """Be one of the bots on this database until `close` or its end; false when that is not possible.

        With `alone`, and always on SQLite, this is the only one.
        """
        self.alone = alone or self.dialect == "sqlite"
        if self.dialect == "sqlite":
            return self.hold(Path(f"{self._engine.url.database}.lock"))
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        lock = sa.func.pg_try_advisory_lock if alone else sa.func.pg_try_advisory_lock_shared
        if not connection.scalar(sa.select(lock(_WORKING))):
            connection.close()
            return False
        self._entered = connection
        return True

    def stay(self) -> None:
        """Be one of the bots after the database was away too, which forgets it; StoreError when that is not possible.

        While the database is away this raises, and is called again.
        """
        if self._entered is None:
            return
        with suppress(SQLAlchemyError):
            self._entered.scalar(sa.select(1))
            return
        if not self.enter(alone=self.alone):
            shown = _without_password(str(self._engine.url))
            raise StoreError(f"DATABASE_URL {shown}: another process took it over while it was away; stop one")

    def hold(self, file: Path) -> bool:
        """Lock a file until `close` or the end of the process; false when another process holds it."""
        descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        self._held.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Give all connections back."""
        self._held.close()
        if self._entered is not None:
            self._entered.close()
        self._engine.dispose()


class Bookkeeping:
    """`with` this held, no one else reads and changes a remembered list: no thread, and no process on PostgreSQL."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._threads = threading.Lock()
        self._held = ExitStack()

    def __enter__(self) -> None:
        self._threads.acquire()
        try:
            if not self._store.alone and self._store.dialect == "postgresql":
                connection = self._held.enter_context(self._store.write())
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LISTS)))
        except BaseException:
            self._threads.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._held.close()
        finally:
            self._threads.release()


def open_store(url: str) -> Store:
    """Open the database of a URL and bring its tables to this version. Raises StoreError."""
    shown = _without_password(url)
    try:
        engine = _engine(sa.make_url(url))
        try:
            _migrate(engine)
        except BaseException:
            engine.dispose()
            raise
    except (ArgumentError, NoSuchModuleError) as error:
        raise StoreError(
            f"DATABASE_URL {shown}: {_first_line(error)}; write sqlite:///FILE or postgresql://..."
        ) from None
    except ModuleNotFoundError:
        fix = "pip install 'verl-e2e[postgres]'"
        raise StoreError(f"DATABASE_URL {shown}: PostgreSQL needs psycopg, which is not installed; {fix}") from None
    except (OperationalError, ProgrammingError) as error:
        fix = "see that the server runs, and that the user may create tables there"
        if shown.startswith("sqlite"):
            fix = "see that its folder is there and can be written"
        raise StoreError(f"DATABASE_URL {shown}: {_first_line(error.orig or error)}; {fix}") from None
    return Store(engine)


def _engine(url: sa.URL) -> sa.Engine:
    backend = url.get_backend_name()
    if backend not in _DRIVERS:
        raise ArgumentError(f"{backend} is not supported")
    url = url.set(drivername=_DRIVERS[backend])
    if backend == "postgresql":
        # Only here, because it comes with an extra.
        import psycopg  # noqa: PLC0415

        return sa.create_engine(
            url, module=psycopg, pool_pre_ping=True, pool_size=8, max_overflow=8, pool_timeout=BUSY_S
        )
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_S}, pool_size=8, max_overflow=24, pool_timeout=BUSY_S)
    sa.event.listen(engine, "connect", _set_up_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver would begin transactions late, and so upgrade locks
    # Heeded in a new file only.
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL").close()
    _change_to_wal(connection)
    for pragma in (
        f"wal_autocheckpoint={_LOG_PAGES}",
        f"busy_timeout={BUSY_S * 1000}",
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {pragma}").close()


@retry(retry=retry_if_exception(_is_busy), wait=wait_fixed(0.05), stop=stop_after_delay(BUSY_S), reraise=True)
def _change_to_wal(connection: Any) -> None:
    """The first process that opens a new file changes it; SQLite does not wait for another that changes it too."""
    connection.execute("PRAGMA journal_mode=WAL").close()


def _begin_sqlite(connection: sa.Connection) -> None:
    options = connection.get_execution_options()
    if options.get("only_reads"):
        connection.exec_driver_sql("BEGIN")
        return
    # FULL: a delivery that we have confirmed must survive a power cut; GitHub does not send it again.
    connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if options.get('lasting', True) else 'NORMAL'}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _migrate(engine: sa.Engine) -> None:
    """Apply the missing migrations, one process after the other."""
    wanted = steps(engine.dialect.name)
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATING)))
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL PRIMARY KEY)")
        have = connection.scalar(sa.select(sa.func.max(versions.c.version))) or 0
        if have > len(wanted):
            shown = _without_password(str(engine.url))
            what = f"its tables are of version {have}, and this program knows {len(wanted)}"
            raise StoreError(
                f"DATABASE_URL {shown}: {what}; start the newer version of verl-e2e, or use another database"
            )
        for number, statements in enumerate(wanted[have:], have + 1):
            for statement in statements:
                if isinstance(statement, str):
                    connection.exec_driver_sql(statement)
                else:
                    statement(connection)
            connection.execute(versions.insert().values(version=number))


def _without_password(url: str) -> str:
    try:
        return sa.make_url(url).set(query={}).render_as_string(hide_password=True)
    except ArgumentError:
        return "(not a URL)"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
