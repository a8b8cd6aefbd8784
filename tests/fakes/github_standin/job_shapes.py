"""Check runs, workflow runs and hook deliveries as GitHub's API writes them."""

from datetime import timedelta
from urllib.parse import quote

from tests.fakes.github_standin.shapes import Json, Shapes, maybe_time, node, time
from tests.fakes.github_standin.state import Artifact, CheckRun, CheckSuite, Repository, WorkflowRun

_KEPT = timedelta(days=90)


def check_run(shapes: Shapes, check: CheckRun) -> Json:
    """`check-run`."""
    suite = check.suite
    url = f"{shapes.at(suite.repository)}/check-runs/{check.id}"
    html = f"{shapes.base}/{suite.repository}/runs/{check.id}"
    return {
        "id": check.id,
        "node_id": node("CR", check.id),
        "head_sha": suite.head_sha,
        "name": check.name,
        "external_id": check.external_id,
        "url": url,
        "html_url": html,
        "details_url": check.details_url or html,
        "status": check.status,
        "conclusion": check.conclusion,
        "started_at": time(check.started),
        "completed_at": maybe_time(check.completed),
        "output": {
            "title": check.title,
            "summary": check.summary,
            "text": check.text,
            "annotations_count": len(check.annotations),
            "annotations_url": f"{url}/annotations",
        },
        "check_suite": {"id": suite.id},
        "app": shapes.app(suite.app),
        "pull_requests": pulls_of(shapes, suite.repository, suite.head_sha),
    }


def pulls_of(shapes: Shapes, full_name: str, head_sha: str) -> list[Json]:
    """`pull-request-minimal` of a commit; GitHub gives none for a fork's."""
    repository = shapes.state.repositories[full_name.lower()]
    end = {"id": repository.id, "url": shapes.at(full_name), "name": repository.name}
    return [
        {
            "id": pull.id,
            "number": pull.number,
            "url": f"{shapes.at(full_name)}/pulls/{pull.number}",
            "head": {"ref": pull.head_branch, "sha": pull.head_sha, "repo": end},
            "base": {"ref": pull.base_branch, "sha": pull.base_sha, "repo": end},
        }
        for pull in repository.pulls.values()
        if pull.state == "open" and pull.head_sha == head_sha and pull.head_repository == full_name
    ]


def annotation(shapes: Shapes, check: CheckRun, sent: object) -> Json:
    """`check-annotation`."""
    assert isinstance(sent, dict)
    keys = ("path", "start_line", "end_line", "annotation_level", "message")
    return {
        **{key: sent[key] for key in keys},
        **{key: sent.get(key) for key in ("start_column", "end_column", "title", "raw_details")},
        "blob_href": f"{shapes.base}/{check.suite.repository}/blob/{check.suite.head_sha}/{sent['path']}",
    }


def suite_conclusion(shapes: Shapes, suite: CheckSuite) -> tuple[str, str | None]:
    """The status and conclusion that the suite's check runs add up to."""
    checks = [check for check in shapes.state.checks.values() if check.suite is suite]
    if not checks:
        return "queued", None
    if any(check.status != "completed" for check in checks):
        return "in_progress", None
    order = ("failure", "timed_out", "cancelled", "action_required", "success", "neutral", "skipped")
    return "completed", next(text for text in order if any(check.conclusion == text for check in checks))


def check_suite(shapes: Shapes, suite: CheckSuite) -> Json:
    """`check-suite`."""
    repository = shapes.state.repositories[suite.repository.lower()]
    url = f"{shapes.at(suite.repository)}/check-suites/{suite.id}"
    status, conclusion = suite_conclusion(shapes, suite)
    return {
        "id": suite.id,
        "node_id": node("CS", suite.id),
        "head_branch": suite.head_branch,
        "head_sha": suite.head_sha,
        "status": status,
        "conclusion": conclusion,
        "url": url,
        "before": None,
        "after": suite.head_sha,
        "pull_requests": pulls_of(shapes, suite.repository, suite.head_sha),
        "app": shapes.app(suite.app),
        "repository": shapes.minimal_repository(repository),
        "created_at": time(suite.created),
        "updated_at": time(suite.updated),
        "head_commit": shapes.simple_commit(repository, suite.head_sha),
        "latest_check_runs_count": sum(check.suite is suite for check in shapes.state.checks.values()),
        "check_runs_url": f"{url}/check-runs",
    }


def workflow(shapes: Shapes, repository: Repository, path: str, name: str) -> Json:
    """`workflow`."""
    number = workflow_id(shapes, repository, path)
    made = time(repository.created)
    return {
        "id": number,
        "node_id": node("W", number),
        "name": name,
        "path": path,
        "state": "active",
        "created_at": made,
        "updated_at": made,
        "url": f"{shapes.at(repository.full_name)}/actions/workflows/{number}",
        "html_url": f"{shapes.base}/{repository.full_name}/blob/main/{path}",
        "badge_url": f"{shapes.base}/{repository.full_name}/workflows/{quote(name)}/badge.svg",
    }


