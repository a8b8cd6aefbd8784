"""What two versions of a file share, and that comparing them leaves both trees as they are."""

import ast

import pytest

from verl_e2e.core.reach.changes import compare
from verl_e2e.core.reach.program import parse_to_read
from verl_e2e.core.reach.settled import settled_in

OLD = b"""import os

LOG = getLogger(__name__)


def same(x):
    'A docstring.'
    try:
        return [item for item in x if item]
    except KeyError:
        pass


class Kind:
    'Another.'

    class Inner:
        table = {'a': [1, 2], 'b': f(u'x', a=1, b=2, c=3)}

    def method(self):
        LOG.info('text')
        return {'a': [self.x]}

    def other(self):
        return 1
"""
NEW = OLD.replace(b"return 1", b"return [1, {'a': g(a=1, b=2, c=3)}]").replace(b"import os\n", b"import os\n\n\n")


def test_definitions_that_read_the_same_are_settled_wherever_their_lines_are() -> None:
    before, after = ast.parse(OLD), ast.parse(NEW)
    settled = settled_in(before, OLD, after, NEW)
    names = sorted(getattr(node, "name", "") for node in settled.definitions)
    assert names == ["Inner", "method", "same"]
    assert len(settled.tokens) == 6
    outside = {id(node) for node in settled.outside(before)}
    assert outside | {id(node) for node in settled.nodes} == {
        id(node) for node in ast.walk(before) if not isinstance(node, ast.expr_context)
    }
    assert not outside & {id(node) for node in settled.nodes}


@pytest.mark.parametrize(
    "new",
    (
        NEW,
        OLD.replace(b"'text'", b"'other'"),
        OLD.replace(b"[1, 2]", b"[1, 3]"),
        OLD.replace(b"    class Inner", b"    size = 3\n\n    class Inner"),
        b"",
    ),
)
def test_a_comparison_changes_no_tree_that_others_read(new: bytes) -> None:
    shown = [ast.dump(tree, include_attributes=True) for tree in map(ast.parse, (OLD, new))]
    first = compare(OLD, new)
    trees = [parse_to_read(text) for text in (OLD, new)]
    assert [ast.dump(tree, include_attributes=True) for tree in trees if isinstance(tree, ast.Module)] == shown
    assert compare(OLD, new) == first
