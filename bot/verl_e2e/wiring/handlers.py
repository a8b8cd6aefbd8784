"""The handlers of events and targets, each with the few things that it takes: the same for the App and the Action."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from verl_e2e.adapters.github.checks import GithubChecks
from verl_e2e.adapters.github.pulls import GithubConversation, GithubPeople, GithubPulls
from verl_e2e.adapters.github.session import GitHub
from verl_e2e.app.analysis import Analysis
from verl_e2e.app.dispatch import BackendRuns
from verl_e2e.app.keep_command import Answers, CommandKeeper, Grants
from verl_e2e.app.known_targets import BasePolicies, KnownTargets
from verl_e2e.app.on_event import EventHandler
from verl_e2e.app.publish import CheckPublisher, CommentPublisher, Creations, PostRestorer
from verl_e2e.app.reconcile import Reconciler, TargetReader
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
    known: KnownTargets
    policies: BasePolicies
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
    known = KnownTargets(clock, ledger, pulls)
    policies = BasePolicies(clock, ledger, pulls)
    grants = Grants(clock, ledger, github.people, pulls, lock)
    creations = Creations(clock, github.lag_s, ledger)
    checks = CheckPublisher(creations, known, github.app_id, github.checks, clock, ledger, lock)
    comments = CommentPublisher(creations, github.app_id, clock, github.conversation, ledger, outbox)
    restorer = PostRestorer(checks, comments, clock, ledger)
    queue = RunQueue(clock, ledger, known, shared_queue)
    runs = BackendRuns(
        creations=creations,
        analysis=jobs.analysis,
        artifacts=jobs.artifacts,
        backend=jobs.backend,
        clock=clock,
        ledger=ledger,
        pulls=pulls,
        watcher=jobs.watcher,
    )
    reader = TargetReader(
        policies=policies,
        grants=grants,
        required_jobs=RequiredJobs(jobs.analysis, jobs.changes, jobs.sources, ledger),
        reuse=VerdictReuse(jobs.analysis, jobs.artifacts, clock, ledger),
        runs=runs,
        known=known,
        clock=clock,
        ledger=ledger,
    )
    reconciler = Reconciler(
        reader=reader,
        runs=runs,
        queue=queue,
        check_posts=checks,
        comments=comments,
        restorer=restorer,
        answers=Answers(comments, grants, jobs.analysis),
        analysis=jobs.analysis,
        poll_s=jobs.poll_s,
    )
    events = EventHandler(
        app_id=github.app_id,
        check_posts=checks,
        commands=CommandKeeper(policies, grants, comments, clock, ledger, queue, jobs.sources.verl),
        comments=comments,
        grants=grants,
        known=known,
        ledger=ledger,
        policies=policies,
        restorer=restorer,
        read_commands=read_commands,
    )
    courtesy = comments if github.courtesy is None else replace(comments, conversation=github.courtesy)
    return Handlers(events, reconciler, queue, known, policies, courtesy)
