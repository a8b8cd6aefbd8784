"""What the rest of the program asks of the outside world: small protocols, named for what the caller needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from verl_e2e.core.model.errors import ForgeError as ForgeError
from verl_e2e.core.model.errors import UserError

# The types alone of what is asked for: a program that plans does not load what judges runs or talks to a forge.
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime
    from pathlib import Path

    from verl_e2e.core.compare.cell_map import AskedCells
    from verl_e2e.core.compare.rehearsal import CellRecord, Observed, RunNote
    from verl_e2e.core.judge.criteria.run_record import BackendTimes
    from verl_e2e.core.model.change import Change, HistoryCommit, Merge
    from verl_e2e.core.model.facts import LogFacts
    from verl_e2e.core.model.jobs import Job, RehearsalJob
    from verl_e2e.core.model.levels import Level
    from verl_e2e.core.model.outcome import EngineEnd
    from verl_e2e.core.model.record import CheckNotes, Record
    from verl_e2e.core.pulls.deliveries import ClaimedTarget, Letter, Posting, Received
    from verl_e2e.core.pulls.forge import (
        BranchRules,
        CheckRun,
        DeliveryAttempt,
        Installation,
        Machine,
        MergeGroup,
        OpenPull,
        Pull,
        PullRef,
    )
    from verl_e2e.core.pulls.ledger import Approval, Note, Override, RecordedCommand, Run, RunState
    from verl_e2e.core.pulls.queue import QueueSnapshot
    from verl_e2e.core.pulls.run_lines import RunCount, RunLine
    from verl_e2e.core.signal.report import SignalFigure

    AnyKind = TypeVar("AnyKind", bound=Note)
    Kept = TypeVar("Kept")


class ChangeSource(Protocol):
    """Where a change is read from: a git directory, or a forge's interface."""

    def change(self, base: str, head: str) -> Change:
        """What the head changes since it left the base; either may be any revision that the source knows."""

    def read_blob(self, revision: str, path: str) -> bytes | None:
        """The file's content at a revision, None when it is not there."""


class History(Protocol):
    """The commits of a repository, one after the other."""

    def first_parents(self, head: str, count: int) -> tuple[HistoryCommit, ...]:
        """The last commits on the first-parent line up to `head`, newest first; not one that has no parent."""


class SourceTrees(ChangeSource, Protocol):
    """A change source that also gives whole trees and many contents at once."""

    def tree(self, revision: str, under: str = "") -> Mapping[str, str]:
        """The plain files at a revision below a folder, each with the id of its content."""

    def links(self, revision: str) -> Mapping[str, str]:
        """The symbolic links at a revision, each with the id of its content, and the submodules with `commit SHA`."""

    def read_objects(self, ids: Collection[str]) -> Mapping[str, bytes | None]:
        """Contents by id; None for what the source does not have."""

    def merged(self, base: str, head: str) -> Merge:
        """What merging the head into the base gives, as a commit that can be read here."""


class Revisions(ChangeSource, History, Protocol):
    """A change source that knows what a name stands for."""

    def resolve(self, revision: str) -> str:
        """The full SHA that a branch, tag or SHA names; an error that is the user's mistake when there is none."""


class Checkout(Revisions, Protocol):
    """A git directory on this machine."""

    path: Path

    def find(self, revision: str) -> str | None:
        """The full SHA of the commit that a revision names, None when there is none here."""

    def merge_base(self, text: str, other: str) -> str | None:
        """The one best common ancestor of two commits, None when they have none here, or several."""

    def submodule_commit(self, revision: str, path: str) -> str | None:
        """The commit that a submodule path points at, None when the path is not a submodule at that commit."""


class SummaryStore(Protocol):
    """What was read of sources, by type and key, so that no content is read twice.

    Summaries are kept by the id of the content, everything else by a digest of all that it depends on. Differences are
    found again by the program alone that made them.
    """

    def load(self, kind: type[Kept], keys: Collection[str]) -> Mapping[str, Kept]:
        """The values of one type (Summary, Marks, ReachedFiles, FileDifference, Uses) that are known among the keys."""

    def save(self, kind: type[Kept], values: Mapping[str, Kept]) -> None:
        """Keep more values of one type."""


class DispatchError(UserError):
    """A job could not even begin and left no run folder; the text says why."""


