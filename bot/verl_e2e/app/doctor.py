"""Look at how the App and a repository are set up, and tell what is to be fixed."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from verl_e2e.config.policy import POLICY_PATH, load_policy, packaged_policy
from verl_e2e.core.consumer.consumer import Consumer
from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.consumer.verl import VERL
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
    """What is looked at. All raise ForgeError."""

    administration: Administration
    # A file of a repository at a revision.
    file_at: Callable[[str, str, str], bytes | None]
    # Whether the repository of a trainer at an address has a commit.
    has_commit: Callable[[str, str], bool]
    # What the database says of itself; UserError where it cannot be used.
    database: Callable[[], str]
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
    administration = services.administration
    try:
        installation, refused = administration.installation(repository), None
    except (UserError, ForgeError) as error:
        if isinstance(error, ForgeError) and error.unreached:
            message = f"GitHub cannot be reached from this machine: {error.unreached}"
            return (error_finding(NETWORK, message, NETWORK_FIX),)
        installation, refused = None, error
    first = [*_usable("database", services.database), *_usable("engine", services.engine)]
    if refused is not None:
        first.append(_not_looked_at("app", refused))
    else:
        first += of_installation(installation, repository, setup.permissions, setup.events)
    if (ahead_s := services.ahead_s()) is not None:
        first.append(of_clock(ahead_s))
    if any(item.about == "app" and item.state is Health.ERROR for item in first):
        return tuple(first)
    try:
        branch = branch or administration.default_branch(repository)
    except ForgeError as error:
        fix = NO_ANSWER if error.passing else "fix this first: the rest could not be checked"
        return (*first, error_finding("repository", str(error), fix))
    policy, of_policy = _policy(repository, branch, services)
    gate = policy.gate if policy else DEFAULT_GATE

    def of_required_check() -> Iterator[SetupFinding]:
        rules = administration.branch_rules(repository, branch)
        yield of_absence(gate.none)
        yield from of_branch(rules, branch, gate.name, setup.app_id, gate.merge_queue_deadline_s)

    def of_webhook() -> Iterator[SetupFinding]:
        if setup.hook:
            yield of_hook(administration.hook_url(), setup.hook)
        else:
            why = "VERL_E2E_PUBLIC_URL is not set, so the address of the App's webhook was not compared"
            yield note_finding("webhook", why)

    def of_failed_deliveries() -> Iterator[SetupFinding]:
        failed = failed_deliveries(administration.deliveries(now - timedelta(days=DAYS)))
        for attempt in failed if redeliver else ():
            administration.redeliver(attempt.id)
        yield of_deliveries(failed, DAYS, again=redeliver)

    def of_machines() -> Iterator[SetupFinding]:
        if setup.runners is not None:
            machines = administration.machines(repository)
            yield from of_runners(machines, setup.runners)
            yield from of_kept_runners(machines, setup.runners)
            yield from of_fork_pool(machines, setup.runners, setup.fork_runners)

    trainers = (VERL, *(CONSUMERS[name] for name in policy.consumers)) if policy else ()
    of_pins = ((item.name, partial(pinned, item, policy, services)) for item in trainers if policy)
    looks: tuple[tuple[str, Callable[[], Iterable[SetupFinding]]], ...] = (
        ("webhook", of_webhook),
        ("deliveries", of_failed_deliveries),
        ("policy", lambda: [of_policy]),
        ("image", lambda: _linted("image", lint_image(policy) if policy else ())),
        ("quarantine", lambda: _linted("quarantine", lint_quarantine(policy, now.date()) if policy else ())),
        *of_pins,
        ("sources", lambda: of_sources(services.refusals(repository, policy)) if policy else ()),
        ("required check", of_required_check),
        ("workflow", lambda: _workflow(repository, branch, setup, services)),
        ("runners", of_machines),
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


_FIXES = {
    "engine": "fix that, then try `verl-e2e serve --check`",
    "database": "fix DATABASE_URL or the server that it names",
}


def _usable(about: str, ask: Callable[[], str]) -> Iterator[SetupFinding]:
    """What a part of this installation says of itself; nothing for one that says nothing."""
    try:
        found = ask()
    except UserError as error:
        yield error_finding(about, str(error), _FIXES[about])
        return
    if found:
        yield ok_finding(about, found)


def _policy(repository: str, branch: str, services: DoctorServices) -> tuple[Policy | None, SetupFinding]:
    """The policy of the branch, the packaged one where it has none; None for one that cannot be used."""
    about = "policy"
    try:
        text = services.file_at(repository, branch, POLICY_PATH)
        if text is None:
            packaged = note_finding(about, f"{branch} has no {POLICY_PATH}: the packaged policy is used")
            return packaged_policy(), packaged
        return load_policy(text, f"{branch}:{POLICY_PATH}"), ok_finding(about, f"{POLICY_PATH} on {branch} is valid")
    except (UserError, ForgeError) as error:
        first, *more = str(error).splitlines()
        also = f" (and {len(more)} more)" if more else ""
        return None, error_finding(about, f"{first}{also}", "fix it: until then no pull request is planned")


def _linted(about: str, findings: Iterable[ToFix]) -> Iterator[SetupFinding]:
    return (note_finding(about, finding.what, finding.fix) for finding in findings)


def pinned(consumer: Consumer, policy: Policy, services: DoctorServices) -> Iterator[SetupFinding]:
    """The pin of a trainer: in the verl that the service reads, and where hosts of jobs fetch the trainer."""
    commit, about, of_verl = policy.pin_of(consumer), consumer.name, consumer is VERL
    key = "verl.commit" if of_verl else f"consumers.{consumer.name}.pin"
    correct = f"set {key} in {POLICY_PATH} to a commit that is there"

    def found(place: str, fix: str, *, there: bool) -> SetupFinding:
        if there:
            return ok_finding(about, f"the pinned {consumer.title} {commit[:12]} is in {place}")
        return error_finding(about, f"the pinned {consumer.title} {commit} is not in {place}", fix)

    if services.own_verl and of_verl:
        place, fix = f"{services.own_verl}, which VERL_E2E_VERL names", f"fetch it there, or {correct}"
        yield from _guarded(about, lambda: [found(place, fix, there=services.own_has(commit))])
    address = policy.verl.repository if of_verl else consumer.address
    yield found(address, correct, there=services.has_commit(address, commit))


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
