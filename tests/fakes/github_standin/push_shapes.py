"""What GitHub tells of a push to a branch."""

from tests.fakes.github_standin.shapes import Json, Shapes
from tests.fakes.github_standin.state import Repository, User

_NONE = "0" * 40


def push_payload(
    shapes: Shapes, repository: Repository, branch: str, before: str | None, after: str | None, sender: User
) -> Json:
    """The `push` of a branch from a commit to another; None where it was not there, or is not any more."""
    html = f"{shapes.base}/{repository.full_name}"
    commits = (
        [_commit(shapes, repository, sha) for sha in repository.git.between(before, after)[-20:]]
        if before and after
        else []
    )
    return {
        "ref": f"refs/heads/{branch}",
        "before": before or _NONE,
        "after": after or _NONE,
        "created": before is None,
        "deleted": after is None,
        "forced": False,
        "base_ref": None,
        "compare": f"{html}/compare/{(before or _NONE)[:12]}...{(after or _NONE)[:12]}",
        "commits": commits,
        "head_commit": None if after is None else _commit(shapes, repository, after),
        "pusher": {"name": sender.login, "email": f"{sender.login}@example.invalid"},
        "sender": shapes.user(sender),
    }


def _commit(shapes: Shapes, repository: Repository, sha: str) -> Json:
    facts = repository.git.facts(sha)
    person = {"name": "Octo", "email": "octo@example.invalid", "date": facts.date}
    files = repository.git.changed(facts.parents[0], sha) if facts.parents else ()
    return {
        "id": sha,
        "tree_id": facts.tree,
        "distinct": True,
        "message": facts.message,
        "timestamp": facts.date,
        "url": f"{shapes.base}/{repository.full_name}/commit/{sha}",
        "author": person,
        "committer": person,
        "added": [file.path for file in files if file.status == "added"],
        "removed": [file.path for file in files if file.status == "removed"],
        "modified": [file.path for file in files if file.status not in ("added", "removed")],
    }
