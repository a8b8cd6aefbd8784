"""What the service does for GitHub: the rooms that the settings name, and the work that the worker calls."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from verl_e2e.adapters.dispatch.github_actions import ActionsSettings, GitHubActionsBackend, runners_by_size
from verl_e2e.adapters.dispatch.local_backend import PUBLIC_KEYS, LocalBackend
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.adapters.github.administration import GithubAdministration
from verl_e2e.adapters.github.checks import GithubChecks
from verl_e2e.adapters.github.conversation import GithubConversation
from verl_e2e.adapters.github.pace import Lane
from verl_e2e.adapters.github.people import GithubPeople
from verl_e2e.adapters.github.pulls import GithubPulls
from verl_e2e.adapters.github.retry import RetryPolicy
from verl_e2e.adapters.github.session import GitHub, as_app
from verl_e2e.adapters.github.workflows import GithubWorkflows
from verl_e2e.adapters.mirror import Mirrors
from verl_e2e.adapters.store import SqlLedger, SqlOutbox, SqlWorklist
from verl_e2e.adapters.worker import Work
from verl_e2e.app.base_branch_changed import base_pushed, look_again
from verl_e2e.app.crash_loops import reconcile_counted
from verl_e2e.app.keep_message import write
from verl_e2e.app.known_heads import sharing
from verl_e2e.app.merge_groups import reference_of
from verl_e2e.app.on_event import hear
from verl_e2e.app.reconcile import announce
from verl_e2e.app.redeliver import Redelivery
from verl_e2e.app.services import AppRooms, portable_sources
from verl_e2e.config.profiles import load_profile
from verl_e2e.config.settings import Settings
from verl_e2e.core.model.jobs import Repository, SiteProfile
from verl_e2e.core.plan.build import Sources
from verl_e2e.core.plan.images import with_image
from verl_e2e.core.pulls.deliveries import Received
from verl_e2e.core.pulls.messages import hearing_lane
from verl_e2e.core.pulls.pull import OpenPull, PullRef
from verl_e2e.core.pulls.pull_address import web_of
from verl_e2e.core.pulls.references import read_reference, reference_text
from verl_e2e.core.pulls.webhook_events import PushEvent
from verl_e2e.core.pulls.webhooks import BadDeliveryError, parse_event
from verl_e2e.ports import (
    Backend,
    Clock,
    ForgeError,
    Pulls,
    Revisions,
    UnknownPullError,
    UnreadableDeliveryError,
    Worklist,
)
from verl_e2e.wiring.analysis import LimitedAnalysis, ServiceAnalysis
from verl_e2e.wiring.app import MakeWork
from verl_e2e.wiring.attestation import verify_attestations
from verl_e2e.wiring.verl import verl_at

# Whoever is told to wait longer gives way: what was to be written is tried again then, and others go on meanwhile.
_PATIENCE = RetryPolicy(total_s=4.0)
# GitHub grants 5,000 requests an hour and a look at a run takes about 3: when more run than this, each waits longer.
_LOOKS_IN_A_TICK = 10

log = logging.getLogger(__name__)


Connect = Callable[[Settings], GitHub]
MakeAnalysis = Callable[[Settings, Mirrors], ServiceAnalysis]


def connect_app(settings: Settings) -> GitHub:
    """GitHub as the App of the settings sees it."""
    return as_app(settings.app_id, settings.private_key, api_url=settings.api_url, patience=_PATIENCE)


def limited_analysis(settings: Settings, mirrors: Mirrors) -> LimitedAnalysis:
    """What strangers wrote is read in child processes."""
    recorders = settings.data / "local" / PUBLIC_KEYS if settings.backend == "local" else None
    return LimitedAnalysis(settings.data, web_of(settings.api_url), settings.data, mirrors, recorders=recorders)


def github_work(
    environ: Mapping[str, str], *, connect: Connect = connect_app, make_analysis: MakeAnalysis = limited_analysis
) -> MakeWork:
    """How the service's work is made; `environ` is what git and jobs on this machine may see of the environment."""

    def make(
        settings: Settings,
        ledger: SqlLedger,
        worklist: SqlWorklist,
        outbox: SqlOutbox,
        clock: Clock,
    ) -> Work:
        rooms, redelivery, courteous = app_rooms(
            settings, ledger, outbox, clock, environ, connect=connect, make_analysis=make_analysis
        )

        def missed() -> Collection[str]:
            redelivery.ask_again()
            known, found = worklist.known(), set[str]()
            for repository in _served_of(known, settings.repositories):
                listed = _open_pulls(repository, rooms.pulls)
                look_again(listed, rooms, worklist)
                found |= _lost_pushes(listed, known, rooms)
            return found | set(missed_targets(known, settings.repositories, rooms.pulls))

        return Work(
            hear=lambda delivery: _hear(delivery, rooms, settings.repositories, worklist),
            reconcile=lambda target: _stretched(reconcile_counted(read_reference(target), rooms), rooms.poll_s, ledger),
            open_targets=lambda: _open_targets(ledger, rooms),
            missed_targets=missed,
            lane_of=_lane_of,
            write=lambda message: write(message, courteous),
            announce=lambda target: announce(read_reference(target), rooms),
        )

    return make


