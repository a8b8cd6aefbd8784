"""GitHub's answers, checked when they arrive: only the keys that we use, each with its type. Other keys are ignored."""

from typing import Any, TypeVar

from pydantic import AliasChoices, AwareDatetime, BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from verl_e2e.ports import ForgeError

_T = TypeVar("_T", bound=BaseModel)


class Answer(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Named(Answer):
    """Something with a name."""

    name: str


class RepoAnswer(Answer):
    """A repository."""

    full_name: str
    default_branch: str = ""


class User(Answer):
    """A person, or an App's own account (`type` is then Bot); the login is empty where GitHub knows no account."""

    login: str = ""
    type: str = "User"


class IdAnswer(Answer):
    """Something that has an id: an App, or what was made."""

    id: int


class SideAnswer(Answer):
    """The head or the base of a pull request; `repo` is None when a fork is gone."""

    ref: str
    sha: str
    repo: RepoAnswer | None = None


class PullAnswer(Answer):
    """A pull request."""

    number: int
    state: str
    title: str = ""
    draft: bool = False
    user: User | None = None
    author_association: str = "NONE"
    labels: tuple[Named, ...] = ()
    changed_files: int = 0
    head: SideAnswer
    base: SideAnswer


class FileAnswer(Answer):
    """A changed file; `patch` is absent when it is binary or long."""

    filename: str
    status: str
    sha: str | None = None
    previous_filename: str | None = None
    contents_url: str = ""
    patch: str = ""


class CommitAnswer(Answer):
    """A commit, with whom GitHub takes its addresses for."""

    sha: str
    author: User | None = None
    committer: User | None = None


class StateAnswer(Answer):
    """Something that has a state: a workflow file, or someone's place in a team."""

    state: str


class RefAnswer(Answer):
    """A branch: the commit that it points at."""

    target: CommitAnswer = Field(alias="object")


class ComparisonAnswer(Answer):
    """The comparison of two commits."""

    merge_base_commit: CommitAnswer


class ContentAnswer(Answer):
    """A content, of a file or by its id; `encoding` is `none` when it is too long to be given here."""

    type: str = ""
    sha: str = ""
    encoding: str = ""
    content: str = ""


class CommentAnswer(Answer):
    """A comment."""

    id: int
    body: str | None = ""
    user: User | None = None
    created_at: AwareDatetime
    updated_at: AwareDatetime
    performed_via_github_app: IdAnswer | None = None
    minimized: dict[str, Any] | None = None


class OutputAnswer(Answer):
    """What a check run shows."""

    title: str | None = None
    summary: str | None = None
    text: str | None = None
    annotations_count: int = 0


class CheckAnswer(Answer):
    """A check run."""

    id: int
    name: str
    head_sha: str
    status: str
    conclusion: str | None = None
    details_url: str | None = None
    external_id: str | None = None
    output: OutputAnswer = Field(default_factory=OutputAnswer)
    app: IdAnswer | None = None


class RoleAnswer(Answer):
    """Someone's role in a repository; servers that know no custom roles say only `permission`."""

    role_name: str = ""
    permission: str


class DispatchAnswer(Answer):
    """The run that a dispatch started."""

    workflow_run_id: int
    html_url: str = ""


class WorkflowRunAnswer(Answer):
    """A workflow run."""

    id: int
    status: str | None = None
    conclusion: str | None = None
    display_title: str = ""
    html_url: str = ""
    head_sha: str = ""
    head_branch: str | None = None
    actor: User | None = None
    run_attempt: int = 1
    created_at: AwareDatetime | None = None


class WorkflowRunsAnswer(Answer):
    """A page of workflow runs."""

    workflow_runs: tuple[WorkflowRunAnswer, ...] = ()


class WorkflowStepAnswer(Answer):
    """A step of a job of a workflow run."""

    name: str
    status: str
    conclusion: str | None = None


class WorkflowJobAnswer(Answer):
    """A job of a workflow run."""

    id: int
    name: str
    status: str
    conclusion: str | None = None
    runner_name: str | None = None
    labels: tuple[str, ...] = ()
    html_url: str | None = None
    started_at: AwareDatetime | None = None
    completed_at: AwareDatetime | None = None
    steps: tuple[WorkflowStepAnswer, ...] | None = None


class ArtifactAnswer(Answer):
    """What a workflow run left."""

    id: int
    name: str
    size_in_bytes: int
    expired: bool = False
    digest: str | None = None


class AttestationAnswer(Answer):
    """An attestation of an artifact, as a Sigstore bundle."""

    bundle: dict[str, Any] = Field(default_factory=dict)


class AttestationsAnswer(Answer):
    """The attestations of a digest."""

    attestations: tuple[AttestationAnswer, ...] = ()


class RunnerAnswer(Answer):
    """A self-hosted runner."""

    name: str
    status: str
    busy: bool = False
    labels: tuple[Named, ...] = ()
    ephemeral: bool | None = None


class InstallationAnswer(Answer):
    """An installation of an App, as far as we read it."""

    id: PositiveInt
    app_id: PositiveInt
    app_slug: str = ""
    permissions: dict[str, str] = {}
    events: tuple[str, ...] = ()
    suspended_at: AwareDatetime | None = None


class TokenAnswer(Answer):
    """A token for an installation."""

    token: str
    expires_at: AwareDatetime


class DeliveryAnswer(Answer):
    """An attempt to deliver a webhook."""

    id: int
    guid: str
    event: str
    action: str | None = None
    status_code: int = 0
    delivered_at: AwareDatetime
    redelivery: bool = False


class CheckRequirement(Answer):
    """A check that branch protection or a ruleset asks for; any writer will do where `app_id` is None or negative."""

    context: str
    app_id: int | None = Field(default=None, validation_alias=AliasChoices("app_id", "integration_id"))


class RequiredChecks(Answer):
    """The checks that branch protection asks for."""

    checks: tuple[CheckRequirement, ...] = ()
    contexts: tuple[str, ...] = ()


class ProtectionAnswer(Answer):
    """A branch's protection."""

    required_status_checks: RequiredChecks | None = None


class RuleParameters(Answer):
    """What a rule says; each kind of rule has its own keys."""

    required_status_checks: tuple[CheckRequirement, ...] = ()
    check_response_timeout_minutes: int | None = None


class RuleAnswer(Answer):
    """A rule that holds for a branch."""

    type: str
    ruleset_id: int = 0
    parameters: RuleParameters = Field(default_factory=RuleParameters)


def read(model: type[_T], data: object, what: str) -> _T:
    """The model of what answers a request; ForgeError when GitHub answered something else."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ForgeError(
            f"GitHub's answer to {what} has another form than documented: {place}: {first['msg']}"
        ) from error
