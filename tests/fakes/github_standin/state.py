"""What the stand-in knows: people, Apps, repositories, and all that hangs on a pull request."""

import hashlib
import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.fakes.github_standin.repository import BareRepository

GITHUB_ACTIONS = 15368


@dataclass(slots=True)
class User:
    """Someone, an organisation, or an App's bot (`kind` is User, Organization or Bot)."""

    id: int
    login: str
    kind: str = "User"


@dataclass(slots=True)
class App:
    """A GitHub App with what it may do; `key` is its public key, PEM."""

    id: int
    slug: str
    owner: User
    bot: User
    permissions: Mapping[str, str]
    events: tuple[str, ...]
    key: str
    client_id: str


@dataclass(slots=True)
class Installation:
    """An App installed on an account, for all of its repositories."""

    id: int
    app: App
    account: User
    suspended: bool = False


@dataclass(slots=True)
class Token:
    """An access token: what it may do (None: all that its user may) and on which repositories (None: all)."""

    actor: User
    app: App | None
    permissions: Mapping[str, str] | None
    repositories: frozenset[str] | None
    expires: datetime


@dataclass(slots=True)
class Label:
    """A label of a repository."""

    id: int
    name: str


@dataclass(slots=True)
class Comment:
    """A comment of an issue; `app` is the App that wrote it."""

    id: int
    repository: str
    number: int
    user: User
    app: App | None
    body: str
    created: datetime
    updated: datetime
    reactions: dict[tuple[str, str], "Reaction"] = field(default_factory=dict)
    edits: int = 0


@dataclass(slots=True)
class Reaction:
    """A reaction to a comment."""

    id: int
    user: User
    content: str
    created: datetime


@dataclass(slots=True)
class PullRequest:
    """A pull request; `head` is read from its branch, and stays where it was when the fork goes."""

    id: int
    repository: str
    number: int
    title: str
    body: str
    author: User
    association: str
    base_branch: str
    base_sha: str
    head_repository: str | None
    head_branch: str
    head_sha: str
    created: datetime
    updated: datetime
    draft: bool = False
    state: str = "open"
    merged: bool = False
    closed: datetime | None = None
    labels: list[Label] = field(default_factory=list)


@dataclass(slots=True)
class Issue:
    """An issue that is no pull request; `app` is the App through which it was written."""

    id: int
    repository: str
    number: int
    title: str
    body: str
    author: User
    app: App | None
    created: datetime
    updated: datetime
    labels: list[Label]
    state: str = "open"
    state_reason: str | None = None
    closed: datetime | None = None


@dataclass(slots=True)
class CheckSuite:
    """The checks of one App on one commit."""

    id: int
    repository: str
    head_sha: str
    head_branch: str | None
    app: App
    created: datetime
    updated: datetime


@dataclass(slots=True)
class CheckRun:
    """A check run; `output` and `actions` are kept as they were sent, annotations gathered."""

    id: int
    suite: CheckSuite
    name: str
    status: str
    conclusion: str | None
    external_id: str
    details_url: str
    started: datetime
    completed: datetime | None
    title: str | None = None
    summary: str | None = None
    text: str | None = None
    annotations: list[Mapping[str, object]] = field(default_factory=list)
    actions: tuple[Mapping[str, str], ...] = ()
    writes: int = 1


@dataclass(slots=True)
class WorkflowRun:
    """A run of a workflow with one job."""

    id: int
    repository: str
    path: str
    workflow_name: str
    title: str
    ref: str
    head_sha: str
    actor: User
    inputs: Mapping[str, str]
    number: int
    created: datetime
    updated: datetime
    job_id: int
    labels: tuple[str, ...] = ()
    event: str = "workflow_dispatch"
    status: str = "queued"
    conclusion: str | None = None
    log: bytes = b""
    artifacts: list["Artifact"] = field(default_factory=list)
    stubborn: bool = False
    # How long its job ran when it has ended.
    lasted_s: float = 0.0