class Dispatcher(Protocol):
    """Where a job is run."""

    def run(self, job: Job, out: Path) -> int:
        """Run one job to its end, leave its run folder in `out`, and return the runner's exit code; DispatchError."""


class Baselines(Protocol):
    """Kept runs on a merge base, so that the changes that start from it share them."""

    def fetch(self, key: str, into: Path, accept: Callable[[Path], bool]) -> bool:
        """Copy the run folder kept under a key to the new folder `into`; false when there is none that is whole.

        `accept` looks at the kept folder before it is copied, and may refuse it.
        """

    def keep(self, key: str, folder: Path) -> bool:
        """Keep a run folder under a key; false when that was not possible."""


class UnknownPullError(UserError):
    """There is no such pull request, or it cannot be seen; the text says which."""


class UnreadableLogError(Exception):
    """A run folder's log is damaged; the text names the file and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class RehearsalFolder:
    """What the run folder of a rehearsal holds in addition to its record."""

    # What was ordered, None where that cannot be read.
    order: RehearsalJob | None
    # The cells that were to run, as the recorder says.
    asked: AskedCells
    # The records of the cells on the base and on the head, by the cell's name.
    base: Mapping[str, CellRecord]
    head: Mapping[str, CellRecord]
    # What faults showed at the head, None where none were tried.
    observed: Observed | None = None
    # How the code of the head ran, None where that is not known.
    note: RunNote | None = None


class RunFolders(Protocol):
    """Run folders: where a runner leaves what happened, and where the judgement is written."""

    def find(self, folder: Path) -> tuple[Path, ...]:
        """The run folders that `folder` is or holds, in name order."""

    def record(self, folder: Path) -> Record:
        """The documents of one run folder; what cannot be read is named in `missing`."""

    def rehearsal(self, folder: Path) -> RehearsalFolder:
        """What the folder of a rehearsal holds; what cannot be read is not there."""

    def facts(self, folder: Path) -> LogFacts | None:
        """The facts of the folder's log, None when there is none; UnreadableLogError when it is damaged."""

    def lines(self, folder: Path) -> Iterator[str]:
        """The lines of the folder's log, as far as it can be read; none without a log."""

    def planned(self, folder: Path) -> Mapping[str, Level]:
        """The jobs of the folder's `plan.json`, by id; empty when it has none."""

    def notes(self, folder: Path) -> CheckNotes:
        """What the check that made the folder noted; empty for a folder that no check made."""

    def write(self, folder: Path, files: Mapping[str, str]) -> None:
        """Write files of text into the folder, each whole or not at all."""

    def draw(self, folder: Path, figure: SignalFigure) -> None:
        """Draw curves into the folder's `plots`, where a plotting library is installed; else nothing."""


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment on a pull request. `edited` is true when it is not what was first written."""

    id: int
    author: str
    author_is_app: bool
    body: str
    created: datetime
    edited: bool
    app_id: int | None = None
    # Whether someone hid it.
    minimized: bool = False


class Pulls(Protocol):
    """Facts of pull requests; every call reads GitHub again. UnknownPullError when there is none."""

    def pull(self, ref: PullRef) -> Pull:
        """The pull request as it is now."""

    def open_pulls(self, repository: str, *, base: str = "") -> tuple[OpenPull, ...]:
        """Every open pull request, or those onto one base branch, oldest first."""

    def tip(self, repository: str, branch: str) -> str | None:
        """The commit that a branch points at now, None when there is no such branch."""

    def committers(self, pull: Pull) -> frozenset[str]:
        """The logins that GitHub names as author or committer of the commits, of which it lists 250 at most."""

    def change(self, pull: Pull) -> Change:
        """The changed files with both names of renames, as far as GitHub lists them (compare with `changed_files`)."""

    def file_at(self, repository: str, revision: str, path: str) -> bytes | None:
        """A file's content at a revision, None when it is not there."""


@dataclass(frozen=True, slots=True)
class Issue:
    """An open issue of our App."""

    number: int
    # Its text, in Markdown.
    body: str


class Issues(Protocol):
    """The issues of a repository; their comments are those of `Conversation`, by the same numbers."""

    def find(self, repository: str, marker: str) -> Issue | None:
        """The newest open issue of our App whose text begins with a line."""

    def open(self, repository: str, title: str, body: str, labels: tuple[str, ...]) -> int:
        """Open an issue and give its number; where that may have been done before, one with this text is found."""

    def close(self, repository: str, number: int) -> None:
        """Close an issue of ours; one that is closed stays so."""


