"""Walking trees in the order of the standard library."""

import ast

import pytest

from verl_e2e.core.reach.syntax import children, copied, stored_names, walk

SOURCES = (
    "",
    "import a.b as c\nfrom . import d\n@e\nclass F(G, h=1):\n    x: int = 1\n    def m(s, *a, k=2, **b) -> int: ...\n",
    "match a:\n    case {'b': c, **rest} if d: pass\n    case [1, *e]: ...\ntry: f()\nexcept* G as g: raise\n",
    "lambda x=1: [y for y in x if y]\nf'{a!r:>{b}}'\nasync def f():\n    async with a as b: await c\n",
    "global a, b\na.b[c:d] += -e if f else not g\ndel h.i, j[0]\nfor k, l in m.n: (o := p)\n",
)


@pytest.mark.parametrize("source", SOURCES)
def test_a_walk_meets_the_nodes_of_the_standard_one_in_its_order(source: str) -> None:
    tree = ast.parse(source)
    assert walk(tree) == [node for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]
    for node in ast.walk(tree):
        inner = [item for item in ast.iter_child_nodes(node) if not isinstance(item, ast.expr_context)]
        assert children(node) == inner


@pytest.mark.parametrize("source", SOURCES)
def test_a_copy_is_equal_in_every_field_and_shares_no_node(source: str) -> None:
    tree = ast.parse(source)
    copy = copied(tree)
    assert ast.dump(copy, include_attributes=True) == ast.dump(tree, include_attributes=True)
    assert not {id(node) for node in walk(copy)} & {id(node) for node in walk(tree)}


@pytest.mark.parametrize("source", SOURCES)
def test_the_stored_names_are_those_of_assignments_and_of_caught_errors(source: str) -> None:
    tree = ast.parse(source)
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    caught = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    assert stored_names(tree) == stored | caught
