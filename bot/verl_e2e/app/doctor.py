"""Look at how the App and a repository are set up, and tell what is to be fixed."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from verl_e2e.config.policy import POLICY_PATH, load_policy, packaged_policy
from verl_e2e.core.model.access import DEFAULT_GATE
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.plan.lint import ToFix, lint_image, lint_quarantine
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.checkup import (
    Health,
    SetupFinding,
    error_finding,
    failed_deliveries,
    note_finding,
    of_absence,
    of_branch,
    of_clock,
    of_deliveries,
    of_dispatch_branch,
    of_fork_pool,
    of_hook,
    of_installation,
    of_kept_runners,
    of_runners,
    of_sources,
    of_workflow,
    ok_finding,
)
from verl_e2e.ports import CREDENTIAL_FIX, NETWORK_FIX, Administration, ForgeError

DAYS = 3
NETWORK = "network"
NO_ANSWER = "GitHub did not answer in time; run doctor again later"


@dataclass(frozen=True, slots=True)
class Setup:
    """Our settings and what we need.

    `workflow` and `runners` are empty where jobs do not run by a workflow, `hook` where we do not know our own address.
    `workflow_ref` is the branch or tag that the workflow is taken from, empty for the branch looked at;
    `workflow_text` is this version's.
    """

    app_id: int
    permissions: Mapping[str, str]
    events: tuple[str, ...]
    workflow: str = ""
    workflow_ref: str = ""
    workflow_text: bytes = b""
    runners: Mapping[int, tuple[str, ...]] | None = None
    hook: str = ""
    # The runners of forks' jobs, empty where they share the others.
    fork_runners: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DoctorServices:
    """What is looked at. All raise ForgeError, `database` an error of its own that is the user's mistake."""

    administration: Administration
    # A file of a repository at a revision.
    file_at: Callable[[str, str, str], bytes | None]
    # Whether the verl repository at an address has a commit.
    has_verl: Callable[[str, str], bool]
    database: Callable[[], None]
    # What the engine that runs jobs says of itself, empty where none is asked; UserError where it would not run them.
    engine: Callable[[], str] = lambda: ""
    # What VERL_E2E_VERL names, empty where it was not set, and whether that has a commit.
    own_verl: str = ""
    own_has: Callable[[str], bool] = lambda _: False
    # By address, why what jobs of a repository need cannot be fetched; nothing where no host of jobs fetches.
    refusals: Callable[[str, Policy], Mapping[str, str]] = lambda *_: {}
    # By how many seconds GitHub's clock is ahead of ours; None where it said no time.
    ahead_s: Callable[[], float | None] = lambda: None


def examine(
    repository: str, branch: str, setup: Setup, services: DoctorServices, now: datetime, *, redeliver: bool = False
) -> tuple[SetupFinding, ...]:
    """Everything that was looked at, in order; an empty branch stands for the default one.

    Where this machine has no connection to GitHub that is the only finding, about NETWORK: nothing else can be checked.
    """
    try:
        return _examine(repository, branch, setup, services, now, redeliver=redeliver)
    except _NoNetworkError as error:
        return (error_finding(NETWORK, f"GitHub cannot be reached from this machine: {error}", NETWORK_FIX),)


class _NoNetworkError(Exception):
    """This machine has no connection to GitHub; the text says why."""


def _examine(
    repository: str, branch: str, setup: Setup, services: DoctorServices, now: datetime, *, redeliver: bool
) -> tuple[SetupFinding, ...]:
    first = [
        *_guarded("database", lambda: _database(services)),
        *_engine(services),
        *_guarded("app", lambda: _app(repository, setup, services)),
        *([of_clock(ahead_s)] if (ahead_s := services.ahead_s()) is not None else []),
    ]
    if any(item.about == "app" and item.state is Health.ERROR for item in first):
        return tuple(first)
    try:
        branch = branch or services.administration.default_branch(repository)
    except ForgeError as error:
        fix = NO_ANSWER if error.passing else "fix this first: the rest could not be checked"
        return (*first, error_finding("repository", str(error), fix))
    policy, of_policy = _policy(repository, branch, services)
    looks: tuple[tuple[str, Callable[[], Iterable[SetupFinding]]], ...] = (
        ("webhook", lambda: [_hook(setup, services)]),
        ("deliveries", lambda: [_deliveries(services, now, redeliver=redeliver)]),
        ("policy", lambda: of_policy),
        ("image", lambda: _linted("image", lint_image(policy) if policy else ())),
        ("quarantine", lambda: _linted("quarantine", lint_quarantine(policy, now.date()) if policy else ())),
        ("verl", lambda: _verl(policy, services)),
        ("sources", lambda: of_sources(services.refusals(repository, policy)) if policy else ()),
        ("required check", lambda: _branch(repository, branch, setup, policy, services)),
        ("workflow", lambda: _workflow(repository, branch, setup, services)),
        ("runners", lambda: _runners(repository, setup, services)),
    )
    return (*first, *(item for about, look in looks for item in _guarded(about, look)))


def _guarded(about: str, look: Callable[[], Iterable[SetupFinding]]) -> Iterator[SetupFinding]:
    """What a look finds; one that is refused is a finding, and the others go on."""
    try:
        yield from look()
    except (UserError, ForgeError) as error:
        yield _not_looked_at(about, error)


