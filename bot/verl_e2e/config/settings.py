"""The settings of the service, one field for each environment variable; docs/settings.md shows the same table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ValidationInfo, field_validator

from verl_e2e.config import settings_values as read
from verl_e2e.config.environment import EnvironmentSettings, read_settings, secrets, variable
from verl_e2e.core.model.validated import UnfitError
from verl_e2e.core.pulls.attestation import Attestation

_LEVELS = ("debug", "info", "warning", "error")
BACKENDS = ("github-actions", "local")
DEFAULT_VERL = "https://github.com/verl-project/verl"


class JobSettings(EnvironmentSettings):
    """How jobs run on Actions runners; the App and the action share these settings."""

    api_url: Annotated[str, BeforeValidator(read.api_url)] = variable(
        "GITHUB_API_URL",
        "GitHub's API; for GitHub Enterprise Server `https://HOST/api/v3`. http is accepted for this machine only.",
        "https://api.github.com",
    )
    workflow: Annotated[str, BeforeValidator(read.workflow)] = variable(
        "VERL_E2E_WORKFLOW", "The workflow that runs a job, for `github-actions`.", "verl-e2e.yml"
    )
    image: str = variable(
        "VERL_E2E_IMAGE",
        "The image of jobs, for `github-actions`, unless the policy pins one by digest. Empty: the site's image.",
        "",
    )
    runners: Annotated[Mapping[int, tuple[str, ...]], BeforeValidator(read.runners)] = variable(
        "VERL_E2E_RUNNERS",
        "Runner labels by number of GPUs, for `github-actions`: `1=self-hosted,gpu-x1 8=self-hosted,gpu-x8`.",
        "",
        shown="`self-hosted,linux,gpu-xN` for 1, 2, 4 and 8",
    )
    fork_runners: Annotated[Mapping[int, tuple[str, ...]], BeforeValidator(read.runners)] = variable(
        "VERL_E2E_FORK_RUNNERS",
        "The same for jobs of forks. Use a separate pool of ephemeral runners. Empty: forks use `VERL_E2E_RUNNERS`.",
        "",
    )
    attestation: Annotated[Attestation, read.one_of(*map(str, Attestation))] = variable(
        "VERL_E2E_ATTESTATION",
        "Whether a run folder needs a verified attestation of its origin, for `github-actions`: `required`, or "
        "`preferred` where GitHub does not make attestations (private repositories, Enterprise Server).",
        Attestation.REQUIRED.value,
    )
    site_values: Annotated[Mapping[str, str], BeforeValidator(read.pairs)] = variable(
        "VERL_E2E_SITE_VALUES",
        "Values that the site profile needs, `name=value`, separated by spaces; the same as `--set` of other verbs.",
        "",
    )


class Settings(JobSettings):
    """The settings of the service; `repr` leaves out the secrets."""

    app_id: Annotated[int, read.number(1, 10**15)] = variable(
        "GITHUB_APP_ID", "The App's id, a number on its settings page."
    )
    private_key: Annotated[str, BeforeValidator(read.private_key)] = variable(
        "GITHUB_APP_PRIVATE_KEY",
        "The App's private key in PEM; line ends may be written `\\n`. "
        "Or `GITHUB_APP_PRIVATE_KEY_FILE`: the file that holds it.",
        secret=True,
    )
    webhook_secret: Annotated[str, BeforeValidator(read.secret)] = variable(
        "GITHUB_WEBHOOK_SECRET",
        "The secret of the App's webhook, at least 16 characters. Or `GITHUB_WEBHOOK_SECRET_FILE`, as above.",
        secret=True,
    )
    public_url: Annotated[str, BeforeValidator(lambda text: read.url(text) if text else "")] = variable(
        "VERL_E2E_PUBLIC_URL",
        "The public address of this service, without `/webhook`; `doctor` compares it with the App's webhook URL.",
        "",
    )
    database: Annotated[str, BeforeValidator(read.database_url)] = variable(
        "DATABASE_URL",
        "`sqlite:///FILE`, or `postgresql://USER:PASSWORD@HOST/NAME` (needs the extra `postgres`). "
        "Or `DATABASE_URL_FILE`, as above.",
        "",
        shown="`verl-e2e.sqlite3` in `VERL_E2E_DATA`",
        secret=True,
    )
    data: Annotated[Path, AfterValidator(read.absolute)] = variable(
        "VERL_E2E_DATA",
        "The folder for the database, git mirrors and run folders; it is created when missing.",
        "verl-e2e-data",
    )
    host: Annotated[str, BeforeValidator(read.host)] = variable(
        "VERL_E2E_HOST", "The address to listen on.", "127.0.0.1"
    )
    port: Annotated[int, read.number(0, 65535)] = variable(
        "VERL_E2E_PORT", "The port to listen on; 0: any free port.", "8080"
    )
    repositories: Annotated[tuple[str, ...], BeforeValidator(read.repositories)] = variable(
        "VERL_E2E_REPOSITORIES",
        "The repositories to serve, `owner/name`, separated by spaces. Empty: all where the App is installed.",
        "",
    )
    backend: Annotated[str, read.one_of(*BACKENDS)] = variable(
        "VERL_E2E_BACKEND", f"Where jobs run: `{'`, `'.join(BACKENDS)}`.", BACKENDS[0]
    )
    workflow_ref: str = variable(
        "VERL_E2E_WORKFLOW_REF",
        "The branch that the workflow is started on. Use a branch that holds nothing else, so that jobs cannot write "
        "the caches of the default branch.",
        "verl-e2e",
    )
    trusted_root: Annotated[Path | None, BeforeValidator(lambda text: text or None), AfterValidator(read.absolute)] = (
        variable(
            "VERL_E2E_TRUSTED_ROOT",
            "A file with Sigstore's trust root for verifying attestations. Empty: the one in the library.",
            "",
        )
    )
    site_profile: str = variable(
        "VERL_E2E_SITE_PROFILE",
        "The site profile of the hosts that run jobs, for every back end: a packaged name, or a file on this machine.",
        "default",
    )
    tool: Annotated[tuple[str, str], BeforeValidator(read.pinned_tool)] = variable(
        "VERL_E2E_TOOL",
        "The verl-e2e that runs the jobs, `OWNER/NAME@SHA` with the full commit; required for `github-actions`.",
        "",
    )
    verl: Annotated[str, BeforeValidator(read.place)] = variable(
        "VERL_E2E_VERL",
        "verl's repository: its address, or a folder with a clone of it. `local` needs a folder.",
        DEFAULT_VERL,
    )
    bridge: Annotated[str, BeforeValidator(read.folder)] = variable(
        "VERL_E2E_BRIDGE",
        "For `local`: a folder with a clone of the repository under test that holds the heads of its pull requests.",
        "",
    )
    workers: Annotated[int, read.number(1, 64)] = variable(
        "VERL_E2E_WORKERS", "How many pull requests are processed at the same time.", "4"
    )
    tick_s: Annotated[int, read.number(1, 3600)] = variable(
        "VERL_E2E_TICK_S",
        "Seconds between two polls of the open runs and of the list of open pull requests. A push or the end of a run "
        "whose webhook was lost is found after this time at the latest.",
        "60",
    )
    list_lag_s: Annotated[int, read.number(1, 600)] = variable(
        "VERL_E2E_LIST_LAG_S",
        "Seconds after which GitHub's lists are assumed to be complete. After a crash or a lost answer, a comment, "
        "check run or workflow run that may already exist is created again only after this time.",
        "30",
    )
    keep_days: Annotated[int, read.number(4, 3650)] = variable(
        "VERL_E2E_KEEP_DAYS",
        "Days after which deliveries, sent replies, inactive targets and run folders are removed. Commands, approvals, "
        "overrides, runs and their verdicts are kept. GitHub can repeat a delivery for 3 days, GitHub Enterprise "
        "Server for 7.",
        "14",
    )
    log_level: Annotated[str, read.one_of(*_LEVELS)] = variable(
        "VERL_E2E_LOG_LEVEL", f"`{'`, `'.join(_LEVELS)}`.", "info"
    )

    @field_validator("tool")
    @classmethod
    def _tool_of_workflow(cls, tool: tuple[str, str], info: ValidationInfo) -> tuple[str, str]:
        if info.data.get("backend") == "github-actions" and tool == ("", ""):
            raise UnfitError("it is not set", "it is required for github-actions; write OWNER/NAME@SHA")
        return tool

    @field_validator("verl", "bridge")
    @classmethod
    def _clone_of_local(cls, place: str, info: ValidationInfo) -> str:
        if info.data.get("backend") == "local" and (not place or "://" in place):
            raise UnfitError("it names no folder", "local needs a folder with a clone")
        return place

    @property
    def database_url(self) -> str:
        """The URL of the database; default: a SQLite file in the data folder."""
        return self.database or f"sqlite:///{self.data / 'verl-e2e.sqlite3'}"


# Variables that no child process of the service needs; each may be given as a file instead.
SECRETS = secrets(Settings)


def load_settings(environ: Mapping[str, str]) -> Settings:
    """The settings of an environment; raises ConfigError with one line for each variable that is missing or wrong."""
    return read_settings(Settings, environ)
