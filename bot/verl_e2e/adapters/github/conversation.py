"""The comments of a pull request: all pages are read, ours are known by the App's id, and none is written twice."""

from urllib.parse import quote

from verl_e2e.adapters.github.answers import CommentAnswer, IdAnswer, User, read
from verl_e2e.adapters.github.retry import once
from verl_e2e.adapters.github.session import GitHub
from verl_e2e.core.pulls.pull import PullRef
from verl_e2e.ports import Comment, ForgeError

# GitHub takes more, but says 65,536 when it refuses.
MAX_BODY = 65_536
REACTIONS = frozenset({"+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes"})


class GithubConversation:
    """The comments of a pull request, as `verl_e2e.ports.Conversation`."""

    def __init__(self, github: GitHub) -> None:
        self._github = github
        self._newest: dict[PullRef, int] = {}

    def comments(self, ref: PullRef) -> tuple[Comment, ...]:
        """All comments, oldest first."""
        answers = self._github.requester(ref.repository).read_all(CommentAnswer, f"{_issue(ref)}/comments")
        found = tuple(sorted((_as_comment(answer) for answer in answers), key=lambda comment: comment.id))
        self._newest[ref] = max([self._newest.get(ref, 0), *(comment.id for comment in found)])
        return found

    def read(self, ref: PullRef, comment_id: int) -> Comment | None:
        """One comment, None when it is gone."""
        found = self._github.requester(ref.repository).find(CommentAnswer, _comment(ref, comment_id))
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
            same = [found.id for found in self.comments(ref) if found.id > newest and self._wrote(found, body)]
            return max(same, default=None)

        return once(write, find, retry_policy=self._github.retry_policy)

    def edit(self, ref: PullRef, comment_id: int, body: str) -> bool:
        """Replace a comment of ours; false when it is gone."""
        _check_body(body)
        return self._github.requester(ref.repository).act("PATCH", _comment(ref, comment_id), {"body": body})

    def delete(self, ref: PullRef, comment_id: int) -> None:
        """Delete a comment of ours; one that is gone is left alone."""
        self._github.requester(ref.repository).act("DELETE", _comment(ref, comment_id))

    def react(self, ref: PullRef, comment_id: int, reaction: str) -> None:
        """React to a comment; once is enough, again changes nothing, and a comment that is gone needs none."""
        if reaction not in REACTIONS:
            raise ForgeError(f"{reaction!r} is not a reaction: use one of {', '.join(sorted(REACTIONS))}")
        path = f"{_comment(ref, comment_id)}/reactions"
        self._github.requester(ref.repository).act("POST", path, {"content": reaction})

    def _wrote(self, found: Comment, body: str) -> bool:
        return found.app_id == self._github.app_id and _normalised(found.body) == _normalised(body)


def _as_comment(answer: CommentAnswer) -> Comment:
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
    if not body.strip() or len(body) > MAX_BODY:
        raise ForgeError(f"A comment holds 1 to {MAX_BODY:,} characters, not {len(body):,}")
