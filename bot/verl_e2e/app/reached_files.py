"""Everything that a run of a job can reach at a revision, as one digest."""

import hashlib
from collections.abc import Iterable, Iterator

from verl_e2e.app.plan_change import Planner
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.reach.program import module_name
from verl_e2e.core.reach.standins import is_among
from verl_e2e.ports import SourceTrees


def reach_digest(trees: SourceTrees, revision: str, policy: Policy, job: Job, planner: Planner) -> str:
    """SHA-256 over every file, with its content's id, that a run of the job can reach at a revision.

    Of source files those that verl's entries import, of others all that the policy does not set aside or that lie
    among the sources, and the tests that the job runs. Empty where reach is not known: an imported file could not be
    read, or a link lies among the sources.
    """
    links = trees.links(revision)
    files = {**trees.tree(revision), **links}
    imported = _imported(revision, policy, planner)
    roots = policy.reach.roots if policy.reach is not None else ()
    if imported is None or any(is_among(link, roots) for link in links):
        return ""
    reached = sorted(_reached(files, policy, job, imported))
    return hashlib.sha256(
        "\0".join(f"{path}\0{files[path]}" for path in reached).encode("utf-8", "replace")
    ).hexdigest()


def _imported(revision: str, policy: Policy, planner: Planner) -> frozenset[str] | None:
    if policy.reach is None:
        return frozenset()
    tree = planner.tree(revision, policy)
    return None if tree.unread else frozenset(tree.reach.imported)


def _reached(files: Iterable[str], policy: Policy, job: Job, imported: frozenset[str]) -> Iterator[str]:
    roots = policy.reach.roots if policy.reach is not None else ()
    tests = {test.partition("::")[0] for test in job.bridge_tests}
    for path in files:
        name = module_name(path, roots) if roots else None
        if name is not None:
            counts = name in imported
        else:
            aside = not is_among(path, roots) and any(
                not exemption.unless_reached and exemption.paths.match(path) for exemption in policy.exempt
            )
            counts = not aside or path in tests or path.endswith("/conftest.py")
        if counts:
            yield path
