"""The tables, and the numbered steps by which a database of any earlier version becomes one of this version.

A step is never edited once it was released: a change of the tables is a new step.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import sqlalchemy as sa

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
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("received", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("due", sa.Text, nullable=False),
    sa.Column("problem", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False, default=""),
)
entries = sa.Table(
    "entries",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("repository", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    # The verb of a command, empty for other entries and for those of earlier versions.
    sa.Column("verb", sa.Text, nullable=False, default=""),
)
runs = sa.Table(
    "runs",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("repository", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=True),
    sa.Column("head_sha", sa.Text, nullable=False),
    sa.Column("final", sa.Boolean, nullable=False),
    sa.Column("created", sa.Text, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("reuse_key", sa.Text, nullable=False, default=""),
    # Whether it waits in our own queue, and the run in short; see `verl_e2e.adapters.store.queue`.
    sa.Column("waiting", sa.Boolean, nullable=False, default=False),
    sa.Column("brief", sa.Text, nullable=False, default=""),
)
posted = sa.Table(
    "posted",
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
    sa.Column("seq", sa.Integer, primary_key=True),
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
)
# The processes that work on this database; see `verl_e2e.adapters.store.leases`.
bots = sa.Table(
    "bots",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("beats", sa.Integer, nullable=False),
)
# The conditions of the partial indexes, word for word: SQLite uses such an index only where a query repeats its
# condition, and takes neither a parameter nor `final = 0` for it.
IS_OPEN = sa.text("NOT runs.final")
WAITS = sa.text("runs.waiting")
HAS_REUSE_KEY = sa.text("runs.reuse_key <> ''")
IS_SWITCH = sa.text("entries.verb IN ('pause', 'resume')")
versions = sa.Table("schema_version", metadata, sa.Column("version", sa.Integer, primary_key=True))

_TABLES = (
    """CREATE TABLE deliveries (seq {serial}, id TEXT NOT NULL UNIQUE, event TEXT NOT NULL, body {bytes} NOT NULL,
    received TEXT NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL, due TEXT NOT NULL,
    problem TEXT NOT NULL)""",
    "CREATE INDEX deliveries_waiting ON deliveries (due) WHERE state = 'waiting'",
    """CREATE TABLE entries (seq {serial}, kind TEXT NOT NULL, repository TEXT NOT NULL, number INTEGER NOT NULL,
    source TEXT NOT NULL, document TEXT NOT NULL, UNIQUE (repository, number, kind, source))""",
    """CREATE TABLE runs (seq {serial}, key TEXT NOT NULL UNIQUE, repository TEXT NOT NULL, number INTEGER,
    head_sha TEXT NOT NULL, final BOOLEAN NOT NULL, created TEXT NOT NULL, document TEXT NOT NULL)""",
    "CREATE INDEX runs_of_pull ON runs (repository, number)",
    "CREATE INDEX runs_of_head ON runs (repository, head_sha)",
    "CREATE INDEX runs_open ON runs (repository) WHERE NOT final",
    """CREATE TABLE posted (repository TEXT NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL,
    document TEXT NOT NULL, PRIMARY KEY (repository, kind, subject))""",
    """CREATE TABLE targets (target TEXT NOT NULL PRIMARY KEY, asked INTEGER NOT NULL, done INTEGER NOT NULL,
    since TEXT NOT NULL, touched TEXT NOT NULL, finished TEXT NOT NULL, attempts INTEGER NOT NULL, due TEXT NOT NULL,
    problem TEXT NOT NULL)""",
    "CREATE INDEX targets_wanted ON targets (due) WHERE asked > done",
)
_OUTBOX = (
    """CREATE TABLE outbox (seq {serial}, repository TEXT NOT NULL, subject TEXT NOT NULL, lane TEXT NOT NULL,
    person BOOLEAN NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL, created TEXT NOT NULL, due TEXT NOT NULL,
    problem TEXT NOT NULL, document TEXT NOT NULL, UNIQUE (repository, subject))""",
    "CREATE INDEX outbox_waiting ON outbox (due) WHERE state = 'waiting'",
    "CREATE INDEX outbox_lane ON outbox (lane, created)",
)
_LEASES = (
    "CREATE TABLE bots (name TEXT NOT NULL PRIMARY KEY, beats INTEGER NOT NULL)",
    *(
        statement
        for table in ("deliveries", "outbox", "targets")
        for statement in (
            f"ALTER TABLE {table} ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
            f"CREATE INDEX {table}_owned ON {table} (owner) WHERE owner <> ''",
        )
    ),
)
_GROUPS_AND_HEADS = (
    """CREATE TABLE merge_groups (repository TEXT NOT NULL, head_sha TEXT NOT NULL, base_branch TEXT NOT NULL,
    base_sha TEXT NOT NULL, pulls TEXT NOT NULL, since TEXT NOT NULL, destroyed BOOLEAN NOT NULL,
    PRIMARY KEY (repository, head_sha))""",
    """CREATE TABLE heads (repository TEXT NOT NULL, head_sha TEXT NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (repository, head_sha, number))""",
)
_REUSE = (
    "ALTER TABLE runs ADD COLUMN reuse_key TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX runs_of_code ON runs (repository, reuse_key) WHERE reuse_key <> ''",
)
_QUEUE = (
    "ALTER TABLE runs ADD COLUMN waiting BOOLEAN NOT NULL DEFAULT FALSE",
    "ALTER TABLE runs ADD COLUMN brief TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX runs_waiting ON runs (seq) WHERE waiting",
    "CREATE INDEX runs_recent ON runs (created)",
    "ALTER TABLE entries ADD COLUMN verb TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX entries_switches ON entries (repository, seq) WHERE verb IN ('pause', 'resume')",
)
_NEWEST_HEADS = (
    "ALTER TABLE heads ADD COLUMN newest BOOLEAN NOT NULL DEFAULT TRUE",
    "CREATE INDEX heads_of_pull ON heads (repository, number)",
)
_READERS = ("ALTER TABLE outbox ADD COLUMN reader TEXT NOT NULL DEFAULT ''",)
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
_TYPES: Mapping[str, Mapping[str, str]] = {
    "sqlite": {"serial": "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT", "bytes": "BLOB"},
    "postgresql": {"serial": "INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "bytes": "BYTEA"},
}


Step = Sequence[str | Callable[[sa.Connection], None]]


def steps(dialect: str) -> Sequence[Step]:
    """What each step does in order; version n is reached after the first n of them."""
    types = _TYPES[dialect]
    first = (*(statement.format_map(types) for statement in _TABLES), *_APPEND_ONLY[dialect])
    outbox_step = tuple(statement.format_map(types) for statement in _OUTBOX)
    groups = (*_GROUPS_AND_HEADS, _move_groups_and_heads)
    return first, outbox_step, _LEASES, groups, _REUSE, _QUEUE, _NEWEST_HEADS, _READERS


def _move_groups_and_heads(connection: sa.Connection) -> None:
    """They lay as JSON in the digest of what was posted."""
    moved = posted.c.kind.in_(("group", "group-end", "head"))
    rows = connection.execute(sa.select(posted.c.kind, posted.c.document).where(moved)).all()
    documents = [(row.kind, json.loads(row.document)) for row in rows]
    ended = {(kept["repository"], kept["subject"]) for kind, kept in documents if kind == "group-end"}
    for kind, kept in documents:
        place = {"repository": kept["repository"], "head_sha": kept["subject"].partition(":")[0]}
        if kind == "head":
            for number in json.loads(kept["digest"]):
                # The column that a later step adds is not there yet.
                row = {**place, "number": int(number)}
                connection.execute(sa.insert(sa.table("heads", *map(sa.column, row))).values(row))
        elif kind == "group":
            group = json.loads(kept["digest"])
            values = {name: group[name] for name in ("base_branch", "base_sha")}
            values |= {"pulls": json.dumps(group["pulls"]), "since": instant(datetime.fromisoformat(kept["at"]))}
            destroyed = tuple(place.values()) in ended
            connection.execute(sa.insert(merge_groups).values(**place, **values, destroyed=destroyed))
    connection.execute(sa.delete(posted).where(moved))
