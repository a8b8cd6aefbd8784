"""A small GitHub, a ledger, a back end and a clock in memory, each with state, for hearing and reconciling.

They behave as the ports say and no better: a comment may be deleted by hand, a call may fail before or after it took
effect, and what no one wrote down is forgotten by a restart.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from tests.core.builders import bridge_error, config_with, make_environment, make_facts, make_record
from tests.fakes.clocks import HandClock
from tests.fakes.run_folders import FakeFolders
from tests.fakes.trees import FakeSummaries, sha
from verl_e2e.adapters.markdown import command_lines
from verl_e2e.adapters.metrics import Metrics
from verl_e2e.app.analysis import Analysis, DirectAnalysis
from verl_e2e.app.required_jobs import JobSources
from verl_e2e.app.runs import SharedQueue
from verl_e2e.config.policy import POLICY_PATH
from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.change import Change, ChangedPath, HistoryCommit, Merge, PathStatus
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Checkpoint, Data, Job, SiteProfile
from verl_e2e.core.model.outcome import EngineEnd
from verl_e2e.core.model.record import Event, Record
from verl_e2e.core.pulls.forge import CheckRun, MergeGroup, OpenPull, Pull, PullRef, PullState, Reference, Target
from verl_e2e.core.pulls.ledger import Approval, Note, Override, RecordedCommand, Run, RunState
from verl_e2e.core.pulls.queue import Pool, QueueSnapshot, entry_of
from verl_e2e.core.reach.entries import Uses
from verl_e2e.log_context import current_log_context
from verl_e2e.ports import (
    BackendError,
    Comment,
    ForgeError,
    History,
    Issue,
    Progress,
    Revisions,
    SourceTrees,
    UnknownPullError,
)
from verl_e2e.wiring.app import GithubPorts, Handlers, JobPorts, build_handlers

REPOSITORY, APP, STRANGER = "octo/bridge", 4711, 4712
REF = PullRef(REPOSITORY, 7)
BASE = sha("base")
START = datetime(2026, 11, 20, 12, tzinfo=UTC)
POLICY = """
schema: 1
verl: {commit: %s}
image: {name: verlai/verl, tag: t}
checkpoint: {model_id: Qwen/Qwen2.5-0.5B}
require_bridge_checks: false
exempt:
  - {name: docs, paths: [docs/], reason: nothing runs it}
rules:
  - {name: peft, paths: [src/peft/], levels: [0], reason: verl trains it, variants: [0-amplified-lora, 0-recompute]}
  - {name: lora, paths: [src/lora/], levels: [0], reason: verl trains it}
