"""What the settings need, tried before the service starts; the check-up of an installation; what its database shows."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from verl_e2e.adapters.clock import SystemClock
from verl_e2e.adapters.dispatch.ray_backend import RayRefusedError, RaySettings
from verl_e2e.adapters.dispatch.slurm_backend import SlurmCommands, SlurmSettings, check_cluster
from verl_e2e.adapters.github.actions import runners_by_size
from verl_e2e.adapters.github.administration import GithubAdministration
from verl_e2e.adapters.github.pulls import GithubPulls, has_commit
from verl_e2e.adapters.github.requester import RetryPolicy
from verl_e2e.adapters.github.session import PERMISSIONS, as_app
from verl_e2e.adapters.store import SqlLedger, open_store
from verl_e2e.app.doctor import DoctorServices, Setup, examine
from verl_e2e.config.policy import packaged_policy, workflow_text
from verl_e2e.config.profiles import checked_for_slots, load_profile
from verl_e2e.config.settings import DEFAULT_VERL, Settings
from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import RepositoryOrigin, SiteProfile
from verl_e2e.core.plan.outline import with_image
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.checkup import Health, SetupFinding, of_sources
from verl_e2e.core.pulls.deliveries import MODELS
from verl_e2e.core.pulls.forge import Attestation, Attested, UnprovenError, web_of
from verl_e2e.core.pulls.job_order import TOKEN_VARIABLE, origins_of, takes_token
from verl_e2e.core.pulls.retry import FlakyCause, flaky_causes
from verl_e2e.git.program import Git, GitLimits, Remote, fetch_error
from verl_e2e.git.repository import GitError, GitRepository
from verl_e2e.ports import BackendError
from verl_e2e.wiring.pulls import verl_at

if TYPE_CHECKING:
    from verl_e2e.adapters.dispatch.ray_client import RayClient


def verify_attestations(trusted_root: Path | None = None) -> Callable[[str], Attested]:
    """What an attestation says once it was verified."""
    made: list[Callable[[str], Attested]] = []

    def verify(bundle: str) -> Attested:
        # Loaded with the first attestation: the library takes a second, and most events need it not at all.
        from verl_e2e.adapters.attestation import verifier  # noqa: PLC0415

        try:
            made[:] = made or [verifier(trusted_root)]
        except Exception as error:
            raise UnprovenError(f"the trust root cannot be read: {error}") from error
        return made[0](bundle)

    return verify


def check_verifier(trusted_root: Path | None) -> None:
    """UserError where no attestation could be verified by this installation, before a run is paid for one."""
    try:
        from verl_e2e.adapters.attestation import verifier  # noqa: PLC0415
    except ImportError as error:
        fix = "install verl-e2e with its dependencies, or set it to preferred"
        raise UserError(f"VERL_E2E_ATTESTATION=required needs {error.name}, which is not installed; {fix}") from error
    try:
        verifier(trusted_root)
    except Exception as error:
        place = trusted_root or "the library's own file"
        why = next(iter(str(error).splitlines()), type(error).__name__)
        fix = "name a file with Sigstore's trust root, or leave it empty"
        raise UserError(f"VERL_E2E_TRUSTED_ROOT: {place} cannot be read: {why}; {fix}") from error


_TRIAL_S = 60.0

# Its import loads Ray, an extra.


def ray_client(settings: Settings, environ: Mapping[str, str]) -> "RayClient":
    """Who asks the Ray cluster of the settings; UserError where the extra `ray` is not installed."""
    # Ray's client needs aiohttp, which Ray alone does not bring along.
    if missing := next((name for name in ("ray", "aiohttp") if find_spec(name) is None), ""):
        fix = "pip install 'verl-e2e[ray]'"
        raise UserError(f"VERL_E2E_BACKEND=ray needs {missing}, which is not installed; {fix}")
    from verl_e2e.adapters.dispatch.ray_client import RayClient  # noqa: PLC0415

    return RayClient(settings.ray_address, settings.ray_headers, settings.ray_verify, environ)


def slurm_cluster(settings: Settings, orders: Path) -> SlurmSettings:
    """How jobs are submitted to the Slurm cluster of the settings."""
    return SlurmSettings(
        folder=orders,
        gpus=settings.slurm_gpus,
        options=settings.slurm_options,
        command=settings.slurm_command,
        setup=settings.slurm_setup,
        pyxis=settings.slurm_container == "pyxis",
        mounts=settings.slurm_mounts,
        token_file=settings.fetch_token_file,
    )


def ray_cluster(settings: Settings) -> RaySettings:
    """How jobs are submitted to the Ray cluster of the settings."""
    assert settings.ray_folder is not None
    return RaySettings(
        folder=settings.ray_folder,
        resources=settings.ray_resources,
        command=settings.ray_command,
        setup=settings.ray_setup,
        token_file=settings.fetch_token_file,
    )


def site_of(settings: Settings, environ: Mapping[str, str]) -> SiteProfile:
    """The site of the jobs; the image that a setting names is that of the workflow's containers."""
    site = load_profile(settings.site_profile, settings.site_values, {"home": environ.get("HOME", "/root")})
    if settings.backend != "local":
        return with_image(site, settings.image)
    return checked_for_slots(site, settings.local_slots)


