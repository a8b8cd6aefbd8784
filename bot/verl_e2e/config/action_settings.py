"""The settings of a workflow step, one class for each command of `verl-e2e action`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

from pydantic import AfterValidator

from verl_e2e.config import settings_values as read
from verl_e2e.config.environment import EnvironmentSettings, read_settings, variable, variables
from verl_e2e.config.settings import DEFAULT_VERL, JobSettings
from verl_e2e.core.model.document import UnfitError
from verl_e2e.core.pulls.forge import HOSTED

# The App that a workflow's own token belongs to, on github.com.
GITHUB_ACTIONS_APP = 15368


class StepSettings(EnvironmentSettings):
    """The settings of any step."""

    fix_of_missing: ClassVar[str] = "run this as a step of a workflow, through action.yml"
    secrets_in_files: ClassVar[bool] = False


class RepositoryStepSettings(StepSettings):
    """The settings of a step that asks GitHub about the repository under test."""

    repository: str = variable("GITHUB_REPOSITORY", "The repository under test, `owner/name`.")
    temporary: Path = variable("RUNNER_TEMP", "The folder that GitHub empties after the job.")


class ActionSettings(RepositoryStepSettings, JobSettings):
    """The settings of `event` and `sweep`, for a trusted workflow of the base branch."""

    payload: read.Payload = variable("GITHUB_EVENT_PATH", "The file with the event that started the workflow.")
    event_name: str = variable("GITHUB_EVENT_NAME", "The name of that event.")
    ref_name: str = variable("GITHUB_REF_NAME", "The branch that the workflow runs on.", "")
    run_id: str = variable("GITHUB_RUN_ID", "The id of the workflow run.", "")
    web_url: read.Url = variable("GITHUB_SERVER_URL", "GitHub's pages.", "https://github.com")
    token: str = variable("VERL_E2E_TOKEN", "The token of the workflow.", secret=True)
    app_id: Annotated[int, read.number(1, 10**15)] = variable(
        "VERL_E2E_APP_ID", "The App whose token it is.", str(GITHUB_ACTIONS_APP)
    )
    target: str = variable(
        "VERL_E2E_TARGET", "What to process in addition to the event: `NUMBER@SHA` or a merge group.", ""
    )
    # The default is longer than the least interval of the card.
    patience_s: Annotated[int, read.number(0, 600)] = variable(
        "VERL_E2E_PATIENCE_S", "Seconds to wait before something that may not be written yet.", "20"
    )
    workflow_ref: str = variable(
        "VERL_E2E_WORKFLOW_REF", "The branch that the workflow is started on. Empty: the default branch.", ""
    )
    tool: read.ToolOrTag = variable(
        "VERL_E2E_TOOL",
        "The verl-e2e that runs the jobs, `OWNER/NAME@SHA` with the full commit, or a release's tag, as `@v0.1.0`.",
    )
    verl: read.RepositoryPlace = variable(
        "VERL_E2E_VERL", "verl's repository: its address, or a folder with a clone of it.", DEFAULT_VERL
    )
    site: str = variable("VERL_E2E_SITE", "The site profile of the hosts that run jobs.", "default")
    # GitHub puts the home folder of a job in a container there.
    home: str = variable("VERL_E2E_HOME", "The home folder of a job.", "/github/home")

    @property
    def branch(self) -> str:
        """The branch that the workflow is started on."""
        repository = self.payload.get("repository")
        branch = repository.get("default_branch") if isinstance(repository, dict) else ""
        return self.workflow_ref or (branch if isinstance(branch, str) and branch else "main")

    @property
    def before(self) -> dict[str, str]:
        """The new head and the head that it replaced, when the event is a push to the pull request; else empty."""
        before, after = self.payload.get("before"), self.payload.get("after")
        pushed = self.payload.get("action") == "synchronize" and isinstance(before, str) and isinstance(after, str)
        return {str(after): str(before)} if pushed else {}

    @property
    def work(self) -> Path:
        """The folder for mirrors, summaries and artifacts."""
        return self.temporary / "verl-e2e"


class OrderSettings(RepositoryStepSettings):
    """The settings of `order`, which runs on a GPU host."""

    job_id: str = variable("VERL_E2E_JOB_ID", "The id of the job.")
    job: str = variable("VERL_E2E_JOB", "The packed job.")
    target: str = variable("VERL_E2E_TARGET", "The pull request and head that it is for.")
    api_url: read.ApiUrl = variable("GITHUB_API_URL", "GitHub's API.", "https://api.github.com")
    token: str = variable("VERL_E2E_TOKEN", "A token that may read; empty: none.", "", secret=True)
    workspace: Path = variable("GITHUB_WORKSPACE", "The folder that will hold the repositories.")


class DigestSettings(StepSettings):
    """The settings of `digest`."""

    folder: Path = variable("VERL_E2E_FOLDER", "The run folder.")


def _hosted(name: str) -> str:
    if name != HOSTED:
        raise UnfitError("this is not a GitHub-hosted runner", "run it on one: it must never have run code under test")
    return name


class CheckDigestSettings(DigestSettings):
    """The settings of `check-digest`, which runs on a GitHub-hosted runner."""

    runner: Annotated[str, AfterValidator(_hosted)] = variable("RUNNER_ENVIRONMENT", "Whose runner this is.")
    digest: str = variable("VERL_E2E_DIGEST", "The digest that the job gave.")
    job_id: str = variable("VERL_E2E_JOB_ID", "The id of the job.")
    job: str = variable("VERL_E2E_JOB", "The packed job.")


_Step = TypeVar("_Step", bound=StepSettings)


def load_step(model: type[_Step], environ: Mapping[str, str]) -> _Step:
    """The settings of a step; raises ConfigError with one line for each variable that is missing or wrong."""
    # The action gives its whole environment to each command.
    known = {name for other in (ActionSettings, OrderSettings, CheckDigestSettings) for name in variables(other)}
    return read_settings(model, environ, known)
