"""The Ledger port on tables: entries that are only ever added, runs, and what was posted."""

import json
from functools import lru_cache

import sqlalchemy as sa

from verl_e2e.adapters.store.database import Bookkeeping, Store
from verl_e2e.adapters.store.schema import entries, heads, instant, merge_groups, posted, read_instant, runs
from verl_e2e.core.pulls.ledger import Approval, Override, Posted, RecordedCommand, Run
from verl_e2e.core.pulls.pull import MergeGroup, PullRef

_KINDS: dict[str, type[RecordedCommand] | type[Approval] | type[Override]] = {
    "asked": RecordedCommand,
    "approval": Approval,
    "override": Override,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class SqlLedger:
    """What the bot remembers, in a database; see `verl_e2e.ports.Ledger`. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # Held while a list among what was posted is read and changed.
        self.bookkeeping = Bookkeeping(store)

    def add(self, entry: RecordedCommand | Approval | Override) -> bool:
        """Append an entry; false when one of its kind with this source is there already for the pull request."""
        row = {
            "kind": _NAMES[type(entry)],
            "repository": entry.repository,
            "number": entry.number,
            "source": entry.source,
            "document": entry.model_dump_json(),
        }
        with self._store.write() as connection:
            new = self._store.insert(entries).values(row).on_conflict_do_nothing().returning(entries.c.seq)
            return connection.scalar(new) is not None

    def entries(self, repository: str, number: int) -> tuple[RecordedCommand | Approval | Override, ...]:
        """All entries of a pull request in the order in which they were added."""
        wanted = sa.select(entries.c.kind, entries.c.document).order_by(entries.c.seq)
        wanted = wanted.where(entries.c.repository == repository, entries.c.number == number)
        with self._store.read() as connection:
            return tuple(_KINDS[row.kind].model_validate_json(row.document) for row in connection.execute(wanted))

    def put_run(self, run: Run) -> Run:
        """Insert or replace a run by its key; a final state is never left again. Gives what is kept."""
        row = {
            "key": run.key,
            "repository": run.repository,
            "number": run.number,
            "head_sha": run.head_sha,
            "final": run.state.final,
            "created": instant(run.created),
            "document": run.model_dump_json(),
        }
        put = self._store.insert(runs).values(row)
        # The order stays that of the first writing, whatever the document says of its creation later.
        changed = {name: put.excluded[name] for name in ("final", "document")}
        put = put.on_conflict_do_update(index_elements=[runs.c.key], set_=changed, where=sa.not_(runs.c.final))
        with self._store.write() as connection:
            connection.execute(put)
            kept = connection.scalar(sa.select(runs.c.document).where(runs.c.key == run.key))
        return Run.model_validate_json(str(kept))

    def runs(self, repository: str, *, number: int | None = None, head_sha: str = "") -> tuple[Run, ...]:
        """The runs of a pull request, of a head, or of the repository, oldest first."""
        wanted = sa.select(runs.c.document).where(runs.c.repository == repository)
        if number is not None:
            wanted = wanted.where(runs.c.number == number)
        if head_sha:
            wanted = wanted.where(runs.c.head_sha == head_sha)
        return self._runs(wanted)

    def open_runs(self) -> tuple[Run, ...]:
        """The runs of every repository that are not over yet, oldest first."""
        return self._runs(sa.select(runs.c.document).where(sa.not_(runs.c.final)))

    def open_count(self) -> int:
        """How many runs are not over yet."""
        with self._store.read() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(runs).where(sa.not_(runs.c.final))) or 0

    def run_by_handle(self, repository: str, handle: str) -> Run | None:
        """The run that the back end calls so and that is not over yet."""
        wanted = sa.select(runs.c.document).where(runs.c.repository == repository, sa.not_(runs.c.final))
        return next((run for run in self._runs(wanted) if run.handle == handle), None)

    def put_group(self, group: MergeGroup) -> None:
        """Remember a merge group by its head; the first `since` stays, and `destroyed` once it is true."""
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
        """The merge group of a head."""
        same = (merge_groups.c.repository == repository, merge_groups.c.head_sha == head_sha)
        with self._store.read() as connection:
            row = connection.execute(sa.select(merge_groups).where(*same)).one_or_none()
        if row is None:
            return None
        since = read_instant(row.since) if row.since else None
        pulls = tuple(json.loads(row.pulls))
        return MergeGroup(repository, row.base_branch, row.base_sha, head_sha, pulls, since, destroyed=row.destroyed)

    def put_head(self, ref: PullRef, head_sha: str) -> None:
        """This pull request has, or had, this head."""
        row = {"repository": ref.repository, "head_sha": head_sha, "number": ref.number}
        if ref not in self.pulls_with(ref.repository, head_sha):
            with self._store.write() as connection:
                connection.execute(self._store.insert(heads).values(row).on_conflict_do_nothing())

    def pulls_with(self, repository: str, head_sha: str) -> tuple[PullRef, ...]:
        """Every pull request that was ever seen with a head, the newest first."""
        wanted = sa.select(heads.c.number).where(heads.c.repository == repository, heads.c.head_sha == head_sha)
        with self._store.read() as connection:
            return tuple(PullRef(repository, number) for number in connection.scalars(wanted.order_by(-heads.c.number)))

    def posted(self, repository: str, kind: str, subject: str) -> Posted | None:
        """What was posted for a subject."""
        same = (posted.c.repository == repository, posted.c.kind == kind, posted.c.subject == subject)
        with self._store.read() as connection:
            document = connection.scalar(sa.select(posted.c.document).where(*same))
        return None if document is None else Posted.model_validate_json(document)

    def put_posted(self, posted_now: Posted) -> None:
        """Remember what was posted."""
        row = {
            "repository": posted_now.repository,
            "kind": posted_now.kind,
            "subject": posted_now.subject,
            "document": posted_now.model_dump_json(),
        }
        put = self._store.insert(posted).values(row)
        keys = [posted.c.repository, posted.c.kind, posted.c.subject]
        put = put.on_conflict_do_update(index_elements=keys, set_={"document": put.excluded.document})
        with self._store.write() as connection:
            connection.execute(put)

    def _runs(self, wanted: sa.Select[str]) -> tuple[Run, ...]:
        ordered = wanted.order_by(runs.c.created, runs.c.seq)
        with self._store.read() as connection:
            return tuple(_read_run(document) for document in connection.scalars(ordered))


@lru_cache(maxsize=4096)
def _read_run(document: str) -> Run:
    """A run from its row; the same rows are read with every look, and hardly one of them changed."""
    return Run.model_validate_json(document)
