"""Planning from git directories: which planner, which policy, which uses of verl; one change, or many of them."""

import atexit
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path

from verl_e2e.adapters.clock import SystemClock
from verl_e2e.adapters.files.caches import SummaryCache
from verl_e2e.adapters.mirror import Mirrors
from verl_e2e.app.plan_change import (
    OtherRepositoryError,
    Planned,
    Planner,
    explain_targets,
    holds_package,
    require_package,
    uses_at,
    with_verl_files,
)
from verl_e2e.config.maps import load_labels, other_uses, packaged_uses, read_cell_map, uses_json
from verl_e2e.config.policy import load_policy, packaged_policy, policy_at
from verl_e2e.core.compare.cell_map import CellMap
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.execution import MEGATRON_LM_FOLDER
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.backtest import PlannedPull, Usage, usage
from verl_e2e.core.plan.explain import Explanation
from verl_e2e.core.plan.lint import lint_alone, lint_features, lint_quarantine
from verl_e2e.core.plan.plan import Plan, with_parity
from verl_e2e.core.plan.policy import Policy, ReachPolicy
from verl_e2e.core.reach.entries import Uses, uses_of
from verl_e2e.git.repository import (
    GitRepository,
    NotARepositoryError,
    RepositoryError,
    UnknownRevisionError,
    git_dir_of,
)
from verl_e2e.ports import ForgeError, SourceTrees

# New objects between two looks at them, and how many of these between two looks at older ones. With Python's own
# numbers a third of a plan's time is spent looking at syntax trees, which hold no cycles. One plan makes fewer objects
# that stay than the first number, and about a thousand that only cycles keep.
_YOUNG, _MIDDLE, _OLD = 2_000_000, 20, 100


def collect_seldom() -> None:
    """Look for cycles seldom from here on, and never at what is there already or what is left when Python ends."""
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
    atexit.register(gc.freeze)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the user asked `plan` and its kin for. `verl` is a checkout, a bare git directory or a plain folder."""

    repo: Path
    verl: Path | None = None
    verl_ref: str | None = None
    policy: Path | None = None
    cache: Path | None = None
    megatron_lm: Path | None = None
    # The out folder of a rehearsal.
    rehearsal: Path | None = None
    # The environment for git where it fetches.
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    # Whether the jobs of parity are wanted in addition to the plan.
    parity: bool = False
    # The title of the trainer that `verl` is of, and the commit that it should be at; empty: the policy's of verl.
    trainer: str = VERL.title
    pin: str = ""

    @property
    def cells(self) -> CellMap | None:
        """What the cells of the rehearsal entered; UserError."""
        return None if self.rehearsal is None else read_cell_map(self.rehearsal)


def checkout_of(folder: Path) -> Path | None:
    """The checkout, or the bare git directory, that a folder lies in, found as git does; None for none."""
    for place in (folder, *folder.absolute().parents):
        with suppress(NotARepositoryError):
            git_dir_of(place)
            return place
    return None


def plan_change(order: PlanRequest, base: str, head: str) -> Planned:
    """The plan of base..head by the base commit's policy, or by a policy file."""
    repository = GitRepository(order.repo)
    base, head = commits_between(repository, base, head)
    policy, cells = policy_of(repository, base, order.policy), order.cells
    with repository_named_by(order, policy):
        asked = (Level.SMOKE,) if order.parity else ()
        found = planner_of(repository, order, policy, base, head).plan(base, head, policy, asked, cells)
        return with_details(replace(found, plan=with_parity(found.plan, policy)) if order.parity else found, order)


# The default branch of the remote that a checkout was cloned from.
DEFAULT_BRANCH = "origin/HEAD"


def commits_between(repository: GitRepository, base: str, head: str, *, may_be_equal: bool = False) -> tuple[str, str]:
    """The commits that a change lies between; UserError where nothing lies between them, but for one commit twice."""
    if base == DEFAULT_BRANCH and repository.find(base) is None:
        fix = "give --base, or run `git remote set-head origin --auto` there"
        raise UserError(f"{repository.path} does not know the default branch of its remote; {fix}")
    ends = repository.resolve(base), repository.resolve(head)
    named, short = f"--base {base} and --head {head}", [commit[:12] for commit in ends]
    if may_be_equal and ends[0] == ends[1]:
        return ends
    if ends[0] == ends[1]:
        raise UserError(
            f"{named} are the same commit, {short[0]}; commit the change, or give what it starts from as --base"
        )
    if repository.merge_base(*ends) == ends[1]:
        raise UserError(f"{named}: {short[1]} is in the history of {short[0]}, so it changes nothing; swap the two")
    return ends


