"""Workflows: dispatch, runs, jobs, logs, artifacts, cancelling, runners."""

import io
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import yaml

from tests.fakes.github_standin import job_shapes
from tests.fakes.github_standin.routing import NOT_FOUND, Api, ApiError, Reply, Request, Route, number_in
from tests.fakes.github_standin.state import Artifact, Repository, Runner, User, WorkflowRun

_FOLDER = ".github/workflows"
_MOST_INPUTS = 25
_SEARCHED = 1_000
# How long an address of a log or an artifact can be followed.
LINK_LIVES = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow file as it stands at some commit; `inputs` is None when it cannot be dispatched."""

    path: str
    name: str
    run_name: str
    inputs: Mapping[str, Mapping[str, object]] | None
    labels: tuple[str, ...]


def workflows(repository: Repository, ref: str) -> tuple[Workflow, ...]:
    """The workflow files at a ref."""
    found = repository.git.entry(ref, _FOLDER)
    if found is None:
        return ()
    entries = [(path, name) for _, kind, name, path in repository.git.tree(found[1], recursive=False) if kind == "blob"]
    texts = [(path, repository.git.blob(name) or b"") for path, name in entries if path.endswith((".yml", ".yaml"))]
    return tuple(_workflow(f"{_FOLDER}/{path}", text) for path, text in texts)


def _workflow(path: str, text: bytes) -> Workflow:
    read = yaml.safe_load(text)
    # YAML reads the key `on` as true.
    events = read.get("on", read.get(True))
    events = {events: None} if isinstance(events, str) else events
    events = dict.fromkeys(events) if isinstance(events, list) else events
    inputs = ((events["workflow_dispatch"] or {}).get("inputs") or {}) if "workflow_dispatch" in events else None
    jobs = list(read.get("jobs", {}).values())
    asked = jobs[0].get("runs-on", ()) if jobs else ()
    labels = (asked,) if isinstance(asked, str) else tuple(asked) if isinstance(asked, list) else ()
    return Workflow(path, str(read.get("name", path)), str(read.get("run-name", "")), inputs, labels)


def _named(repository: Repository, ref: str, name: str) -> Workflow | None:
    number = int(name) if name.isdigit() else -1
    for workflow in workflows(repository, ref):
        if workflow.path.endswith(f"/{name}") or repository.workflow_ids.get(workflow.path) == number:
            return workflow
    return None


def list_workflows(api: Api, request: Request) -> Reply:
    """The workflows of the default branch."""
    repository = api.repository(request)
    found = workflows(repository, "main")
    rows = [job_shapes.workflow(api.shapes, repository, item.path, item.name) for item in found]
    return api.paged_in(request, "workflows", rows)


def get_workflow(api: Api, request: Request) -> Reply:
    """One workflow by its id or file name."""
    repository = api.repository(request)
    found = _named(repository, "main", request.variables["workflow"])
    if found is None:
        raise NOT_FOUND
    return Reply(200, job_shapes.workflow(api.shapes, repository, found.path, found.name))


def dispatch(api: Api, request: Request) -> Reply:
    """Start a workflow at a ref; it must be there and on the default branch."""
    repository, sent = api.repository(request), request.json()
    ref = str(sent.get("ref", ""))
    short = ref.removeprefix("refs/heads/").removeprefix("refs/tags/")
    head = repository.git.find(f"refs/heads/{short}") if short else None
    if head is None:
        raise ApiError(422, f"No ref found for: {ref}", "ref")
    known = _named(repository, "main", request.variables["workflow"])
    found = _named(repository, short, request.variables["workflow"])
    if known is None or found is None:
        raise NOT_FOUND
    if found.inputs is None:
        raise ApiError(422, "Workflow does not have 'workflow_dispatch' trigger", "workflow")
    inputs = _inputs(found.inputs, sent.get("inputs") or {})
    actor = request.caller.user or repository.owner
    run = start_run(api, repository, found, (short, head), actor, inputs)
    if not sent.get("return_run_details"):
        return Reply(204)
    shape = job_shapes.workflow_run(api.shapes, run)
    return Reply(200, {"workflow_run_id": run.id, "run_url": shape["url"], "html_url": shape["html_url"]})


def _inputs(declared: Mapping[str, Mapping[str, object]], sent: Mapping[str, object]) -> Mapping[str, str]:
    if len(sent) > _MOST_INPUTS:
        raise ApiError(422, f"Invalid request.\n\nNo more than {_MOST_INPUTS} properties are allowed.", "inputs")
    unknown = sorted(set(sent) - set(declared))
    if unknown:
        raise ApiError(422, f"Unexpected inputs provided: {unknown}", "inputs")
    missing = [
        key
        for key, entry in declared.items()
        if entry.get("required") and not entry.get("default") and not sent.get(key)
    ]
    if missing:
        raise ApiError(422, f"Required input '{missing[0]}' not provided", "inputs")
    defaults = {key: str(entry.get("default", "")) for key, entry in declared.items()}
    return {**defaults, **{key: str(value) for key, value in sent.items()}}


def start_run(
    api: Api, repository: Repository, workflow: Workflow, at: tuple[str, str], actor: User, inputs: Mapping[str, str]
) -> WorkflowRun:
    """Add a queued run, `at` a branch and its commit, and tell of it."""
    now = api.state.now()
    number = 1 + sum(other_run.repository == repository.full_name for other_run in api.state.runs.values())
    title = re.sub(
        r"\$\{\{\s*(?:github\.event\.)?inputs\.(\w+)\s*\}\}", lambda found: inputs.get(found[1], ""), workflow.run_name
    )
    names = (workflow.path, workflow.name, title or workflow.name)
    ids = (api.state.new_id(), api.state.new_id(), api.state.new_id())
    run = WorkflowRun(
        ids[0], repository.full_name, *names, *at, actor, inputs, number, now, now, ids[2], workflow.labels
    )
    api.state.runs[run.id] = run
    tell_of_run(api, "requested", run)
    tell_of_job(api, "queued", run)
    return run


def tell_of_run(api: Api, action: str, run: WorkflowRun) -> None:
    """Send `workflow_run`."""
    repository = api.state.repositories[run.repository.lower()]
    payload = {
        "workflow_run": job_shapes.workflow_run(api.shapes, run),
        "workflow": job_shapes.workflow(api.shapes, repository, run.path, run.workflow_name),
        "sender": api.shapes.user(run.actor),
    }
    api.hooks.emit("workflow_run", action, repository, payload)


def tell_of_job(api: Api, action: str, run: WorkflowRun) -> None:
    """Send `workflow_job`."""
    repository = api.state.repositories[run.repository.lower()]
    payload = {"workflow_job": job_shapes.job(api.shapes, run), "sender": api.shapes.user(run.actor)}
    api.hooks.emit("workflow_job", action, repository, payload)


def begin_run(api: Api, run: WorkflowRun) -> None:
    """A runner takes the run."""
    run.status, run.updated = "in_progress", api.state.now()
    tell_of_job(api, "in_progress", run)
    tell_of_run(api, "in_progress", run)


def end_run(api: Api, run: WorkflowRun, conclusion: str) -> None:
    """The run ends."""
    run.status, run.conclusion, run.updated = "completed", conclusion, api.state.now()
    tell_of_job(api, "completed", run)
    tell_of_run(api, "completed", run)


def list_runs(api: Api, request: Request) -> Reply:
    """Runs, newest first; a filtered search gives a thousand at most."""
    repository, query = api.repository(request), request.query
    name = request.variables.get("workflow")
    workflow = _named(repository, "main", name) if name else None
    if name and workflow is None:
        raise NOT_FOUND
    since = query.get("created", "").removeprefix(">=").partition("..")[0]
    found = [
        run
        for run in api.state.runs.values()
        if run.repository == repository.full_name
        and api.state.listed(run.id)
        and (workflow is None or run.path == workflow.path)
        and query.get("event", run.event) == run.event
        and query.get("branch", run.ref) == run.ref
        and query.get("actor", run.actor.login) == run.actor.login
        and query.get("head_sha", run.head_sha) == run.head_sha
        and query.get("status", run.status) in (run.status, run.conclusion)
        and run.created.isoformat() >= since
    ]
    rows = [job_shapes.workflow_run(api.shapes, run) for run in reversed(found)][:_SEARCHED]
    return api.paged_in(request, "workflow_runs", rows)


def _run(api: Api, request: Request) -> WorkflowRun:
    repository = api.repository(request)
    found = api.state.runs.get(number_in(request, "run"))
    if found is None or found.repository != repository.full_name:
        raise NOT_FOUND
    return found


def get_run(api: Api, request: Request) -> Reply:
    """One run."""
    return Reply(200, job_shapes.workflow_run(api.shapes, _run(api, request)))


def list_jobs(api: Api, request: Request) -> Reply:
    """The one job of a run."""
    return api.paged_in(request, "jobs", [job_shapes.job(api.shapes, _run(api, request))])


def get_job_log(api: Api, request: Request) -> Reply:
    """Where a job's log lies for one minute; there is none before the job has begun."""
    repository, number = api.repository(request), number_in(request, "job")
    runs = [run for run in api.state.runs.values() if run.job_id == number and run.repository == repository.full_name]
    if not runs or not runs[0].log:
        raise NOT_FOUND
    return _elsewhere(api, f"/_storage/logs/{runs[0].id}")