def app_rooms(
    settings: Settings,
    ledger: SqlLedger,
    outbox: SqlOutbox,
    clock: Clock,
    environ: Mapping[str, str],
    *,
    connect: Connect,
    make_analysis: MakeAnalysis,
) -> tuple[AppRooms, Redelivery, AppRooms]:
    """The rooms of App mode, what asks for lost webhooks again, and the rooms of what can wait."""
    github = connect(settings)
    tokens = github.tokens
    mirrors = Mirrors(
        settings.data,
        web_of(settings.api_url),
        token=lambda repository: tokens.token(repository) if tokens else None,
        environ=environ,
    )
    analysis = make_analysis(settings, mirrors)
    rooms = AppRooms(
        pulls=GithubPulls(github),
        conversation=GithubConversation(github),
        checks=GithubChecks(github),
        people=GithubPeople(github),
        ledger=ledger,
        backend=_backend(settings, github, analysis, clock, environ),
        analysis=analysis,
        clock=clock,
        changes=mirrors.changes,
        verl=_verl(settings),
        site=_site(settings, environ),
        artifacts=settings.data / "runs",
        outbox=outbox,
        read_commands=analysis.commands,
        sources=_sources(settings),
        app_id=settings.app_id,
        bookkeeping=ledger.bookkeeping,
        poll_s=float(settings.tick_s),
        lag_s=float(settings.list_lag_s),
    )
    courteous = replace(rooms, conversation=GithubConversation(github.in_lane(Lane.COURTESY)))
    return rooms, Redelivery(GithubAdministration(github), clock), courteous


def _hear(delivery: Received, rooms: AppRooms, served: tuple[str, ...], worklist: Worklist) -> Collection[str]:
    """The targets of a delivery; none for a repository that is not served."""
    try:
        event = parse_event(delivery.event, delivery.body)
    except BadDeliveryError as error:
        raise UnreadableDeliveryError(str(error)) from None
    if event is None:
        return ()
    # GitHub takes names in any case for the same repository.
    names = {name.lower() for name in served}
    repository = getattr(getattr(event, "repository", None), "full_name", "")
    if names and repository.lower() not in names:
        return ()
    if isinstance(event, PushEvent) and event.number is None:
        base_pushed(event, rooms, worklist)
    return tuple(reference_text(item) for item in hear(event, rooms, delivery.id))


def _lane_of(delivery: Received) -> str:
    try:
        return hearing_lane(parse_event(delivery.event, delivery.body))
    except BadDeliveryError:
        return ""  # hearing it refuses it


