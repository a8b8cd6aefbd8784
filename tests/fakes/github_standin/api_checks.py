"""Check runs and suites, with GitHub's limits."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tests.fakes.github_standin import job_shapes
from tests.fakes.github_standin.routing import NOT_FOUND, Api, ApiError, Reply, Request, Route, number_in
from tests.fakes.github_standin.shapes import Json
from tests.fakes.github_standin.state import App, CheckRun, CheckSuite, User

LONGEST_TEXT = 65_535
MOST_ANNOTATIONS = 50
MOST_ACTIONS = 3
_ACTION_LENGTHS = {"label": 20, "description": 40, "identifier": 20}
_LEVELS = ("notice", "warning", "failure")
_ANNOTATION = ("path", "start_line", "end_line", "annotation_level", "message")
_CONCLUSIONS = ("success", "failure", "neutral", "cancelled", "skipped", "timed_out", "action_required")
_STATUSES = ("queued", "in_progress", "completed")


def create_check(api: Api, request: Request) -> Reply:
    """A new check run, even where one of this name is there."""
    repository, sent, app = api.repository(request), request.json(), _app(request)
    _check_limits(sent)
    name, head = sent.get("name"), sent.get("head_sha")
    if not isinstance(name, str) or not name or not isinstance(head, str):
        raise ApiError(422, 'Invalid request.\n\n"name", "head_sha" weren\'t supplied.', "name", "missing_field")
    if len(head) != 40 or repository.git.find(head) is None:
        raise ApiError(422, f"No commit found for SHA: {head}", "head_sha", "custom")
    now = api.state.now()
    suite = api.state.suite_of(repository, head, app)
    check = CheckRun(api.state.new_id(), suite, name, "queued", None, "", "", now, None)
    _apply(check, sent, now)
    api.state.checks[check.id] = check
    tell_of_check(api, "created", check, app.bot)
    return Reply(201, job_shapes.check_run(api.shapes, check))


def update_check(api: Api, request: Request) -> Reply:
    """Change a check run of one's own; annotations are added to those there."""
    check, sent = _check(api, request), request.json()
    if check.suite.app is not _app(request):
        raise ApiError(403, "Invalid app_id - check run can only be modified by the GitHub App that created it.")
    _check_limits(sent)
    ended = check.status == "completed"
    check.writes += 1
    _apply(check, sent, api.state.now())
    if check.status == "completed" and not ended:
        tell_of_check(api, "completed", check, check.suite.app.bot)
    return Reply(200, job_shapes.check_run(api.shapes, check))


def tell_of_check(api: Api, action: str, check: CheckRun, sender: User, more: Json | None = None) -> None:
    """Send `check_run`."""
    repository = api.state.repositories[check.suite.repository.lower()]
    shape = job_shapes.check_run(api.shapes, check)
    suite = job_shapes.check_suite(api.shapes, check.suite)
    kept = ("id", "node_id", "head_branch", "head_sha", "status", "conclusion", "url", "before", "after")
    more_kept = ("pull_requests", "app", "created_at", "updated_at")
    inner = {**shape, "check_suite": {key: suite[key] for key in (*kept, *more_kept)}}
    payload = {"check_run": inner, "sender": api.shapes.user(sender), **(more or {})}
    api.hooks.emit("check_run", action, repository, payload)


def tell_of_suite(api: Api, action: str, suite: CheckSuite, sender: User) -> None:
    """Send `check_suite`."""
    repository = api.state.repositories[suite.repository.lower()]
    payload = {"check_suite": job_shapes.check_suite(api.shapes, suite), "sender": api.shapes.user(sender)}
    api.hooks.emit("check_suite", action, repository, payload)


