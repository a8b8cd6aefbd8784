"""Pull requests: their facts, their files and contents at a commit."""

import base64
import binascii
import re
from functools import lru_cache
from itertools import islice
from urllib.parse import parse_qs, quote, urlsplit

from pydantic import AwareDatetime, Field

from verl_e2e.adapters.github.requester import Answer, IdAnswer, RefusedError, User, once, read
from verl_e2e.adapters.github.session import GitHub, anonymously
from verl_e2e.core.model.change import Change, ChangedPath, HistoryCommit, PathStatus, SubmoduleBump
from verl_e2e.core.pulls.forge import OpenPull, Pull, PullRef, PullState, api_of
from verl_e2e.ports import Comment, ForgeError, Issue, UnknownPullError


class _RepoAnswer(Answer):
    full_name: str
    default_branch: str = ""


class _SideAnswer(Answer):
    # `repo` is None when a fork is gone.
    ref: str
    sha: str
    repo: _RepoAnswer | None = None


class _PullAnswer(Answer):
    number: int
    state: str
    draft: bool = False
    user: User | None = None
    author_association: str = "NONE"
    changed_files: int = 0
    head: _SideAnswer
    base: _SideAnswer


class FileAnswer(Answer):
    """A changed file; `patch` is absent when it is binary or long."""

    filename: str
    status: str
    sha: str | None = None
    previous_filename: str | None = None
    contents_url: str = ""
    patch: str = ""


class _CommitAnswer(Answer):
    sha: str
    author: User | None = None
    committer: User | None = None


class _RefAnswer(Answer):
    target: _CommitAnswer = Field(alias="object")


class _ComparisonAnswer(Answer):
    merge_base_commit: _CommitAnswer


class _ContentAnswer(Answer):
    # `encoding` is `none` when it is too long to be given here.
    type: str = ""
    sha: str = ""
    encoding: str = ""
    content: str = ""


class _CommentAnswer(Answer):
    id: int
    body: str | None = ""
    user: User | None = None
    created_at: AwareDatetime
    updated_at: AwareDatetime
    performed_via_github_app: IdAnswer | None = None
    minimized: object | None = None


class _IssueAnswer(Answer):
    number: int
    body: str | None = None
    user: User | None = None
    performed_via_github_app: IdAnswer | None = None
    pull_request: object | None = None

    def is_of(self, app_id: int | None) -> bool:
        """Whether an App wrote it, and GitHub names no other one; not whatever a person wrote through an App."""
        through = self.performed_via_github_app
        written = self.pull_request is None and self.user is not None and self.user.type == "Bot"
        return written and (through is None or app_id in (None, through.id))


class _WrittenCommit(Answer):
    class Author(Answer):
        name: str = ""

    author: Author | None = None
    message: str = ""


class _ListedCommit(Answer):
    sha: str
    commit: _WrittenCommit
    parents: tuple[_CommitAnswer, ...] = ()


class _RoleAnswer(Answer):
    # Servers that know no custom roles say only `permission`.
    role_name: str = ""
    permission: str


class _StateAnswer(Answer):
    state: str


class GithubPeople:
    """Roles and teams, as `verl_e2e.ports.People`."""

    def __init__(self, github: GitHub) -> None:
        self._github = github

    def role(self, repository: str, login: str) -> str:
        """The role by its name, which tells maintain from write and triage from read; `none` without access."""
        path = f"/repos/{repository}/collaborators/{quote(login, safe='')}/permission"
        found = self._github.requester(repository).find(_RoleAnswer, path)
        return (found.role_name or found.permission) if found else "none"

    def in_team(self, team: str, login: str) -> bool:
        organisation, _, slug = team.partition("/")
        path = f"/orgs/{quote(organisation, safe='')}/teams/{quote(slug, safe='')}/memberships/{quote(login, safe='')}"
        found = self._github.requester(f"{organisation}/").find(_StateAnswer, path)
        return found is not None and found.state == "active"


# GitHub takes more, but says 65,536 when it refuses.
_MAX_BODY = 65_536


