"""Why a statement need not be executed: what does nothing, what only leads to an error, what only writes a log."""

import ast
from collections.abc import Iterator

from verl_e2e.core.model.changed_code import Excuse
from verl_e2e.core.reach.code_lines import Function
from verl_e2e.core.reach.normal import is_log_call
from verl_e2e.core.reach.syntax import dotted

_ABSTRACT = frozenset({"abstractmethod", "abstractproperty", "abstractclassmethod", "abstractstaticmethod", "overload"})
_PRINT = frozenset({"print"})
_LEAVES = ast.Return | ast.Yield | ast.YieldFrom | ast.Break | ast.Continue


def of_statement(node: ast.stmt) -> Excuse | None:
    """What excuses a statement by itself, None for one that a run must execute."""
    match node:
        case ast.Raise():
            return Excuse.ERROR_PATH
        case ast.Pass() | ast.Global() | ast.Nonlocal() | ast.Expr(value=ast.Constant()) | ast.AnnAssign(value=None):
            return Excuse.IDLE
        case ast.Expr(value=ast.Call() as call) if is_log_call(call, _PRINT):
            return Excuse.LOGGING
        case _:
            return None


def of_function(node: Function, *, in_protocol: bool) -> Excuse | None:
    """What excuses the whole body of a function, None where a run must execute it."""
    names = {dotted(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    body = [item for item in node.body if of_statement(item) is not Excuse.IDLE]
    if in_protocol or names & _ABSTRACT:
        return Excuse.ABSTRACT
    match body:
        case []:
            return Excuse.IDLE
        case [ast.Raise(exc=ast.expr() as error)] if dotted(error) == "NotImplementedError":
            return Excuse.ABSTRACT
        case [*before, ast.Raise()] if all(isinstance(item, ast.Assign) or of_statement(item) for item in before):
            return Excuse.ERROR_PATH
        case _:
            return None


def of_block(body: list[ast.stmt]) -> Excuse | None:
    """What excuses a block that is run under a condition: one that always ends with an error."""
    return Excuse.ERROR_PATH if body and _raises(body[-1]) and not any(_leaves(item) for item in body) else None


def of_test(test: ast.AST) -> Excuse | None:
    """What excuses all that is run under a condition."""
    typing = isinstance(test, ast.expr) and dotted(test).rpartition(".")[2] == "TYPE_CHECKING"
    return Excuse.TYPE_CHECKING if typing else None


def is_protocol(node: ast.ClassDef) -> bool:
    """Whether a class only says what others must have."""
    return any(dotted(base).rpartition(".")[2] == "Protocol" for base in node.bases)


def _raises(node: ast.stmt) -> bool:
    """Whether a statement always ends with an error."""
    match node:
        case ast.Raise():
            return True
        case ast.If(body=body, orelse=[*_, last]):
            return _raises(body[-1]) and _raises(last) if body else False
        case _:
            return False


def _leaves(node: ast.stmt) -> bool:
    """Whether a statement may leave its block other than by an error."""
    return any(isinstance(item, _LEAVES) for item in _own_nodes(node))


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement but for those in the functions that it defines."""
    todo = [node]
    while todo:
        here = todo.pop()
        yield here
        if not isinstance(here, Function | ast.Lambda | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(here))
