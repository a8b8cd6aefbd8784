"""Why a statement need not be executed: what does nothing, what only leads to an error, what only writes a log.

An error that is caught where the run goes on is not an error path, and a log call whose arguments do something more
than read is not only a log call.
"""

import ast
import builtins
from collections.abc import Iterable, Iterator

from verl_e2e.core.model.changed_code import Excuse
from verl_e2e.core.reach.code_lines import Function
from verl_e2e.core.reach.nodes import own_nodes, walk
from verl_e2e.core.reach.normal import is_log_call
from verl_e2e.core.reach.syntax import dotted

_ABSTRACT = frozenset({"abstractmethod", "abstractproperty", "abstractclassmethod", "abstractstaticmethod"})
_PRINT = frozenset({"print"})
_LEAVES = ast.Return | ast.Yield | ast.YieldFrom | ast.Break | ast.Continue
_DOES_SOMETHING = (
    ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr | ast.Starred
    # They go through what may be an iterator, which is then at its end.
    | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
)  # fmt: skip
_READING = frozenset(
    {"abs", "bool", "float", "format", "hex", "id", "int", "isinstance", "len", "repr", "round", "str", "type"}
    | {"dim", "get", "get_rank", "get_world_size", "items", "keys", "lower", "numel", "size", "upper", "values"}
    | {"getpid", "perf_counter", "time"}
)
# Python itself, or a loop, catches them and goes on.
_CONTROL = frozenset({"StopIteration", "StopAsyncIteration", "GeneratorExit", "SystemExit"})
_ASKED_BY_PYTHON = ("__getattr__", "__getattribute__", "__getitem__", "__missing__", "__next__", "__anext__")


_CATCHING = ast.Try | ast.TryStar | ast.With | ast.AsyncWith


def of_statement(node: ast.stmt) -> Excuse | None:
    """What excuses a statement by itself, None for one that a run must execute."""
    match node:
        case ast.Raise():
            return Excuse.ERROR_PATH
        case ast.Pass() | ast.Global() | ast.Nonlocal() | ast.Expr(value=ast.Constant()) | ast.AnnAssign(value=None):
            return Excuse.IDLE
        case ast.Expr(value=ast.Call() as call) if is_log_call(call, _PRINT) and _arguments_do_nothing(call):
            return Excuse.LOGGING
        case _:
            return None


def _arguments_do_nothing(call: ast.Call) -> bool:
    """Whether building a message only reads."""
    return all(_only_reads(part) for argument in (*call.args, *call.keywords) for part in walk(argument))


def _only_reads(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
        return name in _READING
    return not isinstance(node, _DOES_SOMETHING)


def of_function(node: Function, *, in_protocol: bool) -> Excuse | None:
    """What excuses the whole body of a function, None where a run must execute it."""
    names = {dotted(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    body = [item for item in node.body if of_statement(item) is not Excuse.IDLE]
    match body:
        case _ if "overload" in names:
            return Excuse.ABSTRACT
        case []:
            return Excuse.ABSTRACT if in_protocol or names & _ABSTRACT else Excuse.IDLE
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
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(value=ast.Name(), attr="TYPE_CHECKING"):
            return Excuse.TYPE_CHECKING
        case _:
            return None


def is_protocol(node: ast.ClassDef) -> bool:
    """Whether a class only says what others must have."""
    return any(dotted(base).rpartition(".")[2] == "Protocol" for base in node.bases)


def may_go_on(nodes: Iterable[ast.AST], here: frozenset[str], elsewhere: frozenset[str]) -> bool:
    """Whether an error that statements raise may be caught where the run goes on.

    `here` are the errors that are caught around them, `elsewhere` the file's own ones that another place of it catches.
    """
    raised = (item for node in nodes for item in own_nodes(node) if isinstance(item, ast.Raise))
    return any(_may_go_on(_last_name(item.exc), here, elsewhere) for item in raised)


def _may_go_on(name: str, here: frozenset[str], elsewhere: frozenset[str]) -> bool:
    if name in _CONTROL or name in elsewhere:
        return True
    return any(_may_be(name, caught) for caught in here)


def _may_be(name: str, caught: str) -> bool:
    """Whether an error of one name may be of the class of another; an empty name is an error that is not known."""
    error, other = (getattr(builtins, text, None) for text in (name, caught))
    if caught in {"Exception", "BaseException"} or not name or name == caught:
        return True
    if isinstance(error, type):
        return isinstance(other, type) and issubclass(error, other)
    return True


def errors_caught(node: ast.AST) -> frozenset[str]:
    """The errors after which a `try` or a `with suppress(...)` lets the run go on."""
    match node:
        case ast.Try(handlers=handlers) | ast.TryStar(handlers=handlers):
            going_on = [handler for handler in handlers if of_block(handler.body) is None]
            return frozenset(name for handler in going_on for name in _names(handler.type))
        case ast.With(items=items) | ast.AsyncWith(items=items):
            calls = [item.context_expr for item in items if isinstance(item.context_expr, ast.Call)]
            suppressing = [call for call in calls if dotted(call).rpartition(".")[2] == "suppress"]
            return frozenset(name for call in suppressing for item in call.args for name in _names(item))
        case _:
            return frozenset()


def catching(nodes: Iterable[ast.AST]) -> list[ast.AST]:
    """The statements among some nodes that may catch an error."""
    return [node for node in nodes if isinstance(node, _CATCHING)]


def own_errors_caught(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """The errors that are not Python's own and that some statement of a file catches and goes on."""
    found = frozenset[str]().union(*map(errors_caught, nodes))
    return frozenset(name for name in found if not hasattr(builtins, name))


def caught_by_callers(nodes: Iterable[ast.AST]) -> dict[str, frozenset[str]]:
    """By the name of a function: the errors after which a caller in the file, or Python for some methods, goes on.

    `nodes` are the statements of the file that may catch an error.
    """
    found = dict.fromkeys(_ASKED_BY_PYTHON, frozenset({"BaseException"}))
    for node in nodes:
        caught = errors_caught(node)
        body = getattr(node, "body", ()) if caught else ()
        for call in (item for statement in body for item in own_nodes(statement) if isinstance(item, ast.Call)):
            name = _last_name(call.func)
            found[name] = found.get(name, frozenset()) | caught
    return found


def _names(node: ast.expr | None) -> Iterator[str]:
    if isinstance(node, ast.Tuple):
        for item in node.elts:
            yield from _names(item)
    else:
        yield (_last_name(node) if node is not None else "") or "BaseException"


def _last_name(node: ast.expr | None) -> str:
    return "" if node is None else dotted(node).rpartition(".")[2]


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
    return any(isinstance(item, _LEAVES) for item in own_nodes(node))