class GithubConversation:
    """The comments of a pull request, as `verl_e2e.ports.Conversation`."""

    def __init__(self, github: GitHub) -> None:
        self._github = github
        self._newest: dict[PullRef, int] = {}

    def comments(self, ref: PullRef) -> tuple[Comment, ...]:
        answers = self._github.requester(ref.repository).read_all(_CommentAnswer, f"{_issue(ref)}/comments")
        found = tuple(sorted((_as_comment(answer) for answer in answers), key=lambda comment: comment.id))
        self._newest[ref] = max([self._newest.get(ref, 0), *(comment.id for comment in found)])
        return found

    def read(self, ref: PullRef, comment_id: int) -> Comment | None:
        found = self._github.requester(ref.repository).find(_CommentAnswer, _comment(ref, comment_id))
        return _as_comment(found) if found else None

    def comment(self, ref: PullRef, body: str) -> int:
        """Write a comment and give its id; when it may already exist, we search for it first."""
        _check_body(body)
        requester = self._github.requester(ref.repository)
        newest = self._newest.get(ref, 0)

        def write() -> int:
            path = f"{_issue(ref)}/comments"
            return read(IdAnswer, requester.ask("POST", path, body={"body": body}), path).id

        def find() -> int | None:
            same = [
                found.id
                for found in self.comments(ref)
                if found.id > newest
                and found.app_id == self._github.app_id
                and _normalised(found.body) == _normalised(body)
            ]
            return max(same, default=None)

        return once(write, find, retry_policy=self._github.retry_policy)

    def edit(self, ref: PullRef, comment_id: int, body: str) -> bool:
        _check_body(body)
        return self._github.requester(ref.repository).act("PATCH", _comment(ref, comment_id), {"body": body})

    def delete(self, ref: PullRef, comment_id: int) -> None:
        self._github.requester(ref.repository).act("DELETE", _comment(ref, comment_id))

    def react(self, ref: PullRef, comment_id: int, reaction: str) -> None:
        """React to a comment; once is enough, again changes nothing, and a comment that is gone needs none."""
        path = f"{_comment(ref, comment_id)}/reactions"
        self._github.requester(ref.repository).act("POST", path, {"content": reaction})


class GithubIssues:
    """The issues of a repository, as `verl_e2e.ports.Issues`."""

    def __init__(self, github: GitHub) -> None:
        self._github = github

    def find(self, repository: str, marker: str) -> Issue | None:
        listed = self._github.requester(repository).read_all(_IssueAnswer, f"/repos/{repository}/issues", state="open")
        ours = (
            Issue(answer.number, answer.body or "")
            for answer in listed
            if (answer.body or "").startswith(marker) and answer.is_of(self._github.app_id)
        )
        return max(ours, key=lambda issue: issue.number, default=None)

    def open(self, repository: str, title: str, body: str, labels: tuple[str, ...]) -> int:
        _check_body(body)
        requester, path = self._github.requester(repository), f"/repos/{repository}/issues"

        def write() -> int:
            sent = {"title": title, "body": body, "labels": list(labels)}
            return read(_IssueAnswer, requester.ask("POST", path, body=sent), path).number

        marker = body.partition("\n")[0]

        def find() -> int | None:
            known = self.find(repository, marker)
            return known.number if known is not None else None

        return once(write, find, retry_policy=self._github.retry_policy)

    def close(self, repository: str, number: int) -> None:
        sent = {"state": "closed", "state_reason": "completed"}
        self._github.requester(repository).act("PATCH", f"/repos/{repository}/issues/{number}", sent)


def _as_comment(answer: _CommentAnswer) -> Comment:
    user = answer.user or User()
    # A person may act through an App too; then the App is not the author.
    through = answer.performed_via_github_app if user.type == "Bot" else None
    return Comment(
        id=answer.id,
        author=user.login,
        author_is_app=user.type == "Bot",
        body=answer.body or "",
        created=answer.created_at,
        edited=answer.updated_at != answer.created_at,
        app_id=through.id if through else None,
        minimized=answer.minimized is not None,
    )


def _issue(ref: PullRef) -> str:
    return f"/repos/{ref.repository}/issues/{ref.number}"


def _comment(ref: PullRef, comment_id: int) -> str:
    return f"/repos/{ref.repository}/issues/comments/{quote(str(comment_id), safe='')}"


def _normalised(body: str) -> str:
    """The text without the line ends and white space that GitHub may change."""
    return body.replace("\r\n", "\n").strip()


def _check_body(body: str) -> None:
    if not body.strip() or len(body) > _MAX_BODY:
        raise ForgeError(f"A comment holds 1 to {_MAX_BODY:,} characters, not {len(body):,}")


# GitHub's words; one that we do not know is taken for the plainest: something changed.
_STATUSES = {status.value: status for status in PathStatus}
_SUBMODULE_LINE = re.compile(r"^([-+])Subproject commit ([0-9a-f]{40})$", re.M)


