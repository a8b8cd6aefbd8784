"""The first sign on a pull request: its gate, in progress, before anything is cloned and planned.

What comes of the look takes its place; a look that fails says so there, so that no gate says `Planning` for ever.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from verl_e2e.app.base_policy import BasePolicies
from verl_e2e.app.open_checks import OpenChecks
from verl_e2e.app.policy_text import NoPolicyError
from verl_e2e.app.publish_checks import CHECK, CheckPublisher, check_digest, check_subject
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.pulls.check_runs import CheckId, CheckRun, CheckStatus, Conclusion
from verl_e2e.core.pulls.pull import Pull, PullState, Target, repository_of
from verl_e2e.core.text.escape import sentence
from verl_e2e.ports import BackendError, Clock, ForgeError, Ledger

# A fault that may pass by itself is not shown on the pull request before it has lasted so long.
PATIENCE = timedelta(minutes=5)
PLANNING, FAILED = "Planning", "The change could not be planned"
_PLANNING_SUMMARY = "What the change does to the code that verl runs is being read; the jobs that it needs come next."


@dataclass(frozen=True, slots=True)
class FirstCheck:
    """Shows a target that it was seen, and why no look at it succeeds."""

    policies: BasePolicies
    check_posts: CheckPublisher
    open_checks: OpenChecks
    clock: Clock
    ledger: Ledger

    def show(self, target: Target) -> None:
        """Show the gate of a head on which there is none yet. ForgeError where checks cannot be written."""
        if isinstance(target, Pull) and self.policies.noted_digest(target.ref, target.head_sha) is not None:
            return
        over = target.state is PullState.CLOSED if isinstance(target, Pull) else target.destroyed
        name = self._gate_name(target)
        if not over and self.ledger.posted(repository_of(target), CHECK, check_subject(target.head_sha, name)) is None:
            self.check_posts.post_checks(target, (_planning(target, name),))

    def tell_failure(self, target: Target, error: Exception) -> None:
        """Put the reason on a gate that still says `Planning`; whatever ended the look is raised by the caller."""
        with suppress(ForgeError, BackendError):
            for check in self.open_checks.of_target(target):
                planning = _planning(target, check.name)
                posted = self.ledger.posted(repository_of(target), CHECK, check_subject(target.head_sha, check.name))
                if posted is None or posted.digest != check_digest(planning):
                    continue
                if not _may_pass(error) or self.clock.now() - posted.at >= PATIENCE:
                    self.check_posts.post_checks(target, (_failed(planning, error),))

    def _gate_name(self, target: Target) -> str:
        try:
            return self.policies.policy_of(target).gate.name
        except NoPolicyError as error:
            return self.policies.without_policy(target, error).gate.name


def _may_pass(error: Exception) -> bool:
    passing = isinstance(error, ForgeError) and error.passing
    return passing or (isinstance(error, BackendError) and not error.final)


def _planning(target: Target, name: str) -> CheckRun:
    number = target.ref.number if isinstance(target, Pull) else 0
    return CheckRun(
        name=name,
        head_sha=target.head_sha,
        status=CheckStatus.IN_PROGRESS,
        title=PLANNING,
        summary=_PLANNING_SUMMARY,
        external_id=str(CheckId(number, target.head_sha)),
    )


_AGAIN = "It is tried again by itself, and at once by `/verl-e2e status`."


def _failed(planning: CheckRun, error: Exception) -> CheckRun:
    # What is ours and unexpected goes to the log, not onto a pull request.
    message = isinstance(error, BackendError | ForgeError | UserError)
    why = sentence(str(error), 1000) if message else "An internal error of verl-e2e; its log says more"
    return CheckRun(
        name=planning.name,
        head_sha=planning.head_sha,
        status=CheckStatus.COMPLETED,
        conclusion=Conclusion.ACTION_REQUIRED,
        title=FAILED,
        summary=f"**{why}.**\n\n{_AGAIN}\n",
        external_id=planning.external_id,
    )