""" % sha("verl")  # noqa: UP031  the braces are YAML's

Entry = RecordedCommand | Approval | Override
AnyKind = TypeVar("AnyKind", bound=Note)


class FakeLedger:
    """Everything remembered, in lists; it is what outlives a restart."""

    def __init__(self) -> None:
        self.written: list[Entry] = []
        self.kept: dict[str, Run] = {}
        self.notes: dict[tuple[type[Note], str, str], Note] = {}
        self.groups: dict[tuple[str, str], MergeGroup] = {}
        self.heads: dict[tuple[str, str], set[int]] = {}
        self.newest: dict[PullRef, str] = {}

    def add(self, entry: Entry) -> bool:
        known = {(type(item), item.repository, item.number, item.source) for item in self.written}
        if (type(entry), entry.repository, entry.number, entry.source) in known:
            return False
        self.written.append(entry)
        return True

    def entries(self, repository: str, number: int) -> tuple[Entry, ...]:
        return tuple(item for item in self.written if (item.repository, item.number) == (repository, number))

    def put_run(self, run: Run) -> Run:
        known = self.kept.get(run.key)
        if known is not None and known.state.final:
            return known
        self.kept[run.key] = run
        return run

    def add_run(self, run: Run) -> Run:
        return self.kept.setdefault(run.key, run)

    def runs(
        self,
        repository: str,
        *,
        number: int | None = None,
        head_sha: str = "",
        reuse_key: str = "",
        newest: int | None = None,
    ) -> tuple[Run, ...]:
        found = (item for item in self.kept.values() if item.repository == repository)
        found = (item for item in found if number is None or item.number == number)
        found = (item for item in found if reuse_key in ("", item.reuse_key))
        known = tuple(item for item in found if not head_sha or item.head_sha == head_sha)
        return known if newest is None else known[-newest:]

    def has_waiting(self) -> bool:
        return any(run.waits_for_slot for run in self.kept.values())

    def open_runs(self) -> tuple[Run, ...]:
        return tuple(run for run in self.kept.values() if not run.state.final)

    def snapshot(self) -> QueueSnapshot:
        known = (run for run in self.kept.values() if not run.state.final)
        written = (item for item in self.written if isinstance(item, RecordedCommand))
        return QueueSnapshot(
            tuple(map(entry_of, known)), tuple(item for item in written if item.verb in {"pause", "resume"})
        )

    def switches(self, repository: str) -> tuple[RecordedCommand, ...]:
        return tuple(item for item in self.snapshot().switches if item.repository == repository)

    def give_slots(self, decide: Callable[[QueueSnapshot], Collection[str]], now: datetime) -> tuple[Run, ...]:
        chosen = decide(self.snapshot())
        started = [run.let_start(now) for run in self.kept.values() if run.key in chosen and run.waits_for_slot]
        self.kept |= {run.key: run for run in started}
        return tuple(started)

    def run_by_handle(self, repository: str, handle: str) -> Run | None:
        found = (run for run in self.runs(repository) if not run.state.final and run.handle == handle)
        return next(found, None)

    def put_group(self, group: MergeGroup) -> None:
        known = self.groups.get((group.repository, group.head_sha), group)
        merged = replace(known, destroyed=known.destroyed or group.destroyed)
        self.groups[group.repository, group.head_sha] = merged

    def group(self, repository: str, head_sha: str) -> MergeGroup | None:
        return self.groups.get((repository, head_sha))

    def put_head(self, ref: PullRef, head_sha: str) -> None:
        self.heads.setdefault((ref.repository, head_sha), set()).add(ref.number)
        self.newest[ref] = head_sha

    def pulls_with(self, repository: str, head_sha: str, *, newest: bool = False) -> tuple[PullRef, ...]:
        numbers = self.heads.get((repository, head_sha), set())
        refs = (PullRef(repository, number) for number in sorted(numbers, reverse=True))
        return tuple(ref for ref in refs if not newest or self.newest[ref] == head_sha)

    def note(self, kind: type[AnyKind], repository: str, subject: str) -> AnyKind | None:
        found = self.notes.get((kind, repository, subject))
        return found if isinstance(found, kind) else None

    def put_note(self, note: Note) -> None:
        self.notes[type(note), note.repository, note.subject] = note


@dataclass
class FakeIssue:
    """An issue of our App."""

    title: str
    body: str
    labels: tuple[str, ...]
    is_open: bool = True


@dataclass
class FakeHub:
    """One repository on GitHub: pull requests, comments, check runs, people; counts what is written.

    `fail` holds names of calls that fail once, before (`name`) or after (`name!`) they took effect.
    """

    clock: HandClock
    pulls: dict[int, Pull] = field(default_factory=dict)
    talk: dict[int, list[Comment]] = field(default_factory=dict)
    runs: list[CheckRun] = field(default_factory=list)
    roles: dict[str, str] = field(default_factory=dict)
    teams: dict[str, set[str]] = field(default_factory=dict)
    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    authors: dict[str, frozenset[str]] = field(default_factory=dict)
    tips: dict[str, str] = field(default_factory=lambda: {"main": BASE})
    reactions: set[tuple[int, str]] = field(default_factory=set)
    issues: dict[int, "FakeIssue"] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    fail: list[str] = field(default_factory=list)
    _ids: int = 100

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fail:
            self.fail.remove(name)
            raise ForgeError(f"{name}: 502", passing=True)

    def _done(self, name: str) -> None:
        if f"{name}!" in self.fail:
            self.fail.remove(f"{name}!")
            raise ForgeError(f"{name}: the answer was lost", passing=True)

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def pull(self, ref: PullRef) -> Pull:
        self._call("pull")
        if ref.number not in self.pulls:
            raise UnknownPullError(f"{ref}: no such pull request")
        return self.pulls[ref.number]

    def open_pulls(self, repository: str, *, base: str = "") -> tuple[OpenPull, ...]:
        self._call("open_pulls")
        shown = (
            pull for pull in self.pulls.values() if pull.state is PullState.OPEN and base in ("", pull.base_branch)
        )
        return tuple(OpenPull(pull.ref, pull.base_branch, pull.head_sha) for pull in shown)

    def tip(self, repository: str, branch: str) -> str | None:
        self._call("tip")
        return self.tips.get(branch)

    def committers(self, pull: Pull) -> frozenset[str]:
        self._call("committers")
        return self.authors.get(pull.head_sha, frozenset())

    def change(self, pull: Pull) -> Change:
        raise NotImplementedError

    def file_at(self, repository: str, revision: str, path: str) -> bytes | None:
        self._call("file_at")
        return self.files.get((revision, path))

    def comments(self, ref: PullRef) -> tuple[Comment, ...]:
        self._call("comments")
        return tuple(self.talk.get(ref.number, ()))

    def read(self, ref: PullRef, comment_id: int) -> Comment | None:
        self._call("read")
        return next((comment for comment in self.talk.get(ref.number, ()) if comment.id == comment_id), None)

    def comment(self, ref: PullRef, body: str) -> int:
        self._call("comment")
        made = self.say(ref, "verl-e2e[bot]", body, app_id=APP)
        self._done("comment")
        return made.id

    def say(self, ref: PullRef, author: str, body: str, *, app_id: int | None = None) -> Comment:
        """Someone writes a comment."""
        made = Comment(self.next_id(), author, app_id is not None, body, self.clock.now(), edited=False, app_id=app_id)
        self.talk.setdefault(ref.number, []).append(made)
        return made

    def edit(self, ref: PullRef, comment_id: int, body: str) -> bool:
        self._call("edit")
        rows = self.talk.get(ref.number, [])
        for place, row in enumerate(rows):
            if row.id == comment_id:
                assert row.app_id == APP, "edited someone else's comment"
                rows[place] = replace(row, body=body, edited=True)
                self._done("edit")
                return True
        return False

    def delete(self, ref: PullRef, comment_id: int) -> None:
        self._call("delete")
        self.talk[ref.number] = [comment for comment in self.talk.get(ref.number, []) if comment.id != comment_id]

    def react(self, ref: PullRef, comment_id: int, reaction: str) -> None:
        self._call("react")
        self.reactions.add((comment_id, reaction))

    def check_runs(self, repository: str, head_sha: str) -> tuple[CheckRun, ...]:
        self._call("check_runs")
        return tuple(run for run in self.runs if run.head_sha == head_sha)

    def same_name(self, repository: str, head_sha: str, name: str) -> tuple[CheckRun, ...]:
        self._call("same_name")
        return tuple(run for run in self.runs if (run.head_sha, run.name) == (head_sha, name))

    def write_check(self, repository: str, check: CheckRun) -> int:
        self._call("write_check")
        made = replace(check, id=check.id or self.next_id(), app_id=APP)
        self.runs = [*(run for run in self.runs if run.id != made.id), made]
        self._done("write_check")
        return made.id

    def find(self, repository: str, marker: str) -> Issue | None:
        self._call("find_issue")
        found = (number for number, issue in self.issues.items() if issue.is_open and issue.body.startswith(marker))
        newest = max(found, default=None)
        return Issue(newest, self.issues[newest].body) if newest is not None else None

    def open(self, repository: str, title: str, body: str, labels: tuple[str, ...]) -> int:
        self._call("open_issue")
        number = self.next_id()
        self.issues[number] = FakeIssue(title, body, labels)
        self._done("open_issue")
        return number

    def close(self, repository: str, number: int) -> None:
        self._call("close_issue")
        self.issues[number].is_open = False
        self._done("close_issue")

    def role(self, repository: str, login: str) -> str:
        self._call("role")
        return self.roles.get(login, "read")

    def in_team(self, team: str, login: str) -> bool:
        self._call("in_team")
        return login in self.teams.get(team, set())

    def gate(self, head_sha: str, name: str = "verl-e2e") -> CheckRun | None:
        """The gate of a commit as GitHub shows it; there is at most one."""
        found = [run for run in self.runs if (run.head_sha, run.name, run.app_id) == (head_sha, name, APP)]
        assert len(found) <= 1, "two gates on one commit"
        return found[0] if found else None

    def cards(self, number: int) -> list[Comment]:
        """Our cards on a pull request."""
        return [
            comment
            for comment in self.talk.get(number, ())
            if comment.app_id == APP and "verl-e2e:card" in comment.body
        ]


@dataclass
class _Order:
    run: Run
    state: RunState = RunState.SUBMITTED
    end: EngineEnd | None = None
    took: BackendTimes | None = None


@dataclass
class FakeBackend:
    """Machines that take one order for each key; what runs ends on command, or is cancelled after a while."""

    folders: FakeFolders
    orders: dict[str, _Order] = field(default_factory=dict)
    submitted: list[Run] = field(default_factory=list)
    doubt: str = ""
    fail: list[str] = field(default_factory=list)
    # The calls, each with what log lines said then.
    calls: list[tuple[str, Mapping[str, str | int]]] = field(default_factory=list)
    most_live: dict[tuple[str, str], int] = field(default_factory=dict)
    _outcomes: dict[str, Callable[[Job], tuple[Record, LogFacts | None]]] = field(default_factory=dict)

    def _call(self, name: str) -> None:
        self.calls.append((name, current_log_context()))
        if name in self.fail:
            self.fail.remove(name)
            raise BackendError(f"{name}: try later")
        if f"{name}?" in self.fail:
            self.fail.remove(f"{name}?")
            raise BackendError(f"{name}: never", final=True)

    def submit(self, run: Run) -> str:
        self._call("submit")
        if run.key not in self.orders:
            self.submitted.append(run)
            self.orders[run.key] = _Order(run)
            same = (run.head_sha, run.job_id)
            live = sum(
                not order.state.final and (order.run.head_sha, order.run.job_id) == same
                for order in self.orders.values()
            )
            self.most_live[same] = max(self.most_live.get(same, 0), live)
        if "submit!" in self.fail:
            self.fail.remove("submit!")
            raise BackendError("submit: the answer was lost")
        return f"h-{run.key[:8]}"

    def find(self, run: Run) -> str:
        self._call("find")
        return f"h-{run.key[:8]}" if run.key in self.orders else ""

    def end_doubles(self, run: Run) -> None:
        self._call("end_doubles")

    def poll(self, run: Run) -> Progress:
        self._call("poll")
        order = self.orders.get(run.key)
        if order is None:
            return Progress(RunState.CANCELLED if run.state is RunState.CANCELLING else RunState.LOST, "not known here")
        return Progress(order.state, "", f"https://ci.example/{run.key[:8]}", order.took, order.end)

    def cancel(self, run: Run) -> None:
        self._call("cancel")
        order = self.orders.get(run.key)
        if order is not None and not order.state.final:
            order.state = RunState.CANCELLING

    def where(self, run: Run) -> str:
        return ""

    def log(self, run: Run) -> Iterator[bytes]:
        yield b""

    def artifacts(self, run: Run, into: Path) -> bool:
        self._call("artifacts")
        made = self._outcomes.get(run.key)
        if made is None:
            return False
        assert run.job is not None
        record, facts = made(run.job)
        self.folders.records[into] = record.model_copy(update={"events": _returned(record.events, run.nonce)})
        if facts is not None:
            self.folders.logs[into] = facts
        return True

    def unattested(self, run: Run) -> str:
        self._call("unattested")
        return self.doubt

    def live(self) -> list[Run]:
        """The orders that are not over."""
        return [order.run for order in self.orders.values() if not order.state.final]

    def begin(self) -> None:
        """Everything that waits begins to run."""
        for order in self.orders.values():
            if order.state is RunState.SUBMITTED:
                order.state = RunState.RUNNING

    def settle(self) -> None:
        """What was asked to end has ended."""
        for order in self.orders.values():
            if order.state is RunState.CANCELLING:
                order.state = RunState.CANCELLED

    def lose(self, run: Run, end: EngineEnd, took: BackendTimes | None = None) -> None:
        """A run ends without its own word, as the engine says."""
        order = self.orders[run.key]
        order.state, order.end, order.took = RunState.LOST, end, took

    def finish(self, run: Run, outcome: Callable[[Job], tuple[Record, LogFacts | None]]) -> None:
        """A run ends and leaves a folder."""
        self._outcomes[run.key] = outcome
        if not self.orders[run.key].state.final:
            self.orders[run.key].state = RunState.FINISHED


def _returned(events: tuple[Event, ...], nonce: str) -> tuple[Event, ...]:
    """The events with the nonce of the order in the last."""
    more = {"nonce": nonce}
    return tuple(
        event.model_copy(update={"data": {**event.data, **more}}) if event.kind == "ended" else event
        for event in events
    )


def passes(job: Job) -> tuple[Record, LogFacts | None]:
    """What a healthy run of the job leaves."""
    states = make_environment().repositories
    commits = {"bridge": job.bridge.commit, "verl": job.verl.commit}
    found = tuple(state.model_copy(update={"commit": commits.get(state.name, state.commit)}) for state in states)
    environment = make_environment(repositories=found, site=job.site.name)
    record = make_record(job=job, environment=environment, tests=None, tests_commit="")
    return record, make_facts(configs=(config_with(dict(job.expected)),))


def fails(job: Job) -> tuple[Record, LogFacts | None]:
    """What a run leaves that ends in Bridge's own code."""
    record, _ = passes(job)
    configs = (config_with(dict(job.expected)),)
    return record, make_facts(errors=(bridge_error(),), configs=configs, steps=(), progress=None, completed_at=None)


