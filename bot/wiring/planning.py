"""Planning from git directories: which planner, which policy, which uses of verl."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bot.adapters.git import GitRepository, NotARepositoryError, UnknownRevisionError
from bot.adapters.reach_cache import SummaryCache
from bot.config.callers import packaged_uses, uses_json
from bot.config.labels import load_labels
from bot.config.policy import load_policy, packaged_policy, policy_at
from bot.core.planning.backtest import Case, Outcome, Usage, usage
from bot.core.planning.explain import Explanation
from bot.core.planning.policy_lint import lint_features
from bot.core.reach.entries import Uses, uses_of
from bot.core.rules import Policy, ReachPolicy
from bot.handlers.planning import Planned, Planner, uses_at, with_bumps, with_verl_files
from bot.wiring.errors import UsageError


@dataclass(frozen=True, slots=True)
class PlanOrder:
    """What the user asked `plan` and its kin for. `verl` is a checkout, a bare git directory or a plain folder."""

    repo: Path
    verl: Path | None = None
    verl_ref: str | None = None
    policy: Path | None = None
    cache: Path | None = None
    megatron_lm: Path | None = None


def plan_change(order: PlanOrder, base: str, head: str) -> Planned:
    """The plan of base..head by the base commit's policy, or by a policy file."""
    repository = GitRepository(order.repo)
    policy = policy_of(repository, base, order.policy)
    return with_details(planner_of(repository, order, policy).plan(base, head, policy), order)


def with_details(planned: Planned, order: PlanOrder) -> Planned:
    """The plan with what the user's verl and Megatron-LM say of it."""
    if order.verl is not None:
        planned = with_verl_files(planned, *_verl_files(order.verl, order.verl_ref))
    if order.megatron_lm is None:
        return planned
    return with_bumps(planned, GitRepository(order.megatron_lm))


def explain(order: PlanOrder, revision: str, targets: Sequence[str]) -> tuple[Explanation, ...]:
    """What the plan would make of `PATH[:SYMBOL]` targets at a revision, were they changed."""
    repository = GitRepository(order.repo)
    policy = policy_of(repository, revision, order.policy)
    if policy.reach is None:
        raise UsageError(f"{policy.source}: reach: missing; without this key paths are judged by their names alone")
    pairs = [(path, symbol) for path, _, symbol in (target.partition(":") for target in targets)]
    return planner_of(repository, order, policy).explain(repository.resolve(revision), policy, pairs)


def lint_policy(order: PlanOrder, revision: str) -> tuple[str, ...]:
    """What of the policy says nothing about a revision, and with verl which files of it the policy lacks there."""
    repository = GitRepository(order.repo)
    policy = policy_of(repository, revision, order.policy)
    findings = planner_of(repository, order, policy).lint(repository.resolve(revision), policy)
    if order.verl is None:
        return findings
    return (*findings, *lint_features(policy, *_verl_files(order.verl, order.verl_ref)))


def backtest(order: PlanOrder, labels: Path) -> tuple[Outcome, ...]:
    """Plan every labelled change, by the policy file or by the packaged policy."""
    try:
        cases = load_labels(labels.read_bytes(), str(labels))
    except OSError as error:
        raise UsageError(f"{labels}: {error.strerror}; give a readable file of labels") from None
    repository = GitRepository(order.repo)
    policy = policy_file(order.policy) if order.policy else packaged_policy()
    planner = planner_of(repository, order, policy)
    return tuple(_outcome(planner, case, policy) for case in cases)


def _outcome(planner: Planner, case: Case, policy: Policy) -> Outcome:
    try:
        return Outcome(case, planner.plan(case.base, case.head, policy).plan)
    except UnknownRevisionError as error:
        return Outcome(case, None, str(error))


def replay(order: PlanOrder, count: int, head: str) -> Usage:
    """Plan the last first-parent commits up to a head, by the policy file or by the packaged policy."""
    repository = GitRepository(order.repo)
    policy = policy_file(order.policy) if order.policy else packaged_policy()
    planner = planner_of(repository, order, policy)
    commits = repository.first_parents(head, count)
    return usage(planner.plan(parent, commit, policy).plan for commit, parent in commits)


def verl_uses(verl: Path, verl_ref: str | None) -> str:
    """verl's uses of Megatron-Bridge at a revision (HEAD), in the form of the packaged list."""
    policy, repository = packaged_policy(), GitRepository(verl)
    assert policy.reach is not None
    commit = repository.resolve(verl_ref or "HEAD")
    return uses_json(uses_at(repository, commit, policy.reach, ""), commit)


def planner_of(repository: GitRepository, order: PlanOrder, policy: Policy) -> Planner:
    """The planner over a repository, with verl's own uses of it and the cache of summaries."""
    return Planner(repository, uses_for(order, policy), SummaryCache(order.cache))


def uses_for(order: PlanOrder, policy: Policy) -> Uses:
    """verl's uses of the package: of the user's verl, or the packaged list."""
    if order.verl is None or policy.reach is None:
        return packaged_uses()
    try:
        verl = GitRepository(order.verl)
    except NotARepositoryError:
        return _plain_uses(order.verl, policy.reach)
    commit = verl.resolve(order.verl_ref or "HEAD")
    return uses_at(verl, commit, policy.reach, f"verl {commit[:12]}")


def _plain_uses(folder: Path, reach: ReachPolicy) -> Uses:
    """The uses of an unpacked copy without git."""
    sources = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted((folder / reach.callers).rglob("*.py"))
        if path.is_file() and not path.is_symlink()
    }
    if not sources:
        raise UsageError(f"{folder}: no Python file below {reach.callers}; give a verl checkout")
    return uses_of(sources, reach.package, f"the folder {folder.name}, which is no git checkout")


def _verl_files(verl: Path, verl_ref: str | None) -> tuple[frozenset[str], str]:
    """Every file of verl at a revision (HEAD), or of an unpacked copy, and how to name it."""
    try:
        repository = GitRepository(verl)
    except NotARepositoryError:
        found = (path for path in verl.rglob("*") if path.is_file())
        return frozenset(path.relative_to(verl).as_posix() for path in found), f"the folder {verl.name}"
    commit = repository.resolve(verl_ref or "HEAD")
    return frozenset(repository.tree(commit)), f"verl {commit[:12]}"


def policy_of(repository: GitRepository, base: str, file: Path | None) -> Policy:
    """The policy of the base commit, or the one in a file."""
    return policy_at(repository, repository.resolve(base)) if file is None else policy_file(file)


def policy_file(file: Path) -> Policy:
    """The policy in a file; UsageError."""
    try:
        return load_policy(file.read_bytes(), str(file))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; give a readable policy file") from None
