"""The Ledger port on tables: entries that are only ever added, runs, and notes."""

import json
from collections.abc import Callable, Collection
from datetime import datetime
from functools import lru_cache
from typing import TypeVar

import sqlalchemy as sa

from verl_e2e.adapters.store.database import (
    HAS_REUSE_KEY,
    IS_OPEN,
    IS_SWITCH,
    WAITS,
    Store,
    entries,
    heads,
    instant,
    merge_groups,
    notes,
    read_instant,
    runs,
)
from verl_e2e.core.pulls.forge import MergeGroup, PullRef
from verl_e2e.core.pulls.ledger import Approval, Note, Override, RecordedCommand, Run, kind_of
from verl_e2e.core.pulls.queue import QueueEntry, QueueSnapshot, entry_of
from verl_e2e.core.pulls.run_lines import counted_result, line_of
from verl_e2e.ports import RunWatcher

_KINDS: dict[str, type[RecordedCommand] | type[Approval] | type[Override]] = {
    "asked": RecordedCommand,
    "approval": Approval,
    "override": Override,
}
# PostgreSQL's advisory lock of a decision, so that two threads decide one after the other.
_DECIDING = 0x7665726F
# More than any cluster runs at once.
_MOST = 20_000
_NAMES = {kind: name for name, kind in _KINDS.items()}


_AnyKind = TypeVar("_AnyKind", bound=Note)


