"""Events of one repository as the parser gives them, for hearing."""

from datetime import datetime

from tests.fakes.app import APP, REPOSITORY
from tests.fakes.trees import sha
from verl_e2e.core.pulls.deliveries import (
    CheckRunEvent,
    CheckSuiteEvent,
    CommentEvent,
    MergeGroupEvent,
    PullRequestEvent,
    PushEvent,
    WorkflowJobEvent,
    WorkflowRunEvent,
)
from verl_e2e.ports import Comment

_REPO = {"full_name": REPOSITORY}


def pull_event(action: str, head: str, sender: str = "alice", label: str = "", number: int = 7) -> PullRequestEvent:
    """Something happened to the pull request."""
    commit = {"sha": sha(head), "ref": "topic"}
    return PullRequestEvent.model_validate(
        {
            "action": action,
            "repository": _REPO,
            "sender": {"login": sender},
            "pull_request": {"number": number, "head": commit, "base": commit},
            "label": {"name": label} if label else None,
        }
    )


def comment_event(
    comment: Comment,
    sender: str = "",
    updated: datetime | None = None,
    number: int = 7,
    via: int | None = None,
    action: str = "created",
) -> CommentEvent:
    """A comment was created, edited or deleted."""
    part = {
        "id": comment.id,
        "body": comment.body,
        "user": {"login": comment.author},
        "created_at": comment.created,
        "updated_at": updated or comment.created,
        "performed_via_github_app": {"id": via} if via else None,
    }
    return CommentEvent.model_validate(
        {
            "action": action,
            "repository": _REPO,
            "sender": {"login": sender or comment.author},
            "issue": {"number": number, "pull_request": {}},
            "comment": part,
        }
    )


def check_event(
    external_id: str, head: str, *, name: str = "verl-e2e", sender: str = "alice", button: str = "", app: int = APP
) -> CheckRunEvent:
    """A check run's button was pressed, or it was asked for again."""
    return CheckRunEvent.model_validate(
        {
            "action": "requested_action" if button else "rerequested",
            "repository": _REPO,
            "sender": {"login": sender},
            "check_run": {
                "id": 55,
                "name": name,
                "head_sha": sha(head),
                "external_id": external_id,
                "app": {"id": app},
            },
            "requested_action": {"identifier": button} if button else None,
        }
    )


def suite_event(head: str, sender: str = "alice") -> CheckSuiteEvent:
    """All check runs of a commit were asked for again."""
    suite = {"id": 66, "head_sha": sha(head), "app": {"id": APP}}
    return CheckSuiteEvent.model_validate(
        {"action": "rerequested", "repository": _REPO, "sender": {"login": sender}, "check_suite": suite}
    )


def group_event(action: str, head: str, base: str = "base", number: int = 7) -> MergeGroupEvent:
    """The merge queue asked for a group's checks, or gave it up."""
    part = {
        "head_sha": sha(head),
        "head_ref": f"refs/heads/gh-readonly-queue/main/pr-{number}-{sha(base)}",
        "base_sha": sha(base),
        "base_ref": "refs/heads/main",
    }
    return MergeGroupEvent.model_validate(
        {"action": action, "repository": _REPO, "sender": {"login": "alice"}, "merge_group": part}
    )


def workflow_event(run_id: int) -> WorkflowRunEvent:
    """A workflow run went a step on."""
    part = {"id": run_id, "head_sha": sha("main")}
    return WorkflowRunEvent.model_validate({"action": "completed", "repository": _REPO, "workflow_run": part})


def workflow_job_event(run_id: int) -> WorkflowJobEvent:
    """A job of a workflow run went a step on."""
    part = {"id": 9, "run_id": run_id, "head_sha": sha("main"), "status": "completed"}
    return WorkflowJobEvent.model_validate({"action": "completed", "repository": _REPO, "workflow_job": part})


def push_event(number: int) -> PushEvent:
    """A mirror branch was pushed."""
    ref = f"refs/heads/pull-request/{number}"
    return PushEvent.model_validate({"ref": ref, "after": sha("one"), "repository": _REPO})
