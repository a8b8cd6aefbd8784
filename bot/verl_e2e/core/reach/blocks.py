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
    # The errors of its body that are caught where the run goes on.
    caught: frozenset[str] = frozenset()
    # The last line that its body may have; 0 where that is not known.
    end: int = 0

    @property
    def last(self) -> int:
        """The last line of the head."""
        return max([self.line, *(getattr(part, "end_lineno", None) or 0 for part in self.head)])

    @property
    def body_lines(self) -> range:
        """The lines that its body may have; none where they are not known."""
        return range(self.last + 1, self.end + 1)


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
            excuse = typing or _conditional(node, node.body)
            body = Block((test,), node.body, test_line(test), None, excuse, typing, end=_end_of_body(node))
            return body, Block((), node.orelse, excuse=_conditional(node, node.orelse))
        case ast.For() | ast.AsyncFor():
            head = (node.target, node.iter)
            return Block(head, node.body, node.lineno, end=_end_of_body(node)), Block((), node.orelse)
        case ast.With() | ast.AsyncWith():
            caught = excuses.errors_caught(node)
            return (Block(tuple(node.items), node.body, node.lineno, caught=caught, end=node.end_lineno or 0),)
        case ast.Try() | ast.TryStar():
            body = Block((), node.body, caught=excuses.errors_caught(node))
            return body, Block((), node.orelse), Block((), node.finalbody), *map(_handler, node.handlers)
        case ast.Match():
            return Block((node.subject,), [], node.lineno), *map(_case, node.cases)
        case _:
            return ()


def _conditional(node: ast.If | ast.While, body: list[ast.stmt]) -> Excuse | None:
    return excuses.of_block(body) if isinstance(node, ast.If) else None


def _end_of_body(node: ast.If | ast.While | ast.For | ast.AsyncFor) -> int:
    return node.orelse[0].lineno - 1 if node.orelse else node.end_lineno or 0


def _handler(node: ast.ExceptHandler) -> Block:
    excuse = excuses.of_block(node.body)
    head = (node.type,) if node.type else ()
    return Block(head, node.body, node.lineno, node, excuse, excuse, end=node.end_lineno or 0)


def _case(node: ast.match_case) -> Block:
    excuse = excuses.of_block(node.body)
    head = (node.pattern, node.guard) if node.guard else (node.pattern,)
    return Block(head, node.body, node.pattern.lineno, node, excuse, excuse)
