"""The handlers of events and targets, each with the few things that it takes: the same for the App and the Action."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from verl_e2e.adapters.github.checks import GithubChecks
from verl_e2e.adapters.github.pulls import GithubConversation, GithubPeople, GithubPulls
from verl_e2e.adapters.github.session import GitHub
from verl_e2e.app.analysis import Analysis
from verl_e2e.app.base_policy import BaseChanges, BasePolicies
from verl_e2e.app.current_grants import CurrentGrants, Permissions
from verl_e2e.app.dispatch import Dispatch, RunCollector
from verl_e2e.app.keep_command import Answers, CommandKeeper
from verl_e2e.app.known_heads import KnownHeads, MergeGroups
from verl_e2e.app.on_event import CheckEvents, CommentEvents, EventHandler
from verl_e2e.app.publish import CheckPublisher, CommentPublisher, Creations, Messages, OpenChecks, PostRestorer
from verl_e2e.app.reconcile import Display, FirstCheck, Reconciler, TargetReader, TargetStates
from verl_e2e.app.required_jobs import JobSources, RequiredJobs, VerdictReuse
from verl_e2e.app.run_queue import RunQueue, SharedQueue
from verl_e2e.core.pulls.commands import CommandLine
from verl_e2e.core.pulls.pull import Target
from verl_e2e.ports import Backend, Checks, Clock, Conversation, Ledger, Outbox, People, Pulls, RunWatcher, SourceTrees


@dataclass(frozen=True, slots=True)
class Handlers:
    """What an entry point calls."""

    events: EventHandler
    reconciler: Reconciler
    queue: RunQueue
    base_changes: BaseChanges
    heads: KnownHeads
    groups: MergeGroups
    pulls: Pulls
    # Writes what waited in the outbox.
    comments: CommentPublisher


@dataclass(frozen=True, slots=True)
class GithubPorts:
    """One forge, as the handlers see it."""

    pulls: Pulls
    conversation: Conversation
    checks: Checks
    people: People
    # Our App's id, None where GitHub's own token speaks for us.
    app_id: int | None = None
    # How long GitHub's lists may not show what was created; 0 where a process waits for that by itself.
    lag_s: float = 0.0
    # Where messages of the outbox are written, in a lane of their own; None for `conversation`.
    courtesy: Conversation | None = None


@dataclass(frozen=True, slots=True)
class JobPorts:
    """Where jobs are planned, run and judged."""

    backend: Backend
    # Reads what strangers wrote.
    analysis: Analysis
    # The trees of a target, base and head among them.
    changes: Callable[[Target], SourceTrees]
    sources: JobSources
    # The folder that run folders are brought into.
    artifacts: Path
    # Takes notice of runs and of calls to the back end.
    watcher: RunWatcher
    # How long a run under way is left alone when no event tells of it: short where none ever does.
    poll_s: float = 30.0


def github_ports(
    github: GitHub, *, app_id: int | None, lag_s: float = 0.0, courtesy: Conversation | None = None
) -> GithubPorts:
    """GitHub itself; the rest is as in `GithubPorts`."""
    return GithubPorts(
        pulls=GithubPulls(github),
        conversation=GithubConversation(github),
        checks=GithubChecks(github),
        people=GithubPeople(github),
        app_id=app_id,
        lag_s=lag_s,
        courtesy=courtesy,
    )


def build_handlers(
    github: GithubPorts,
    jobs: JobPorts,
    ledger: Ledger,
    clock: Clock,
    read_commands: Callable[[str], tuple[CommandLine, ...]],
    outbox: Outbox | None = None,
    shared_queue: SharedQueue | None = None,
) -> Handlers:
    """The handlers.

    `read_commands` finds the command lines of a comment; without `outbox` messages are written at once.
    `shared_queue` is the queue of all that one database knows; without it runs start at once.
    """
    # Held while a remembered list is read and changed.
    pulls, lock = github.pulls, Lock()
    creations = Creations(ledger=ledger, clock=clock, lag_s=github.lag_s)
    heads, groups = KnownHeads(pulls=pulls, ledger=ledger), MergeGroups(ledger=ledger, clock=clock)
    open_checks = OpenChecks(heads=heads, ledger=ledger, clock=clock, lock=lock)
    checks = CheckPublisher(
        creations=creations,
        open_checks=open_checks,
        checks=github.checks,
        ledger=ledger,
        clock=clock,
        app_id=github.app_id,
    )

    def comments_by(conversation: Conversation) -> CommentPublisher:
        return CommentPublisher(
            creations=creations, conversation=conversation, ledger=ledger, clock=clock, app_id=github.app_id
        )

    comments = comments_by(github.conversation)
    messages = Messages(comments=comments, ledger=ledger, clock=clock, outbox=outbox)
    policies = BasePolicies(pulls=pulls, ledger=ledger, clock=clock)
    permissions = Permissions(people=github.people, clock=clock)
    grants = CurrentGrants(permissions=permissions, pulls=pulls, ledger=ledger, clock=clock, lock=lock)
    restorer = PostRestorer(
        check_posts=checks, checks=github.checks, conversation=github.conversation, ledger=ledger, clock=clock
    )
    first_check = FirstCheck(policies=policies, open_checks=open_checks, check_posts=checks, ledger=ledger, clock=clock)
    target_states = TargetStates(
        policies=policies,
        grants=grants,
        permissions=permissions,
        required_jobs=RequiredJobs(
            analysis=jobs.analysis, changes=jobs.changes, job_sources=jobs.sources, ledger=ledger
        ),
        reuse=VerdictReuse(
            analysis=jobs.analysis,
            artifacts=jobs.artifacts,
            ledger=ledger,
            clock=clock,
        ),
        clock=clock,
    )
    collector = RunCollector(
        backend=jobs.backend,
        analysis=jobs.analysis,
        artifacts=jobs.artifacts,
        ledger=ledger,
        clock=clock,
        watcher=jobs.watcher,
    )
    targets = TargetReader(
        pulls=pulls, ledger=ledger, groups=groups, runs=collector, target_states=target_states, open_checks=open_checks
    )
    display = Display(
        answers=Answers(messages=messages, permissions=permissions, analysis=jobs.analysis),
        check_posts=checks,
        comments=comments,
        restorer=restorer,
        analysis=jobs.analysis,
    )
    queue = RunQueue(clock=clock, ledger=ledger, groups=groups, shared=shared_queue)
    reconciler = Reconciler(
        reader=targets,
        dispatch=Dispatch(
            creations=creations,
            backend=jobs.backend,
            pulls=pulls,
            ledger=ledger,
            clock=clock,
            watcher=jobs.watcher,
        ),
        queue=queue,
        display=display,
        first_check=first_check,
        heads=heads,
        policies=policies,
        poll_s=jobs.poll_s,
    )
    keeper = CommandKeeper(
        policies=policies,
        grants=grants,
        messages=messages,
        permissions=permissions,
        clock=clock,
        ledger=ledger,
        queue=queue,
        verl=jobs.sources.verl,
    )
    return Handlers(
        events=EventHandler(
            on_check=CheckEvents(
                policies=policies,
                check_posts=checks,
                commands=keeper,
                heads=heads,
                groups=groups,
                ledger=ledger,
                app_id=github.app_id,
            ),
            commands=keeper,
            on_comment=CommentEvents(
                commands=keeper,
                heads=heads,
                messages=messages,
                restorer=restorer,
                permissions=permissions,
                app_id=github.app_id,
                read_commands=read_commands,
            ),
            grants=grants,
            heads=heads,
            groups=groups,
            ledger=ledger,
        ),
        reconciler=reconciler,
        queue=queue,
        base_changes=BaseChanges(policies=policies, pulls=pulls, clock=clock),
        heads=heads,
        groups=groups,
        pulls=pulls,
        comments=comments_by(github.courtesy) if github.courtesy is not None else comments,
    )