class GithubPulls:
    """Pull requests, as `verl_e2e.ports.Pulls`. Works without a token for public repositories."""

    def __init__(self, github: GitHub) -> None:
        self._github = github

    def pull(self, ref: PullRef) -> Pull:
        found = self._github.requester(ref.repository).find(_PullAnswer, f"/repos/{ref.repository}/pulls/{ref.number}")
        if found is None:
            raise UnknownPullError(f"{ref}: there is no such pull request, or it cannot be seen from here")
        return Pull(
            ref=ref,
            base_branch=found.base.ref,
            base_sha=found.base.sha,
            head_sha=found.head.sha,
            head_repository=found.head.repo.full_name if found.head.repo else "",
            author=found.user.login if found.user else "",
            author_association=found.author_association,
            draft=found.draft,
            state=PullState.OPEN if found.state == "open" else PullState.CLOSED,
            changed_files=found.changed_files,
            default_branch=found.base.repo.default_branch if found.base.repo else "",
        )

    def open_pulls(self, repository: str, *, base: str = "") -> tuple[OpenPull, ...]:
        onto = {"base": base} if base else {}
        answers = self._github.requester(repository).read_all(
            _PullAnswer, f"/repos/{repository}/pulls", state="open", sort="created", direction="asc", **onto
        )
        # A page that is read while others are opened may repeat an entry.
        listed = {
            answer.number: OpenPull(PullRef(repository, answer.number), answer.base.ref, answer.head.sha)
            for answer in answers
        }
        return tuple(listed[number] for number in sorted(listed))

    def tip(self, repository: str, branch: str) -> str | None:
        # One word of the path, as GitHub describes it and its own clients send it.
        name = quote(f"heads/{branch}".encode("utf-8", "surrogateescape"), safe="")
        found = self._github.requester(repository).find(_RefAnswer, f"/repos/{repository}/git/ref/{name}")
        return found.target.sha if found else None

    def committers(self, pull: Pull) -> frozenset[str]:
        """The logins that GitHub names as author or committer of the commits, of which it lists 250 at most.

        ForgeError when the pull request was pushed to since it was read: GitHub lists the commits of its newest head.
        """
        name, number = pull.ref.repository, pull.ref.number
        commits = self._github.requester(name).read_all(_CommitAnswer, f"/repos/{name}/pulls/{number}/commits")
        if all(commit.sha != pull.head_sha for commit in commits) and self.pull(pull.ref).head_sha != pull.head_sha:
            raise ForgeError(f"{pull.ref} was pushed to while its commits were read", passing=True)
        named = (person for commit in commits for person in (commit.author, commit.committer))
        return frozenset(person.login for person in named if person is not None and person.login)

    def change(self, pull: Pull) -> Change:
        """The changed files with both names of renames, as far as GitHub lists them (compare with `changed_files`).

        ForgeError when the pull request was pushed to since it was read: GitHub lists the files of its newest head.
        """
        name, number = pull.ref.repository, pull.ref.number
        requester = self._github.requester(name)
        files = requester.read_all(FileAnswer, f"/repos/{name}/pulls/{number}/files")
        # Do they say that they are those of this head?
        there = [parse_qs(urlsplit(file.contents_url).query).get("ref") for file in files if file.status != "removed"]
        listed = bool(files) and all(named == [pull.head_sha] for named in there)
        if not listed and self.pull(pull.ref).head_sha != pull.head_sha:
            raise ForgeError(f"{pull.ref} was pushed to while its files were read", passing=True)
        # A later page of a comparison lists commits only; the first one would carry up to 300 files as well.
        span = f"{quote(pull.base_sha, safe='')}...{quote(pull.head_sha, safe='')}"
        compared = requester.find(
            _ComparisonAnswer, f"/repos/{name}/compare/{span}", parameters={"page": 2, "per_page": 1}
        )
        return Change(
            base=pull.base_sha,
            head=pull.head_sha,
            merge_base=compared.merge_base_commit.sha if compared else None,
            paths=tuple(as_changed_path(file) for file in files),
        )

    def file_at(self, repository: str, revision: str, path: str) -> bytes | None:
        requester, where = self._github.requester(repository), quote(path.encode("utf-8", "surrogateescape"))
        try:
            data = requester.ask("GET", f"/repos/{repository}/contents/{where}", parameters={"ref": revision})
        except RefusedError as error:
            if error.absent:
                return None
            raise
        if isinstance(data, list):
            return None
        found = read(_ContentAnswer, data, path)
        if found.type not in ("file", "symlink"):
            return None
        if found.encoding == "base64":
            return _decoded(found.content, path)
        # Too long for this endpoint.
        found = requester.read(_ContentAnswer, f"/repos/{repository}/git/blobs/{quote(found.sha, safe='')}")
        return found.content.encode() if found.encoding == "utf-8" else _decoded(found.content, path)


