"""Whether a repository is the one that a policy is for: known by the package under test, never by its name."""

from collections.abc import Iterable

from verl_e2e.core.model.errors import UserError
from verl_e2e.core.plan.policy import Policy, ReachPolicy
from verl_e2e.ports import SourceTrees


class OtherRepositoryError(UserError):
    """None of the commits holds the policy's package, so nothing that a plan says of them would mean anything."""

    def __init__(self, reach: ReachPolicy, revisions: tuple[str, ...], source: str) -> None:
        roots = " or ".join(reach.roots)
        commits = " or ".join(dict.fromkeys(revision[:12] for revision in revisions))
        super().__init__(
            f"this is not the repository that the policy ({source}) is for: "
            f"there is no package {reach.package} below {roots} at {commits}; "
            f"use the repository that has it, or a policy whose reach.package and reach.roots name this one's"
        )


def require_package(trees: SourceTrees, revisions: Iterable[str], policy: Policy) -> None:
    """OtherRepositoryError unless one of the revisions holds the package whose use the policy follows.

    A fork, a renamed checkout and a bare directory are known by it; a policy that follows no package says nothing.
    """
    named = tuple(revisions)
    if policy.reach is not None and not any(holds_package(trees, revision, policy.reach) for revision in named):
        raise OtherRepositoryError(policy.reach, named, policy.source)


def holds_package(trees: SourceTrees, revision: str, reach: ReachPolicy) -> bool:
    """Whether a commit holds the package below one of its import roots, as a folder or as one file."""
    inner = reach.package.replace(".", "/")
    places = [f"{root.rstrip('/')}/{inner}".lstrip("/") for root in reach.roots]
    return any(
        path.endswith(".py")
        for place in places
        for name in (place, f"{place}.py")
        for path in trees.tree(revision, name)
        if path == f"{place}.py" or path.startswith(f"{place}/")
    )