def with_details(planned: Planned, order: PlanRequest) -> Planned:
    """The plan with what the user's verl says of it."""
    return planned if order.verl is None else with_verl_files(planned, *_verl_files(order.verl, order.verl_ref))


def explain_paths(order: PlanRequest, revision: str, targets: Sequence[str]) -> tuple[Explanation, ...]:
    """What the plan would make of `PATH[:SYMBOL]` targets at a revision, were they changed."""
    repository = GitRepository(order.repo)
    policy = policy_of(repository, revision, order.policy)
    pairs = [(path, symbol) for path, _, symbol in (target.partition(":") for target in targets)]
    with repository_named_by(order, policy):
        planner = planner_of(repository, order, policy, revision)
        return explain_targets(planner, repository.resolve(revision), policy, pairs)


def policy_findings(order: PlanRequest, revision: str, today: date) -> tuple[str, ...]:
    """What of the policy says nothing about a revision or today, and with verl which files of it it does not name."""
    repository = GitRepository(order.repo)
    policy = policy_of(repository, revision, order.policy)
    with repository_named_by(order, policy):
        findings = planner_of(repository, order, policy, revision).lint(repository.resolve(revision), policy)
    findings = (*findings, *_of_quarantine(policy, today))
    if order.verl is None:
        return findings
    return (*findings, *lint_features(policy, *_verl_files(order.verl, order.verl_ref)))


def _of_quarantine(policy: Policy, today: date) -> Iterator[str]:
    return (f"{finding.what}; {finding.fix}" for finding in lint_quarantine(policy, today))


def lint_policy_file(order: PlanRequest, revision: str, today: date) -> tuple[tuple[str, ...], str]:
    """What is wrong with `order.policy`, held against the checkout that it lies in; and what it was held against."""
    assert order.policy is not None
    policy = policy_file(order.policy)
    checkout = checkout_of(order.policy.absolute().parent)
    if checkout is not None and _holds(checkout, revision, policy):
        return policy_findings(
            replace(order, repo=checkout), revision, today
        ), f"Held against {checkout} at {revision}."
    of_verl = lint_features(policy, *_verl_files(order.verl, order.verl_ref)) if order.verl is not None else ()
    note = "The file alone was checked: it lies in no checkout of Megatron-Bridge, and --repo names none."
    return (*lint_alone(policy), *_of_quarantine(policy, today), *of_verl), note


def _holds(folder: Path, revision: str, policy: Policy) -> bool:
    """Whether a repository holds the policy's package at a revision; false where nothing can be read."""
    try:
        repository = GitRepository(folder)
        return policy.reach is None or holds_package(repository, repository.resolve(revision), policy.reach)
    except RepositoryError:
        return False


@contextmanager
def repository_named_by(order: PlanRequest, policy: Policy) -> Iterator[None]:
    """Tell of a wrong repository by the options that named it; UserError."""
    try:
        yield
    except OtherRepositoryError as error:
        origin = GitRepository(order.repo).origin()
        remote = f" (its remote is {origin})" if origin else ""
        swapped = ". --repo and --verl seem to be swapped" if _verl_holds_package(order, policy) else ""
        raise UserError(f"--repo {order.repo}{remote}: {error}{swapped}") from None


def _verl_holds_package(order: PlanRequest, policy: Policy) -> bool:
    """Whether --verl names a repository that --repo should name."""
    return order.verl is not None and policy.reach is not None and _holds(order.verl, order.verl_ref or "HEAD", policy)


def uses_of_consumer(verl: Path, verl_ref: str | None, consumer: str) -> str:
    """What verl or another consumer uses of Megatron-Bridge at a revision (HEAD), in the form of the packaged lists."""
    policy, repository = packaged_policy(), GitRepository(verl)
    assert policy.reach is not None
    policy = policy.model_copy(update={"reach": policy.reach.model_copy(update={"callers": f"{consumer}/"})})
    assert policy.reach is not None
    commit = repository.resolve(verl_ref or "HEAD")
    return uses_json(_used(uses_at(repository, commit, policy.reach, ""), f"--verl {verl}", policy, consumer), commit)


def planner_of(repository: GitRepository, order: PlanRequest, policy: Policy, *revisions: str) -> Planner:
    """The planner over a repository, with verl's own uses of it and the cache of summaries.

    OtherRepositoryError where revisions are named and none of them holds the policy's package.
    """
    if revisions:
        require_package(repository, map(repository.resolve, revisions), policy)
    today = SystemClock().now().date()
    return Planner(
        repository,
        uses_for(order, policy),
        SummaryCache(order.cache),
        today,
        partial(_commits_for, order),
        other_uses(),
        verl=packaged_uses() if order.pin else None,
    )