def blocks(job: Job) -> tuple[Record, LogFacts | None]:
    """What a run leaves of which nothing is known."""
    return Record(job=job), None


@dataclass
class FakeSource:
    """Trees of every commit: one changed path for each head, and no reach.

    The path has a content of its own at each head, or that of another head which `same` names.
    """

    paths: Mapping[str, str]
    same: Mapping[str, str] = field(default_factory=dict)
    line: Sequence[HistoryCommit] = ()

    def first_parents(self, head: str, count: int) -> tuple[HistoryCommit, ...]:
        """The line of the branch, which is kept oldest first, up to a commit."""
        place = next((at for at, commit in enumerate(self.line) if commit.sha == head), -1)
        return tuple(self.line[place::-1][:count]) if place >= 0 else ()

    def change(self, base: str, head: str) -> Change:
        path = self.paths.get(head, "docs/a.md")
        if base == head:
            return Change(base, head, head, ())
        return Change(base, head, BASE, (ChangedPath(path, PathStatus.MODIFIED),))

    def read_blob(self, revision: str, path: str) -> bytes | None:
        return None

    def tree(self, revision: str, under: str = "") -> Mapping[str, str]:
        return {self.paths.get(revision, "docs/a.md"): self.same.get(revision, revision)}

    def links(self, revision: str) -> Mapping[str, str]:
        return {}

    def read_objects(self, ids: object) -> Mapping[str, bytes | None]:
        return {}

    def merged(self, base: str, head: str) -> Merge:
        return Merge(problem=f"{base} and {head} have no history")

    def resolve(self, revision: str) -> str:
        if revision == "HEAD" and self.line:
            return self.line[-1].sha
        return revision if len(revision) == 40 else sha(revision)