def get_run_log(api: Api, request: Request) -> Reply:
    """Where the zipped logs of a run lie for one minute."""
    return _elsewhere(api, f"/_storage/zipped-logs/{_run(api, request).id}")


def _elsewhere(api: Api, path: str) -> Reply:
    until = int((api.state.now() + LINK_LIVES).timestamp())
    return Reply(302, None, {"Location": f"{api.shapes.home}{path}?until={until}"})


def list_artifacts(api: Api, request: Request) -> Reply:
    """The artifacts of a run."""
    run, name = _run(api, request), request.query.get("name")
    found = [item for item in run.artifacts if name in (None, item.name)]
    return api.paged_in(request, "artifacts", [job_shapes.artifact(api.shapes, run, item) for item in found])


def get_artifact(api: Api, request: Request) -> Reply:
    """Where an artifact's zip file lies for one minute; 410 when it is too old."""
    number = number_in(request, "artifact")
    api.repository(request)
    found = next(
        (artifact for run in api.state.runs.values() for artifact in run.artifacts if artifact.id == number), None
    )
    if found is None:
        raise NOT_FOUND
    if found.expired:
        raise ApiError(410, "Artifact has expired")
    return _elsewhere(api, f"/_storage/artifacts/{number}")


def stored(api: Api, request: Request) -> Reply:
    """What a link of the last minute leads to; no token is asked for, and none is welcome."""
    if "authorization" in request.headers:
        return Reply(400, b"InvalidAuthenticationInfo", {"Content-Type": "application/xml"})
    if int(request.query.get("until", "0")) < api.state.now().timestamp():
        return Reply(403, b"AuthenticationFailed", {"Content-Type": "application/xml"})
    kind, number = request.variables["kind"], number_in(request, "number")
    runs = api.state.runs
    if kind == "artifacts":
        content = next(artifact.content for run in runs.values() for artifact in run.artifacts if artifact.id == number)
        return Reply(200, content, {"Content-Type": "application/zip"})
    if kind == "zipped-logs":
        return Reply(200, zipped({"0_run.txt": runs[number].log}), {"Content-Type": "application/zip"})
    return Reply(200, runs[number].log, {"Content-Type": "text/plain; charset=utf-8"})


