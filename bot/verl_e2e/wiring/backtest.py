"""Planning many changes of a git directory: labelled ones, and the past commits of a branch."""

from pathlib import Path

from verl_e2e.app.plan_change import OtherRepositoryError, Planner
from verl_e2e.config.maps import load_labels
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.plan.backtest import Case, Outcome, Usage, usage
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.plan.policy import Policy
from verl_e2e.git.repository import GitRepository, UnknownRevisionError
from verl_e2e.wiring.planning import PlanRequest, planner_of, policy_file, repository_named_by


def backtest(order: PlanRequest, labels: Path) -> tuple[Outcome, ...]:
    """Plan every labelled change, by the policy file or by the packaged policy."""
    try:
        cases = load_labels(labels.read_bytes(), str(labels))
    except OSError as error:
        raise UserError(f"{labels}: {error.strerror}; give a readable file of labels") from None
    repository = GitRepository(order.repo)
    policy = policy_file(order.policy) if order.policy else packaged_policy()
    planner = planner_of(repository, order, policy)
    with repository_named_by(order, policy):
        return tuple(_outcome(planner, case, policy) for case in cases)


def _outcome(planner: Planner, case: Case, policy: Policy) -> Outcome:
    try:
        return Outcome(case, planner.plan(case.base, case.head, policy).plan)
    except UnknownRevisionError as error:
        return Outcome(case, None, str(error))


def replay(order: PlanRequest, count: int, head: str) -> Usage:
    """Plan the last first-parent commits up to a head, by the policy file or by the packaged policy."""
    repository = GitRepository(order.repo)
    policy = policy_file(order.policy) if order.policy else packaged_policy()
    with repository_named_by(order, policy):
        planner = planner_of(repository, order, policy, head)
    commits = repository.first_parents(head, count)
    return usage(_plan_of_commit(planner, parent, commit, policy) for commit, parent in commits)


def _plan_of_commit(planner: Planner, parent: str, commit: str, policy: Policy) -> Plan | None:
    """The plan of one commit of history; None before the package came to the repository."""
    try:
        return planner.plan(parent, commit, policy).plan
    except OtherRepositoryError:
        return None