def _apply(check: CheckRun, sent: Mapping[str, Any], now: datetime) -> None:
    check.name = sent.get("name", check.name)
    check.external_id = sent.get("external_id", check.external_id)
    check.details_url = sent.get("details_url", check.details_url)
    check.actions = tuple(sent.get("actions", ()))
    if "started_at" in sent:
        check.started = datetime.strptime(sent["started_at"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    status = sent.get("status", "completed" if sent.get("conclusion") else check.status)
    check.status = status
    check.conclusion = sent.get("conclusion", check.conclusion) if status == "completed" else None
    check.completed = now if status == "completed" else None
    check.suite.updated = now
    output = sent.get("output")
    if output is not None:
        check.title, check.summary = output.get("title", check.title), output.get("summary", check.summary)
        check.text = output.get("text", check.text)
        check.annotations.extend(output.get("annotations", ()))


def _check_limits(sent: Mapping[str, Any]) -> None:
    status, conclusion = sent.get("status", ""), sent.get("conclusion", "")
    if status not in ("", *_STATUSES):
        raise ApiError(422, f"Invalid request.\n\nStatus {status} is not known.", "status")
    if conclusion not in ("", *_CONCLUSIONS):
        raise ApiError(422, f"Invalid request.\n\nConclusion {conclusion} is not known.", "conclusion")
    if status == "completed" and not conclusion:
        raise ApiError(422, 'Invalid request.\n\n"conclusion" wasn\'t supplied.', "conclusion", "missing_field")
    actions = sent.get("actions", ())
    if len(actions) > MOST_ACTIONS:
        raise ApiError(422, f"Invalid request.\n\nNo more than {MOST_ACTIONS} items are allowed.", "actions")
    for action in actions:
        for key, longest in _ACTION_LENGTHS.items():
            if not isinstance(action.get(key), str) or not 0 < len(action[key]) <= longest:
                raise ApiError(422, f"Invalid request.\n\n{key} has 1 to {longest} characters.", f"actions.{key}")
    _check_output(sent.get("output"))


def _check_output(output: Mapping[str, Any] | None) -> None:
    if output is None:
        return
    if not output.get("title") or "summary" not in output:
        raise ApiError(422, 'Invalid request.\n\n"title", "summary" weren\'t supplied.', "output", "missing_field")
    for key in ("summary", "text"):
        if len(output.get(key) or "") > LONGEST_TEXT:
            raise ApiError(422, f"Invalid request.\n\nOnly {LONGEST_TEXT} characters are allowed.", f"output.{key}")
    annotations = output.get("annotations", ())
    if len(annotations) > MOST_ANNOTATIONS:
        raise ApiError(422, f"Invalid request.\n\nNo more than {MOST_ANNOTATIONS} items.", "output.annotations")
    for annotation in annotations:
        if any(key not in annotation for key in _ANNOTATION) or annotation["annotation_level"] not in _LEVELS:
            raise ApiError(422, "Invalid request.\n\nA key of an annotation is missing.", "output.annotations")


def _app(request: Request) -> App:
    app = request.caller.app
    if app is None:
        raise ApiError(403, "You must authenticate via a GitHub App.")
    return app


def _check(api: Api, request: Request) -> CheckRun:
    repository = api.repository(request)
    found = api.state.checks.get(number_in(request, "check"))
    if found is None or found.suite.repository != repository.full_name:
        raise NOT_FOUND
    return found


def get_check(api: Api, request: Request) -> Reply:
    """One check run."""
    return Reply(200, job_shapes.check_run(api.shapes, _check(api, request)))


def list_annotations(api: Api, request: Request) -> Reply:
    """The annotations of a check run."""
    check = _check(api, request)
    return api.paged(request, [job_shapes.annotation(api.shapes, check, item) for item in check.annotations])


def list_checks(api: Api, request: Request) -> Reply:
    """The check runs of a commit or branch, newest first; of equal names of one App the last alone, unless `all`."""
    repository = api.repository(request)
    head = _head(api, request)
    found = [
        check_run for check_run in api.state.checks_of(repository.full_name, head) if api.state.listed(check_run.id)
    ]
    return _listed(api, request, found)


def list_suite_checks(api: Api, request: Request) -> Reply:
    """The check runs of a suite."""
    suite = _suite(api, request)
    return _listed(api, request, [check for check in api.state.checks.values() if check.suite is suite])


def _listed(api: Api, request: Request, checks: list[CheckRun]) -> Reply:
    query = request.query
    wanted = [
        check
        for check in checks
        if query.get("check_name", check.name) == check.name
        and query.get("status", check.status) == check.status
        and query.get("app_id", str(check.suite.app.id)) == str(check.suite.app.id)
    ]
    if query.get("filter", "latest") == "latest":
        wanted = list({(check.name, check.suite.app.id): check for check in wanted}.values())
    wanted.sort(key=lambda check: check.id, reverse=True)
    return api.paged_in(request, "check_runs", [job_shapes.check_run(api.shapes, check) for check in wanted])


def _head(api: Api, request: Request) -> str:
    git, ref = api.repository(request).git, request.variables["ref"]
    found = git.find(f"refs/heads/{ref}") or (git.find(ref) if len(ref) == 40 else None)
    if found is None:
        raise ApiError(422, f"No commit found for SHA: {ref}")
    return found


def list_suites(api: Api, request: Request) -> Reply:
    """The check suites of a commit."""
    repository, head = api.repository(request), _head(api, request)
    found = [
        suite
        for suite in api.state.suites.values()
        if (suite.repository, suite.head_sha) == (repository.full_name, head)
    ]
    return api.paged_in(request, "check_suites", [job_shapes.check_suite(api.shapes, suite) for suite in found])


def _suite(api: Api, request: Request) -> CheckSuite:
    repository = api.repository(request)
    found = api.state.suites.get(number_in(request, "suite"))
    if found is None or found.repository != repository.full_name:
        raise NOT_FOUND
    return found


def get_suite(api: Api, request: Request) -> Reply:
    """One check suite."""
    return Reply(200, job_shapes.check_suite(api.shapes, _suite(api, request)))


def rerequest_check(api: Api, request: Request) -> Reply:
    """Ask the owning App to run a check again: it resets nothing but tells the App."""
    check = _check(api, request)
    if check.status != "completed":
        raise ApiError(422, "This check run is not rerequestable")
    tell_of_check(api, "rerequested", check, request.caller.user or check.suite.app.bot)
    return Reply(201, {})


_READ, _WRITE = ("checks", "read"), ("checks", "write")
_REPOSITORY = "/repos/{owner}/{repo}"
ROUTES = (
    Route("POST", f"{_REPOSITORY}/check-runs", create_check, _WRITE),
    Route("GET", f"{_REPOSITORY}/check-runs/{{check}}", get_check, _READ),
    Route("PATCH", f"{_REPOSITORY}/check-runs/{{check}}", update_check, _WRITE),
    Route("GET", f"{_REPOSITORY}/check-runs/{{check}}/annotations", list_annotations, _READ),
    Route("POST", f"{_REPOSITORY}/check-runs/{{check}}/rerequest", rerequest_check, _WRITE),
    Route("GET", f"{_REPOSITORY}/commits/{{ref}}/check-runs", list_checks, _READ),
    Route("GET", f"{_REPOSITORY}/commits/{{ref}}/check-suites", list_suites, _READ),
    Route("GET", f"{_REPOSITORY}/check-suites/{{suite}}", get_suite, _READ),
    Route("GET", f"{_REPOSITORY}/check-suites/{{suite}}/check-runs", list_suite_checks, _READ),
)
