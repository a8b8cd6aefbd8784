"""All that is known of a target at one moment, frozen: what `verl_e2e.core.pulls.decide` decides from."""

from dataclasses import dataclass, field
from datetime import datetime

from verl_e2e.core.model.outcome import Result
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.pulls.check_runs import OpenCheck
from verl_e2e.core.pulls.ledger import Override, Run
from verl_e2e.core.pulls.overrides import Counted, Uncounted, counted
from verl_e2e.core.pulls.pull import Pull, PullState, Target, repository_of
from verl_e2e.core.pulls.requests import Entry
from verl_e2e.core.pulls.trust import NeedsApproval, Trusted
from verl_e2e.core.pulls.wanted_jobs import WantedJob

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
    """A target with all that is known of it.

    `policy` is that of the base. `plan` is None when there is none that could be relied on, and `problem` says why.
    `broken` are uses in verl that the head breaks. `wanted` are the jobs of the plan and those that people asked for,
    prerequisites first. `trust` says whether the head may run; a merge group's may, for the queue let it in. `runs`
    are those of every head of the pull request, `elsewhere` those that other pull requests with this head have.
    `merge_base` is where the head left the base, empty where unknown.
    `opened` are the checks of this target, on whatever head, that may still be without a conclusion on GitHub.
    `other_pull` has the same head and keeps the commit's gate closed although this target's may open.
    """

    target: Target
    now: datetime
    policy: Policy
    trust: Trusted | NeedsApproval
    plan: Plan | None = None
    problem: str = ""
    broken: tuple[str, ...] = ()
    wanted: tuple[WantedJob, ...] = ()
    entries: tuple[Entry, ...] = ()
    runs: tuple[Run, ...] = field(default=())
    elsewhere: tuple[Run, ...] = ()
    merge_base: str = ""
    opened: tuple[OpenCheck, ...] = ()
    other_pull: OtherPull | None = None
    # Overrides of this head whose givers may not give them, or not any more.
    refused: tuple[Uncounted, ...] = ()

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
        """Runs elsewhere that speak for this target too: one that lives, and a pass.

        Any other end may rest on the base of the pull request that it was made for.
        """
        return tuple(run for run in self.elsewhere if not run.state.final or run.result is Result.PASS)

    @property
    def earlier(self) -> tuple[Run, ...]:
        """The runs of heads before this one."""
        return tuple(run for run in self.runs if run.head_sha != self.head_sha)