@dataclass
class App:
    """The whole in memory. `restart` forgets what a process holds and nothing else."""

    clock: HandClock = field(default_factory=lambda: HandClock(START))
    ledger: FakeLedger = field(default_factory=FakeLedger)
    folders: FakeFolders = field(default_factory=FakeFolders)
    paths: dict[str, str] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    # The slots, and the targets that the queue wants looked at.
    pools: tuple[Pool, ...] = ()
    woken: list[Reference] = field(default_factory=list)
    # False: without a database, as the Action is.
    has_queue: bool = True
    # The commits of the branch, and of verl, oldest first.
    line: list[HistoryCommit] = field(default_factory=list)
    verl_line: list[HistoryCommit] = field(default_factory=list)
    # The site that hosts of jobs fetch from; empty: none does.
    fetched_from: str = ""

    def __post_init__(self) -> None:
        self.hub = FakeHub(self.clock)
        self.backend = FakeBackend(self.folders)
        self.metrics = Metrics()
        self.hub.files[(BASE, POLICY_PATH)] = POLICY.encode()
        self.hub.roles |= {"alice": "write", "mona": "maintain", "admin": "admin", "rita": "triage"}
        self.handlers = self.connect()

    def restart(self) -> None:
        self.handlers = self.connect()

    def analysis(self) -> DirectAnalysis:
        """What reads the text of strangers, in this process."""
        return DirectAnalysis(
            lambda _: FakeSource(self.paths, self.same), Uses((), (), "nothing"), FakeSummaries(), self.folders
        )

    def connect(
        self,
        *,
        analysis: Analysis | None = None,
        changes: Callable[[Target], SourceTrees] | None = None,
        history: Callable[[Target], History] | None = None,
        verl: Callable[[str], Revisions] | None = None,
    ) -> Handlers:
        """Handlers on what is here, with something else in the place of one or the other."""
        source, of_verl = FakeSource(self.paths, self.same, self.line), FakeSource({}, {}, self.verl_line)
        jobs = JobPorts(
            backend=self.backend,
            analysis=analysis or self.analysis(),
            changes=changes or (lambda _: source),
            history=history or (lambda _: source),
            sources=JobSources(verl or (lambda _: of_verl), site(), self.fetched_from),
            artifacts=Path("/artifacts"),
            watcher=self.metrics,
        )
        return build_handlers(
            GithubPorts(self.hub, self.hub, self.hub, self.hub, self.hub, app_id=APP),
            jobs,
            self.ledger,
            self.clock,
            command_lines,
            shared_queue=SharedQueue(self.ledger, self.pools, self.woken.extend) if self.has_queue else None,
        )

    def under_way(self) -> set[Reference | None]:
        """What has runs that are not over, as the service's tick asks."""
        live = (run for run in self.ledger.kept.values() if not run.state.final)
        return {self.handlers.known.reference_of(run) for run in live}

    def open(self, head: str = "one", path: str = "src/peft/lora.py", **given: object) -> Pull:
        """A pull request of alice from a branch of the repository itself."""
        self.paths[sha(head)] = path
        pull = Pull(
            ref=REF,
            base_branch="main",
            base_sha=BASE,
            head_sha=sha(head),
            head_repository=REPOSITORY,
            author="alice",
            author_association="MEMBER",
            draft=False,
            state=PullState.OPEN,
            changed_files=1,
            default_branch="main",
        )
        self.hub.pulls[REF.number] = replace(pull, **given)  # type: ignore[arg-type]
        return self.hub.pulls[REF.number]

    def push(self, head: str, path: str = "src/peft/lora.py", *, same: str = "") -> Pull:
        """A new head on the pull request, with the code of another head where `same` names one."""
        self.paths[sha(head)] = path
        if same:
            self.same[sha(head)] = sha(same)
        self.hub.pulls[REF.number] = replace(self.hub.pulls[REF.number], head_sha=sha(head))
        return self.hub.pulls[REF.number]


def site() -> SiteProfile:
    """A site on which the healthy run of the builders is what a level 0 job leaves."""
    return SiteProfile(
        name="hopper",
        image="verlai/verl:t",
        wrapper={"MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "64"},
        checkpoints={"Qwen/Qwen2.5-0.5B": Checkpoint(model_id="local/tiny", model_path="/kit", random_weights=True)},
        data=Data(train_files="/kit/train.parquet", val_files="/kit/test.parquet"),
    )