def fetch_refusals(
    repositories: Iterable[str], policy: Policy, settings: Settings, environ: Mapping[str, str]
) -> dict[str, str]:
    """Why this machine cannot fetch what jobs of repositories need, by address; empty for what it can fetch.

    The nodes of a cluster are not asked.
    """
    needed: dict[str, RepositoryOrigin] = {}
    for repository in repositories if settings.fetches else ():
        for consumer in (VERL, *(CONSUMERS[name] for name in policy.consumers)):
            origins = origins_of(repository, "", policy, web_of(settings.api_url), consumer)
            needed |= {origin.url: origins["bridge"] for origin in origins.values()}
    file = Path(settings.fetch_token_file) if settings.fetch_token_file else None
    git = Git(Path(os.devnull), environ=environ, limits=GitLimits(time_s=_TRIAL_S), own_session=True)
    found: dict[str, str] = {}
    for url, own in needed.items():
        try:
            token = file.read_text(encoding="ascii").strip() if file and takes_token(url, own) else None
        except (OSError, ValueError) as error:
            found[url] = f"{TOKEN_VARIABLE} cannot be read on this machine: {error}"
            continue
        asked = git.run("ls-remote", "--quiet", "origin", "HEAD", remote=Remote(url, token))
        found[url] = "" if asked.ok else str(fetch_error(asked, url, TOKEN_VARIABLE))
    return found


def check_installation(settings: Settings, environ: Mapping[str, str]) -> str:
    """What the engine says of itself, empty where none is asked; UserError for a setting that cannot be served here."""
    git = Git(Path(os.devnull), environ=environ).run("version")
    if not git.ok:
        raise UserError(f"git cannot be run: {git.error}")
    if "://" not in settings.verl:
        try:
            GitRepository(settings.verl, environ=environ)
        except GitError as error:
            raise UserError(f"VERL_E2E_VERL: {error}") from error
    if not settings.fetches and settings.attestation is Attestation.REQUIRED:
        check_verifier(settings.trusted_root)
    return check_engine(settings, environ)


def check_sources(settings: Settings, environ: Mapping[str, str]) -> None:
    """UserError where this machine cannot fetch what jobs of the served repositories need, by the packaged policy."""
    refusals = fetch_refusals(settings.repositories, packaged_policy(), settings, environ)
    problems = [finding for finding in of_sources(refusals) if finding.state is Health.ERROR]
    if problems:
        raise UserError("\n".join(f"{finding.sentence}; {finding.fix}" for finding in problems))


def check_engine(settings: Settings, environ: Mapping[str, str]) -> str:
    """What the engine says of itself, empty where none is asked; UserError where it would not run jobs."""
    if settings.backend == "slurm" and settings.slurm_folder is not None:
        commands = SlurmCommands(settings.slurm_host, environ)
        try:
            return check_cluster(slurm_cluster(settings, settings.slurm_folder), commands)
        except BackendError as error:
            raise UserError(str(error)) from error
    if settings.backend != "ray":
        return ""
    try:
        return f"Ray {ray_client(settings, environ).check()}"
    except (BackendError, RayRefusedError) as error:
        raise UserError(f"VERL_E2E_RAY_ADDRESS: {error}") from error


_ACTIONS = "github-actions"
# Someone waits at a terminal.
_PATIENCE_S = 10.0


def check_up(
    settings: Settings,
    repository: str,
    branch: str,
    now: datetime,
    *,
    redeliver: bool,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> tuple[SetupFinding, ...]:
    """Everything that was looked at for a repository; an empty branch stands for its default one.

    Raises ForgeError for a name that is not a repository, or text that is not a key.
    """
    retry_policy = RetryPolicy(total_s=_PATIENCE_S)
    github = as_app(settings.app_id, settings.private_key, api_url=settings.api_url, retry_policy=retry_policy)

    def database() -> str:
        settings.data.mkdir(parents=True, exist_ok=True)
        open_store(settings.database_url).close()
        return "the database can be used"

    def own_has(commit: str) -> bool:
        # A clone on this machine, or a public repository.
        try:
            return verl_at(settings.verl).find(commit) is not None
        except GitError:
            return False

    def ahead_s() -> float | None:
        began = github.calls.booted_s
        return None if began is None else began + time.monotonic() - SystemClock().now().timestamp()

    setup = Setup(
        app_id=settings.app_id,
        permissions=PERMISSIONS,
        events=tuple(sorted(MODELS)),
        hook=f"{settings.public_url.rstrip('/')}/webhook" if settings.public_url else "",
    )
    if settings.backend == _ACTIONS:
        setup = replace(
            setup,
            workflow=settings.workflow,
            workflow_ref=settings.workflow_ref,
            workflow_text=workflow_text(),
            runners=settings.runners or runners_by_size(),
            fork_runners=settings.fork_runners,
        )
    try:
        github.requester(repository)
        services = DoctorServices(
            GithubAdministration(github),
            GithubPulls(github).file_at,
            lambda address, commit: has_commit(github, repository, address, commit),
            database,
            lambda: check_installation(settings, environ),
            settings.verl if settings.verl != DEFAULT_VERL else "",
            own_has,
            lambda repository, policy: fetch_refusals([repository], policy, settings, environ),
            ahead_s,
        )
        return examine(repository, branch, setup, services, now, redeliver=redeliver)
    finally:
        github.close()


def flaky_of(database_url: str, repository: str) -> tuple[FlakyCause, ...]:
    """The causes of the runs of a repository; UserError where there is no such database."""
    name = database_url.removeprefix("sqlite:///")
    if name != database_url and not Path(name).is_file():
        # Opening it would make an empty one.
        raise UserError(f"{name} is not there; set VERL_E2E_DATA or DATABASE_URL as for `verl-e2e serve`")
    store = open_store(database_url)
    try:
        return flaky_causes(SqlLedger(store).runs(repository))
    finally:
        store.close()
