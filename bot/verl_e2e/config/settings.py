"""The settings of the service, one field for each environment variable; docs/settings.md shows the same table."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import ValidationInfo, field_validator

from verl_e2e.config import settings_values as read
from verl_e2e.config.environment import EnvironmentSettings, read_settings, secrets, variable
from verl_e2e.core.model.document import UnfitError
from verl_e2e.core.model.jobs import MOST_RUNS_ON_A_HOST
from verl_e2e.core.pulls.forge import Attestation

_LEVELS = ("debug", "info", "warning", "error")
BACKENDS = ("github-actions", "local", "slurm", "ray")
CONTAINERS = ("none", "pyxis")
DEFAULT_VERL = "https://github.com/verl-project/verl"


# What a back end cannot do without: which one, and what to write.
_NEEDED = {
    "tool": ("github-actions", "write OWNER/NAME@SHA"),
    "slurm_folder": ("slurm", "name a folder that the nodes see too"),
    "ray_address": ("ray", "docs/runners/ray.md shows it"),
    "ray_folder": ("ray", "docs/runners/ray.md shows it"),
}


class JobSettings(EnvironmentSettings):
    """How jobs run on Actions runners; the App and the action share these settings."""

    api_url: read.ApiUrl = variable(
        "GITHUB_API_URL",
        "GitHub's API; for GitHub Enterprise Server `https://HOST/api/v3`. http is accepted for this machine only.",
        "https://api.github.com",
    )
    workflow: read.Workflow = variable(
        "VERL_E2E_WORKFLOW", "The workflow that runs a job, for `github-actions`.", "verl-e2e.yml"
    )
    image: str = variable(
        "VERL_E2E_IMAGE",
        "The image of jobs, for `github-actions` and `slurm`, unless the policy pins one by digest. Empty: the site's "
        "image.",
        "",
    )
    runners: read.Runners = variable(
        "VERL_E2E_RUNNERS",
        "Runner labels by number of GPUs, for `github-actions`: `1=self-hosted,gpu-x1 8=self-hosted,gpu-x8`.",
        "",
        shown="`self-hosted,linux,gpu-xN` for 1, 2, 4 and 8",
    )
    fork_runners: read.Runners = variable(
        "VERL_E2E_FORK_RUNNERS",
        "The same for jobs of forks. Use a separate pool of ephemeral runners. Empty: forks use `VERL_E2E_RUNNERS`.",
        "",
    )
    attestation: Annotated[Attestation, read.one_word_of(*map(str, Attestation))] = variable(
        "VERL_E2E_ATTESTATION",
        "Whether a run folder needs a verified attestation of its origin, for `github-actions`: `required`, or "
        "`preferred` where GitHub does not make attestations (private repositories, Enterprise Server).",
        Attestation.REQUIRED.value,
    )
    site_values: read.Pairs = variable(
        "VERL_E2E_SITE_VALUES",
        "Values that the site profile needs, `name=value`, separated by spaces; the same as `--set` of other verbs.",
        "",
    )


class Settings(JobSettings):
    """The settings of the service; `repr` leaves out the secrets."""

    app_id: Annotated[int, read.number(1, 10**15)] = variable(
        "GITHUB_APP_ID", "The App's id, a number on its settings page."
    )
    private_key: read.PrivateKey = variable(
        "GITHUB_APP_PRIVATE_KEY",
        "The App's private key in PEM; line ends may be written `\\n`. "
        "Or `GITHUB_APP_PRIVATE_KEY_FILE`: the file that holds it.",
        secret=True,
    )
    webhook_secret: read.Secret = variable(
        "GITHUB_WEBHOOK_SECRET",
        "The secret of the App's webhook, at least 16 characters. Or `GITHUB_WEBHOOK_SECRET_FILE`, as above.",
        secret=True,
    )
    client_id: Annotated[
        str, read.form(r"[A-Za-z0-9._]*", "is not a client ID", "copy it from the App's settings page")
    ] = variable(
        "GITHUB_APP_CLIENT_ID",
        "The App's client ID, on its settings page. With the client secret, people log in to the pages and see what "
        "GitHub lets them read. Empty: there is no login.",
        "",
    )
    client_secret: read.OptionalSecret = variable(
        "GITHUB_APP_CLIENT_SECRET",
        "The client secret for that. Or `GITHUB_APP_CLIENT_SECRET_FILE`, as above.",
        "",
        secret=True,
    )
    public_url: read.OptionalUrl = variable(
        "VERL_E2E_PUBLIC_URL",
        "The public address of this service, without `/webhook`; `doctor` compares it with the App's webhook URL.",
        "",
    )
    database: read.DatabaseUrl = variable(
        "DATABASE_URL",
        "`sqlite:///FILE`, or `postgresql://USER:PASSWORD@HOST/NAME` (needs the extra `postgres`). "
        "Or `DATABASE_URL_FILE`, as above.",
        "",
        shown="`verl-e2e.sqlite3` in `VERL_E2E_DATA`",
        secret=True,
    )
    data: read.Folder = variable(
        "VERL_E2E_DATA",
        "The folder for the database, git mirrors and run folders; it is created when missing.",
        "verl-e2e-data",
    )
    host: read.ListeningHost = variable("VERL_E2E_HOST", "The address to listen on.", "127.0.0.1")
    port: Annotated[int, read.number(0, 65535)] = variable(
        "VERL_E2E_PORT", "The port to listen on; 0: any free port.", "8080"
    )
    repositories: read.Repositories = variable(
        "VERL_E2E_REPOSITORIES",
        "The repositories to serve, `owner/name`, separated by spaces. Empty: all where the App is installed.",
        "",
    )
    backend: Annotated[str, read.one_word_of(*BACKENDS)] = variable(
        "VERL_E2E_BACKEND", f"Where jobs run: `{'`, `'.join(BACKENDS)}`.", BACKENDS[0]
    )
    local_slots: Annotated[int, read.number(1, MOST_RUNS_ON_A_HOST)] = variable(
        "VERL_E2E_LOCAL_SLOTS",
        "For `local`: how many runs on one GPU, or on its part of one, this machine takes at the same time. "
        "More than one needs a site profile with `isolation.network: none`.",
        "1",
    )
    local_gpus: Annotated[int, read.number(0, MOST_RUNS_ON_A_HOST)] = variable(
        "VERL_E2E_LOCAL_GPUS",
        "For `local`: how many GPUs those slots share; a job takes as many slots as its part of the GPUs. 0: as many "
        "GPUs as slots.",
        "0",
    )
    slots: read.Slots = variable(
        "VERL_E2E_SLOTS",
        "How many jobs may run at once, by their number of GPUs as in `VERL_E2E_RUNNERS`: `1=4 2,4=2 8=1`, `all=6`, or "
        "by GPUs `all=16gpus`; `fork:` in front of a word for the jobs of forks. The others wait in the queue of the "
        "service. Empty: all are given to the back end at once.",
        "",
    )
    slurm_folder: read.SharedFolder = variable(
        "VERL_E2E_SLURM_FOLDER",
        "For `slurm`, which needs it: the folder of orders and run folders, on a disk that this machine and the nodes "
        "have at the same path.",
        "",
    )
    slurm_host: read.SshHost = variable(
        "VERL_E2E_SLURM_HOST",
        "The host where `sbatch` is run, by ssh with a key and without a password. Empty: this machine.",
        "",
    )
    slurm_gpus: read.SlurmGpus = variable(
        "VERL_E2E_SLURM_GPUS",
        "The option of `sbatch` that asks for N GPUs, as `--gres=gpu:h100:N`.",
        "--gpus-per-node=N",
    )
    slurm_options: read.SlurmOptions = variable(
        "VERL_E2E_SLURM_OPTIONS",
        "More options of `sbatch`, separated by spaces: `--partition=gpu --account=rl --mem=200G`.",
        "",
    )
    slurm_command: read.NodeCommand = variable(
        "VERL_E2E_SLURM_COMMAND", "How `verl-e2e` is called on a node, in the container where there is one.", "verl-e2e"
    )
    slurm_setup: read.NodeScript = variable(
        "VERL_E2E_SLURM_SETUP",
        "A bash script that is read before that in the same step, as one that activates an environment. Empty: none.",
        "",
    )
    slurm_container: Annotated[str, read.one_word_of(*CONTAINERS)] = variable(
        "VERL_E2E_SLURM_CONTAINER", f"What starts the container of a job: `{'`, `'.join(CONTAINERS)}`.", CONTAINERS[0]
    )
    slurm_mounts: read.Mounts = variable(
        "VERL_E2E_SLURM_MOUNTS",
        "Mounts of that container, `/SOURCE:/TARGET`, separated by spaces: as of the models. "
        "`VERL_E2E_SLURM_FOLDER` is mounted always.",
        "",
    )
    ray_address: read.OptionalUrl = variable(
        "VERL_E2E_RAY_ADDRESS", "For `ray`, which needs it: the address of the dashboard, `http://HOST:8265`.", ""
    )
    ray_folder: read.SharedFolder = variable(
        "VERL_E2E_RAY_FOLDER",
        "For `ray`, which needs it: the folder of orders and run folders, on a disk that this machine and the nodes "
        "have at the same path.",
        "",
    )
    ray_headers: read.Headers = variable(
        "VERL_E2E_RAY_HEADERS",
        "Headers of every request to Ray, one `NAME: VALUE` on each line, as `Authorization: Bearer TOKEN`. "
        "Or `VERL_E2E_RAY_HEADERS_FILE`, as above.",
        "",
        secret=True,
    )
    ray_verify: read.Verify = variable(
        "VERL_E2E_RAY_VERIFY",
        "Whether the certificate of an https address is verified: `yes`, `no`, or a PEM file with the authorities.",
        "yes",
    )
    ray_resources: read.Resources = variable(
        "VERL_E2E_RAY_RESOURCES",
        "The cluster's own resources that a job takes, `NAME=AMOUNT`, separated by spaces.",
        "",
    )
    ray_command: read.NodeCommand = variable("VERL_E2E_RAY_COMMAND", "How `verl-e2e` is called on a node.", "verl-e2e")
    ray_setup: read.NodeScript = variable(
        "VERL_E2E_RAY_SETUP",
        "A bash script that is read before that, as one that activates an environment. Empty: none.",
        "",
    )
    workflow_ref: str = variable(
        "VERL_E2E_WORKFLOW_REF",
        "The branch that the workflow is started on. Use a branch that holds nothing else, so that jobs cannot write "
        "the caches of the default branch.",
        "verl-e2e",
    )
    trusted_root: read.OptionalFile = variable(
        "VERL_E2E_TRUSTED_ROOT",
        "A file with Sigstore's trust root for verifying attestations. Empty: the one in the library.",
        "",
    )
    site_profile: str = variable(
        "VERL_E2E_SITE_PROFILE",
        "The site profile of the hosts that run jobs, for every back end: a packaged name, or a file on this machine.",
        "default",
    )
    tool: read.Tool = variable(
        "VERL_E2E_TOOL",
        "The verl-e2e that runs the jobs, `OWNER/NAME@SHA` with the full commit; required for `github-actions`.",
        "",
    )
    verl: read.RepositoryPlace = variable(
        "VERL_E2E_VERL",
        "verl's repository: its address, or a folder with a clone of it. The service reads it; jobs fetch verl from "
        "the policy's `verl.repository`.",
        DEFAULT_VERL,
    )
    fetch_token_file: read.HostFile = variable(
        "VERL_E2E_FETCH_TOKEN_FILE",
        "For `local`, `slurm` and `ray`: a file on the hosts of jobs with a token that may read the repository under "
        "test, for a private one. It is sent to that repository's server only. Empty: no token.",
        "",
    )
    workers: Annotated[int, read.number(1, 64)] = variable(
        "VERL_E2E_WORKERS", "How many pull requests are processed at the same time.", "4"
    )
    tick_s: Annotated[int, read.number(1, 3600)] = variable(
        "VERL_E2E_TICK_S", "Seconds between two polls of the open runs and of the list of open pull requests.", "60"
    )
    list_lag_s: Annotated[int, read.number(1, 600)] = variable(
        "VERL_E2E_LIST_LAG_S", "Seconds after which GitHub's lists are assumed to be complete.", "30"
    )
    keep_days: Annotated[int, read.number(4, 3650)] = variable(
        "VERL_E2E_KEEP_DAYS",
        "Days after which deliveries, sent replies, inactive targets and run folders are removed.",
        "14",
    )
    metrics_address: read.Listening = variable(
        "VERL_E2E_METRICS_ADDRESS",
        "An address of its own for `/metrics`, `HOST:PORT`; the health pages are there too. Empty: the address of "
        "webhooks, for programs on this host alone unless a token is set.",
        "",
    )
    metrics_token: read.OptionalSecret = variable(
        "VERL_E2E_METRICS_TOKEN",
        "What a request for `/metrics` must hold in `Authorization: Bearer`, at least 16 characters. Empty: no token. "
        "Or `VERL_E2E_METRICS_TOKEN_FILE`, as above.",
        "",
        secret=True,
    )
    pages: Annotated[str, read.one_word_of("public", "all", "none")] = variable(
        "VERL_E2E_PAGES",
        "Of which repositories this service shows pages to everyone who can reach its address: `public`, those that "
        "are public on GitHub; `all`, where a proxy in front of it lets in only people who may read them; `none`.",
        "public",
    )
    log_format: Annotated[str, read.one_word_of("auto", "json", "text")] = variable(
        "VERL_E2E_LOG_FORMAT",
        "Log lines as `json` or as `text`; `auto`: text where standard error is a terminal, JSON elsewhere.",
        "auto",
    )
    log_level: Annotated[str, read.one_word_of(*_LEVELS)] = variable(
        "VERL_E2E_LOG_LEVEL", f"`{'`, `'.join(_LEVELS)}`.", "info"
    )

    @field_validator("tool", "slurm_folder", "ray_address", "ray_folder")
    @classmethod
    def _needed_by_its_backend(cls, value: object, info: ValidationInfo) -> object:
        backend, fix = _NEEDED[str(info.field_name)]
        if info.data.get("backend") == backend and value in (None, "", ("", "")):
            raise UnfitError("it is not set", f"it is required for {backend}; {fix}")
        return value

    @field_validator("client_secret")
    @classmethod
    def _both_or_none(cls, value: str, info: ValidationInfo) -> str:
        if bool(value) != bool(info.data.get("client_id")):
            raise UnfitError("it goes with GITHUB_APP_CLIENT_ID", "set both of them, or none")
        return value

    @property
    def fetches(self) -> bool:
        """Whether the host of a job fetches the repositories itself; a workflow checks them out."""
        return self.backend != BACKENDS[0]

    @property
    def database_url(self) -> str:
        """The URL of the database; default: a SQLite file in the data folder."""
        return self.database or f"sqlite:///{self.data / 'verl-e2e.sqlite3'}"


# Variables that no child process of the service needs; each may be given as a file instead.
SECRETS = secrets(Settings)


def load_settings(environ: Mapping[str, str]) -> Settings:
    """The settings of an environment; raises ConfigError with one line for each variable that is missing or wrong."""
    return read_settings(Settings, environ)