def workflow_id(shapes: Shapes, repository: Repository, path: str) -> int:
    """A workflow's id, made on first use."""
    return repository.workflow_ids.setdefault(path, shapes.state.new_id())


def workflow_run(shapes: Shapes, run: WorkflowRun) -> Json:
    """`workflow-run`."""
    repository = shapes.state.repositories[run.repository.lower()]
    url = f"{shapes.at(run.repository)}/actions/runs/{run.id}"
    workflow_number = workflow_id(shapes, repository, run.path)
    return {
        "id": run.id,
        "name": run.workflow_name,
        "node_id": node("WFR", run.id),
        "check_suite_id": run.id + 1,
        "check_suite_node_id": node("CS", run.id + 1),
        "head_branch": run.ref,
        "head_sha": run.head_sha,
        "path": run.path,
        "run_number": run.number,
        "run_attempt": 1,
        "event": run.event,
        "display_title": run.title,
        "status": run.status,
        "conclusion": run.conclusion,
        "workflow_id": workflow_number,
        "url": url,
        "html_url": f"{shapes.base}/{run.repository}/actions/runs/{run.id}",
        "pull_requests": [],
        "created_at": time(run.created),
        "updated_at": time(run.updated),
        "run_started_at": time(run.created),
        "actor": shapes.user(run.actor),
        "triggering_actor": shapes.user(run.actor),
        "jobs_url": f"{url}/jobs",
        "logs_url": f"{url}/logs",
        "check_suite_url": f"{shapes.at(run.repository)}/check-suites/{run.id + 1}",
        "artifacts_url": f"{url}/artifacts",
        "cancel_url": f"{url}/cancel",
        "rerun_url": f"{url}/rerun",
        "previous_attempt_url": None,
        "workflow_url": f"{shapes.at(run.repository)}/actions/workflows/{workflow_number}",
        "head_commit": shapes.simple_commit(repository, run.head_sha),
        "repository": shapes.minimal_repository(repository),
        "head_repository": shapes.minimal_repository(repository),
    }


def job(shapes: Shapes, run: WorkflowRun) -> Json:
    """`job`: the one job of a run."""
    base = shapes.at(run.repository)
    begun = run.status != "queued"
    # As long before its end as it ran, whenever the story dispatched it.
    started = run.updated - timedelta(seconds=run.lasted_s) if run.status == "completed" else run.created
    step = {
        "name": "Run",
        "status": run.status,
        # A step has no word of its own for time that ran out.
        "conclusion": "failure" if run.conclusion == "timed_out" else run.conclusion,
        "number": 1,
        "started_at": time(started),
        "completed_at": time(run.updated) if run.status == "completed" else None,
    }
    return {
        "id": run.job_id,
        "run_id": run.id,
        "run_url": f"{base}/actions/runs/{run.id}",
        "run_attempt": 1,
        "node_id": node("CR", run.job_id),
        "head_sha": run.head_sha,
        "url": f"{base}/actions/jobs/{run.job_id}",
        "html_url": f"{shapes.base}/{run.repository}/actions/runs/{run.id}/job/{run.job_id}",
        "status": run.status,
        "conclusion": run.conclusion,
        "created_at": time(run.created),
        "started_at": time(started),
        "completed_at": time(run.updated) if run.status == "completed" else None,
        "name": "run",
        "steps": [step] if begun else [],
        "check_run_url": f"{base}/check-runs/{run.job_id}",
        "labels": list(run.labels),
        "runner_id": 1 if begun else None,
        "runner_name": "gpu-1" if begun else None,
        "runner_group_id": 1 if begun else None,
        "runner_group_name": "Default" if begun else None,
        "workflow_name": run.workflow_name,
        "head_branch": run.ref,
    }


def artifact(shapes: Shapes, run: WorkflowRun, item: Artifact) -> Json:
    """`artifact`."""
    url = f"{shapes.at(run.repository)}/actions/artifacts/{item.id}"
    repository = shapes.state.repositories[run.repository.lower()]
    return {
        "id": item.id,
        "node_id": node("ART", item.id),
        "name": item.name,
        "size_in_bytes": len(item.content),
        "url": url,
        "archive_download_url": f"{url}/zip",
        "expired": item.expired,
        "created_at": time(item.created),
        "updated_at": time(item.created),
        "expires_at": time(item.created + _KEPT),
        "digest": f"sha256:{item.sha256}",
        "workflow_run": {
            "id": run.id,
            "repository_id": repository.id,
            "head_repository_id": repository.id,
            "head_branch": run.ref,
            "head_sha": run.head_sha,
        },
    }
