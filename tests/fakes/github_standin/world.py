"""What people do on GitHub, for stories: open, push, comment, label, queue, press; and what runners do."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.fakes.github_standin import api_actions, api_checks, api_issues
from tests.fakes.github_standin.push_shapes import push_payload
from tests.fakes.github_standin.repository import BareRepository, Edit
from tests.fakes.github_standin.server import Standin
from tests.fakes.github_standin.shapes import Json, association
from tests.fakes.github_standin.state import (
    GITHUB_ACTIONS,
    App,
    CheckRun,
    Comment,
    Installation,
    PullRequest,
    Repository,
    RequiredChecks,
    Runner,
    State,
    User,
    WorkflowRun,
)
from tests.fakes.sigstore_instance import SigstoreInstance
from verl_e2e.adapters.github import session
from verl_e2e.config import settings_values

SECRET = "a secret of the stand-in alone"
APP_ID = 4242
PERMISSIONS = {
    "actions": "write",
    "checks": "write",
    "contents": "read",
    "issues": "write",
    "members": "read",
    "metadata": "read",
    "pull_requests": "write",
    "administration": "read",
    "attestations": "read",
    "merge_queues": "read",
    "organization_self_hosted_runners": "read",
}
EVENTS = (
    "check_run",
    "check_suite",
    "issue_comment",
    "merge_group",
    "pull_request",
    "push",
    "workflow_job",
    "workflow_run",
)


@cache
def key_pair() -> tuple[str, str]:
    """A private key and its public half, PEM, one for the whole process."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()


_LOAD = "load_pem_private_key"
_load_once = lru_cache(maxsize=8)(serialization.load_pem_private_key)


@contextmanager
def _key_read_once() -> Iterator[None]:
    """Worlds share their App's key, and OpenSSL takes 40 ms to check it, for each service twice: in here once."""
    for reader in (session, settings_values):
        setattr(reader, _LOAD, _load_once)
    try:
        yield
    finally:
        for reader in (session, settings_values):
            setattr(reader, _LOAD, serialization.load_pem_private_key)