class Conversation(Protocol):
    """The comments of a pull request, or of an issue."""

    def comments(self, ref: PullRef) -> tuple[Comment, ...]:
        """All comments, oldest first."""

    def read(self, ref: PullRef, comment_id: int) -> Comment | None:
        """One comment, None when it is gone."""

    def comment(self, ref: PullRef, body: str) -> int:
        """Write a comment and give its id."""

    def delete(self, ref: PullRef, comment_id: int) -> None:
        """Delete a comment of ours; one that is gone is left alone."""

    def edit(self, ref: PullRef, comment_id: int, body: str) -> bool:
        """Replace a comment of ours; false when it is gone."""

    def react(self, ref: PullRef, comment_id: int, reaction: str) -> None:
        """React to a comment; once is enough, again changes nothing."""


class Checks(Protocol):
    """Check runs of our App."""

    def check_runs(self, repository: str, head_sha: str) -> tuple[CheckRun, ...]:
        """Every check run of a commit, the person who wrote it."""

    def same_name(self, repository: str, head_sha: str, name: str) -> tuple[CheckRun, ...]:
        """Every check run of a commit that has a name, also those that a later one hides."""

    def write_check(self, repository: str, check: CheckRun) -> int:
        """Create the check run (id 0) or update it, and give its id."""


class People(Protocol):
    """Who someone is in a repository."""

    def role(self, repository: str, login: str) -> str:
        """The role by name (`admin`, `maintain`, `write`, `triage`, `read`, a custom one), `none` without access."""

    def in_team(self, team: str, login: str) -> bool:
        """Whether someone is an active member of `organisation/team`."""


class Ledger(Protocol):
    """What the bot remembers; every write is idempotent by the document's own key."""

    def add(self, entry: RecordedCommand | Approval | Override) -> bool:
        """Append an entry; false when one with this source is there already."""

    def entries(self, repository: str, number: int) -> tuple[RecordedCommand | Approval | Override, ...]:
        """All entries of a pull request in the order in which they were added."""

    def put_run(self, run: Run) -> Run:
        """Insert or replace a run by its key; a final state is never left again. Gives what is kept."""

    def add_run(self, run: Run) -> Run:
        """Insert a run unless there is one with its key, in whatever state. Gives what is kept."""

    def runs(
        self,
        repository: str,
        *,
        number: int | None = None,
        head_sha: str = "",
        reuse_key: str = "",
        newest: int | None = None,
    ) -> tuple[Run, ...]:
        """The runs of a pull request, of a head, with a key of reuse, or of the repository, oldest first.

        With `newest` only so many of the repository's.
        """

    def run_by_handle(self, repository: str, handle: str) -> Run | None:
        """The run that the back end calls so and that is not over yet."""

    def put_group(self, group: MergeGroup) -> None:
        """Remember a merge group by its head; the first `since` stays, and `destroyed` once it is true."""

    def group(self, repository: str, head_sha: str) -> MergeGroup | None:
        """The merge group of a head."""

    def put_head(self, ref: PullRef, head_sha: str) -> None:
        """This pull request has this head now."""

    def pulls_with(self, repository: str, head_sha: str, *, newest: bool = False) -> tuple[PullRef, ...]:
        """Every pull request that was ever seen with a head, the newest first.

        With `newest` those that had it when they were last seen.
        """

    def note(self, kind: type[AnyKind], repository: str, subject: str) -> AnyKind | None:
        """The note of a kind on a subject."""

    def put_note(self, note: Note) -> None:
        """Write a note down in the place of the one of its kind."""


class RunLists(Protocol):
    """What pages list of runs, the newest first; every list is bounded."""

    def repositories(self) -> tuple[str, ...]:
        """Every repository that ever had a run."""

    def lines(
        self, repositories: Collection[str], *, over: bool | None = None, number: int | None = None, limit: int = 500
    ) -> tuple[RunLine, ...]:
        """The runs that are over, or those that are not; with a number those of a pull request."""

    def counts(self, repositories: Collection[str], since: datetime) -> tuple[RunCount, ...]:
        """The ended runs that were created since a time, those that are alike together."""

    def overrides(self, repositories: Collection[str], since: datetime) -> tuple[Override, ...]:
        """The overrides that were given since a time."""

    def run(self, key: str) -> Run | None:
        """A run by its key, None where there is none."""


