"""Dispatch with the real workflow file over real HTTP: order, poll, cancel, and the folder that comes home."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.adapters.github_adapters import REPOSITORY, GithubAdapters, github_adapters
from tests.core.builders import make_job
from tests.fakes.clocks import HandClock
from tests.fakes.places import ROOT
from tests.fakes.sigstore_instance import SigstoreInstance
from verl_e2e.adapters.attestation import verifier
from verl_e2e.adapters.github.actions import DispatchSettings, GitHubActionsBackend, artifact_name
from verl_e2e.adapters.github.workflows import GithubWorkflows
from verl_e2e.core.model.jobs import Repository, SiteProfile
from verl_e2e.core.pulls.forge import Attestation
from verl_e2e.core.pulls.job_order import portable, unpack_order
from verl_e2e.core.pulls.ledger import Run, RunState, run_key
from verl_e2e.ports import BackendError, ForgeError
from verl_e2e.wiring.engines import verify_attestations

WORKFLOW = ".github/workflows/verl-e2e.yml"
SOURCE = (ROOT / WORKFLOW).read_bytes()
SETTINGS = DispatchSettings("main", "octo/verl-e2e", "c" * 40, verify_attestations())


@pytest.fixture
def at(tmp_path: Path) -> Iterator[GithubAdapters]:
    with github_adapters(tmp_path) as made:
        made.world.commit({WORKFLOW: SOURCE})
        yield made


@pytest.fixture
def clock(at: GithubAdapters) -> HandClock:
    made = HandClock()
    made.time = at.world.state.now()
    return made


@pytest.fixture
def backend(at: GithubAdapters, clock: HandClock) -> GitHubActionsBackend:
    return GitHubActionsBackend(GithubWorkflows(at.github), SETTINGS, clock)


def order(at: GithubAdapters) -> Run:
    head = at.world.head(1)
    site = SiteProfile(name="hopper", image="verlai/verl:pinned")
    job = make_job(bridge=Repository(path="/mirror/bridge", commit=head), site=site)
    now = at.world.state.now()
    key = run_key(REPOSITORY, head, job.digest(), 1)
    digest = job.digest()
    return Run(
        key=key,
        repository=REPOSITORY,
        number=1,
        head_sha=head,
        job_id=job.id,
        job_digest=digest,
        created=now,
        updated=now,
        job=job,
    )


def test_the_real_workflow_takes_the_order_once(at: GithubAdapters, backend: GitHubActionsBackend) -> None:
    run = order(at)
    assert backend.submit(run) == backend.submit(run)
    (started,) = at.world.runs()
    assert run.job is not None
    assert unpack_order(started.inputs["job"]) == portable(run.job)
    assert run.key in started.title


def test_a_whole_run(at: GithubAdapters, backend: GitHubActionsBackend, tmp_path: Path) -> None:
    run = order(at)
    run = run.model_copy(update={"handle": backend.submit(run), "state": RunState.SUBMITTED})
    assert backend.poll(run).state is RunState.SUBMITTED
    at.world.start_run(log=b"it begins\n")
    assert backend.poll(run).state is RunState.RUNNING
    assert not backend.artifacts(run, tmp_path / "home")
    at.world.finish_run({"job.json": b"{}", "related/base/events.jsonl": b""}, artifact=artifact_name(run.key))
    progress = backend.poll(run)
    assert progress.state is RunState.FINISHED
    assert "/actions/runs/" in progress.url
    assert backend.artifacts(run, tmp_path / "home")
    assert (tmp_path / "home/related/base/events.jsonl").is_file()
    assert (backend.where(run), b"".join(backend.log(run))) == ("", b"")


def test_a_repository_without_the_workflow_says_what_to_do(tmp_path: Path, clock: HandClock) -> None:
    with github_adapters(tmp_path / "another") as bare:
        backend = GitHubActionsBackend(GithubWorkflows(bare.github), SETTINGS, clock)
        with pytest.raises(BackendError, match=r"workflows/verl-e2e\.yml` is not on the branch main") as refused:
            backend.submit(order(bare))
    assert refused.value.final


@pytest.fixture(scope="module")
def sigstore() -> SigstoreInstance:
    return SigstoreInstance()


@pytest.fixture
def strict(at: GithubAdapters, clock: HandClock, sigstore: SigstoreInstance, tmp_path: Path) -> GitHubActionsBackend:
    """A back end that takes no folder that is not attested."""
    verify = verifier(sigstore.write_trusted_root(tmp_path / "trusted_root.json"))
    settings = replace(SETTINGS, attestation=Attestation.REQUIRED, verify=verify)
    return GitHubActionsBackend(GithubWorkflows(at.github), settings, clock)


def handed_over(at: GithubAdapters, backend: GitHubActionsBackend) -> tuple[Run, dict[str, str]]:
    """A run that ended and left its folder, and what its second job may truly claim."""
    run = order(at)
    run = run.model_copy(update={"handle": backend.submit(run), "state": RunState.SUBMITTED})
    started = at.world.start_run()
    at.world.finish_run({"job.json": b"{}"}, artifact=artifact_name(run.key))
    return run, at.world.claims(started)


def attest(at: GithubAdapters, sigstore: SigstoreInstance, claims: dict[str, str], sha256: str = "") -> None:
    left = at.world.runs()[0].artifacts[-1]
    bundle = sigstore.attest(sha256 or left.sha256, claims)
    at.world.repository.attestations.setdefault(left.sha256, []).append(bundle)


def test_a_folder_that_the_second_job_attested_counts(
    at: GithubAdapters, strict: GitHubActionsBackend, sigstore: SigstoreInstance, tmp_path: Path
) -> None:
    run, claims = handed_over(at, strict)
    attest(at, SigstoreInstance(), claims)
    attest(at, sigstore, claims)
    assert strict.artifacts(run, tmp_path / "home")
    assert (tmp_path / "home/job.json").is_file()
    assert strict.unattested(run) == ""


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (None, "GitHub has no attestation of it"),
        ({"runner": "self-hosted"}, "its runner is self-hosted"),
        ({"run": "https://github.com/o/r/actions/runs/1/attempts/1"}, "its run is"),
        ({"workflow": "https://github.com/o/r/.github/workflows/evil.yml@refs/heads/main"}, "its workflow is"),
        ({"commit": "d" * 40}, "its commit is"),
        ({"sha256": "d" * 64}, "it is about another artifact"),
        ({"instance": "another"}, "cannot be verified"),
    ],
)
def test_a_folder_that_nothing_vouches_for_is_refused_and_says_why(
    at: GithubAdapters,
    strict: GitHubActionsBackend,
    sigstore: SigstoreInstance,
    tmp_path: Path,
    changed: dict[str, str] | None,
    text: str,
) -> None:
    run, claims = handed_over(at, strict)
    if changed is not None:
        instance = SigstoreInstance() if changed.get("instance") else sigstore
        own = {name: value for name, value in changed.items() if name in claims}
        attest(at, instance, claims | own, changed.get("sha256", ""))
    with pytest.raises(BackendError, match=text) as refused:
        strict.artifacts(run, tmp_path / "home")
    assert refused.value.final
    assert not (tmp_path / "home").exists()


def test_where_an_attestation_is_only_preferred_the_folder_comes_home_with_the_doubt(
    at: GithubAdapters, backend: GitHubActionsBackend, tmp_path: Path
) -> None:
    run, _ = handed_over(at, backend)
    assert backend.artifacts(run, tmp_path / "home")
    assert "GitHub has no attestation of it" in backend.unattested(run)


def test_an_archive_that_is_not_the_attested_one_is_refused(
    at: GithubAdapters, strict: GitHubActionsBackend, sigstore: SigstoreInstance, tmp_path: Path
) -> None:
    run, claims = handed_over(at, strict)
    attest(at, sigstore, claims)
    workflows = GithubWorkflows(at.github)
    (artifact,) = workflows.artifacts(REPOSITORY, int(run.handle))
    with pytest.raises(ForgeError, match=f"not {'e' * 64} as GitHub gave it"):
        workflows.fetch(REPOSITORY, replace(artifact, sha256="e" * 64), tmp_path / "home", limit=10_000)
    assert not (tmp_path / "home").exists()