class SqlLedger:
    """What the bot remembers, in a database; see `verl_e2e.ports.Ledger`. Safe to use from several threads."""

    def __init__(self, store: Store, watcher: RunWatcher | None = None) -> None:
        self._store, self._watcher = store, watcher

    def add(self, entry: RecordedCommand | Approval | Override) -> bool:
        """Append an entry; false when one of its kind with this source is there already for the pull request."""
        row = {
            "kind": _NAMES[type(entry)],
            "repository": entry.repository,
            "number": entry.number,
            "source": entry.source,
            "document": entry.model_dump_json(),
            "verb": entry.verb if isinstance(entry, RecordedCommand) else "",
        }
        with self._store.write() as connection:
            new = self._store.insert(entries).values(row).on_conflict_do_nothing().returning(entries.c.seq)
            return connection.scalar(new) is not None

    def entries(self, repository: str, number: int) -> tuple[RecordedCommand | Approval | Override, ...]:
        wanted = sa.select(entries.c.kind, entries.c.document).order_by(entries.c.seq)
        wanted = wanted.where(entries.c.repository == repository, entries.c.number == number)
        with self._store.read() as connection:
            return tuple(_KINDS[row.kind].model_validate_json(row.document) for row in connection.execute(wanted))

    def put_run(self, run: Run) -> Run:
        return self._put_run(run, replaces=True)

    def add_run(self, run: Run) -> Run:
        return self._put_run(run, replaces=False)

    def _put_run(self, run: Run, *, replaces: bool) -> Run:
        short = short_of(run)
        row = {
            "key": run.key,
            "repository": run.repository,
            "number": run.number,
            "head_sha": run.head_sha,
            "final": run.state.final,
            "created": instant(run.created),
            "document": run.model_dump_json(),
            "reuse_key": run.reuse_key,
            **short,
        }
        put = self._store.insert(runs).values(row)
        # The order stays that of the first writing, whatever the document says of its creation later.
        changed = {name: put.excluded[name] for name in ("final", "document", *short)}
        if replaces:
            put = put.on_conflict_do_update(index_elements=[runs.c.key], set_=changed, where=sa.not_(runs.c.final))
        else:
            put = put.on_conflict_do_nothing(index_elements=[runs.c.key])
        with self._store.write() as connection:
            was_final = connection.scalar(sa.select(runs.c.final).where(runs.c.key == run.key))
            connection.execute(put)
            kept = Run.model_validate_json(
                str(connection.scalar(sa.select(runs.c.document).where(runs.c.key == run.key)))
            )
        if self._watcher is not None and was_final is None:
            self._watcher.run_ordered(kept)
        if self._watcher is not None and not was_final and kept.state.final:
            self._watcher.run_ended(kept)
        return kept

    def runs(
        self,
        repository: str,
        *,
        number: int | None = None,
        head_sha: str = "",
        reuse_key: str = "",
        newest: int | None = None,
    ) -> tuple[Run, ...]:
        same = runs.c.repository == repository
        # From an index alone, so that no document is read in vain.
        last = sa.select(runs.c.seq).where(same).order_by(runs.c.seq.desc()).limit(newest)
        wanted = sa.select(runs.c.document).where(same if newest is None else runs.c.seq.in_(last))
        if number is not None:
            wanted = wanted.where(runs.c.number == number)
        if head_sha:
            wanted = wanted.where(runs.c.head_sha == head_sha)
        if reuse_key:
            wanted = wanted.where(HAS_REUSE_KEY, runs.c.reuse_key == reuse_key)
        return self._runs(wanted)

    def open_runs(self) -> tuple[Run, ...]:
        return self._runs(sa.select(runs.c.document).where(IS_OPEN))

    def open_count(self) -> int:
        """How many runs the back end has that are not over yet."""
        counted = sa.select(sa.func.count()).select_from(runs).where(IS_OPEN, sa.not_(runs.c.waiting))
        with self._store.read() as connection:
            return connection.scalar(counted) or 0

    def has_waiting(self) -> bool:
        with self._store.read() as connection:
            return connection.scalar(sa.select(runs.c.seq).where(WAITS).limit(1)) is not None

    def snapshot(self) -> QueueSnapshot:
        with self._store.read() as connection:
            return _snapshot(connection)

    def switches(self, repository: str) -> tuple[RecordedCommand, ...]:
        with self._store.read() as connection:
            return _switches(connection, entries.c.repository == repository)

    def give_slots(self, decide: Callable[[QueueSnapshot], Collection[str]], now: datetime) -> tuple[Run, ...]:
        """Let the runs start that a decision names, in one transaction; gives those that waited until now.

        When this process is killed meanwhile, or loses the database, no run got a slot.
        """
        # Whether anything starts is found out without a lock that others would wait for.
        if not decide(self.snapshot()):
            return ()
        with self._store.write() as connection:
            if self._store.dialect == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_DECIDING)))
            chosen = decide(_snapshot(connection))
            wanted = sa.select(runs.c.document).where(runs.c.key.in_(chosen), runs.c.waiting, sa.not_(runs.c.final))
            found = [Run.model_validate_json(document) for document in connection.scalars(wanted.with_for_update())]
            started = [run.let_start(now) for run in found]
            for run in started:
                values = {"document": run.model_dump_json(), **short_of(run)}
                connection.execute(sa.update(runs).where(runs.c.key == run.key).values(values))
        return tuple(started)

    def run_by_handle(self, repository: str, handle: str) -> Run | None:
        wanted = sa.select(runs.c.document).where(runs.c.repository == repository, IS_OPEN)
        return next((run for run in self._runs(wanted) if run.handle == handle), None)

    def put_group(self, group: MergeGroup) -> None:
        row = {
            "repository": group.repository,
            "head_sha": group.head_sha,
            "base_branch": group.base_branch,
            "base_sha": group.base_sha,
            "pulls": json.dumps(group.pulls),
            "since": instant(group.since) if group.since else "",
            "destroyed": group.destroyed,
        }
        put = self._store.insert(merge_groups).values(row)
        ended = {"destroyed": sa.or_(merge_groups.c.destroyed, put.excluded.destroyed)}
        keys = [merge_groups.c.repository, merge_groups.c.head_sha]
        with self._store.write() as connection:
            connection.execute(put.on_conflict_do_update(index_elements=keys, set_=ended))

    def group(self, repository: str, head_sha: str) -> MergeGroup | None:
        same = (merge_groups.c.repository == repository, merge_groups.c.head_sha == head_sha)
        with self._store.read() as connection:
            row = connection.execute(sa.select(merge_groups).where(*same)).one_or_none()
        if row is None:
            return None
        since = read_instant(row.since) if row.since else None
        pulls = tuple(json.loads(row.pulls))
        return MergeGroup(repository, row.base_branch, row.base_sha, head_sha, pulls, since, destroyed=row.destroyed)

    def put_head(self, ref: PullRef, head_sha: str) -> None:
        of_pull = (heads.c.repository == ref.repository, heads.c.number == ref.number)
        with self._store.read() as connection:
            if connection.scalar(sa.select(heads.c.newest).where(*of_pull, heads.c.head_sha == head_sha)):
                return
        row = {"repository": ref.repository, "head_sha": head_sha, "number": ref.number, "newest": True}
        put = self._store.insert(heads).values(row)
        keys = [heads.c.repository, heads.c.head_sha, heads.c.number]
        with self._store.write() as connection:
            connection.execute(sa.update(heads).where(*of_pull).values(newest=False))
            connection.execute(put.on_conflict_do_update(index_elements=keys, set_={"newest": True}))

    def pulls_with(self, repository: str, head_sha: str, *, newest: bool = False) -> tuple[PullRef, ...]:
        wanted = sa.select(heads.c.number).where(heads.c.repository == repository, heads.c.head_sha == head_sha)
        if newest:
            wanted = wanted.where(heads.c.newest)
        with self._store.read() as connection:
            return tuple(PullRef(repository, number) for number in connection.scalars(wanted.order_by(-heads.c.number)))

    def note(self, kind: type[_AnyKind], repository: str, subject: str) -> _AnyKind | None:
        same = (notes.c.repository == repository, notes.c.kind == kind_of(kind), notes.c.subject == subject)
        with self._store.read() as connection:
            document = connection.scalar(sa.select(notes.c.document).where(*same))
        return None if document is None else kind.model_validate_json(document)

    def put_note(self, note: Note) -> None:
        row = {
            "repository": note.repository,
            "kind": kind_of(type(note)),
            "subject": note.subject,
            "document": note.model_dump_json(),
        }
        put = self._store.insert(notes).values(row)
        keys = [notes.c.repository, notes.c.kind, notes.c.subject]
        put = put.on_conflict_do_update(index_elements=keys, set_={"document": put.excluded.document})
        with self._store.write() as connection:
            connection.execute(put)

    def _runs(self, wanted: sa.Select[str]) -> tuple[Run, ...]:
        # Sorted here: for the order SQLite would read the index of all runs instead of that of the open ones.
        with self._store.read() as connection:
            rows = connection.execute(wanted.add_columns(runs.c.created, runs.c.seq)).all()
        return tuple(_read_run(row.document) for row in sorted(rows, key=lambda row: (row.created, row.seq)))