def _stretched(again_s: float | None, poll_s: float, ledger: SqlLedger) -> float | None:
    """A look by the clock comes later when many runs are open; what is due for another reason comes when it is due."""
    return again_s if again_s != poll_s else poll_s * max(1.0, ledger.open_count() / _LOOKS_IN_A_TICK)


def _open_targets(ledger: SqlLedger, rooms: AppRooms) -> Collection[str]:
    found = (reference_of(run, rooms) for run in ledger.open_runs())
    return {reference_text(reference) for reference in found if reference is not None}


def missed_targets(known: Collection[str], served: tuple[str, ...], pulls: Pulls) -> Collection[str]:
    """The open pull requests that are newer than every one that is known: their opening was not delivered.

    Older ones that are not known were there before the service was; they wait until something happens to them.
    """
    newest: dict[str, int] = {}
    for reference in map(read_reference, known):
        if isinstance(reference, PullRef):
            name = reference.repository
            newest[name] = max(newest.get(name, 0), reference.number)
    found = (open_pull.ref for name in _served_of(known, served) for open_pull in _open_pulls(name, pulls))
    return {reference_text(item) for item in found if item.number > newest[item.repository]}


def _lost_pushes(listed: Iterable[OpenPull], known: Collection[str], rooms: AppRooms) -> set[str]:
    """Known pull requests with a head that was never looked at: the push was not delivered."""
    kept = frozenset(known)
    return {
        reference_text(pull.ref)
        for pull in listed
        if reference_text(pull.ref) in kept and pull.ref not in sharing(pull.ref.repository, pull.head_sha, rooms)
    }


def _served_of(known: Collection[str], served: tuple[str, ...]) -> tuple[str, ...]:
    """The repositories with a known pull request that are served still; each is when none is named."""
    pulls = (text for text in map(read_reference, known) if isinstance(text, PullRef))
    named = {name.lower() for name in served}
    names = dict.fromkeys(pull.repository for pull in pulls)
    return tuple(name for name in names if not named or name.lower() in named)


def _open_pulls(repository: str, pulls: Pulls) -> tuple[OpenPull, ...]:
    """The open pull requests; none where the App is no longer, which must not hide what the others have."""
    try:
        return pulls.open_pulls(repository)
    except (ForgeError, UnknownPullError) as error:
        log.warning("open pull requests not listed: %s", error, extra={"repository": repository})
        return ()


def _backend(
    settings: Settings, github: GitHub, analysis: ServiceAnalysis, clock: Clock, environ: Mapping[str, str]
) -> Backend:
    if settings.backend == "local":
        return LocalBackend(settings.data / "local", environ=environ, clock=clock, open_log=open_log)
    repository, sha = settings.tool
    actions = ActionsSettings(
        branch=settings.workflow_ref,
        tool_repository=repository,
        tool_sha=sha,
        workflow=settings.workflow,
        runners=settings.runners or runners_by_size(),
        fork_runners=settings.fork_runners,
        attestation=settings.attestation,
        verify=verify_attestations(settings.trusted_root),
    )
    return GitHubActionsBackend(GithubWorkflows(github, analysis.unpack), actions, clock)


def _site(settings: Settings, environ: Mapping[str, str]) -> SiteProfile:
    """The site of the jobs; the image that a setting names is that of the workflow's containers."""
    site = load_profile(settings.site_profile, settings.site_values, {"home": environ.get("HOME", "/root")})
    return site if settings.backend == "local" else with_image(site, settings.image)


def _verl(settings: Settings) -> Callable[[str], Revisions]:
    opened = lru_cache(1)(verl_at)
    return lambda _: opened(settings.verl)


def _sources(settings: Settings) -> Callable[[str, str], Sources]:
    """Where a job finds its repositories: on this machine for `local`, else by the names of folders."""
    if settings.backend != "local":
        return portable_sources
    return lambda bridge_commit, verl_commit: Sources(
        bridge=Repository(path=settings.bridge, commit=bridge_commit),
        verl=Repository(path=settings.verl, commit=verl_commit),
    )
