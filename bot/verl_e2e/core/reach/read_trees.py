"""Syntax trees that are only read: several questions about one content in a row share its tree."""

import ast
from collections import OrderedDict

from verl_e2e.core.reach.summary import parse

# The contents whose trees are kept, together; a tree takes about thirty times as much memory.
_MOST_BYTES = 2 << 20


class ReadTrees:
    """The trees of the contents that were asked for last, so many bytes of them; no one may change a tree."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most = most_bytes
        self._trees: OrderedDict[bytes, ast.Module | str] = OrderedDict()
        self._bytes = 0

    def get(self, source: bytes) -> ast.Module | str:
        """What `parse` says of a content."""
        found = self._trees.pop(source, None)
        if found is None:
            found = parse(source)
            self._bytes += len(source)
        self._trees[source] = found
        while self._bytes > self._most:
            gone, _ = self._trees.popitem(last=False)
            self._bytes -= len(gone)
        return found


parse_to_read = ReadTrees().get
