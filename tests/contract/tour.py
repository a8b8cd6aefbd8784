"""One call of every endpoint of the stand-in, as a list of plain requests."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import jwt

from tests.fakes.github_standin.world import APP_ID, PERMISSIONS, World
from tests.fakes.patience import HANG_S

WORKFLOW = """\
name: verl end-to-end
run-name: verl-e2e ${{ inputs.key }}
on:
  workflow_dispatch:
    inputs:
      key: {required: true}
jobs:
  run:
    runs-on: [self-hosted, gpu]
"""


@dataclass(frozen=True, slots=True)
class Call:
    """A request; `as_app` sends the App's JWT in place of a token."""

    method: str
    path: str
    body: object = None
    as_app: bool = False


class _Stay(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Nowhere: where a log lies is the answer."""


def send(base: str, call: Call, world: World, token: str) -> tuple[int, bytes]:
    """Send it and give the status and the body."""
    bearer = app_token(world) if call.as_app else token
    data = None if call.body is None else json.dumps(call.body).encode()
    headers = {"Accept": "application/vnd.github+json", "Content-Type": "application/json"}
    request = Request(base + call.path, data, {**headers, "Authorization": f"Bearer {bearer}"}, method=call.method)
    try:
        with build_opener(_Stay).open(request, timeout=HANG_S) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


def app_token(world: World) -> str:
    """The App's JWT."""
    now = datetime.now(UTC)
    claims = {"iat": now - timedelta(seconds=60), "exp": now + timedelta(minutes=5), "iss": str(APP_ID)}
    return jwt.encode(claims, world.private_key, algorithm="RS256")


def furnish(world: World) -> str:
    """Fill a world with one of everything, and give a token that may do what the App may."""
    world.person("alice", "write")
    world.person("bob")
    world.team("octo/owners", "alice")
    world.commit({"README.md": "# Bridge\n", ".github/workflows/verl-e2e.yml": WORKFLOW, "docs/a.md": "a\n" * 20})
    world.protect(("verl-e2e", APP_ID))
    world.repository.protections["release"] = world.repository.protections["main"]
    world.runner("gpu-1", "self-hosted", "gpu")
    world.open_pull("alice", {"src/a.py": "x = 1\n", "docs/a.md": None})
    world.open_pull("bob", {"src/b.py": "y = 1\n"}, fork=True)
    world.comment("alice", "please run")
    world.label(1, "verl-e2e:level1", "alice")
    # No one listens there: a failed delivery is a delivery too.
    world.deliveries.url = "http://127.0.0.1:9/webhook"
    world.deliveries.ping(world.app)
    world.state.add_token("ghs_tour", world.app.bot, world.app, PERMISSIONS)
    return "ghs_tour"


def calls(world: World) -> Iterator[Call]:
    """The requests, each made when its turn comes, so that it may name what an earlier one made."""
    repository = f"/repos/{world.full_name}"
    head = world.head(1)
    app = f"/app/installations/{world.installation.id}"
    for path in (
        "/app",
        "/app/installations",
        app,
        f"{repository}/installation",
        "/orgs/octo/installation",
        "/app/hook/config",
    ):
        yield Call("GET", path, as_app=True)
    yield Call("POST", f"{app}/access_tokens", {"permissions": {"checks": "write"}}, as_app=True)
    yield Call("POST", f"{app}/access_tokens", {"repositories": ["bridge"], "permissions": {}}, as_app=True)
    world.deliveries.wait()
    yield Call("GET", "/app/hook/deliveries?per_page=10", as_app=True)
    attempt = world.deliveries.attempts[0].id
    yield Call("GET", f"/app/hook/deliveries/{attempt}", as_app=True)
    yield Call("POST", f"/app/hook/deliveries/{attempt}/attempts", as_app=True)
    world.state.app_codes["code"] = world.private_key
    yield Call("POST", "/app-manifests/code/conversions")
    yield Call("GET", "/installation/repositories?per_page=100")
    yield Call("GET", "/rate_limit")
    yield from _reading(world, repository, head)
    yield from _conversation(world, repository)
    yield from _checks(world, repository, head)
    yield from _actions(world, repository)


def _reading(world: World, repository: str, head: str) -> Iterator[Call]:
    base = world.pull(1).base_sha
    yield Call("GET", repository)
    yield Call("GET", f"{repository}/pulls?state=open&per_page=1&page=2")
    for number in (1, 2):
        yield Call("GET", f"{repository}/pulls/{number}")
        yield Call("GET", f"{repository}/pulls/{number}/files?per_page=100")
    yield Call("GET", f"{repository}/pulls/1/commits")
    yield Call("GET", f"{repository}/contents/README.md?ref={head}")
    yield Call("GET", f"{repository}/contents/docs?ref=main")
    yield Call("GET", f"{repository}/contents/absent.md?ref={head}")
    blob = world.repository.git.entry(head, "src/a.py")
    assert blob is not None
    yield Call("GET", f"{repository}/git/blobs/{blob[1]}")
    yield Call("GET", f"{repository}/git/trees/{head}?recursive=1")
    yield Call("GET", f"{repository}/git/ref/heads%2Fmain")
    yield Call("GET", f"{repository}/commits/{head}")
    yield Call("GET", f"{repository}/compare/{base}...{head}")
    yield Call("GET", f"{repository}/branches/main")
    yield Call("GET", f"{repository}/branches/main/protection")
    yield Call("GET", f"{repository}/rules/branches/main")


def _conversation(world: World, repository: str) -> Iterator[Call]:
    yield Call("GET", f"{repository}/issues/1")
    yield Call("GET", f"{repository}/issues/1/comments?per_page=100")
    yield Call("POST", f"{repository}/issues/1/comments", {"body": "a card"})
    mine = world.cards()[0].id
    yield Call("GET", f"{repository}/issues/comments/{mine}")
    yield Call("PATCH", f"{repository}/issues/comments/{mine}", {"body": "a better card"})
    yield Call("POST", f"{repository}/issues/comments/{mine}/reactions", {"content": "eyes"})
    yield Call("POST", f"{repository}/issues/comments/{mine}/reactions", {"content": "eyes"})
    yield Call("GET", f"{repository}/issues/comments/{mine}/reactions")
    yield Call("DELETE", f"{repository}/issues/comments/{mine}")
    yield Call("GET", f"{repository}/issues/1/labels")
    yield Call("POST", f"{repository}/issues/1/labels", {"labels": ["seen"]})
    yield Call("DELETE", f"{repository}/issues/1/labels/seen")
    yield Call("GET", f"{repository}/collaborators/alice/permission")
    yield Call("GET", f"{repository}/collaborators/bob/permission")
    yield Call("GET", "/orgs/octo/teams/owners/memberships/alice")
    yield Call("GET", "/orgs/octo/teams/owners/memberships/bob")
    yield Call("GET", "/users/alice")
    yield Call("POST", f"{repository}/issues", {"title": "it is red", "body": "why", "labels": ["red"]})
    (number,) = world.repository.issues
    yield Call("GET", f"{repository}/issues/{number}")
    yield Call("POST", f"{repository}/issues/{number}/comments", {"body": "still"})
    yield Call("GET", f"{repository}/issues?state=open")
    yield Call("PATCH", f"{repository}/issues/{number}", {"state": "closed", "state_reason": "completed"})
    yield Call("GET", f"{repository}/commits?sha=main&per_page=2")


def _checks(world: World, repository: str, head: str) -> Iterator[Call]:
    annotation = {
        "path": "src/a.py", "start_line": 1, "end_line": 1, "annotation_level": "warning", "message": "it failed here",
    }  # fmt: skip
    output = {"title": "Running", "summary": "level 0 runs", "annotations": [annotation]}
    started = {"name": "verl-e2e", "head_sha": head, "status": "in_progress", "external_id": "x", "output": output}
    yield Call("POST", f"{repository}/check-runs", started)
    check = world.checks(head)[0]
    action = {"label": "Run again", "description": "Run what failed", "identifier": "rerun"}
    ended = {"status": "completed", "conclusion": "failure", "output": output, "actions": [action]}
    yield Call("PATCH", f"{repository}/check-runs/{check.id}", ended)
    yield Call("GET", f"{repository}/check-runs/{check.id}")
    yield Call("GET", f"{repository}/check-runs/{check.id}/annotations")
    yield Call("POST", f"{repository}/check-runs/{check.id}/rerequest")
    yield Call("GET", f"{repository}/commits/{head}/check-runs?filter=all&per_page=100")
    yield Call("GET", f"{repository}/commits/{head}/check-suites")
    yield Call("GET", f"{repository}/check-suites/{check.suite.id}")
    yield Call("GET", f"{repository}/check-suites/{check.suite.id}/check-runs")


def _actions(world: World, repository: str) -> Iterator[Call]:
    actions = f"{repository}/actions"
    yield Call("GET", f"{actions}/workflows")
    yield Call("GET", f"{actions}/workflows/verl-e2e.yml")
    asked = {"ref": "main", "inputs": {"key": "k1"}}
    yield Call("POST", f"{actions}/workflows/verl-e2e.yml/dispatches", asked)
    yield Call("POST", f"{actions}/workflows/verl-e2e.yml/dispatches", {**asked, "return_run_details": True})
    first, second = world.runs()
    world.start_run(first, log=b"it runs\n")
    world.finish_run({"verdict.json": b"{}"}, first)
    second.stubborn = True
    yield Call("GET", f"{actions}/runs?event=workflow_dispatch&per_page=10")
    yield Call("GET", f"{actions}/workflows/verl-e2e.yml/runs?branch=main")
    yield Call("GET", f"{actions}/runs/{first.id}")
    yield Call("GET", f"{actions}/runs/{first.id}/jobs")
    yield Call("GET", f"{actions}/runs/{first.id}/logs")
    yield Call("GET", f"{actions}/jobs/{first.job_id}/logs")
    yield Call("GET", f"{actions}/runs/{first.id}/artifacts")
    yield Call("GET", f"{actions}/artifacts/{first.artifacts[0].id}/zip")
    sha256 = first.artifacts[0].sha256
    yield Call("GET", f"{repository}/attestations/sha256:{sha256}")
    world.repository.attestations[sha256] = [json.dumps({"mediaType": "x", "dsseEnvelope": {}})]
    yield Call("GET", f"{repository}/attestations/sha256:{sha256}?per_page=3&predicate_type=provenance")
    yield Call("POST", f"{actions}/runs/{second.id}/cancel")
    yield Call("POST", f"{actions}/runs/{second.id}/force-cancel")
    yield Call("POST", f"{actions}/runs/{first.id}/cancel")
    yield Call("GET", f"{actions}/runners")
    yield Call("GET", f"/orgs/{world.repository.owner.login}/actions/runners")