def zipped(files: Mapping[str, bytes]) -> bytes:
    """A zip file of some files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def add_artifact(api: Api, run: WorkflowRun, name: str, files: Mapping[str, bytes]) -> Artifact:
    """Upload an artifact from a run."""
    made = Artifact(api.state.new_id(), name, zipped(files), api.state.now())
    run.artifacts.append(made)
    return made


def list_attestations(api: Api, request: Request) -> Reply:
    """What was attested of a digest; 404 where nothing was."""
    repository = api.repository(request)
    found = repository.attestations.get(request.variables["digest"].removeprefix("sha256:"), [])
    if not found:
        raise NOT_FOUND
    rows = [
        {"bundle": json.loads(attestation), "repository_id": repository.id, "initiator": "user"}
        for attestation in found
    ]
    return Reply(200, {"attestations": rows[: int(request.query.get("per_page", "30"))]})


def cancel(api: Api, request: Request) -> Reply:
    """Ask a run to end: a stubborn one does not listen."""
    run = _run(api, request)
    if run.status == "completed":
        raise ApiError(409, "Cannot cancel a workflow run that is completed.")
    if not run.stubborn:
        end_run(api, run, "cancelled")
    return Reply(202, {})


def force_cancel(api: Api, request: Request) -> Reply:
    """End a run that does not listen."""
    run = _run(api, request)
    if run.status == "completed":
        raise ApiError(409, "Cannot cancel a workflow run that is completed.")
    end_run(api, run, "cancelled")
    return Reply(202, {})


def list_runners(api: Api, request: Request) -> Reply:
    """The self-hosted runners of a repository."""
    return _runners(api, request, api.repository(request).runners)


def list_shared_runners(api: Api, request: Request) -> Reply:
    """Those of an organisation."""
    return _runners(api, request, api.state.shared_runners)


def _runners(api: Api, request: Request, found: list[Runner]) -> Reply:
    rows = [
        {
            "id": runner.id,
            "name": runner.name,
            "os": "linux",
            "status": "online" if runner.online else "offline",
            "busy": False,
            "ephemeral": runner.ephemeral,
            "labels": [{"name": label, "type": "custom"} for label in runner.labels],
        }
        for runner in found
    ]
    return api.paged_in(request, "runners", rows)


_READ, _WRITE = ("actions", "read"), ("actions", "write")
_ACTIONS = "/repos/{owner}/{repo}/actions"
ROUTES = (
    Route("GET", f"{_ACTIONS}/workflows", list_workflows, _READ),
    Route("GET", f"{_ACTIONS}/workflows/{{workflow}}", get_workflow, _READ),
    Route("POST", f"{_ACTIONS}/workflows/{{workflow}}/dispatches", dispatch, _WRITE),
    Route("GET", f"{_ACTIONS}/workflows/{{workflow}}/runs", list_runs, _READ),
    Route("GET", f"{_ACTIONS}/runs", list_runs, _READ),
    Route("GET", f"{_ACTIONS}/runs/{{run}}", get_run, _READ),
    Route("GET", f"{_ACTIONS}/runs/{{run}}/jobs", list_jobs, _READ),
    Route("GET", f"{_ACTIONS}/runs/{{run}}/logs", get_run_log, _READ, no_anonymous=True),
    Route("GET", f"{_ACTIONS}/jobs/{{job}}/logs", get_job_log, _READ, no_anonymous=True),
    Route("GET", f"{_ACTIONS}/runs/{{run}}/artifacts", list_artifacts, _READ),
    Route("GET", f"{_ACTIONS}/artifacts/{{artifact}}/zip", get_artifact, _READ, no_anonymous=True),
    Route("GET", "/repos/{owner}/{repo}/attestations/{digest}", list_attestations, ("attestations", "read")),
    Route("POST", f"{_ACTIONS}/runs/{{run}}/cancel", cancel, _WRITE),
    Route("POST", f"{_ACTIONS}/runs/{{run}}/force-cancel", force_cancel, _WRITE),
    Route("GET", f"{_ACTIONS}/runners", list_runners, ("administration", "read"), no_anonymous=True),
    Route(
        "GET",
        "/orgs/{org}/actions/runners",
        list_shared_runners,
        ("organization_self_hosted_runners", "read"),
        no_anonymous=True,
    ),
    Route("GET", "/_storage/{kind}/{number}", stored),
)