class RunWatcher(Protocol):
    """Takes notice of runs. Their beginning and end once each: of several processes the one that wrote it down."""

    def run_ordered(self, run: Run) -> None:
        """A run is in the ledger for the first time."""

    def run_ended(self, run: Run) -> None:
        """A run has reached a final state."""

    def run_phases(self, phases: Iterable[tuple[str, float]]) -> None:
        """A run was judged that spent these seconds in its phases."""

    def backend_call(self, operation: str) -> AbstractContextManager[None]:
        """The back end is called inside; `operation` is the name of a method of `Backend`."""


class QueueLedger(Protocol):
    """The runs of every repository as our own queue sees them."""

    def has_waiting(self) -> bool:
        """Whether any run waits for a slot."""

    def open_runs(self) -> tuple[Run, ...]:
        """The runs of every repository that are not over yet, oldest first."""

    def snapshot(self) -> QueueSnapshot:
        """What the queue decides from: the runs that are not over, and the switches."""

    def switches(self, repository: str) -> tuple[RecordedCommand, ...]:
        """Every accepted `pause` and `resume` of a repository."""

    def give_slots(self, decide: Callable[[QueueSnapshot], Collection[str]], now: datetime) -> tuple[Run, ...]:
        """Let the runs start that a decision names, in one transaction; gives those that waited until now.

        `decide` may be asked more than once.
        """


class Outbox(Protocol):
    """Messages that are still to be written on GitHub, kept so that each is written once."""

    def put(self, message: Posting, now: datetime) -> bool:
        """Keep a message; false for a subject that was put before, or past the budget of people without a role."""

    def holds(self, repository: str, subject: str) -> bool:
        """Whether a message with this subject was ever put."""

    def take(self, now: datetime, limit: int, besides: Collection[str] = ()) -> tuple[Letter, ...]:
        """The messages to write now, oldest first and people with a role first, but for those of some lanes.

        They are this process's until `written` or `failed`.
        """

    def written(self, letter: int) -> None:
        """A message stands on GitHub."""

    def failed(self, letter: int, problem: str, retry_at: datetime | None) -> None:
        """It could not be written: try again then, or never (None)."""


class UnreadableDeliveryError(Exception):
    """No one will ever be able to act on a delivery; the text says why."""


class Deliveries(Protocol):
    """What GitHub delivered, kept until it is processed."""

    def keep(self, received: Sequence[Received]) -> tuple[bool, ...]:
        """Keep deliveries until they are processed, all or none; false for one whose id was kept before."""

    def take(self, now: datetime, limit: int) -> tuple[Received, ...]:
        """The deliveries to act on now, oldest first; they are this process's until `processed` or `failed`."""

    def processed(self, processed: Collection[tuple[str, Collection[str]]], now: datetime) -> None:
        """Deliveries by id are done with, each with the targets that are wanted for it; all at once or not at all."""

    def failed(self, delivery_id: str, problem: str, retry_at: datetime | None) -> None:
        """It could not be processed: try again then, or never (None)."""


class Worklist(Protocol):
    """The targets, as text, that are to be looked at; asking ten times before it happens is asking once."""

    def want(self, wanted: Collection[str], now: datetime, *, at_once: bool = False) -> None:
        """Want targets once more by the clock, and not because something happened to them.

        What is wanted at a later time stays so, but with `at_once`.
        """

    def take(
        self, now: datetime, limit: int, *, first: Collection[str] = (), only: Collection[str] | None = None
    ) -> tuple[ClaimedTarget, ...]:
        """The targets to look at now: those named `first`, then the longest waiting; `only` some of them.

        They are this process's, and no other one gets them, until `finish`, `postpone` or `release`. Until then a look
        counts as one that failed: what ends the process again and again is left alone for a while, and others go on.
        """

    def finish(self, taken: ClaimedTarget, now: datetime, again_at: datetime | None = None) -> None:
        """It was looked at for all that was asked when it was taken; what was asked meanwhile is not lost.

        With `again_at` it is wanted then once more, or earlier when something happens to it.
        """

    def postpone(self, target: str, problem: str, retry_at: datetime) -> None:
        """Looking at it failed: try again then, or earlier when something happens to it."""

    def release(self, target: str) -> None:
        """It was not looked at, and anyone may."""

    def stale(self, touched_since: datetime, finished_before: datetime, limit: int) -> tuple[str, ...]:
        """Targets that something happened to since one instant and that were last looked at before another."""


