"""The bot's memory where it has no database: read off GitHub each time, and written back there.

Each head has a book, kept in a completed check run of our own App, named `LEDGER_CHECK`: the commands as they were
processed on that head, its runs, and notes, of what was posted for example. An entry that a comment made counts only
while that comment is there, unedited and by the same person. Anyone who may write check runs as the same App may forge
a book; `docs/security.md` says who that is. One process at a time may write for a pull request, which the workflows'
concurrency groups see to.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, TypeVar

from pydantic import AwareDatetime, Field, ValidationError

from verl_e2e.config.action_settings import GITHUB_ACTIONS_APP
from verl_e2e.core.model.document import Document
from verl_e2e.core.model.jobs import Sha
from verl_e2e.core.pulls.forge import MAX_OUTPUT, CheckRun, CheckStatus, Conclusion, MergeGroup, PullRef
from verl_e2e.core.pulls.ledger import AnyNote, Approval, Note, Override, RecordedCommand, Run
from verl_e2e.core.text import packed
from verl_e2e.ports import Checks, Clock, Comment, Conversation, ForgeError, Pulls

LEDGER_CHECK = "verl-e2e / ledger"
_MAX_BOOK_BYTES = 8 * 1024 * 1024
_MOST_HEADS = 20
_SHA_CHARS = 40
_MOST_PROCESSED = 5_000
_SAYS = (
    "What verl-e2e remembers of this commit, for the commands, runs and comments that belong to it. "
    "It is written and read by the program; `text` is compressed JSON."
)
LedgerEntry = RecordedCommand | Approval | Override
_AnyKind = TypeVar("_AnyKind", bound=Note)


class Book(Document):
    """What is remembered of one head."""

    # When we first saw the head.
    opened: AwareDatetime
    # The heads before it, newest first.
    earlier: tuple[Sha, ...] = ()
    # Comments that were processed while this was the head.
    processed: tuple[int, ...] = ()
    entries: tuple[Annotated[LedgerEntry, Field(union_mode="left_to_right")], ...] = ()
    runs: tuple[Run, ...] = ()
    notes: tuple[AnyNote, ...] = ()
    # The merge group that the head was made for, and the pull requests that were seen with it.
    group: MergeGroup | None = None
    pulls: tuple[int, ...] = ()


class DerivedLedger:
    """`verl_e2e.ports.Ledger` without a database. `before` maps a head to the one that it replaced.

    `app_id` is that of the App whose check runs are ours.
    """

    def __init__(
        self,
        checks: Checks,
        conversation: Conversation,
        pulls: Pulls,
        clock: Clock,
        *,
        app_id: int = GITHUB_ACTIONS_APP,
        before: Mapping[str, str] | None = None,
    ) -> None:
        self._checks, self._conversation, self._pulls, self._clock = checks, conversation, pulls, clock
        self._app_id = app_id
        self._before = before or {}
        self._books: dict[tuple[str, str], tuple[int, Book]] = {}
        self._comments: dict[PullRef, tuple[Comment, ...]] = {}
        self._unsaved: set[tuple[str, str]] = set()

    def flush(self) -> None:
        """Write what is still to be written; call it at the end."""
        for repository, head_sha in sorted(self._unsaved):
            self._save(repository, head_sha)

    def add(self, entry: LedgerEntry) -> bool:
        """Append an entry to the book of its head; false when one of its kind with this source is there already."""
        book = self._book(entry.repository, entry.head_sha)
        if any(type(item) is type(entry) and item.source == entry.source for item in book.entries):
            return False
        changed = book.model_copy(update={"entries": (*book.entries, entry)})
        self._keep(entry.repository, entry.head_sha, changed, now=True)
        return True

    def entries(self, repository: str, number: int) -> tuple[LedgerEntry, ...]:
        """The entries of the pull request's heads that still stand, oldest head first."""
        ref = PullRef(repository, number)
        written = [entry for book in self._books_of(ref) for entry in book.entries if entry.number == number]
        if not any(_comment_of(entry.source) for entry in written):
            return tuple(written)
        authors = {
            comment.id: comment.author.lower()
            for comment in self._read_comments(ref)
            if not comment.edited and not self._wrote(comment)
        }
        commented = ((entry, _comment_of(entry.source)) for entry in written)
        return tuple(entry for entry, id_ in commented if not id_ or authors.get(id_, "") == entry.actor.lower())

    def put_run(self, run: Run) -> Run:
        book = self._book(run.repository, run.head_sha)
        runs = {known.key: known for known in book.runs}
        if run.key in runs and runs[run.key].state.final:
            return runs[run.key]
        changed = book.model_copy(update={"runs": tuple({**runs, run.key: run}.values())})
        self._keep(run.repository, run.head_sha, changed, now=True)
        return run

    def add_run(self, run: Run) -> Run:
        known = (known for known in self._book(run.repository, run.head_sha).runs if known.key == run.key)
        return next(known, None) or self.put_run(run)

    def runs(
        self,
        repository: str,
        *,
        number: int | None = None,
        head_sha: str = "",
        reuse_key: str = "",
        newest: int | None = None,
    ) -> tuple[Run, ...]:
        """The runs of a pull request's heads or of one head, oldest first; no one can list those of a repository."""
        if head_sha:
            books: Iterable[Book] = (self._book(repository, head_sha),)
        elif number is not None:
            books = self._books_of(PullRef(repository, number))
        else:
            books = ()
        found = [run for book in books for run in book.runs if number in (None, run.number)]
        found = [run for run in found if reuse_key in ("", run.reuse_key)]
        known = tuple(sorted(found, key=lambda run: run.created))
        return known if newest is None else known[-newest:]

    def run_by_handle(self, repository: str, handle: str) -> Run | None:
        """None: no one can list the runs of a repository."""
        del repository, handle
        return None

    def put_group(self, group: MergeGroup) -> None:
        book = self._book(group.repository, group.head_sha)
        known = book.group or group
        merged = replace(known, destroyed=known.destroyed or group.destroyed)
        self._keep(group.repository, group.head_sha, book.model_copy(update={"group": merged}), now=False)

    def group(self, repository: str, head_sha: str) -> MergeGroup | None:
        return self._book(repository, head_sha).group

    def put_head(self, ref: PullRef, head_sha: str) -> None:
        book = self._book(ref.repository, head_sha)
        if ref.number not in book.pulls:
            changed = book.model_copy(update={"pulls": tuple(sorted((*book.pulls, ref.number), reverse=True))})
            self._keep(ref.repository, head_sha, changed, now=False)

    def pulls_with(self, repository: str, head_sha: str, *, newest: bool = False) -> tuple[PullRef, ...]:
        """Every pull request that was ever seen with a head, the newest first; with `newest` those that have it now."""
        refs = (PullRef(repository, number) for number in self._book(repository, head_sha).pulls)
        return tuple(ref for ref in refs if not newest or self._pulls.pull(ref).head_sha == head_sha)

    def note(self, kind: type[_AnyKind], repository: str, subject: str) -> _AnyKind | None:
        """The note of a kind on a subject, as the book of its head or of a head before has it."""
        newest = self._book(repository, self._head_of(repository, subject))
        for book in (newest, *(self._book(repository, head) for head in newest.earlier)):
            for item in book.notes:
                if isinstance(item, kind) and item.subject == subject:
                    return item
        return None

    def put_note(self, note: Note) -> None:
        """Write a note down in the place of the one of its kind; written with the next change, or at the end."""
        head_sha = self._head_of(note.repository, note.subject)
        book = self._book(note.repository, head_sha)
        others = [item for item in book.notes if (type(item), item.subject) != (type(note), note.subject)]
        changed = book.model_copy(update={"notes": (*others, note)})
        self._keep(note.repository, head_sha, changed, now=False)

    def unprocessed(self, ref: PullRef) -> tuple[Comment, ...]:
        """Comments of others than us, written after we first saw the head as it is now, that no one acted on yet."""
        book = self._book(ref.repository, self._pulls.pull(ref).head_sha)
        known = {*book.processed, *(_comment_of(entry.source) for entry in book.entries)}
        # GitHub's times have whole seconds.
        opened = book.opened.replace(microsecond=0)
        comments = (comment for comment in self._read_comments(ref) if not comment.edited and not self._wrote(comment))
        return tuple(comment for comment in comments if comment.created >= opened and comment.id not in known)

    def hear(self, ref: PullRef, comment_ids: Iterable[int]) -> None:
        head_sha = self._pulls.pull(ref).head_sha
        book = self._book(ref.repository, head_sha)
        processed = tuple(dict.fromkeys((*book.processed, *comment_ids)))[-_MOST_PROCESSED:]
        self._keep(ref.repository, head_sha, book.model_copy(update={"processed": processed}), now=True)

    def _head_of(self, repository: str, subject: str) -> str:
        """The head in whose book a subject stands: `SHA`, `SHA:...`, else that of the pull `NUMBER` or `NUMBER:...`."""
        first = subject.partition(":")[0]
        return first if len(first) == _SHA_CHARS else self._pulls.pull(PullRef(repository, int(first))).head_sha

    def _books_of(self, ref: PullRef) -> list[Book]:
        """The books of the head and of those before it, oldest first."""
        newest = self._book(ref.repository, self._pulls.pull(ref).head_sha)
        earlier = [self._book(ref.repository, head) for head in newest.earlier]
        return [*reversed(earlier), newest]

    def _book(self, repository: str, head_sha: str) -> Book:
        place = (repository, head_sha)
        if place not in self._books:
            ours = (LEDGER_CHECK, self._app_id, _external_id(head_sha))
            listed = self._checks.check_runs(repository, head_sha)
            found = [check for check in listed if (check.name, check.app_id, check.external_id) == ours]
            newest = max(found, key=lambda check: check.id, default=None)
            book = None
            # One that cannot be read is written again.
            with suppress(packed.UnpackError, ValidationError):
                text = packed.unpack_text(newest.text, _MAX_BOOK_BYTES) if newest else b""
                book = Book.model_validate_json(text) if newest else None
            if book is None:
                before = self._before.get(head_sha, "")
                earlier = (before, *self._book(repository, before).earlier) if before and before != head_sha else ()
                heads = tuple(dict.fromkeys(head for head in earlier if head != head_sha))[:_MOST_HEADS]
                book = Book(opened=self._clock.now(), earlier=heads)
            self._books[place] = (newest.id if newest else 0, book)
        return self._books[place][1]

    def _wrote(self, comment: Comment) -> bool:
        """Whether our own App wrote a comment; another App may be given capabilities by its login."""
        return comment.author_is_app and comment.app_id in {None, self._app_id}

    def _keep(self, repository: str, head_sha: str, book: Book, *, now: bool) -> None:
        self._books[repository, head_sha] = (self._books[repository, head_sha][0], book)
        self._unsaved.add((repository, head_sha))
        if now:
            self._save(repository, head_sha)

    def _save(self, repository: str, head_sha: str) -> None:
        check_id, book = self._books[repository, head_sha]
        written = CheckRun(
            name=LEDGER_CHECK,
            head_sha=head_sha,
            status=CheckStatus.COMPLETED,
            conclusion=Conclusion.SUCCESS,
            title=f"{len(book.entries)} commands, {len(book.runs)} runs",
            summary=_SAYS,
            text=_packed(book),
            external_id=_external_id(head_sha),
            id=check_id,
        )
        self._books[repository, head_sha] = (self._checks.write_check(repository, written), book)
        self._unsaved.discard((repository, head_sha))

    def _read_comments(self, ref: PullRef) -> tuple[Comment, ...]:
        if ref not in self._comments:
            self._comments[ref] = self._conversation.comments(ref)
        return self._comments[ref]


def _external_id(head_sha: str) -> str:
    return f"ledger:{head_sha}"


def _comment_of(source: str) -> int:
    """The comment that an entry's source names, 0 for another source."""
    kind, _, rest = source.partition(":")
    number = rest.partition(":")[0]
    return int(number) if kind == "comment" and number.isdigit() else 0


def _packed(book: Book) -> str:
    """The book as text, without what can be done without where it is too long; ForgeError where that is not enough."""
    runs = [run.model_copy(update={"job": None, "rehearsal": None}) if run.state.final else run for run in book.runs]

    def smaller() -> Iterator[Book]:
        """The book, then without the jobs of ended runs, then without their verdicts, oldest first."""
        yield book
        yield book.model_copy(update={"runs": tuple(runs)})
        for index, run in enumerate(runs):
            if run.verdict:
                runs[index] = run.model_copy(update={"verdict": ""})
                yield book.model_copy(update={"runs": tuple(runs)})

    texts = (packed.pack_text(smaller_book.model_dump_json()) for smaller_book in smaller())
    fitting = next((text for text in texts if len(text) <= MAX_OUTPUT), None)
    if fitting is None:
        raise ForgeError("the ledger of this commit is full: push a new one, or install the App, which has a database")
    return fitting
