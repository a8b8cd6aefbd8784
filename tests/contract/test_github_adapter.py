"""Every request that our adapters send, held against GitHub's own description of its interface."""

from datetime import timedelta
from pathlib import Path

import pytest

from tests.adapters.github_adapters import ONE, REPOSITORY, GithubAdapters, github_adapters
from tests.contract.openapi import all_violations, contract
from tests.fakes.github_standin.faults import server_error
from verl_e2e.adapters.github.administration import GithubAdministration
from verl_e2e.adapters.github.checks import GithubChecks
from verl_e2e.adapters.github.pulls import GithubConversation, GithubIssues, GithubPeople, GithubPulls, PublicRepository
from verl_e2e.adapters.github.session import anonymously
from verl_e2e.adapters.github.workflows import GithubWorkflows
from verl_e2e.core.pulls.forge import Annotation, CheckRun

pytestmark = pytest.mark.node
FILE, KEY = "verl-e2e.yml", "k" * 64
WORKFLOW = b"""
name: verl-e2e
run-name: job ${{ inputs.run_key }}
on: {workflow_dispatch: {inputs: {run_key: {required: true}}}}
jobs: {run: {runs-on: [self-hosted]}}
"""
# What each adapter asks for; a new request without a line here fails the test.
ASKED = {
    "GET /app/hook/deliveries",
    "GET /orgs/{org}/actions/runners",
    "GET /orgs/{org}/installation",
    "GET /orgs/{org}/teams/{team}/memberships/{user}",
    "GET /repos/{owner}/{repo}/actions/artifacts/{artifact}/zip",
    "GET /repos/{owner}/{repo}/actions/runners",
    "GET /repos/{owner}/{repo}/actions/runs/{run}",
    "GET /repos/{owner}/{repo}/actions/runs/{run}/artifacts",
    "GET /repos/{owner}/{repo}/actions/runs/{run}/jobs",
    "GET /repos/{owner}/{repo}/actions/workflows/{workflow}",
    "GET /repos/{owner}/{repo}/actions/workflows/{workflow}/runs",
    "GET /repos/{owner}/{repo}/attestations/{digest}",
    "GET /repos/{owner}/{repo}/branches/{branch}/protection",
    "GET /repos/{owner}/{repo}/check-runs/{check}",
    "GET /repos/{owner}/{repo}/collaborators/{user}/permission",
    "GET /repos/{owner}/{repo}/commits/{ref}/check-runs",
    "GET /repos/{owner}/{repo}/compare/{basehead*}",
    "GET /repos/{owner}/{repo}/contents/{path*}",
    "GET /repos/{owner}/{repo}/git/blobs/{sha}",
    "GET /repos/{owner}/{repo}/git/ref/{ref*}",
    "GET /repos/{owner}/{repo}/installation",
    "GET /repos/{owner}/{repo}/commits",
    "GET /repos/{owner}/{repo}/commits/{ref}",
    "GET /repos/{owner}/{repo}/issues",
    "GET /repos/{owner}/{repo}/issues/{number}/comments",
    "GET /repos/{owner}/{repo}/pulls",
    "GET /repos/{owner}/{repo}/pulls/{number}",
    "GET /repos/{owner}/{repo}/pulls/{number}/files",
    "GET /repos/{owner}/{repo}/rules/branches/{branch}",
    "PATCH /repos/{owner}/{repo}/check-runs/{check}",
    "PATCH /repos/{owner}/{repo}/issues/comments/{comment}",
    "PATCH /repos/{owner}/{repo}/issues/{number}",
    "POST /app/hook/deliveries/{delivery}/attempts",
    "POST /app/installations/{installation}/access_tokens",
    "POST /repos/{owner}/{repo}/actions/runs/{run}/cancel",
    "POST /repos/{owner}/{repo}/actions/runs/{run}/force-cancel",
    "POST /repos/{owner}/{repo}/actions/workflows/{workflow}/dispatches",
    "POST /repos/{owner}/{repo}/check-runs",
    "POST /repos/{owner}/{repo}/issues",
    "POST /repos/{owner}/{repo}/issues/comments/{comment}/reactions",
    "POST /repos/{owner}/{repo}/issues/{number}/comments",
}