class ActiveLock(Protocol):
    """What makes one process the active one on a database; the others stand by until it has ended."""

    def is_active(self) -> bool:
        """Whether this process is the active one; it becomes that where no other is. Asked before each round of work.

        Raises while the database is away.
        """

    def free_rows(self, delivery_ids: Collection[str], letters: Collection[int], wanted: Collection[str]) -> None:
        """Free every row that a process took, but for these of our own."""


class BackendError(Exception):
    """The back end did not take an order; `final` says that trying again does not help. The text names the fix.

    `uncertain` says that it may have taken it, `wait_s` that it is not to be asked before so many seconds.
    """

    def __init__(self, message: str, *, final: bool = False, uncertain: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.final = final
        self.uncertain = uncertain
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a submitted run stands: `state`, a sentence, and a page to look at."""

    state: RunState
    note: str = ""
    url: str = ""
    # What the back end itself knows of the run, once it has ended; None where it knows nothing.
    took: BackendTimes | None = None
    # Why a run was lost, or left no folder; None where the back end does not know.
    end: EngineEnd | None = None


class Backend(Protocol):
    """A place that runs jobs while we wait: idempotent by the run's key. Errors are BackendError."""

    def submit(self, run: Run) -> str:
        """Start the run once and give its handle; a second call with the same key gives the same handle."""

    def find(self, run: Run) -> str:
        """The handle of what was started with the run's key, empty when none is seen."""

    def end_doubles(self, run: Run) -> None:
        """End what else was started with the run's key: there is to be one."""

    def poll(self, run: Run) -> Progress:
        """Where it stands."""

    def cancel(self, run: Run) -> None:
        """Ask it to end; `poll` says when it has."""

    def where(self, run: Run) -> str:
        """How far a run under way is, in a few words; empty where only its end is told."""

    def log(self, run: Run) -> Iterator[bytes]:
        """What it has printed so far; nothing when there is none yet, or where only its end is told."""

    def artifacts(self, run: Run, into: Path) -> bool:
        """Bring the run folder of an ended run into `into`, size-capped; false when it left none."""

    def unattested(self, run: Run) -> str:
        """Why nothing proves who handed over the folder that `artifacts` brought, empty when something does.

        A folder that may not count without that is refused by `artifacts`.
        """


# What to do where GitHub does not accept who we are.
CREDENTIAL_FIX = "GitHub does not accept our key or token: check GITHUB_APP_ID and the private key of the App"
# What to do where this machine has no connection to GitHub.
NETWORK_FIX = "check the network of this machine (name service, proxy, firewall) and GITHUB_API_URL, and try again"


class UncertainError(ForgeError):
    """Something that must not be done twice may or may not have been done: look before repeating it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, passing=True)


class WebhookHistory(Protocol):
    """What GitHub tried to deliver to our App. Errors are ForgeError."""

    def deliveries(self, since: datetime) -> tuple[DeliveryAttempt, ...]:
        """Every attempt to deliver a webhook to our App since a time, newest first."""

    def redeliver(self, delivery_id: int) -> None:
        """Ask GitHub to deliver once more."""


class Administration(WebhookHistory, Protocol):
    """How our App and a repository are set up. Errors are ForgeError."""

    def hook_url(self) -> str:
        """Where our App's webhooks go, empty for nowhere."""

    def default_branch(self, repository: str) -> str:
        """The repository's default branch."""

    def is_public(self, repository: str) -> bool:
        """Whether everyone who can reach GitHub may read the repository; false where there is none."""

    def installation(self, repository: str) -> Installation | None:
        """Our App in the repository, None where it is not installed."""

    def branch_rules(self, repository: str, branch: str) -> BranchRules:
        """What the branch asks for, by protection and rulesets together, as far as we may see."""

    def machines(self, repository: str) -> tuple[Machine, ...]:
        """The self-hosted runners that the repository has, and those of its organisation as far as we may see them."""

    def workflow_state(self, repository: str, workflow: str) -> str:
        """GitHub's word for the state of a workflow file (`active`, `disabled_manually`, ...), empty without one."""


class Clock(Protocol):
    """Time as an argument."""

    def now(self) -> datetime:
        """Now, with its zone; the clock may be set back."""

    def monotonic(self) -> float:
        """Seconds since an unknown start, never going back."""
