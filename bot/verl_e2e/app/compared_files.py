"""Compare the two versions of changed files, each pair of contents once: the next push changes few of them again."""

import hashlib
from collections.abc import Callable, Collection

from verl_e2e.core.reach.changes import FileDifference, compare
from verl_e2e.ports import SummaryStore

# Two versions of a file; None stands for one that does not exist.
Contents = tuple[bytes | None, bytes | None]


def compared_files(
    pairs: Collection[Contents], store: SummaryStore
) -> Callable[[bytes | None, bytes | None], FileDifference]:
    """`compare` for these pairs, answered from what was kept where it can be."""
    keys = {pair: _key(pair) for pair in pairs}
    found = dict(store.load_differences(set(keys.values())))
    made = {key: compare(*pair) for pair, key in keys.items() if key not in found}
    # Why two versions could not be compared may be how deep the program was nested just then.
    store.save_differences({key: difference for key, difference in made.items() if not difference.problem})
    found |= made
    return lambda old, new: found[keys[old, new]]


def _key(pair: Contents) -> str:
    """Both contents as one digest."""
    parts = ("" if content is None else hashlib.sha256(content).hexdigest() for content in pair)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