def _commits_for(order: PlanRequest, address: str, commits: tuple[str, ...]) -> SourceTrees:
    """Commits of Megatron-LM: of the repository that the user named or the submodule's own, else fetched and kept."""
    here = find_megatron_lm(order.repo, order.megatron_lm)
    if here is not None and (order.megatron_lm is not None or all(map(here.find, commits))):
        return here
    if order.cache is None:
        raise UserError("there is no folder to keep what is fetched; give --megatron-lm or --cache")
    try:
        return Mirrors(order.cache, "", environ=order.environment).commits("", address, commits)
    except ForgeError as error:
        raise UserError(f"{error}; or name a repository that has them by --megatron-lm") from None


def find_megatron_lm(repo: Path, named: Path | None) -> GitRepository | None:
    """Megatron-LM as the user named it, or as a clone of Bridge holds it; None where neither is there."""
    if named is not None:
        return GitRepository(named)
    places = (folder / MEGATRON_LM_FOLDER for folder in (repo, repo / ".git" / "modules", repo / "modules"))
    held = (path for path in places if (path / ".git").exists() or (path / "objects").is_dir())
    return next(map(GitRepository, held), None)


def uses_for(order: PlanRequest, policy: Policy) -> Uses:
    """A trainer's uses of the package: of the user's checkout of it, or the packaged list of verl."""
    if order.verl is None or policy.reach is None:
        return packaged_uses()
    try:
        verl = GitRepository(order.verl)
    except NotARepositoryError:
        return _used(_plain_uses(order.verl, policy.reach), f"--verl {order.verl}", policy, order.trainer)
    commit = verl.resolve(order.verl_ref or "HEAD")
    pin, whose = (order.pin, "is its pin") if order.pin else (policy.verl.commit, "the policy pins")
    other = f", and not from {pin[:12]}, which {whose} (--verl-ref)" if commit != pin else ""
    uses = uses_at(verl, commit, policy.reach, f"{order.trainer} {commit[:12]}{other}", SummaryCache(order.cache))
    reach = policy.reach

    def hint() -> str:
        # --verl may name the repository that --repo should name.
        return f". It holds {reach.package}: give it as --repo" if _verl_holds_package(order, policy) else ""

    return _used(uses, f"--verl {order.verl} at {commit[:12]}", policy, order.trainer, hint)


def _plain_uses(folder: Path, reach: ReachPolicy) -> Uses:
    """The uses of an unpacked copy without git."""
    sources = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted((folder / reach.callers).rglob("*.py"))
        if path.is_file() and not path.is_symlink()
    }
    if not sources:
        raise UserError(f"{folder}: no Python file below {reach.callers}; give a verl checkout")
    return uses_of(sources, reach.package, f"the folder {folder.name}, which is not a git checkout")


def _used(uses: Uses, named: str, policy: Policy, trainer: str, hint: Callable[[], str] = str) -> Uses:
    """The uses; UserError where there are none, for then every plan would say that nothing is required."""
    if not any(entry.module for entry in uses.entries):
        reach = policy.reach
        what = f"nothing below {reach.callers} imports {reach.package}" if reach else "it uses nothing"
        raise UserError(f"{named}: {what}, so no plan can start there; give a {trainer} checkout{hint()}")
    return uses


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
    """The policy in a file; UserError."""
    try:
        return load_policy(file.read_bytes(), str(file))
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; give a readable policy file") from None


def plan_labelled(order: PlanRequest, labels: Path) -> tuple[PlannedPull, ...]:
    """Plan every labelled change, by the policy file or by the packaged policy."""
    try:
        cases = load_labels(labels.read_bytes(), str(labels))
    except OSError as error:
        raise UserError(f"{labels}: {error.strerror}; give a readable file of labels") from None
    repository = GitRepository(order.repo)
    policy = policy_file(order.policy) if order.policy else packaged_policy()
    planner = planner_of(repository, order, policy)
    with repository_named_by(order, policy):
        outcomes = []
        for case in cases:
            try:
                outcomes.append(PlannedPull(case, planner.plan(case.base, case.head, policy).plan))
            except UnknownRevisionError as error:
                outcomes.append(PlannedPull(case, None, str(error)))
        return tuple(outcomes)


def replay(order: PlanRequest, count: int, head: str) -> Usage:
    """Plan the last first-parent commits up to a head, by the policy file or by the packaged policy."""
    repository = GitRepository(order.repo)
    policy = policy_file(order.policy) if order.policy else packaged_policy()
    with repository_named_by(order, policy):
        planner = planner_of(repository, order, policy, head)
    plans: list[Plan | None] = []
    for commit in repository.first_parents(head, count):
        try:
            plans.append(planner.plan(commit.parent, commit.sha, policy).plan)
        except OtherRepositoryError:
            # Before the package came to the repository.
            plans.append(None)
    return usage(plans)