@lru_cache(maxsize=4096)
def _read_run(document: str) -> Run:
    """A run from its row; the same rows are read with every look, and hardly one of them changed."""
    return Run.model_validate_json(document)


def short_of(run: Run) -> dict[str, object]:
    """What the queue and the pages read of a run in the place of its document."""
    return {
        "waiting": run.waits_for_slot,
        "brief": entry_of(run).model_dump_json(),
        "line": line_of(run).model_dump_json(),
        "result": counted_result(run) or "",
        "level": run.job.level.value if run.job and not run.shown else None,
        "family": run.job.family if run.job else "",
        "causes": " ".join(run.causes),
        "gpu_minutes": run.gpu_minutes,
    }


def _snapshot(connection: sa.Connection) -> QueueSnapshot:
    """The runs that are not over."""
    # In their order here: a database that sorts by `seq` would read all that ever ran.
    rows = connection.execute(sa.select(runs.c.seq, runs.c.brief).where(IS_OPEN).limit(_MOST))
    known = (_read_entry(row.brief) for row in sorted(rows, key=lambda row: row.seq))
    return QueueSnapshot(tuple(known), _switches(connection, sa.true()))


def _switches(connection: sa.Connection, where: sa.ColumnElement[bool]) -> tuple[RecordedCommand, ...]:
    # Sorted here: for the order SQLite would read all entries instead of the few in the index of these.
    rows = connection.execute(sa.select(entries.c.seq, entries.c.document).where(IS_SWITCH, where))
    return tuple(_read_switch(row.document) for row in sorted(rows, key=lambda row: row.seq))


@lru_cache(maxsize=2 * _MOST)
def _read_entry(brief: str) -> QueueEntry:
    """An entry from its row; the same rows are read with every decision, and hardly one of them changed."""
    return QueueEntry.model_validate_json(brief)


@lru_cache(maxsize=1024)
def _read_switch(document: str) -> RecordedCommand:
    return RecordedCommand.model_validate_json(document)