def _read(at: GithubAdapters) -> None:
    pulls = GithubPulls(at.github)
    pull = pulls.pull(ONE)
    pulls.open_pulls(REPOSITORY)
    pulls.open_pulls(REPOSITORY, base="main")
    pulls.tip(REPOSITORY, "main")
    pulls.change(pull)
    pulls.file_at(REPOSITORY, pull.head_sha, "src/a.py")
    pulls.file_at(REPOSITORY, "main", "long.bin")
    people = GithubPeople(at.github)
    people.role(REPOSITORY, "ada")
    people.in_team("octo/e2e", "ada")
    administration = GithubAdministration(at.github)
    administration.branch_rules(REPOSITORY, "main")
    administration.machines(REPOSITORY)
    administration.workflow_state(REPOSITORY, FILE)
    administration.installation(REPOSITORY)


def _talk(at: GithubAdapters) -> None:
    talk = GithubConversation(at.github)
    at.world.faults.add(server_error(502), "POST", "/comments$")
    comment_id = talk.comment(ONE, "first")
    talk.edit(ONE, comment_id, "second")
    talk.react(ONE, comment_id, "eyes")


def _watch(at: GithubAdapters) -> None:
    issues = GithubIssues(at.github)
    number = issues.open(REPOSITORY, "title", "<!-- marker -->\n\ntext", ("red",))
    issues.close(REPOSITORY, number)
    assert issues.find(REPOSITORY, "<!-- marker -->") is None
    PublicRepository(at.github, REPOSITORY).first_parents("main", 10)


def _check(at: GithubAdapters) -> None:
    checks = GithubChecks(at.github)
    notes = tuple(Annotation("src/a.py", n, n + 1, "warning", "Reached", "why") for n in range(1, 61))
    check = CheckRun("verl-e2e", at.world.head(1), "in_progress", summary="s", external_id="gate", annotations=notes)
    at.world.faults.add(server_error(502), "POST", "/check-runs$")
    check_id = checks.write_check(REPOSITORY, check)
    ended = CheckRun(
        "verl-e2e",
        at.world.head(1),
        "completed",
        "failure",
        "Level 0 failed",
        "s",
        "t",
        "https://verl-e2e.example/1",
        "gate",
        (("Rerun failed", "Run it once more", "rerun"),),
        notes,
        check_id,
    )
    checks.write_check(REPOSITORY, ended)


def _run(at: GithubAdapters, folder: Path) -> None:
    workflows = GithubWorkflows(at.github)
    at.world.faults.add(server_error(502), "POST", "/dispatches$")
    run = workflows.dispatch(REPOSITORY, FILE, "main", {"run_key": KEY}, KEY)
    at.world.start_run(log=b"line\n")
    (job,) = workflows.jobs(REPOSITORY, run.id)
    assert job.status == "in_progress"
    at.world.finish_run({"verdict.json": b"{}"})
    workflows.run(REPOSITORY, run.id)
    (artifact,) = workflows.artifacts(REPOSITORY, run.id)
    workflows.fetch(REPOSITORY, artifact, folder, limit=1_000)
    assert workflows.attestations(REPOSITORY, artifact.sha256) == ()
    workflows.cancel(REPOSITORY, run.id)
    workflows.cancel(REPOSITORY, run.id, force=True)


def _deliver(at: GithubAdapters) -> None:
    administration = GithubAdministration(at.github)
    # No one listens there.
    at.world.deliveries.url = "http://127.0.0.1:9/"
    at.world.push(1, {"src/a.py": b"a = 2\n"})
    at.world.deliveries.wait()
    since = at.world.state.now() - timedelta(days=3)
    failed = [attempt for attempt in administration.deliveries(since) if attempt.failed]
    administration.redeliver(failed[0].id)


def test_every_request_of_our_adapters_is_as_github_describes_it(tmp_path: Path, node_folder: Path) -> None:
    with github_adapters(tmp_path / "world") as at:
        at.world.commit({f".github/workflows/{FILE}": WORKFLOW, "long.bin": b"0123456789abcdef" * 70_000})
        at.world.protect(("verl-e2e", None))
        at.world.team("octo/e2e", "ada")
        _read(at)
        _talk(at)
        _watch(at)
        _check(at)
        _run(at, tmp_path / "run")
        _deliver(at)
        github = anonymously(api_url=at.world.url)
        GithubPulls(github).change(GithubPulls(github).pull(ONE))
        github.close()
        assert "\n".join(all_violations(contract(node_folder), at.world.standin.traffic, ())) == ""
        assert {route for route in at.world.standin.calls() if "_storage" not in route} == ASKED
