"""What one version of a file has alone: marks for a statement that came, and for the place of one that is gone."""

import ast
from collections.abc import Iterable, Iterator

from verl_e2e.core.model.changed_code import Excuse
from verl_e2e.core.reach.blocks import Block, begins, blocks_of
from verl_e2e.core.reach.code_lines import first_line
from verl_e2e.core.reach.marks import Scope
from verl_e2e.core.reach.nodes import walk

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class UnnamedHead(ast.Pass):
    """The head of a block that no node stands for."""


def lambdas_of(part: object) -> Iterator[ast.Lambda]:
    """The lambdas in a part of a statement, without those in functions that it defines."""
    if isinstance(part, ast.AST):
        for node in walk(part):
            if isinstance(node, ast.Lambda):
                yield node


def matters(node: ast.stmt, scope: Scope) -> bool:
    """Whether a run differs without a statement: an error that does not come any more counts."""
    return isinstance(node, ast.Raise) or (scope.excuse is None and scope.excuse_of(node) is None)


def mark_place(node: ast.AST, scope: Scope) -> None:
    """Demand what a statement begins with, unless it is an error that no run executes."""
    blocks = blocks_of(node)
    if isinstance(node, ast.Raise):
        return
    if isinstance(node, ast.Try | ast.TryStar) and node.body:
        mark_place(node.body[0], scope)
    elif blocks:
        scope.mark(blocks[0].line, ast.Pass(), None, whole=False, first=blocks[0].line, last=blocks[0].last)
    else:
        assert isinstance(node, ast.stmt)
        simple = not isinstance(node, Definition)
        line = begins(node) if simple else first_line(node)
        last = node.end_lineno if simple and node.end_lineno else line
        scope.mark(line, ast.Pass(), None, whole=False, first=line, last=last)


def mark_whole(node: ast.AST | None, scope: Scope) -> None:
    """All of a statement that the other version does not have."""
    assert isinstance(node, ast.stmt)
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            if scope.owner.node is not None:
                line = first_line(node)
                scope.mark(line, node, None, whole=True, first=line, last=line)
            _mark_lambdas([node.args, *node.decorator_list], scope, None)
            inner = scope.function(node, whole=True)
            for item in node.body:
                mark_whole(item, inner)
        case ast.ClassDef():
            line = first_line(node)
            scope.mark(line, node, None, whole=True, first=line, last=node.lineno)
            for item in node.body:
                mark_whole(item, scope.of_class(node))
        case _ if blocks := blocks_of(node):
            for block in blocks:
                mark_block(block, scope)
        case _:
            line, excuse = begins(node), scope.excuse_of(node)
            scope.mark(line, node, excuse, whole=True, first=line)
            _mark_lambdas([node], scope, excuse)


def mark_block(block: Block, scope: Scope) -> None:
    """All of a block that the other version does not have."""
    if block.head or block.node is not None:
        excuse = scope.head_excuse_of(block)
        scope.mark(block.line, block.node or UnnamedHead(), excuse, whole=True, first=block.line, last=block.last)
        _mark_lambdas(block.head, scope, excuse)
    for item in block.body:
        mark_whole(item, scope.inside(block))


def _mark_lambdas(parts: Iterable[ast.AST], scope: Scope, excuse: Excuse | None) -> None:
    """The lambdas of a statement that the other version does not have."""
    for part in parts:
        for node in lambdas_of(part):
            inner = scope.of_lambda(node, excuse, whole=True)
            inner.mark(node.body.lineno, node, inner.excuse, whole=True, first=node.lineno)
