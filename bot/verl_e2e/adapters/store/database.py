"""The tables, and a database that is open: SQLite by default, PostgreSQL by URL, the same statements on both.

One process at a time works on a database, the active one. On SQLite it holds a lock on a file, and a second process
does not start. On PostgreSQL it holds an advisory lock of its session; a second process stands by, and takes over when
the session of the first has ended.
"""

import fcntl
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, SQLAlchemyError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from verl_e2e.core.model.errors import UserError

# The version of the tables below, written into the database: raise it with every change of them.
SCHEMA_VERSION = 11
# Below the 10 s that GitHub waits for an answer, so that a locked database is an error and not a silence.
BUSY_S = 5
# SQLite's log is copied into its file this often while the worker works, and at the latest at 64 MiB.
_WRITE_BACK_S, _LOG_PAGES = 1.0, 16384
# Keys of PostgreSQL's advisory locks: while the tables are made, and of the active process.
_CREATING, _WORKING = 0x7665726C, 0x7665726D
# The server ends the session of an active process whose host is gone after this idle time and so many probes, in s.
_LOST_HOST = ("tcp_keepalives_idle = 3", "tcp_keepalives_interval = 1", "tcp_keepalives_count = 3")
_DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg"}

metadata = sa.MetaData()


def instant(at: datetime) -> str:
    """An instant as it is kept: UTC, `2026-11-20T19:00:00.000000Z`; of one length, so texts sort as instants do."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def read_instant(text: str) -> datetime:
    """The instant that `instant` wrote."""
    return datetime.fromisoformat(text)


deliveries = sa.Table(
    "deliveries",
    metadata,
    sa.Column("seq", sa.Integer, sa.Identity(always=True), primary_key=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("received", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("due", sa.Text, nullable=False),
    sa.Column("problem", sa.Text, nullable=False),
    # The process that took the row and works on it, empty where none does.
    sa.Column("owner", sa.Text, nullable=False, default=""),
    sa.UniqueConstraint("id"),
    sqlite_autoincrement=True,
)
entries = sa.Table(
    "entries",
    metadata,
    sa.Column("seq", sa.Integer, sa.Identity(always=True), primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("repository", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    # The verb of a command, empty for other entries.
    sa.Column("verb", sa.Text, nullable=False, default=""),
    sa.UniqueConstraint("repository", "number", "kind", "source"),
    sqlite_autoincrement=True,
)
runs = sa.Table(
    "runs",
    metadata,
    sa.Column("seq", sa.Integer, sa.Identity(always=True), primary_key=True),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("repository", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=True),
    sa.Column("head_sha", sa.Text, nullable=False),
    sa.Column("final", sa.Boolean, nullable=False),
    sa.Column("created", sa.Text, nullable=False),
    # The run in one line, and what a history counts it by: before its long document, which SQLite need not read then.
    sa.Column("line", sa.Text, nullable=False),
    sa.Column("result", sa.Text, nullable=False),
    sa.Column("level", sa.Integer, nullable=True),
    sa.Column("family", sa.Text, nullable=False),
    sa.Column("causes", sa.Text, nullable=False),
    sa.Column("gpu_minutes", sa.Float, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("reuse_key", sa.Text, nullable=False, default=""),
    # Whether it waits in our own queue, and the run in short; see `verl_e2e.adapters.store.ledger`.
    sa.Column("waiting", sa.Boolean, nullable=False, default=False),
    sa.Column("brief", sa.Text, nullable=False, default=""),
    sa.UniqueConstraint("key"),
    sqlite_autoincrement=True,
)
notes = sa.Table(
    "notes",
    metadata,
    sa.Column("repository", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("document", sa.Text, nullable=False),
)
# A merge group by its head: when the queue first asked, and whether it gave the group up.
merge_groups = sa.Table(
    "merge_groups",
    metadata,
    sa.Column("repository", sa.Text, primary_key=True),
    sa.Column("head_sha", sa.Text, primary_key=True),
    sa.Column("base_branch", sa.Text, nullable=False),
    sa.Column("base_sha", sa.Text, nullable=False),
    sa.Column("pulls", sa.Text, nullable=False),
    sa.Column("since", sa.Text, nullable=False),
    sa.Column("destroyed", sa.Boolean, nullable=False),
)
# The pull requests that were ever seen with a head.
heads = sa.Table(
    "heads",
    metadata,
    sa.Column("repository", sa.Text, primary_key=True),
    sa.Column("head_sha", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    # Whether it was the head when the pull request was last looked at.
    sa.Column("newest", sa.Boolean, nullable=False, default=True),
)
# A target is wanted while `asked` is ahead of `done`; `touched` is when something last happened to it, `finished` when
# it was last looked at.
targets = sa.Table(
    "targets",
    metadata,
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("asked", sa.Integer, nullable=False),
    sa.Column("done", sa.Integer, nullable=False),
    sa.Column("since", sa.Text, nullable=False),
    sa.Column("touched", sa.Text, nullable=False),
    sa.Column("finished", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("due", sa.Text, nullable=False),
    sa.Column("problem", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False, default=""),
)
outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("seq", sa.Integer, sa.Identity(always=True), primary_key=True),
    sa.Column("repository", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("lane", sa.Text, nullable=False),
    sa.Column("person", sa.Boolean, nullable=False),
    # The login of who is answered, in lower case; empty where that is not known.
    sa.Column("reader", sa.Text, nullable=False, default=""),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("created", sa.Text, nullable=False),
    sa.Column("due", sa.Text, nullable=False),
    sa.Column("problem", sa.Text, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False, default=""),
    sa.UniqueConstraint("repository", "subject"),
    sqlite_autoincrement=True,
)
# The conditions of the partial indexes, word for word: SQLite uses such an index only where a query repeats its
# condition, and takes no parameter for it. Of two indexes that cost the same it takes the one made first, and
# SQLAlchemy makes those of a table in no fixed order; so the index of open runs has the column of its condition too.
IS_OPEN = sa.text("runs.final = false")
WAITS = sa.text("runs.waiting")
HAS_REUSE_KEY = sa.text("runs.reuse_key <> ''")
IS_SWITCH = sa.text("entries.verb IN ('pause', 'resume')")
IS_OVERRIDE = sa.text("entries.kind = 'override'")
versions = sa.Table("schema_version", metadata, sa.Column("version", sa.Integer, primary_key=True))


def _index(name: str, *columns: sa.Column[Any], where: str = "") -> None:
    condition = sa.text(where) if where else None
    sa.Index(name, *columns, sqlite_where=condition, postgresql_where=condition)


_index("deliveries_waiting", deliveries.c.due, where="state = 'waiting'")
_index("entries_switches", entries.c.repository, entries.c.seq, where="verb IN ('pause', 'resume')")
_index("entries_overrides", entries.c.repository, entries.c.seq, where="kind = 'override'")
_index("heads_of_pull", heads.c.repository, heads.c.number)
_index("outbox_waiting", outbox.c.due, where="state = 'waiting'")
_index("outbox_lane", outbox.c.lane, outbox.c.created)
_index("runs_of_pull", runs.c.repository, runs.c.number)
_index("runs_of_head", runs.c.repository, runs.c.head_sha)
_index("runs_open", runs.c.repository, runs.c.final, where="final = false")
_index("runs_of_code", runs.c.repository, runs.c.reuse_key, where="reuse_key <> ''")
_index("runs_waiting", runs.c.seq, where="waiting")
_index("runs_recent", runs.c.created)
_index("targets_wanted", targets.c.due, where="asked > done")
_APPEND_ONLY = {
    "sqlite": (
        """CREATE TRIGGER entries_update BEFORE UPDATE ON entries
        BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END""",
        """CREATE TRIGGER entries_delete BEFORE DELETE ON entries
        BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END""",
    ),
    "postgresql": (
        """CREATE FUNCTION entries_append_only() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'entries are append-only'; END $$""",
        """CREATE TRIGGER entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON entries
        FOR EACH STATEMENT EXECUTE FUNCTION entries_append_only()""",
    ),
}
# The tables whose rows a process takes, by the key of a row.
_KEYS: Mapping[sa.Table, sa.Column[Any]] = {
    deliveries: deliveries.c.id,
    outbox: outbox.c.seq,
    targets: targets.c.target,
}


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
        self._held = ExitStack()
        # What makes this process the active one: a lock on a file, or the session that has PostgreSQL's lock.
        self._has_lock = False
        self._session: sa.Connection | None = None
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

    def is_active(self) -> bool:
        """Whether this process is the active one; it becomes that where no other is.

        It stays so until `close` or its end, on PostgreSQL also until its session is lost: the call that finds that out
        gives false, and the next one may make it active again. Raises while the database is away.
        """
        if self.dialect == "sqlite":
            self._has_lock = self._has_lock or self.hold(Path(f"{self._engine.url.database}.lock"))
            return self._has_lock
        if self._session is not None:
            try:
                self._session.scalar(sa.select(1))
            except SQLAlchemyError:
                self._session.invalidate()
                self._session.close()
                self._session = None
            return self._session is not None
        session = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        for setting in _LOST_HOST:
            session.exec_driver_sql(f"SET {setting}")
        if not session.scalar(sa.select(sa.func.pg_try_advisory_lock(_WORKING))):
            session.close()
            return False
        self._session = session
        return True

    def free_rows(self, delivery_ids: Collection[str], letters: Collection[int], wanted: Collection[str]) -> None:
        """Free every row that a process took, but for these of our own.

        For the active process: what others took was cut off by their end, and an answer that was lost with a connection
        leaves rows of our own that no one works on.
        """
        held: Mapping[sa.Table, Collection[Any]] = {deliveries: delivery_ids, outbox: letters, targets: wanted}
        with self.write(lasting=False) as connection:
            for table, key in _KEYS.items():
                kept = sa.and_(table.c.owner == self.owner, key.in_(held[table]))
                free = sa.update(table).where(table.c.owner != "", sa.not_(kept))
                connection.execute(free.values(owner=""))

    def take_rows(
        self, wanted: sa.Select[Any], table: sa.Table, changes: Mapping[str, Any] | None = None
    ) -> list[sa.Row[Any]]:
        """The rows that a query finds and that no process took, taken by this one from now on.

        They are given as they were before `changes`.
        """
        key, free = _KEYS[table], wanted.where(table.c.owner == "")
        with self.read() as connection:
            if connection.execute(free.with_only_columns(key).limit(1)).first() is None:
                return []
        with self.write(lasting=False) as connection:
            rows = list(connection.execute(free.with_for_update(skip_locked=True)))
            keys = [row._mapping[key] for row in rows]
            connection.execute(sa.update(table).where(key.in_(keys)).values({"owner": self.owner, **(changes or {})}))
        return rows

    def hold(self, file: Path) -> bool:
        """Lock a file until `close` or the end of the process; false when another process holds it."""
        descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._held.callback(os.close, descriptor)
        return True

    def close(self) -> None:
        """Give all connections back."""
        self._held.close()
        if self._session is not None:
            # The server ends a closed session, and with it the lock, in its own time.
            with suppress(SQLAlchemyError):
                self._session.scalar(sa.select(sa.func.pg_advisory_unlock(_WORKING)))
            self._session.close()
        self._engine.dispose()


def open_store(url: str) -> Store:
    """Open the database of a URL, and make its tables where it has none. Raises StoreError."""
    try:
        shown = sa.make_url(url).set(query={}).render_as_string(hide_password=True)
    except ArgumentError:
        shown = "(not a URL)"
    try:
        engine = _engine(sa.make_url(url))
        try:
            _make_tables(engine, shown)
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
    except DatabaseError as error:
        fix = "see that the server runs, and that the user may create tables there"
        if shown.startswith("sqlite"):
            fix = "see that its folder is there and can be written, or name an empty database"
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

        # A server that does not answer is an error in a bounded time.
        bounds = {"connect_timeout": BUSY_S, "tcp_user_timeout": BUSY_S * 1000}
        return sa.create_engine(
            url,
            module=psycopg,
            connect_args=bounds,
            pool_pre_ping=True,
            pool_size=8,
            max_overflow=8,
            pool_timeout=BUSY_S,
        )
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_S}, pool_size=8, max_overflow=24, pool_timeout=BUSY_S)
    sa.event.listen(engine, "connect", _set_up_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver would begin transactions late, and so upgrade locks
    # Heeded in a new file only.
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL").close()
    # The first process that opens a new file changes it; SQLite does not wait for another that changes it too.
    for attempt in Retrying(
        retry=retry_if_exception(
            lambda error: isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY
        ),
        wait=wait_fixed(0.05),
        stop=stop_after_delay(BUSY_S),
        reraise=True,
    ):
        with attempt:
            connection.execute("PRAGMA journal_mode=WAL").close()
    for pragma in (f"wal_autocheckpoint={_LOG_PAGES}", f"busy_timeout={BUSY_S * 1000}", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: sa.Connection) -> None:
    options = connection.get_execution_options()
    if options.get("only_reads"):
        connection.exec_driver_sql("BEGIN")
        return
    # FULL: a delivery that we have confirmed must survive a power cut; GitHub does not send it again.
    connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if options.get('lasting', True) else 'NORMAL'}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _make_tables(engine: sa.Engine, shown: str) -> None:
    """Make the tables of an empty database, one process after the other; StoreError for those of another version."""
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATING)))
        there = {*sa.inspect(connection).get_table_names()} & metadata.tables.keys()
        if not there:
            metadata.create_all(connection, checkfirst=False)
            for statement in _APPEND_ONLY[engine.dialect.name]:
                connection.exec_driver_sql(statement)
            connection.execute(versions.insert().values(version=SCHEMA_VERSION))
        known = versions.name in there or not there
        have = connection.scalar(sa.select(sa.func.max(versions.c.version))) if known else None
    if have is None:
        what = "it holds tables of these names that another program made"
        raise StoreError(f"DATABASE_URL {shown}: {what}; name an empty database")
    if have != SCHEMA_VERSION:
        what = f"its tables are of version {have}, and this verl-e2e has version {SCHEMA_VERSION}"
        raise StoreError(f"DATABASE_URL {shown}: {what}; name an empty database, or start the verl-e2e that made it")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
