"""What a commit of verl uses of the package: read once, then kept by the commit."""

import hashlib

from verl_e2e.core.plan.policy import ReachPolicy
from verl_e2e.core.reach.entries import USES_VERSION, Uses, uses_of
from verl_e2e.core.reach.program import SUMMARY_VERSION
from verl_e2e.ports import SourceTrees, UsesStore


def uses_at(
    repository: SourceTrees, commit: str, reach: ReachPolicy, source: str, store: UsesStore | None = None
) -> Uses:
    """What verl uses of the package at a commit, given in full; `source` tells people which verl that is.

    `store` keeps what was read of it, unless a content was not there: a partial clone may have it the next time.
    """
    key = _key(commit, reach, source)
    known = store.load(key) if store is not None else None
    if known is not None:
        return known
    tree = {path: blob for path, blob in repository.tree(commit, reach.callers).items() if path.endswith(".py")}
    contents = repository.read_objects(list(tree.values()))
    sources = {path: content for path, blob in tree.items() if (content := contents[blob]) is not None}
    uses = uses_of(sources, reach.package, source)
    if store is not None and len(sources) == len(tree):
        store.save(key, uses)
    return uses


def _key(commit: str, reach: ReachPolicy, source: str) -> str:
    """All that the answer depends on, as one digest."""
    parts = (str(USES_VERSION), str(SUMMARY_VERSION), commit, reach.package, reach.callers, source)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
