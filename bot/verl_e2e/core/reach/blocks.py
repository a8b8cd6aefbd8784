"""The blocks of compound statements: heads with the statements below them."""

import ast
from dataclasses import dataclass

from verl_e2e.core.model.changed_code import Excuse
from verl_e2e.core.reach import excuses


@dataclass(frozen=True, slots=True)
class Block:
    """Statements below one head; a head without parts does nothing."""

    # The parts of the head.
    head: tuple[ast.AST, ...]
    # The statements.
    body: list[ast.stmt]
    # The line of the head.
    line: int = 0
    # The node that stands for it where the number of blocks may differ.
    node: ast.AST | None = None
    # Why its body need not be executed.
    excuse: Excuse | None = None
    # Why its head need not.
    head_excuse: Excuse | None = None

    @property
    def last(self) -> int:
        """The last line of the head."""
        return max([self.line, *(getattr(part, "end_lineno", None) or 0 for part in self.head)])


def test_line(test: ast.expr) -> int:
    """The line on which a test begins to be evaluated; some interpreters have no instruction for what is before it."""
    match test:
        case ast.BoolOp(values=[first, *_]) | ast.UnaryOp(op=ast.Not(), operand=first):
            return test_line(first)
        case _:
            return test.lineno


def begins(node: ast.stmt) -> int:
    """The line on which a simple statement begins to be executed."""
    return test_line(node.test) if isinstance(node, ast.Assert) else node.lineno


def blocks_of(node: ast.AST) -> tuple[Block, ...]:
    """The blocks of a compound statement, none for a simple one."""
    match node:
        case ast.If(test=test) | ast.While(test=test):
            typing = excuses.of_test(test)
            body = Block((test,), node.body, test_line(test), None, typing or _conditional(node, node.body), typing)
            return body, Block((), node.orelse, excuse=_conditional(node, node.orelse))
        case ast.For() | ast.AsyncFor():
            return Block((node.target, node.iter), node.body, node.lineno), Block((), node.orelse)
        case ast.With() | ast.AsyncWith():
            return (Block(tuple(node.items), node.body, node.lineno),)
        case ast.Try() | ast.TryStar():
            fixed = (Block((), body) for body in (node.body, node.orelse, node.finalbody))
            return (*fixed, *map(_handler, node.handlers))
        case ast.Match():
            return Block((node.subject,), [], node.lineno), *map(_case, node.cases)
        case _:
            return ()


def _conditional(node: ast.If | ast.While, body: list[ast.stmt]) -> Excuse | None:
    return excuses.of_block(body) if isinstance(node, ast.If) else None


def _handler(node: ast.ExceptHandler) -> Block:
    excuse = excuses.of_block(node.body)
    return Block((node.type,) if node.type else (), node.body, node.lineno, node, excuse, excuse)


def _case(node: ast.match_case) -> Block:
    excuse = excuses.of_block(node.body)
    head = (node.pattern, node.guard) if node.guard else (node.pattern,)
    return Block(head, node.body, node.pattern.lineno, node, excuse, excuse)