def _not_looked_at(about: str, error: Exception) -> SetupFinding:
    """That a look failed: no answer is a matter of this machine's network, a refusal one of the App's permissions."""
    message = f"it could not be checked: {error}"
    if isinstance(error, ForgeError) and error.unreached:
        return error_finding(about, message, NETWORK_FIX)
    if isinstance(error, ForgeError) and error.unknown_to_it:
        return error_finding(about, message, CREDENTIAL_FIX)
    if not isinstance(error, ForgeError) or not error.passing:
        return error_finding(about, message, "check that our App is installed and has permission to read this")
    if error.wait_s:
        return error_finding(about, message, f"run doctor again in {error.wait_s / 60:.0f} min")
    return error_finding(about, message, NO_ANSWER)


def _engine(services: DoctorServices) -> Iterator[SetupFinding]:
    try:
        found = services.engine()
    except UserError as error:
        yield error_finding("engine", str(error), "fix that, then try `verl-e2e serve --check`")
        return
    if found:
        yield ok_finding("engine", found)


def _database(services: DoctorServices) -> Iterator[SetupFinding]:
    try:
        services.database()
    except UserError as error:
        yield error_finding("database", str(error), "fix DATABASE_URL or the server that it names")
        return
    yield ok_finding("database", "the database can be used")


def _app(repository: str, setup: Setup, services: DoctorServices) -> Iterable[SetupFinding]:
    try:
        found = services.administration.installation(repository)
    except ForgeError as error:
        if error.unreached:
            raise _NoNetworkError(error.unreached) from error
        raise
    return of_installation(found, repository, setup.permissions, setup.events)


def _hook(setup: Setup, services: DoctorServices) -> SetupFinding:
    if not setup.hook:
        return note_finding(
            "webhook", "VERL_E2E_PUBLIC_URL is not set, so the address of the App's webhook was not compared"
        )
    return of_hook(services.administration.hook_url(), setup.hook)


def _deliveries(services: DoctorServices, now: datetime, *, redeliver: bool) -> SetupFinding:
    failed = failed_deliveries(services.administration.deliveries(now - timedelta(days=DAYS)))
    if redeliver:
        for delivery_attempt in failed:
            services.administration.redeliver(delivery_attempt.id)
    return of_deliveries(failed, DAYS, again=redeliver)


def _policy(repository: str, branch: str, services: DoctorServices) -> tuple[Policy | None, tuple[SetupFinding, ...]]:
    """The policy of the branch, the packaged one where it has none; None for one that cannot be used."""
    about = "policy"
    try:
        text = services.file_at(repository, branch, POLICY_PATH)
        if text is None:
            return packaged_policy(), (
                note_finding(about, f"{branch} has no {POLICY_PATH}: the packaged policy is used"),
            )
        return load_policy(text, f"{branch}:{POLICY_PATH}"), (ok_finding(about, f"{POLICY_PATH} on {branch} is valid"),)
    except (UserError, ForgeError) as error:
        first, *more = str(error).splitlines()
        also = f" (and {len(more)} more)" if more else ""
        return None, (error_finding(about, f"{first}{also}", "fix it: until then no pull request is planned"),)


def _linted(about: str, findings: Iterable[ToFix]) -> Iterator[SetupFinding]:
    return (note_finding(about, finding.what, finding.fix) for finding in findings)


def _verl(policy: Policy | None, services: DoctorServices) -> Iterator[SetupFinding]:
    if policy is None:
        return
    commit, address = policy.verl.commit, policy.verl.repository
    if services.own_verl:
        yield from _guarded("verl", lambda: _own_verl(commit, services))
    if services.has_verl(address, commit):
        yield ok_finding("verl", f"the pinned verl {commit[:12]} is in {address}")
        return
    message = f"the pinned verl {commit} is not in {address}"
    yield error_finding("verl", message, f"set verl.commit in {POLICY_PATH} to a commit that is there")


def _own_verl(commit: str, services: DoctorServices) -> Iterator[SetupFinding]:
    """The verl that the service itself reads."""
    if services.own_has(commit):
        yield ok_finding("verl", f"the pinned verl {commit[:12]} is in {services.own_verl}, which VERL_E2E_VERL names")
        return
    message = f"the pinned verl {commit} is not in {services.own_verl}, which VERL_E2E_VERL names"
    yield error_finding(
        "verl", message, f"fetch it there, or set verl.commit in {POLICY_PATH} to a commit that is there"
    )


def _branch(
    repository: str, branch: str, setup: Setup, policy: Policy | None, services: DoctorServices
) -> Iterable[SetupFinding]:
    gate = policy.gate if policy else DEFAULT_GATE
    rules = services.administration.branch_rules(repository, branch)
    return (
        of_absence(gate.none),
        *of_branch(rules, branch, gate.name, setup.app_id, gate.merge_queue_deadline_s),
    )


def _workflow(repository: str, branch: str, setup: Setup, services: DoctorServices) -> Iterator[SetupFinding]:
    if not setup.workflow:
        return
    path, at = f".github/workflows/{setup.workflow}", setup.workflow_ref or branch
    state = services.administration.workflow_state(repository, setup.workflow)
    yield of_workflow(state, services.file_at(repository, at, path), setup.workflow_text, path, at)
    default = services.administration.default_branch(repository)
    yield of_dispatch_branch(at, default)
    if at != default and services.file_at(repository, default, path) is None:
        message = f"{default} has no {path}, and GitHub starts a workflow only when the default branch has its file"
        yield error_finding("workflow", message, f"copy this version's {path} to {default} too")


def _runners(repository: str, setup: Setup, services: DoctorServices) -> Iterable[SetupFinding]:
    if setup.runners is None:
        return ()
    machines = services.administration.machines(repository)
    return (
        *of_runners(machines, setup.runners),
        *of_kept_runners(machines, setup.runners),
        *of_fork_pool(machines, setup.runners, setup.fork_runners),
    )
