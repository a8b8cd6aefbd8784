"""Pull requests: their facts, their files and contents at a commit."""

import base64
import binascii
import re
from urllib.parse import parse_qs, quote, urlsplit

from verl_e2e.adapters.github.answers import (
    CommitAnswer,
    ComparisonAnswer,
    ContentAnswer,
    FileAnswer,
    PullAnswer,
    RefAnswer,
    read,
)
from verl_e2e.adapters.github.retry import RefusedError
from verl_e2e.adapters.github.session import GitHub
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus, SubmoduleBump
from verl_e2e.core.pulls.pull import OpenPull, Pull, PullRef, PullState
from verl_e2e.ports import ForgeError, UnknownPullError

# GitHub's words; one that we do not know is taken for the plainest: something changed.
_STATUSES = {status.value: status for status in PathStatus}
_SUBMODULE_LINE = re.compile(r"^([-+])Subproject commit ([0-9a-f]{40})$", re.M)


class GithubPulls:
    """Pull requests, as `verl_e2e.ports.Pulls`. Works without a token for public repositories."""

    def __init__(self, github: GitHub) -> None:
        self._github = github

    def pull(self, ref: PullRef) -> Pull:
        """The pull request as it is now; UnknownPullError."""
        found = self._github.requester(ref.repository).find(PullAnswer, f"/repos/{ref.repository}/pulls/{ref.number}")
        if found is None:
            raise UnknownPullError(f"{ref}: there is no such pull request, or it cannot be seen from here")
        return as_pull(found, ref)

    def open_pulls(self, repository: str, *, base: str = "") -> tuple[OpenPull, ...]:
        """Every open pull request, or those onto one base branch, oldest first."""
        onto = {"base": base} if base else {}
        answers = self._github.requester(repository).read_all(
            PullAnswer, f"/repos/{repository}/pulls", state="open", sort="created", direction="asc", **onto
        )
        # A page that is read while others are opened may repeat an entry.
        listed = {
            answer.number: OpenPull(PullRef(repository, answer.number), answer.base.ref, answer.head.sha)
            for answer in answers
        }
        return tuple(listed[number] for number in sorted(listed))

    def tip(self, repository: str, branch: str) -> str | None:
        """The commit that a branch points at now, None when there is no such branch."""
        # One word of the path, as GitHub describes it and its own clients send it.
        name = quote(f"heads/{branch}".encode("utf-8", "surrogateescape"), safe="")
        found = self._github.requester(repository).find(RefAnswer, f"/repos/{repository}/git/ref/{name}")
        return found.target.sha if found else None

    def committers(self, pull: Pull) -> frozenset[str]:
        """The logins that GitHub names as author or committer of the commits, of which it lists 250 at most.

        ForgeError when the pull request was pushed to since it was read: GitHub lists the commits of its newest head.
        """
        name, number = pull.ref.repository, pull.ref.number
        commits = self._github.requester(name).read_all(CommitAnswer, f"/repos/{name}/pulls/{number}/commits")
        if all(commit.sha != pull.head_sha for commit in commits) and self.pull(pull.ref).head_sha != pull.head_sha:
            raise ForgeError(f"{pull.ref} was pushed to while its commits were read", passing=True)
        named = (person for commit in commits for person in (commit.author, commit.committer))
        return frozenset(person.login for person in named if person is not None and person.login)

    def change(self, pull: Pull) -> Change:
        """The changed files with both names of renames, as far as GitHub lists them (compare with `changed_files`).

        ForgeError when the pull request was pushed to since it was read: GitHub lists the files of its newest head.
        """
        name, number = pull.ref.repository, pull.ref.number
        files = self._github.requester(name).read_all(FileAnswer, f"/repos/{name}/pulls/{number}/files")
        if not _all_of(files, pull.head_sha) and self.pull(pull.ref).head_sha != pull.head_sha:
            raise ForgeError(f"{pull.ref} was pushed to while its files were read", passing=True)
        return Change(
            base=pull.base_sha,
            head=pull.head_sha,
            merge_base=self._merge_base(name, pull.base_sha, pull.head_sha),
            paths=tuple(as_changed_path(file) for file in files),
        )

    def file_at(self, repository: str, revision: str, path: str) -> bytes | None:
        """A file's content at a revision, None when it is not there."""
        where = quote(path.encode("utf-8", "surrogateescape"))
        try:
            data = self._github.requester(repository).ask(
                "GET", f"/repos/{repository}/contents/{where}", parameters={"ref": revision}
            )
        except RefusedError as error:
            if error.absent:
                return None
            raise
        if isinstance(data, list):
            return None
        found = read(ContentAnswer, data, path)
        if found.type not in ("file", "symlink"):
            return None
        if found.encoding == "base64":
            return _decoded(found.content, path)
        return self._blob(repository, found.sha, path)

    def _blob(self, repository: str, sha: str, path: str) -> bytes:
        """A content that is too long for the contents endpoint."""
        found = self._github.requester(repository).read(
            ContentAnswer, f"/repos/{repository}/git/blobs/{quote(sha, safe='')}"
        )
        return found.content.encode() if found.encoding == "utf-8" else _decoded(found.content, path)

    def _merge_base(self, repository: str, base: str, head: str) -> str | None:
        # A later page lists commits only; the first one would carry up to 300 files as well.
        span = f"{quote(base, safe='')}...{quote(head, safe='')}"
        found = self._github.requester(repository).find(
            ComparisonAnswer, f"/repos/{repository}/compare/{span}", parameters={"page": 2, "per_page": 1}
        )
        return found.merge_base_commit.sha if found else None


def as_pull(answer: PullAnswer, ref: PullRef) -> Pull:
    """Our pull request for GitHub's."""
    return Pull(
        ref=ref,
        base_branch=answer.base.ref,
        base_sha=answer.base.sha,
        head_sha=answer.head.sha,
        head_repository=answer.head.repo.full_name if answer.head.repo else "",
        author=answer.user.login if answer.user else "",
        author_association=answer.author_association,
        draft=answer.draft,
        state=PullState.OPEN if answer.state == "open" else PullState.CLOSED,
        labels=tuple(label.name for label in answer.labels),
        changed_files=answer.changed_files,
        title=answer.title,
        default_branch=answer.base.repo.default_branch if answer.base.repo else "",
    )


def as_changed_path(file: FileAnswer) -> ChangedPath:
    """Our path for GitHub's file."""
    return ChangedPath(
        path=file.filename,
        status=_STATUSES.get(file.status, PathStatus.CHANGED),
        old_path=file.previous_filename,
        submodule=_submodule(file),
    )


def _all_of(files: list[FileAnswer], head_sha: str) -> bool:
    """Whether the listed files say that they are those of this head."""
    there = (file.contents_url for file in files if file.status != "removed")
    return bool(files) and all(parse_qs(urlsplit(url).query).get("ref") == [head_sha] for url in there)


def _submodule(file: FileAnswer) -> SubmoduleBump | None:
    """The bump that a patch shows; a file that only reads like one has another id than the commit it names."""
    named = dict(_SUBMODULE_LINE.findall(file.patch))
    if not named or file.sha not in named.values():
        return None
    return SubmoduleBump(old=named.get("-"), new=named.get("+"))


def _decoded(text: str, path: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError) as error:
        raise ForgeError(f"GitHub answered {path} with broken base64") from error