@dataclass(slots=True)
class Artifact:
    """A zip file that a run uploaded."""

    id: int
    name: str
    content: bytes
    created: datetime
    expired: bool = False

    @property
    def sha256(self) -> str:
        """The digest of the zip file."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(slots=True)
class RequiredChecks:
    """What a branch asks for: (context, App id or None) of each check; `as_ruleset` says where it is written."""

    checks: tuple[tuple[str, int | None], ...]
    as_ruleset: bool = False


@dataclass(slots=True)
class Runner:
    """A self-hosted runner."""

    id: int
    name: str
    labels: tuple[str, ...]
    online: bool = True
    ephemeral: bool = False


@dataclass(slots=True)
class Repository:
    """A repository with its git objects and all that it holds."""

    id: int
    owner: User
    name: str
    git: BareRepository
    created: datetime
    parent: str | None = None
    private: bool = False
    roles: dict[str, str] = field(default_factory=dict)
    labels: dict[str, Label] = field(default_factory=dict)
    pulls: dict[int, PullRequest] = field(default_factory=dict)
    issues: dict[int, Issue] = field(default_factory=dict)
    protections: dict[str, RequiredChecks] = field(default_factory=dict)
    merge_queues: dict[str, int] = field(default_factory=dict)
    runners: list[Runner] = field(default_factory=list)
    # Sigstore bundles by the digest of what they are about.
    attestations: dict[str, list[str]] = field(default_factory=dict)
    workflow_ids: dict[str, int] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        """`owner/name`."""
        return f"{self.owner.login}/{self.name}"

    def next_number(self) -> int:
        """The number of the next pull request or issue, which have one count."""
        return 1 + max((*self.pulls, *self.issues), default=0)


class State:
    """All of it, with one lock and one source of ids. `clock` may be replaced by a test.

    What was made less than `lag_s` ago is in no list yet, though it can be read by its id.
    """

    def __init__(self, folder: Path, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.folder = folder
        self.clock = clock
        self.lock = threading.RLock()
        self.users: dict[str, User] = {}
        self.apps: dict[int, App] = {}
        # Private keys by the codes of manifests that someone confirmed; each code works once.
        self.app_codes: dict[str, str] = {}
        self.installations: dict[int, Installation] = {}
        self.tokens: dict[str, Token] = {}
        self.repositories: dict[str, Repository] = {}
        self.shared_runners: list[Runner] = []
        self.teams: dict[str, dict[str, str]] = {}
        self.comments: dict[int, Comment] = {}
        self.suites: dict[int, CheckSuite] = {}
        self.checks: dict[int, CheckRun] = {}
        self.runs: dict[int, WorkflowRun] = {}
        self.lag_s = 0.0
        self._born: dict[int, datetime] = {}
        self._ids = itertools.count(1001)

    def new_id(self) -> int:
        """An id that nothing else has."""
        made = next(self._ids)
        self._born[made] = self.clock()
        return made

    def listed(self, number: int) -> bool:
        """Whether lists show the thing with this id by now."""
        born = self._born.get(number)
        return born is None or (self.clock() - born).total_seconds() >= self.lag_s

    def now(self) -> datetime:
        """The time in whole seconds, as GitHub tells it."""
        return self.clock().replace(microsecond=0)

    def user(self, login: str, kind: str = "User") -> User:
        """Someone by login, made on first use."""
        with self.lock:
            if login not in self.users:
                self.users[login] = User(self.new_id(), login, kind)
            return self.users[login]

    def repository(self, full_name: str) -> Repository | None:
        """A repository by name, whatever the case of the letters."""
        return self.repositories.get(full_name.lower())

    def add_repository(self, full_name: str, parent: str | None = None) -> Repository:
        """A new, empty repository."""
        owner, _, name = full_name.partition("/")
        with self.lock:
            git = BareRepository(self.folder / "git" / f"{full_name.lower()}.git")
            made = Repository(self.new_id(), self.user(owner), name, git, self.now(), parent)
            self.repositories[full_name.lower()] = made
            return made

    def add_token(
        self,
        text: str,
        actor: User,
        app: App | None = None,
        permissions: Mapping[str, str] | None = None,
        repositories: frozenset[str] | None = None,
    ) -> Token:
        """A token that is good for an hour."""
        token = Token(actor, app, permissions, repositories, self.now() + timedelta(hours=1))
        self.tokens[text] = token
        return token

    def suite_of(self, repository: Repository, head_sha: str, app: App) -> CheckSuite:
        """The check suite of an App on a commit, made on first use."""
        for suite in self.suites.values():
            if (suite.repository, suite.head_sha, suite.app.id) == (repository.full_name, head_sha, app.id):
                return suite
        branch = next((pull.head_branch for pull in repository.pulls.values() if pull.head_sha == head_sha), None)
        now = self.now()
        suite = CheckSuite(self.new_id(), repository.full_name, head_sha, branch, app, now, now)
        self.suites[suite.id] = suite
        return suite

    def checks_of(self, repository: str, head_sha: str) -> list[CheckRun]:
        """The check runs of a commit, oldest first."""
        return [
            check
            for check in self.checks.values()
            if check.suite.repository == repository and check.suite.head_sha == head_sha
        ]

    def comments_of(self, repository: str, number: int) -> list[Comment]:
        """The comments of a pull request, oldest first."""
        return [
            comment
            for comment in self.comments.values()
            if (comment.repository, comment.number) == (repository, number)
        ]
