"""All that is known of a target at one moment, frozen: what `verl_e2e.core.pulls.decide` decides from."""

from dataclasses import dataclass, field
from datetime import datetime

from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.rehearsal_job import RehearsalJob
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.commands import Entry
from verl_e2e.core.pulls.forge import OpenCheck
from verl_e2e.core.pulls.ledger import Override, Run
from verl_e2e.core.pulls.pull import Pull, PullState, Target, repository_of
from verl_e2e.core.pulls.queue import QueueView
from verl_e2e.core.pulls.trust import Counted, NeedsApproval, Trusted, Uncounted, counted
from verl_e2e.core.pulls.wanted_jobs import WantedJob, continued

CLOSED = "the pull request is closed"


@dataclass(frozen=True, slots=True)
class OtherPull:
    """Another open pull request with the same head, for which the head is not satisfied."""

    # Its number.
    number: int
    # What its own gate says.
    title: str
    # Whether its gate waits for runs alone.
    underway: bool


@dataclass(frozen=True, slots=True)
class TargetState:
    """Everything that is known about a target."""

    # The pull request or merge group.
    target: Target
    # The time of the decision.
    now: datetime
    # The policy of the base.
    policy: Policy
    # Whether the head may run; that of a merge group may, because the queue let it in.
    trust: Trusted | NeedsApproval
    # The plan, None when there is none that can be relied on.
    plan: Plan | None = None
    # Why there is none, or empty.
    problem: str = ""
    # Uses in verl that the head breaks.
    broken: tuple[str, ...] = ()
    # The jobs of the plan and those that people requested, prerequisites first.
    wanted: tuple[WantedJob, ...] = ()
    # The rehearsal of this head; None where the policy has none, or where nothing is changed that one runs.
    rehearsal: RehearsalJob | None = None
    # Why that cannot run anywhere, empty where it can.
    rehearsal_missing: str = ""
    # What people asked for, in order.
    entries: tuple[Entry, ...] = ()
    # The runs of every head of this target.
    runs: tuple[Run, ...] = field(default=())
    # Runs that other pull requests with this head have.
    elsewhere: tuple[Run, ...] = ()
    # Where the head left the base, empty where it is not known.
    merge_base: str = ""
    # The checks of this target, on any head, that may still have no conclusion on GitHub.
    opened: tuple[OpenCheck, ...] = ()
    # A pull request with the same head that keeps the commit's gate closed, None for none.
    other_pull: OtherPull | None = None
    # Overrides of this head whose givers may not give them, or not any more.
    refused: tuple[Uncounted, ...] = ()
    # What it sees of our queue.
    queue: QueueView = field(default_factory=QueueView)

    @property
    def repository(self) -> str:
        """The repository, `owner/name`."""
        return repository_of(self.target)

    @property
    def number(self) -> int | None:
        """The number of the pull request, None for a merge group."""
        return self.target.ref.number if isinstance(self.target, Pull) else None

    @property
    def head_sha(self) -> str:
        """The head as it is now."""
        return self.target.head_sha

    @property
    def over(self) -> str:
        """Why no one waits for this target any more, empty while someone does."""
        if isinstance(self.target, Pull):
            return CLOSED if self.target.state is PullState.CLOSED else ""
        return "the merge queue gave this group up" if self.target.destroyed else ""

    @property
    def draft(self) -> bool:
        """Whether it is a draft: planned, not run."""
        return isinstance(self.target, Pull) and self.target.draft

    @property
    def counted(self) -> Counted:
        """The overrides of this head, given under the policy of its base: those that count, and those that do not."""
        found = (entry for entry in self.entries if isinstance(entry, Override) and entry.head_sha == self.head_sha)
        given = (entry for entry in found if entry.base in {"", self.target.base_branch})
        return counted(given, self.policy.overrides, self.now)

    @property
    def overrides(self) -> tuple[Override, ...]:
        """The overrides of this head that count."""
        return self.counted.overrides

    @property
    def here(self) -> tuple[Run, ...]:
        """The runs of this very head."""
        return tuple(run for run in self.runs if run.head_sha == self.head_sha)

    @property
    def shared(self) -> tuple[Run, ...]:
        """Runs elsewhere that speak for this target too: one that lives, and a pass; and runs that go on for it.

        Any other end may rest on the base of the pull request that it was made for.
        """
        elsewhere = (run for run in self.elsewhere if not run.state.final or run.result is Result.PASS)
        return (*elsewhere, *self.continued)

    @property
    def continued(self) -> tuple[Run, ...]:
        """Live runs of earlier heads that do a job of this one, each as a run of this head."""
        return tuple(continued(self.earlier, self.head_sha, self.wanted, self.here))

    @property
    def earlier(self) -> tuple[Run, ...]:
        """The runs of heads before this one."""
        return tuple(run for run in self.runs if run.head_sha != self.head_sha)
