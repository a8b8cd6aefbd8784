"""Read which files of a head its jobs can reach."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.plan.reached_files import (
    NOT_KNOWN,
    FilesOfTree,
    ReachedFiles,
    digest_of,
)
from verl_e2e.core.plan.read_by_tests import UnreadTestError, read_by_tests
from verl_e2e.core.reach.standins import is_among
from verl_e2e.core.reach.summary import Summary
from verl_e2e.ports import SourceTrees, SummaryStore

Summaries = Callable[[set[str]], Mapping[str, Summary]]

# The files of requirements, whose entries are compared. The first one has the settings of pytest too.
REQUIREMENTS = ("pyproject.toml", "uv.lock")

# Raise it whenever the same tree would give another answer: kept ones are then made again.
_VERSION = 4


def reached_files(
    trees: SourceTrees,
    revision: str,
    policy: Policy,
    imported: Iterable[str],
    tests: Iterable[str],
    summaries: Summaries,
    is_set_aside: Callable[[str], bool],
    kept: SummaryStore,
) -> ReachedFiles:
    """What jobs can read at a revision where verl's entries import the files `imported`; `tests` by node id.

    Not known where a link lies among the sources: it may lead anywhere. `summaries` are of sources, by blob;
    `is_set_aside` says of a path whether the policy sets it aside. A tree that was asked for before is answered from
    what was kept.
    """
    plain, links = trees.tree(revision), trees.links(revision)
    sources, test_files = frozenset(imported), frozenset(test.partition("::")[0] for test in tests)
    depends_on = (_VERSION, _read_of_policy(policy), sorted(plain.items()), sorted(links.items()), sorted(sources))
    text = json.dumps([*depends_on, sorted(test_files)])
    key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    found = kept.load_reached(key)
    if found is None:
        tree = FilesOfTree((*plain, *links), policy, is_set_aside)
        found = _reached(tree, (plain, links), policy, sources, test_files, summaries)
        kept.save_reached(key, found)
    return found


def _read_of_policy(policy: Policy) -> list[object]:
    aside = [
        [exemption.unless_reached, [[pattern.pattern, wanted] for pattern, wanted in exemption.paths.steps]]
        for exemption in policy.exempt
    ]
    reach = policy.reach
    return [aside, [reach.package, reach.roots, bool(reach.dependencies)] if reach is not None else []]


def _reached(
    tree: FilesOfTree,
    listed: tuple[Mapping[str, str], Mapping[str, str]],
    policy: Policy,
    sources: frozenset[str],
    tests: frozenset[str],
    summaries: Summaries,
) -> ReachedFiles:
    plain, links = listed
    files = {**plain, **links}
    roots = policy.reach.roots if policy.reach is not None else ()
    if any(is_among(link, roots) for link in links):
        return NOT_KNOWN
    read = _summaries_of(sources, files, summaries)
    named = {name for summary in read for name in summary.files}
    by_run = tree.read_by_run(sources, named)
    found = ReachedFiles(digest_of(files, by_run), sources=sources, roots=roots)
    tops = tuple(f"{test.partition('/')[0]}/" for test in tests)
    among_tests = any(is_among(link, tops) for link in links)
    by_tests = None if not tests or among_tests else _by_tests(tests, plain, roots, summaries)
    if by_tests is None:
        return found
    read = _summaries_of(by_tests - sources, files, summaries)
    named.update(name for summary in read for name in summary.files)
    by_both = tree.read_by_run(sources, named) | by_tests
    below = frozenset(path for path in by_tests if path.startswith(roots)) if roots else frozenset()
    return replace(found, with_tests=digest_of(files, by_both), sources=sources | below)


def _summaries_of(sources: Iterable[str], files: Mapping[str, str], summaries: Summaries) -> list[Summary]:
    return [*summaries({files[path] for path in sources if path.endswith(".py")}).values()]


def _by_tests(
    tests: frozenset[str],
    files: Mapping[str, str],
    roots: tuple[str, ...],
    summaries: Summaries,
) -> frozenset[str] | None:
    """What tests can read, None where that is not known."""

    def load(paths: frozenset[str]) -> Mapping[str, Summary]:
        found = summaries({files[path] for path in paths})
        return {path: found[files[path]] for path in sorted(paths)}

    try:
        return read_by_tests(tests, files, roots, load)
    except UnreadTestError:
        return None
