"""Numbers for the parts of syntax trees: equal for parts that are equal but for positions, each part read once."""

import ast
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from verl_e2e.core.reach.normal import Frozen, freeze

# More pairs of statements than this are not put in order: the time for that grows with the pairs.
_MOST_PAIRS = 1_000_000

Pair = tuple[ast.AST | None, ast.AST | None]


class TreeNumbers:
    """Numbers for the trees of both versions; they must stay as they are while it is in use.

    `tokens` stand for the whole of the nodes whose `id` they are kept by.
    """

    def __init__(self, tokens: Mapping[int, Frozen]) -> None:
        self._tokens = tokens
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, int] = {}

    def of(self, part: object) -> int:
        """The number of a node, of a list of nodes or of a plain value."""
        if isinstance(part, list):
            return self._number(("list", *map(self.of, part)))
        if not isinstance(part, ast.AST):
            return self._number((type(part), part))
        known = self._known.get(id(part))
        if known is None:
            known = self._known[id(part)] = self._number(self._content(part))
        return known

    def _number(self, content: Hashable) -> int:
        return self._numbers.setdefault(content, len(self._numbers))

    def _content(self, node: ast.AST) -> Hashable:
        if id(node) in self._tokens:
            return self._tokens[id(node)]
        if isinstance(node, ast.Constant):
            return freeze(node)
        return (type(node), *(self.of(getattr(node, name, None)) for name in node._fields))

    def paired(
        self, old: Sequence[ast.AST], new: Sequence[ast.AST], keys: Sequence[Callable[[ast.AST], Hashable]]
    ) -> Iterator[Pair]:
        """Each node with its counterpart on the other side, whatever the order: the first key that is equal decides."""
        left, came = list(old), list(new)
        for key in (self.of, *keys):
            waiting: dict[Hashable, deque[ast.AST]] = {}
            for node in left:
                waiting.setdefault(key(node), deque()).append(node)
            rest = []
            for node in came:
                same = waiting.get(key(node))
                if same:
                    yield same.popleft(), node
                else:
                    rest.append(node)
            alone = {id(node) for nodes in waiting.values() for node in nodes}
            left, came = [node for node in left if id(node) in alone], rest
        yield from ((node, None) for node in left)
        yield from ((None, node) for node in came)

    def aligned(
        self, old: Sequence[ast.AST], new: Sequence[ast.AST], keys: Sequence[Callable[[ast.AST], Hashable]]
    ) -> Iterator[Pair]:
        """The same in the order of both: what is equal on both sides but in another order has no counterpart."""
        ours, theirs = list(map(self.of, old)), list(map(self.of, new))
        if len(ours) * len(theirs) > _MOST_PAIRS:
            yield from self.paired(old, new, keys)
            return
        for kind, begin, end, at, until in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
            if kind == "equal":
                yield from zip(old[begin:end], new[at:until], strict=True)
            else:
                yield from self.paired(old[begin:end], new[at:until], keys)