class World:
    """A repository with people around it and our App installed, on a stand-in that serves.

    Made by `living`. Every verb has the effect at once and sends the webhooks that GitHub would send.
    """

    def __init__(self, standin: Standin, full_name: str, slug: str) -> None:
        self.standin = standin
        self.state = standin.state
        self.api = standin.api
        self.faults = standin.faults
        self.deliveries = standin.deliveries
        self.full_name = full_name
        self.repository = self.state.add_repository(full_name)
        self.repository.owner.kind = "Organization"
        self.private_key, public_key = key_pair()
        bot = self.state.user(f"{slug}[bot]", "Bot")
        self.app = App(APP_ID, slug, self.repository.owner, bot, PERMISSIONS, EVENTS, public_key, "Iv1.standin")
        self.state.apps[APP_ID] = self.app
        self.installation = Installation(self.state.new_id(), self.app, self.repository.owner)
        self.state.installations[self.installation.id] = self.installation
        self.merge_groups: dict[str, tuple[int, ...]] = {}

    @property
    def url(self) -> str:
        """What GITHUB_API_URL is set to."""
        return self.standin.url

    # People and settings

    def person(self, login: str, role: str | None = None) -> User:
        """Someone, with a role in the repository or none."""
        user = self.state.user(login)
        if role is not None:
            self.repository.roles[login] = role
        return user

    def team(self, name: str, *logins: str) -> None:
        """A team `organisation/name` with active members."""
        self.state.teams[name] = dict.fromkeys(logins, "active")

    def protect(self, *checks: tuple[str, int | None], branch: str = "main", as_ruleset: bool = False) -> None:
        """Ask for checks before a merge."""
        self.repository.protections[branch] = RequiredChecks(checks, as_ruleset)

    def runner(
        self, name: str, *labels: str, online: bool = True, ephemeral: bool = False, shared: bool = False
    ) -> None:
        """Register a self-hosted runner, `shared` with the whole organisation."""
        made = Runner(self.state.new_id(), name, labels, online, ephemeral)
        (self.state.shared_runners if shared else self.repository.runners).append(made)

    def actions_token(self, text: str, permissions: Mapping[str, str]) -> None:
        """What a workflow has as its GITHUB_TOKEN: the identity of GitHub Actions, for this repository alone."""
        app = self.state.apps.get(GITHUB_ACTIONS)
        if app is None:
            bot = self.state.user("github-actions[bot]", "Bot")
            owner = self.state.user("github", "Organization")
            app = App(GITHUB_ACTIONS, "github-actions", owner, bot, {}, (), "", "Iv1.actions")
            self.state.apps[GITHUB_ACTIONS] = app
        self.state.add_token(text, app.bot, app, permissions, frozenset({self.full_name.lower()}))

    def user_token(self, text: str, login: str) -> None:
        """A person's own token, which may do what the person may."""
        self.state.add_token(text, self.state.user(login))

    # Commits and pull requests

    def commit(self, files: Mapping[str, Edit], message: str = "Change it", branch: str = "main") -> str:
        """A commit on a branch of the repository itself, pushed by someone unnamed."""
        with self.state.lock:
            return self.repository.git.commit(f"refs/heads/{branch}", files, message)

    def move_base(
        self, files: Mapping[str, Edit], branch: str = "main", by: str = "octo", *, message: bool = True
    ) -> str:
        """Someone merges into a base branch; open pull requests onto it keep their `base.sha`, as on GitHub."""
        with self.state.lock:
            before = self.repository.git.find(f"refs/heads/{branch}")
            after = self.commit(files, "Change the base", branch)
            if message:
                self._tell_of_push(branch, before, after, by)
            return after

    def delete_branch(self, branch: str, by: str = "octo") -> None:
        """Someone removes a branch; GitHub closes the pull requests onto it later."""
        with self.state.lock:
            before = self._tip(branch)
            self.repository.git.delete_ref(f"refs/heads/{branch}")
            self._tell_of_push(branch, before, None, by)

    def retarget(self, number: int, branch: str, by: str = "") -> None:
        """Someone gives a pull request another base."""
        with self.state.lock:
            pull = self.pull(number)
            changes = {"base": {"ref": {"from": pull.base_branch}, "sha": {"from": pull.base_sha}}}
            pull.base_branch, pull.base_sha, pull.updated = branch, self._tip(branch), self.state.now()
            self._mirror(pull)
            self._tell(pull, "edited", self._sender(pull, by), {"changes": changes})

    def open_pull(
        self,
        author: str,
        files: Mapping[str, Edit],
        title: str = "Change the bridge",
        *,
        fork: bool = False,
        draft: bool = False,
        base: str = "main",
        made: Callable[[BareRepository, str], str] | None = None,
    ) -> int:
        """Open a pull request from a new branch, of the author's fork where asked.

        `made` makes the head on top of a commit where edits cannot say it; GitHub shows `files` as what it changes.
        """
        with self.state.lock:
            number = self.repository.next_number()
            user, now = self.state.user(author), self.state.now()
            home = self._fork_of(author) if fork else self.repository
            branch = f"change-{number}"
            start = self._tip(base)
            if fork:
                home.git.take(self.repository.git, start, f"refs/heads/{branch}")
            head = home.git.commit(f"refs/heads/{branch}", files, title, (start,))
            if made is not None:
                shown, head = head, made(home.git, start)
                for git in (home.git, self.repository.git):
                    git.show_as(start, head, home.git.changed(start, shown))
                home.git.update_ref(f"refs/heads/{branch}", head)
            pull = PullRequest(
                self.state.new_id(), self.full_name, number, title, "", user, self._association(user), base, start,
                home.full_name, branch, head, now, now, draft,
            )  # fmt: skip
            self._mirror(pull)
            self.repository.pulls[number] = pull
            self._tell(pull, "opened", user)
            return number

    def open_same(self, author: str, other: int) -> int:
        """Open a pull request from another branch that points to the head of one of the repository's own."""
        with self.state.lock:
            known, number = self.pull(other), self.repository.next_number()
            user, now, branch = self.state.user(author), self.state.now(), f"change-{number}"
            self.repository.git.take(self.repository.git, known.head_sha, f"refs/heads/{branch}")
            pull = PullRequest(
                self.state.new_id(), self.full_name, number, known.title, "", user, self._association(user),
                known.base_branch, known.base_sha, self.full_name, branch, known.head_sha, now, now,
            )  # fmt: skip
            self._mirror(pull)
            self.repository.pulls[number] = pull
            self._tell(pull, "opened", user)
            return number

    def push(self, number: int, files: Mapping[str, Edit], message: str = "Fix it", by: str = "") -> str:
        """A new commit on the head of a pull request; gives it."""
        with self.state.lock:
            pull = self.pull(number)
            before = pull.head_sha
            home = self.state.repository(pull.head_repository or "")
            assert home is not None
            pull.head_sha = home.git.commit(f"refs/heads/{pull.head_branch}", files, message)
            pull.base_sha = self._tip(pull.base_branch)
            self._mirror(pull)
            pull.updated = self.state.now()
            sender = self.state.user(by) if by else pull.author
            self._tell(pull, "synchronize", sender, {"before": before, "after": pull.head_sha})
            return pull.head_sha

    def pull(self, number: int) -> PullRequest:
        """A pull request as it is now."""
        return self.repository.pulls[number]

    def head(self, number: int) -> str:
        """The head of a pull request."""
        return self.pull(number).head_sha

    def close(self, number: int, *, merged: bool = False, by: str = "") -> None:
        """Close a pull request, merged or not."""
        with self.state.lock:
            pull = self.pull(number)
            pull.state, pull.merged, pull.closed = "closed", merged, self.state.now()
            pull.updated = pull.closed
            self._tell(pull, "closed", self._sender(pull, by))

    def reopen(self, number: int, by: str = "") -> None:
        """Open a closed pull request again."""
        with self.state.lock:
            pull = self.pull(number)
            pull.state, pull.closed, pull.updated = "open", None, self.state.now()
            self._tell(pull, "reopened", self._sender(pull, by))

    def set_draft(self, number: int, draft: bool, by: str = "") -> None:
        """Make a pull request a draft, or ready for review."""
        with self.state.lock:
            pull = self.pull(number)
            pull.draft, pull.updated = draft, self.state.now()
            self._tell(pull, "converted_to_draft" if draft else "ready_for_review", self._sender(pull, by))

    def label(self, number: int, name: str, by: str) -> None:
        """Put a label on a pull request."""
        with self.state.lock:
            api_issues.put_label(self.api, self.repository, self.pull(number), name, self.state.user(by))

    def unlabel(self, number: int, name: str, by: str) -> None:
        """Take a label off a pull request."""
        with self.state.lock:
            pull = self.pull(number)
            label = next(item for item in pull.labels if item.name == name)
            pull.labels.remove(label)
            api_issues.tell_of_label(self.api, self.repository, pull, "unlabeled", label, self.state.user(by))

    def delete_fork(self, number: int) -> None:
        """Remove the repository that a pull request came from."""
        with self.state.lock:
            pull = self.pull(number)
            assert pull.head_repository is not None
            self.state.repositories.pop(pull.head_repository.lower(), None)
            pull.head_repository = None

    # Comments

    def comment(self, user: str, body: str, number: int = 1) -> Comment:
        """Someone comments."""
        with self.state.lock:
            return api_issues.write_comment(self.api, self.pull(number), self.state.user(user), None, body)

    def edit_comment(self, comment: Comment, body: str, by: str = "") -> None:
        """Someone edits a comment."""
        with self.state.lock:
            sender = self.state.user(by) if by else comment.user
            api_issues.edit_comment_text(self.api, comment, body, sender)

    def delete_comment(self, comment: Comment, by: str) -> None:
        """Someone deletes a comment."""
        with self.state.lock:
            del self.state.comments[comment.id]
            api_issues.tell_of_comment(self.api, "deleted", comment, self.state.user(by))

    def comments(self, number: int = 1) -> list[Comment]:
        """The comments of a pull request, oldest first."""
        with self.state.lock:
            return self.state.comments_of(self.full_name, number)

    def cards(self, number: int = 1) -> list[Comment]:
        """What our App has written on a pull request."""
        return [comment for comment in self.comments(number) if comment.app is self.app]

    def card(self, number: int = 1) -> str:
        """The text of the App's first comment, empty when there is none."""
        found = self.cards(number)
        return found[0].body if found else ""

    # Checks

    def checks(self, head: str) -> list[CheckRun]:
        """The newest check run of each name that our App has on a commit."""
        with self.state.lock:
            ours = [
                check_run for check_run in self.state.checks_of(self.full_name, head) if check_run.suite.app is self.app
            ]
            return list({own.name: own for own in ours}.values())

    def check(self, head: str, name: str) -> CheckRun | None:
        """Our newest check run of a name on a commit."""
        return next((check_run for check_run in self.checks(head) if check_run.name == name), None)

    def gate(self, number: int = 1, name: str = "verl-e2e") -> str:
        """The conclusion of our gate on a pull request's head; its status while it has none; empty without a gate."""
        return self.gate_of(self.head(number), name)

    def gate_of(self, head: str, name: str = "verl-e2e") -> str:
        """The gate of a commit."""
        found = self.check(head, name)
        return "" if found is None else found.conclusion or found.status

    def press(self, check: CheckRun, identifier: str, by: str) -> None:
        """Someone presses one of a check's buttons."""
        with self.state.lock:
            action = {"requested_action": {"identifier": identifier}}
            api_checks.tell_of_check(self.api, "requested_action", check, self.state.user(by), action)

    def rerequest(self, check: CheckRun, by: str) -> None:
        """Someone presses Re-run."""
        with self.state.lock:
            api_checks.tell_of_check(self.api, "rerequested", check, self.state.user(by))

    def rerequest_all(self, head: str, by: str) -> None:
        """Someone presses Re-run all checks."""
        with self.state.lock:
            suite = self.state.suite_of(self.repository, head, self.app)
            api_checks.tell_of_suite(self.api, "rerequested", suite, self.state.user(by))

    # Workflow runs

    def runs(self) -> list[WorkflowRun]:
        """Every workflow run, oldest first."""
        with self.state.lock:
            return [run for run in self.state.runs.values() if run.repository == self.full_name]

    def live_runs(self) -> list[WorkflowRun]:
        """The runs that have not ended, oldest first."""
        return [run for run in self.runs() if run.status != "completed"]

    def start_run(self, run: WorkflowRun | None = None, log: bytes = b"") -> WorkflowRun:
        """A runner takes a run, the oldest that is queued unless named."""
        with self.state.lock:
            chosen = run or next(other_run for other_run in self.runs() if other_run.status == "queued")
            chosen.log += log
            api_actions.begin_run(self.api, chosen)
            return chosen

    def finish_run(
        self, files: Mapping[str, bytes], run: WorkflowRun | None = None, *, artifact: str = "run-folder",
        conclusion: str = "success", log: bytes = b"", lasted_s: float = 1_800.0,
        sigstore: SigstoreInstance | None = None,
    ) -> WorkflowRun:  # fmt: skip
        """A run ends and leaves files as an artifact, none when there are none; the oldest that lives unless named.

        With `sigstore` a job of the run attests the artifact.
        """
        with self.state.lock:
            chosen = run or self.live_runs()[0]
            chosen.log += log
            chosen.lasted_s = lasted_s
            if files:
                left = api_actions.add_artifact(self.api, chosen, artifact, files)
                if sigstore:
                    bundle = sigstore.attest(left.sha256, self.claims(chosen))
                    self.repository.attestations.setdefault(left.sha256, []).append(bundle)
            api_actions.end_run(self.api, chosen, conclusion)
            return chosen

    def claims(self, run: WorkflowRun) -> dict[str, str]:
        """What GitHub says of a job of the run on a machine of its own."""
        web = f"{self.url}/{self.full_name}"
        workflow = f"{web}/{run.path}@refs/heads/{run.ref}"
        return {
            "issuer": "https://token.actions.githubusercontent.com",
            "signer": workflow,
            "runner": "github-hosted",
            "repository": web,
            "commit": run.head_sha,
            "workflow": workflow,
            "run": f"{web}/actions/runs/{run.id}/attempts/1",
        }

    def end_run(self, run: WorkflowRun, conclusion: str) -> None:
        """A run ends without a word."""
        with self.state.lock:
            api_actions.end_run(self.api, run, conclusion)

    # Merge queue

    def queue(self, *numbers: int, branch: str = "main", wait_minutes: int = 60) -> str:
        """Pull requests enter the merge queue together; gives the head of their group."""
        with self.state.lock:
            self.repository.merge_queues[branch] = wait_minutes
            git, base = self.repository.git, self._tip(branch)
            head = base
            for number in numbers:
                tree = git.merge_tree(head, self.head(number))
                assert tree is not None, f"pull request {number} conflicts"
                head = git.commit_tree(tree, (head,), f"{self.pull(number).title} (#{number})")
            git.update_ref(f"refs/heads/{self._queue_branch(branch, numbers[-1], base)}", head)
            self.merge_groups[head] = numbers
            self._tell_of_group("checks_requested", head, base, branch, {})
            return head

    def leave_queue(self, head: str, reason: str = "dequeued", branch: str = "main") -> None:
        """A merge group goes: `merged`, `invalidated` or `dequeued`."""
        with self.state.lock:
            git, base = self.repository.git, self._tip(branch)
            numbers = self.merge_groups.pop(head)
            self._tell_of_group("destroyed", head, base, branch, {"reason": reason}, numbers)
            git.delete_ref(f"refs/heads/{self._queue_branch(branch, numbers[-1], base)}")
            if reason == "merged":
                git.update_ref(f"refs/heads/{branch}", head)

    def _queue_branch(self, branch: str, number: int, base: str) -> str:
        return f"gh-readonly-queue/{branch}/pr-{number}-{base}"

    def _tell_of_group(
        self, action: str, head: str, base: str, branch: str, more: Json, numbers: tuple[int, ...] = ()
    ) -> None:
        last = (numbers or self.merge_groups[head])[-1]
        group = {
            "head_sha": head,
            "head_ref": f"refs/heads/{self._queue_branch(branch, last, base)}",
            "base_sha": base,
            "base_ref": f"refs/heads/{branch}",
            "head_commit": self.api.shapes.simple_commit(self.repository, head),
        }
        sender = self.api.shapes.user(self.state.user("github-merge-queue[bot]", "Bot"))
        self.api.hooks.emit("merge_group", action, self.repository, {"merge_group": group, "sender": sender, **more})

    # Beneath

    def _tell_of_push(self, branch: str, before: str | None, after: str | None, by: str) -> None:
        payload = push_payload(self.api.shapes, self.repository, branch, before, after, self.state.user(by))
        self.api.hooks.emit("push", None, self.repository, payload)

    def _tip(self, branch: str) -> str:
        found = self.repository.git.find(f"refs/heads/{branch}")
        assert found is not None, f"no branch {branch}"
        return found

    def _association(self, user: User) -> str:
        known = association(self.repository, user)
        return "FIRST_TIME_CONTRIBUTOR" if known == "NONE" else known

    def _fork_of(self, author: str) -> Repository:
        name = f"{author}/{self.repository.name}"
        return self.state.repository(name) or self.state.add_repository(name, self.full_name)

    def _mirror(self, pull: PullRequest) -> None:
        git = self.repository.git
        home = self.state.repository(pull.head_repository or "")
        if home is not None and home is not self.repository:
            git.take(home.git, pull.head_sha, f"refs/pull/{pull.number}/head")
        else:
            git.update_ref(f"refs/pull/{pull.number}/head", pull.head_sha)
        tree = git.merge_tree(pull.base_sha, pull.head_sha)
        if tree is not None:
            merged = git.commit_tree(tree, (pull.base_sha, pull.head_sha), f"Merge {pull.head_sha}")
            git.update_ref(f"refs/pull/{pull.number}/merge", merged)

    def _sender(self, pull: PullRequest, by: str) -> User:
        return self.state.user(by) if by else pull.author

    def _tell(self, pull: PullRequest, action: str, sender: User, more: Json | None = None) -> None:
        shape = self.api.shapes.whole_pull(pull)
        payload = {"number": pull.number, "pull_request": shape, "sender": self.api.shapes.user(sender), **(more or {})}
        self.api.hooks.emit("pull_request", action, self.repository, payload)


@contextmanager
def living(
    folder: Path,
    full_name: str = "octo/bridge",
    slug: str = "verl-e2e",
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Iterator[World]:
    """A world that serves until the block ends; its repository has no commit yet."""
    state = State(folder, clock)
    with Standin(state, SECRET).serving() as standin, _key_read_once():
        yield World(standin, full_name, slug)
    if standin.broken:
        raise standin.broken[0]