def as_changed_path(file: FileAnswer) -> ChangedPath:
    """Our path for GitHub's file, with the bump that the patch of a submodule shows."""
    named = dict(_SUBMODULE_LINE.findall(file.patch))
    # A file that only reads like one has another id than the commit it names.
    bump = SubmoduleBump(old=named.get("-"), new=named.get("+")) if named and file.sha in named.values() else None
    status = _STATUSES.get(file.status, PathStatus.CHANGED)
    return ChangedPath(path=file.filename, status=status, old_path=file.previous_filename, submodule=bump)


def _decoded(text: str, path: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError) as error:
        raise ForgeError(f"GitHub answered {path} with broken base64") from error


_CONTENTS = 64
_UNPROCESSABLE = 422


def named_by(address: str) -> tuple[str, str]:
    """The interface and the `owner/name` of the repository at `https://HOST/OWNER/NAME`; ForgeError."""
    parts = urlsplit(address)
    name = parts.path.strip("/").removesuffix(".git")
    if name.count("/") != 1:
        raise ForgeError(f"{address} is not the address of a repository; fix verl.repository in the policy")
    return api_of(f"{parts.scheme}://{parts.netloc}"), name


def has_commit(github: GitHub, repository: str, address: str, commit: str) -> bool:
    """Whether the repository at an address has a commit: seen by our App, or by anyone where it is on another site."""
    api_url, name = named_by(address)
    elsewhere = None if api_url == github.api_url else anonymously(api_url=api_url, retry_policy=github.retry_policy)
    place = PublicRepository(elsewhere, name) if elsewhere else PublicRepository(github, name, seen_from=repository)
    try:
        return place.find(commit) is not None
    except ForgeError as error:
        if error.passing:
            raise ForgeError(f"{urlsplit(address).netloc}: {error}", passing=True, wait_s=error.wait_s) from None
        raise
    finally:
        if elsewhere:
            elsewhere.close()


class PublicRepository:
    """A public repository, read without a token: what a full SHA names never changes and is asked for once."""

    def __init__(self, github: GitHub, name: str, *, seen_from: str = "") -> None:
        # Our App sees another repository by its token for one where it is installed.
        self._github, self._name, self._seen_from = github, name, seen_from or name
        self._pulls = GithubPulls(github)
        self._content = lru_cache(_CONTENTS)(lambda revision, path: self._pulls.file_at(name, revision, path))

    def resolve(self, revision: str) -> str:
        """The full SHA that a branch, tag or SHA names; ForgeError."""
        path = f"/repos/{self._name}/commits/{quote(revision, safe='')}"
        found = self._github.requester(self._seen_from).ask("GET", path)
        sha = found.get("sha") if isinstance(found, dict) else None
        if not isinstance(sha, str):
            raise ForgeError(f"{self._name}: {revision[:60]!r} names no commit")
        return sha

    def find(self, revision: str) -> str | None:
        """The full SHA that a revision names, None when there is none; ForgeError where that is not known."""
        try:
            return self.resolve(revision)
        except RefusedError as error:
            # 422 is GitHub's word for a SHA that no commit has.
            if error.absent or error.status == _UNPROCESSABLE:
                return None
            raise

    def read_blob(self, revision: str, path: str) -> bytes | None:
        return self._content(revision, path)

    def first_parents(self, head: str, count: int) -> tuple[HistoryCommit, ...]:
        """The last commits on the first-parent line up to `head`, newest first; ForgeError."""
        path = f"/repos/{self._name}/commits"
        listed = islice(self._github.requester(self._seen_from).entries(path, sha=head), count)
        commits = (read(_ListedCommit, entry, path) for entry in listed)
        known, found = {commit.sha: commit for commit in commits}, list[HistoryCommit]()
        sha = self.resolve(head)
        while sha in known and known[sha].parents and len(found) < count:
            commit, parent = known[sha].commit, known[sha].parents[0].sha
            author = commit.author.name if commit.author else ""
            found.append(HistoryCommit(sha, parent, author, commit.message.partition("\n")[0]))
            sha = parent
        return tuple(found)

    def change(self, base: str, head: str) -> Change:
        """No one compares revisions of verl by way of the API."""
        raise ForgeError(f"{self._name}: {base[:12]}..{head[:12]} can be compared in a clone only")
